"""Vector environments as a configuration asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from policies.config import AlgorithmConfig
from policies.env_state import replay_check
from policies.envs import resolve
from policies.vector_envs import ResetSeed, VectorEnv, make_vector_env


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
    """Makes one environment on the machine that submits, steps it, and looks at its spaces.

    Raises:
        ConfigError: The name, the arguments or the spaces are wrong.
        RunError: The environment's constructor, reset or step failed.
    """
    env = vector_env_for(config, 1, lambda env, episode: episode, 0)
    try:
        kept = env.has_state
        spaces = env.observation_space, env.action_space
    finally:
        env.close()
    if kept and not uses_native_env(config):
        kept = replay_check(config.env, config.env_config)
    if kept:
        return EnvFacts(*spaces, "kept")
    return EnvFacts(
        *spaces,
        "reset",
        (
            f"environment {config.env!r} gave other observations for the same seed and actions: "
            "each round starts new episodes (env_state=reset); "
            "get_state() and set_state() on the environment avoid this",
        ),
    )
