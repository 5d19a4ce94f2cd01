"""The actions of running episodes, kept so that the episodes can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from policies import spaces
from policies.env_rows import copy_struct, from_leaves, leaves, single_actions

Struct = Any

MAX_REPLAYED_STEPS = 100_000
"""Longest running episode that can be saved as its actions; of a longer one none are kept."""


class ActionLog:
    """The actions that each environment took since its last reset.

    A step appends references; single actions become arrays once, when they are next asked for.

    Args:
        space: Of one action.
        num_envs: Number of environments.
        limit: Actions kept of one episode at the most.
    """

    def __init__(
        self, space: gym.Space[Any], num_envs: int, limit: int = MAX_REPLAYED_STEPS
    ) -> None:
        self.limit = limit
        self._space = space
        self._stacked: list[Struct] = [spaces.zeros(space, 0)] * num_envs
        self._recent: list[list[Any]] = [[] for _ in range(num_envs)]
        self._count = [0] * num_envs

    def begin(self, index: int) -> None:
        """Forgets an environment's actions: it was reset."""
        self._forget(index)
        self._count[index] = 0

    def _forget(self, index: int) -> None:
        self._stacked[index] = spaces.zeros(self._space, 0)
        self._recent[index] = []

    def append(self, actions: Struct, made: np.ndarray) -> None:
        """Adds copies of the actions of the environments that made a step (bool [num_envs])."""
        copies = single_actions(self._space, actions)
        for index in np.flatnonzero(made).tolist():
            self._count[index] += 1
            if self._count[index] <= self.limit:
                self._recent[index].append(copies[index])
            elif self._count[index] == self.limit + 1:
                self._forget(index)

    def too_long(self) -> int | None:
        """The first environment whose episode is longer than the limit, or None."""
        return next((i for i, count in enumerate(self._count) if count > self.limit), None)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The actions of one environment after the other, leaf by leaf."""
        for index, recent in enumerate(self._recent):
            if recent:
                new = spaces.stack(self._space, recent)
                self._stacked[index] = spaces.concat(self._space, [self._stacked[index], new])
                self._recent[index] = []
        batch = spaces.concat(self._space, self._stacked)
        return {str(k): leaf for k, leaf in enumerate(leaves(self._space, batch))}

    def load(self, arrays: Mapping[str, np.ndarray], counts: np.ndarray) -> list[list[Any]]:
        """Takes what `to_arrays` gave.

        Args:
            arrays: The leaves.
            counts: int64 [num_envs], actions of each environment.

        Returns:
            The single actions of each environment, which nobody else holds.

        Raises:
            KeyError: A leaf is missing.
            ValueError: There are more or fewer actions than the counts say.
        """
        names = range(len(spaces.leaf_spaces(self._space)))
        batch = from_leaves(self._space, [arrays[str(k)] for k in names])
        batch = copy_struct(self._space, batch)
        if (counts < 0).any() or spaces.batch_size(self._space, batch) != int(counts.sum()):
            raise ValueError("lost actions")
        singles = single_actions(self._space, batch)
        bounds = [0, *np.cumsum(counts).tolist()]
        rows = [slice(bounds[i], bounds[i + 1]) for i in range(len(counts))]
        self._stacked = [spaces.index(self._space, batch, part) for part in rows]
        self._recent = [[] for _ in rows]
        self._count = counts.tolist()
        return [singles[part] for part in rows]
