"""Vector environments: what one step gives, what every implementation offers, and the factory.

There are two families. Ours (`SyncVectorEnv`, `ProcessVectorEnv`) step single environments, reset
an ended one at once with a seed of its own, and can leave some alone. `GymVectorEnv` wraps an
environment that gymnasium vectorises itself ("native"), which keeps its own autoreset mode and
takes one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from policies.envs import EnvRef
from policies.errors import ConfigError

Struct = Any
"""A numpy array with leading axis n, or a dict or tuple of structs."""

ResetSeed = Callable[[int, int], int]
"""(environment index, number of its episode, from 0) to the seed of that episode's reset."""


class StepResult(NamedTuple):
    """One step of n environments.

    Every array belongs to the caller: a later step does not change it. (`final_obs` may be the
    same object as `obs`.)

    Attributes:
        obs: Observations to act on next: where an episode ended, the first of the next episode,
            or, under NEXT_STEP autoreset, still the last of the ended one.
        rewards: float64 [n]; 0 where not valid.
        terminateds: bool [n], the environment ended the episode; False where not valid.
        truncateds: bool [n], a time limit or horizon cut it; may be True beside `terminateds`.
        valid: bool [n]. False where no transition was made: a NEXT_STEP environment used the step
            to reset, the environment failed, or it was left alone.
        final_obs: The true last observations at the rows where an episode ended (other rows are
            unspecified); None only if none ended.
        failed: (index, one-line error) of environments that failed in this step and were started
            again. Their unfinished episode, including this step, is to be dropped; `obs` holds the
            first observation of a new one.
        reset_failed: the same for failures in a reset since the last step: after an episode had
            ended properly, after a restart, in `reset` or in `reset_envs`. No row is lost to them.
    """

    obs: Struct
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    valid: np.ndarray
    final_obs: Struct = None
    failed: Sequence[tuple[int, str]] = ()
    reset_failed: Sequence[tuple[int, str]] = ()


class VectorEnv(Protocol):
    """n environments stepped together.

    Attributes:
        name: The environment's name, for messages.
        num_envs: n.
        observation_space: Of one environment.
        action_space: Of one environment.
        can_skip: Whether `step` can leave environments alone and `reset_envs` works.
        has_state: Whether `get_state` and `set_state` work.
        episodes: int64 [n], numbers of the running episodes, which are those that seeds are made
            of; None where episodes have no seeds of their own.

    Example:
        >>> env = make_vector_env("CartPole-v1", {}, 2, reset_seed=lambda env, episode: episode)
        >>> obs = env.reset()
        >>> env.step(np.array([0, 1])).rewards
        array([1., 1.])
    """

    name: str
    num_envs: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    can_skip: bool
    has_state: bool

    @property
    def episodes(self) -> np.ndarray | None: ...

    def reset(self, episodes: np.ndarray | None = None) -> Struct:
        """Starts an episode everywhere.

        Args:
            episodes: int64 [n], the numbers of these episodes; by default the next ones.

        Returns:
            The first observations.
        """
        ...

    def reset_envs(self, mask: np.ndarray) -> Struct:
        """Starts the next episode where `mask` (bool [n]) is True; returns all observations."""
        ...

    def step(self, actions: Struct, active: np.ndarray | None = None) -> StepResult:
        """Makes one step.

        Args:
            actions: What the environments take, with leading axis n.
            active: bool [n]; the others make no transition. Where `can_skip` is False they are
                stepped all the same, with `valid` False.

        Raises:
            RunError: An environment broke its contract, or failed too often.
        """
        ...

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything that a fresh instance needs to go on, to the bit, as named arrays."""
        ...

    def set_state(self, state: Mapping[str, np.ndarray]) -> Struct:
        """Goes on from where `get_state` was called; returns the observations to act on.

        Raises:
            RunError: The state is damaged or of other environments, or a replay differed.
        """
        ...

    def close(self) -> None:
        """Releases the environments; may be called twice."""
        ...


def make_vector_env(
    name: EnvRef,
    env_config: Mapping[str, Any],
    num_envs: int,
    *,
    reset_seed: ResetSeed,
    shard_seed: int = 0,
    isolation: str = "none",
    native: bool = False,
    horizon: int | None = None,
    env_timeout_s: float | None = None,
    max_restarts: int = 3,
) -> VectorEnv:
    """Builds a vector environment.

    Args:
        name: A registered id, an import path, a class or a callable; see `policies.envs.resolve`.
        env_config: Arguments of the environment.
        num_envs: How many.
        reset_seed: Seed of each (environment, episode); not used by native ones.
        shard_seed: The one seed of a native vector environment.
        isolation: `none`: in this process; `process`: each environment in a process of its own,
            which is killed and started again when a step or reset takes longer than the timeout.
        native: Use the vector form that the environment registered itself.
        horizon: Episodes are truncated after so many steps, or at the environment's own limit if
            that is lower.
        env_timeout_s: Longest time for one step or reset. Beyond it, an environment in this process
            ends the process with its stack printed.
        max_restarts: How often an environment that raises is started again before it finishes an
            episode; one more failure is an error.

    Raises:
        ConfigError: The name, arguments, spaces or the combination of options are wrong.
        RunError: The environment's constructor failed.
    """
    from policies.gym_vector_env import make_native
    from policies.process_vector_env import ProcessVectorEnv
    from policies.sync_vector_env import SyncVectorEnv

    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}: at least one environment is needed")
    if horizon is not None and horizon < 1:
        raise ConfigError(f"horizon={horizon}: must be at least 1, or none")
    if isolation not in ("none", "process"):
        raise ConfigError(f"isolation={isolation!r}: use none or process")
    if native:
        if isolation == "process":
            raise ConfigError(
                "isolation=process isolates single environments and a native vector environment "
                "has none; use native=false or isolation=none"
            )
        return make_native(name, env_config, num_envs, shard_seed, horizon, env_timeout_s)
    cls = ProcessVectorEnv if isolation == "process" else SyncVectorEnv
    return cls(
        name,
        env_config,
        num_envs,
        reset_seed=reset_seed,
        horizon=horizon,
        env_timeout_s=env_timeout_s,
        max_restarts=max_restarts,
    )
