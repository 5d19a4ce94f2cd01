"""Environments to test with: small, exact, and strict about how they are used.

They are part of the product: anybody who writes an environment, a policy or a learner against this
package can use them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from policies import spaces

Info = dict[str, Any]


class CountingEnv(gym.Env[np.ndarray, int]):
    """Counts its steps: after step k of an episode, the observation and the reward are k.

    The observation after a reset is 0, so every row of every transition is known in advance, and an
    observation from after a reset cannot be taken for the last one of an episode.

    Args:
        lengths: Steps of the first, second, ... episode, over and over.
        truncate: Episodes end truncated instead of terminated.
    """

    def __init__(self, lengths: Sequence[int] = (3,), truncate: bool = False) -> None:
        self.observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.action_space: gym.Space[Any] = Discrete(2)
        self._lengths = list(lengths)
        self._truncate = truncate
        self._episode = -1
        self._count = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self._episode += 1
        self._count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        self._count += 1
        ended = self._count >= self._lengths[self._episode % len(self._lengths)]
        obs = np.full(1, self._count, np.float32)
        return obs, float(self._count), ended and not self._truncate, ended and self._truncate, {}

    def get_state(self) -> dict[str, int]:
        """The two counters."""
        return {"episode": self._episode, "count": self._count}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes what `get_state` gave."""
        self._episode, self._count = int(state["episode"]), int(state["count"])


