"""The contract between a learning algorithm and the rounds that feed it, and the registry.

A learner is a module with a config class, `initial_state`, and `update(config, state, batch) ->
(state, stats)`. `update` consumes its state: same state and batch, same bits, and the caller goes
on with what it returns.
"""

from __future__ import annotations

import difflib
import importlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from policies.config import AlgorithmConfig
from policies.errors import ConfigError
from policies.filters import MeanStd
from policies.learners.adam import Adam
from policies.policy import Policy
from policies.sample_batch import OBS, SHARD, SampleBatch
from policies.spaces import index

_MODULES = {"ppo": "policies.learners.ppo"}


@dataclass
class LearnerState:
    """What training carries from one version to the next.

    Attributes:
        policy: Weights and observation filter.
        optimizer: Its moments.
        version: The version these belong to; names the learner's random stream.
        env_steps: Environment steps sampled so far; drives the schedules.
        scalars: Further numbers of the algorithm, such as an adaptive coefficient.
    """

    policy: Policy
    optimizer: Adam
    version: int = 0
    env_steps: int = 0
    scalars: dict[str, float] = field(default_factory=dict)

    def load(
        self,
        weights: Mapping[str, np.ndarray],
        optimizer: Mapping[str, np.ndarray],
        *,
        version: int,
        env_steps: int,
        scalars: Mapping[str, float],
    ) -> None:
        """Restores a published version."""
        self.policy.set_weights(weights)
        self.optimizer.load_arrays(optimizer)
        self.version, self.env_steps, self.scalars = version, env_steps, dict(scalars)


class Learner(Protocol):
    """What a module in `policies/learners/` offers."""

    CONFIG: type[AlgorithmConfig]
    EXTRAS: tuple[str, ...]
    """Action outputs that rollouts record for it."""

    def initial_state(
        self, config: Any, observation_space: gym.Space, action_space: gym.Space
    ) -> LearnerState:
        """The state of version 0, from the config's seed."""

    def update(
        self, config: Any, state: LearnerState, batch: SampleBatch
    ) -> tuple[LearnerState, dict[str, float]]:
        """Learns from one round's rows, sorted by (shard, env, env_step).

        The filter takes part: after the weights it too is the next version's.
        """


def learner_named(name: str) -> Learner:
    """The learner registered under `name`.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    if name not in _MODULES:
        near = difflib.get_close_matches(name.lower(), _MODULES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown algorithm {name!r}{hint} (known: {', '.join(_MODULES)})")
    return cast(Learner, importlib.import_module(_MODULES[name]))


def policy_for(
    config: AlgorithmConfig, observation_space: gym.Space, action_space: gym.Space
) -> Policy:
    """A policy with fresh weights as a configuration asks for it."""
    return Policy(
        observation_space,
        action_space,
        config.model,
        seed=config.seed,
        observation_filter=config.observation_filter,
        normalize_actions=config.normalize_actions,
        clip_actions=config.clip_actions,
        squash=config.squash_actions,
        actor=config.actor,
    )


def merge_observations(state: LearnerState, batch: SampleBatch) -> None:
    """Adds a round's raw observations to the filter, for the next version; no filter, no effect.

    Shard by shard in ascending order, each summed by itself: float sums depend on the order.
    """
    policy, merged = state.policy, state.policy.filter
    if merged is None:
        return
    space, obs = policy.observation_space, batch[OBS]
    shards = batch[SHARD] if SHARD in batch else np.zeros(len(batch), np.int32)
    for shard in np.unique(shards):
        rows = index(space, obs, shards == shard)
        merged = MeanStd.merge(merged, MeanStd.from_batch(space, rows))
    policy.filter = merged


@contextmanager
def learner_threads(threads: int) -> Iterator[None]:
    """Torch and numpy compute with `threads` threads inside, on which the bits depend.

    Afterwards a library user's process has its own setting again. Where several threads of one
    process are inside, the last to leave puts it back, so that none computes with it before.
    """
    token = _THREADS.enter(threads)
    try:
        yield
    finally:
        _THREADS.leave(token)


class _Threads:
    """The numbers of threads that were asked for and still hold; the latest counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[object, int] = {}
        self._before = ExitStack()

    def enter(self, threads: int) -> object:
        with self._lock:
            if not self._inside:
                self._before.callback(torch.set_num_threads, torch.get_num_threads())
                self._before.callback(_blas().limit().restore_original_limits)
            _set_threads(threads)
            token = object()
            self._inside[token] = threads
            return token

    def leave(self, token: object) -> None:
        with self._lock:
            del self._inside[token]
            if self._inside:
                _set_threads(next(reversed(self._inside.values())))
            else:
                self._before.close()
                _release_blas()


_THREADS = _Threads()


def _set_threads(threads: int) -> None:
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    _blas().limit(limits=threads)
    _release_blas()


def _release_blas() -> None:
    # Once a thread has set a limit, threadpoolctl 3.7 ignores those of all other threads until it
    # has left a block like this one. The block itself changes nothing.
    with _blas().limit():
        pass


@cache
def _blas() -> ThreadpoolController:
    """Numpy's linear algebra. Found once: a look through all loaded libraries takes 10 ms."""
    return ThreadpoolController().select(user_api="blas")
