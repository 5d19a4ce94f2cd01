"""The contract between a learning algorithm and the rounds that feed it, and the registry.

A learner is a module with a config class, `initial_state`, and `update(config, state, batch) ->
(state, stats)`. `update` consumes its state: same state and batch, same bits, and the caller goes
on with what it returns.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np
import torch

from policies.config import AlgorithmConfig
from policies.errors import ConfigError
from policies.learners.adam import Adam
from policies.policy import Policy
from policies.sample_batch import SampleBatch

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
        """Learns from one round's rows, sorted by (shard, env, env_step)."""


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


def use_threads(threads: int) -> None:
    """Fixes torch's threads in a worker: small networks are far slower with several."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@contextmanager
def learner_threads(threads: int) -> Iterator[None]:
    """Torch computes with `threads` threads inside, on which the bits depend, and as before after.

    A library user's process so keeps its own setting.
    """
    before = torch.get_num_threads()
    use_threads(threads)
    try:
        yield
    finally:
        use_threads(before)