class CountingVectorEnv(gym.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """`CountingEnv` as a vector environment, in each autoreset mode.

    Args:
        num_envs: How many.
        lengths: For each environment, the lengths of its episodes, over and over; one for all if
            there is only one.
        mode: An `AutoresetMode` or its value.
        truncate: Episodes end truncated instead of terminated.
        honour_mask: False makes a DISABLED one reset everything whatever the mask, as native
            environments without support for masks do.
    """

    def __init__(
        self,
        num_envs: int = 1,
        lengths: Sequence[Sequence[int]] = ((3,),),
        mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        truncate: bool = False,
        honour_mask: bool = True,
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode(mode)}
        self.single_observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._lengths = [list(lengths[i % len(lengths)]) for i in range(num_envs)]
        self._truncate = truncate
        self._honour_mask = honour_mask
        self._episode = np.full(num_envs, -1, np.int64)
        self._count = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask") if self._honour_mask else None
        self._restart(np.ones(self.num_envs, np.bool_) if mask is None else mask)
        return self._obs(), {}

    def _restart(self, mask: np.ndarray) -> None:
        self._episode[mask] += 1
        self._count[mask] = 0
        self._ended[mask] = False

    def _obs(self) -> np.ndarray:
        return self._count.astype(np.float32)[:, None]

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        mode = self.metadata["autoreset_mode"]
        dead = self._ended.copy()
        if mode == AutoresetMode.DISABLED and dead.any():
            raise AssertionError("an ended environment was stepped without a reset")
        self._count += 1
        if mode == AutoresetMode.NEXT_STEP:
            self._restart(dead)
        limits = [row[e % len(row)] for row, e in zip(self._lengths, self._episode, strict=True)]
        self._ended = (self._count >= np.array(limits)) & ~dead
        ended, infos = self._ended.copy(), Info()
        rewards = np.where(dead, 0.0, self._count)
        if mode == AutoresetMode.SAME_STEP and ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(ended):
                final[i] = self._obs()[i]
            infos = {"final_obs": final, "_final_obs": ended}
            self._restart(ended)
        none = np.zeros(self.num_envs, np.bool_)
        ends = (none, ended) if self._truncate else (ended, none)
        return self._obs(), rewards, *ends, infos

    def get_state(self) -> dict[str, np.ndarray]:
        """The counters."""
        return {"episode": self._episode, "count": self._count, "ended": self._ended}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes what `get_state` gave."""
        self._episode, self._count = state["episode"], state["count"]
        self._ended = state["ended"]


class IdentityEnv(gym.Env[Any, Any]):
    """Asks for the action that equals the observation; works for every supported space.

    The reward is the mean over the leaves of the space of: the fraction of equal entries (Discrete,
    MultiDiscrete, MultiBinary), or 1 - |action - obs| / range, at least 0, averaged over entries
    (Box; the range of an unbounded one is 2, its observations lie in [-1, 1]). The best return is
    the number of steps.

    Args:
        space: The space of observations and actions, or its `spaces.space_to_json`.
        steps: Length of an episode, which is truncated.
    """

    def __init__(
        self, space: gym.Space[Any] | Mapping[str, Any] | None = None, steps: int = 20
    ) -> None:
        if isinstance(space, Mapping) and not isinstance(space, gym.Space):
            space = spaces.space_from_json(space)
        self.observation_space = self.action_space = Discrete(4) if space is None else space
        self._steps = steps
        self._t = 0
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._t = 0
        self._obs = self._draw()
        return self._obs, {}

    def _draw(self) -> Any:
        return spaces.map_leaves(self._draw_leaf, self.observation_space)

    def _draw_leaf(self, leaf: gym.Space[Any]) -> Any:
        if isinstance(leaf, Discrete):
            return leaf.start + self.np_random.integers(leaf.n, dtype=np.int64)
        if isinstance(leaf, MultiDiscrete):
            return (leaf.start + self.np_random.integers(leaf.nvec)).astype(leaf.dtype)
        if isinstance(leaf, MultiBinary):
            return self.np_random.integers(2, size=leaf.shape, dtype=np.int8)
        assert isinstance(leaf, Box)
        low, high = _finite_bounds(leaf)
        drawn = self.np_random.uniform(low, high)
        return np.asarray(np.rint(drawn) if leaf.dtype.kind in "iu" else drawn, leaf.dtype)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        scores: list[float] = []
        spaces.map_leaves(
            lambda leaf, a, o: scores.append(_score(leaf, a, o)),
            self.action_space,
            action,
            self._obs,
        )
        self._t += 1
        self._obs = self._draw()
        return self._obs, float(np.mean(scores)), False, self._t >= self._steps, {}


def _finite_bounds(box: Box) -> tuple[np.ndarray, np.ndarray]:
    bounded = np.isfinite(box.low) & np.isfinite(box.high)
    return np.where(bounded, box.low, -1.0), np.where(bounded, box.high, 1.0)


def _score(leaf: gym.Space[Any], action: Any, obs: Any) -> float:
    if not isinstance(leaf, Box):
        return float(np.mean(np.asarray(action) == np.asarray(obs)))
    low, high = _finite_bounds(leaf)
    distance = np.abs(np.asarray(action, np.float64) - np.asarray(obs, np.float64))
    return float(np.mean(np.maximum(0.0, 1.0 - distance / np.maximum(high - low, 1e-12))))


class StatelessCartPole(gym.Env[np.ndarray, int]):
    """CartPole whose observation lacks the two velocities: only a policy with memory solves it.

    Args:
        max_episode_steps: Episodes are truncated after so many steps.
    """

    def __init__(self, max_episode_steps: int = 500) -> None:
        self._env = CartPoleEnv()
        whole = self._env.observation_space
        assert isinstance(whole, Box)
        self.observation_space = Box(whole.low[[0, 2]], whole.high[[0, 2]], dtype=np.float32)
        self.action_space: gym.Space[Any] = Discrete(2)
        self._limit = max_episode_steps
        self._t = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.ndarray, Info]:
        obs, info = self._env.reset(seed=seed, options=options)
        self._t = 0
        return obs[[0, 2]], info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        obs, reward, terminated, _, info = self._env.step(action)
        self._t += 1
        return obs[[0, 2]], float(reward), terminated, self._t >= self._limit, info


class MisbehavingEnv(gym.Env[np.ndarray, int]):
    """Counts its steps and misbehaves at one of them; what it does is up to the subclass.

    Args:
        where: `constructor`, `reset` or `step`.
        after: Steps of the episode that go well before a `step` misbehaves.
        seeds: Only in episodes reset with one of these seeds; None for all.
        length: Steps of an episode.
    """

    def __init__(
        self,
        where: str = "step",
        after: int = 2,
        seeds: Sequence[int] | None = None,
        length: int = 5,
    ) -> None:
        self.observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.action_space: gym.Space[Any] = Discrete(2)
        self._where = where
        self._after = after
        self._seeds = None if seeds is None else frozenset(seeds)
        self._length = length
        self._seed: int | None = None
        self._count = 0
        if where == "constructor":
            self.misbehave(where)

    def misbehave(self, where: str) -> None:
        """What the environment does wrong."""
        raise NotImplementedError

    def _chosen(self, where: str) -> bool:
        return where == self._where and (self._seeds is None or self._seed in self._seeds)

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self._seed, self._count = seed, 0
        if self._chosen("reset"):
            self.misbehave("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, Info]:
        self._count += 1
        if self._count > self._after and self._chosen("step"):
            self.misbehave("step")
        obs = np.full(1, self._count, np.float32)
        return obs, 1.0, self._count >= self._length, False, {}


class FailingEnv(MisbehavingEnv):
    """Raises RuntimeError; see `MisbehavingEnv`."""

    def misbehave(self, where: str) -> None:
        """Raises."""
        raise RuntimeError(f"this environment fails in {where}")


class HangingEnv(MisbehavingEnv):
    """Does not return for `seconds`; see `MisbehavingEnv`."""

    def __init__(self, seconds: float = 3600.0, **arguments: Any) -> None:
        self._seconds = seconds
        super().__init__(**arguments)

    def misbehave(self, where: str) -> None:
        """Sleeps."""
        time.sleep(self._seconds)


class DyingEnv(MisbehavingEnv):
    """Ends its process with exit code 7; see `MisbehavingEnv`."""

    def misbehave(self, where: str) -> None:
        """Exits."""
        os._exit(7)


class SchemaCheckingEnv(gym.Env[Any, Any]):
    """Checks at every call that it is used as the gymnasium API says, and raises AssertionError.

    Actions must lie in the action space, with its shape and dtype (Discrete: a Python or numpy
    integer); every reset has a seed; no step before a reset or after an end. Observations are
    random values of the observation space.

    Args:
        observation_space: A space, or its `spaces.space_to_json`.
        action_space: the same.
        length: Steps of an episode, which is terminated.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any] | Mapping[str, Any],
        action_space: gym.Space[Any] | Mapping[str, Any],
        length: int = 5,
    ) -> None:
        self.observation_space = _as_space(observation_space)
        self.action_space = _as_space(action_space)
        self._length = length
        self._left = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        assert isinstance(seed, int), f"reset without an integer seed: {seed!r}"
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._left = self._length
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        assert self._left > 0, "step before a reset or after the end of an episode"
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        spaces.map_leaves(_assert_dtype, self.action_space, action)
        self._left -= 1
        return self.observation_space.sample(), 1.0, self._left == 0, False, {}


def _as_space(space: gym.Space[Any] | Mapping[str, Any]) -> gym.Space[Any]:
    return space if isinstance(space, gym.Space) else spaces.space_from_json(space)


def _assert_dtype(leaf: gym.Space[Any], value: Any) -> None:
    if isinstance(leaf, Discrete):
        assert isinstance(value, int | np.integer), f"{value!r} for {leaf}"
    else:
        assert value.dtype == leaf.dtype, f"dtype {value.dtype} for {leaf}"
