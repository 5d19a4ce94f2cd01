"""Vector environments as a configuration asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from policies.config import AlgorithmConfig
from policies.envs import resolve
from policies.errors import RunError
from policies.spaces import stack
from policies.vector_envs import ResetSeed, StepResult, VectorEnv, make_vector_env

_CHECKED_ENVS = 2
_CHECKED_STEPS = 32


def uses_native_env(config: AlgorithmConfig) -> bool:
    """Whether the environment's own vector form is used: registered, wanted, and not isolated.

    A horizon needs our own, since a native environment cannot be told to reset one of its parts.
    """
    return (
        config.native_vector_env
        and config.env_isolation == "none"
        and config.horizon is None
        and resolve(config.env).has_native
    )


def vector_env_for(
    config: AlgorithmConfig, num_envs: int, reset_seed: ResetSeed, shard_seed: int
) -> VectorEnv:
    """Builds the configuration's environment `num_envs` times; raises as `make_vector_env`."""
    return make_vector_env(
        config.env,
        config.env_config,
        num_envs,
        reset_seed=reset_seed,
        shard_seed=shard_seed,
        isolation=config.env_isolation,
        native=uses_native_env(config),
        horizon=config.horizon,
        env_timeout_s=config.env_timeout_s,
        max_restarts=config.max_env_restarts,
    )


@dataclass(frozen=True)
class EnvFacts:
    """What one look at an environment tells, before anything is trained.

    Attributes:
        observation_space: Of one environment.
        action_space: Of one environment.
        env_state: `kept`: its state is carried from round to round; `reset`: it cannot be restored
            exactly, so each round starts fresh episodes.
        warnings: Lines for the user.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    env_state: str
    warnings: tuple[str, ...] = ()


def check_env(config: AlgorithmConfig) -> EnvFacts:
    """Makes the environment on the machine that submits, plays some steps, looks at its spaces.

    Raises:
        ConfigError: The name, the arguments or the spaces are wrong.
        RunError: The environment's constructor, reset or step failed.
    """
    env = vector_env_for(config, _CHECKED_ENVS, _seed_of, 0)
    try:
        spaces = env.observation_space, env.action_space
        reason = _why_not_kept(config, env)
    finally:
        env.close()
    if reason is None:
        return EnvFacts(*spaces, "kept")
    warning = (
        f"environment {config.env!r} {reason}: each round starts new episodes (env_state=reset); "
        "get_state() and set_state() on the environment avoid this"
    )
    return EnvFacts(*spaces, "reset", (warning,))


def _why_not_kept(config: AlgorithmConfig, used: VectorEnv) -> str | None:
    """Why an environment cannot be restored exactly; None if it can.

    A used instance is saved in the middle of a second episode. A fresh one has to go on from there
    as the used one does.
    """
    actions = _random_actions(used.action_space, 3 * _CHECKED_STEPS)
    for start in (0, _CHECKED_STEPS):
        used.reset()
        for action in actions[start : start + _CHECKED_STEPS]:
            used.step(action)
    if not used.has_state:
        return "cannot be saved"
    state = used.get_state()
    expected = [_bits(used.step(action)) for action in actions[2 * _CHECKED_STEPS :]]
    fresh = vector_env_for(config, _CHECKED_ENVS, _seed_of, 1)
    try:
        fresh.set_state(state)
        found = [_bits(fresh.step(action)) for action in actions[2 * _CHECKED_STEPS :]]
    except RunError as error:
        return f"could not be restored ({error})"
    finally:
        fresh.close()
    return None if found == expected else "went on differently after it was saved and restored"


def _seed_of(env: int, episode: int) -> int:
    return _CHECKED_ENVS * episode + env


def _random_actions(space: gym.Space[Any], count: int) -> list[Any]:
    """Batches of actions for the checked environments."""
    space.seed(0)
    return [stack(space, [space.sample() for _ in range(_CHECKED_ENVS)]) for _ in range(count)]


def _bits(result: StepResult) -> list[bytes]:
    """Everything that a step returned, to compare."""
    structs = [result.obs, result.rewards, result.terminateds, result.truncateds, result.valid]
    return [leaf.tobytes() for struct in structs for leaf in _leaves(struct)]


def _leaves(struct: Any) -> list[np.ndarray]:
    if isinstance(struct, dict):
        return [leaf for key in sorted(struct) for leaf in _leaves(struct[key])]
    if isinstance(struct, tuple):
        return [leaf for part in struct for leaf in _leaves(part)]
    return [np.asarray(struct)]
