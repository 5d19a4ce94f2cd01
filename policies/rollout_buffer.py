"""Steps of several environments: recorded as they happen, read by environment.

Recording keeps references only: a step's arrays belong to whoever asked for it, and nobody writes
to them later. Reading puts the rows of one environment next to each other, so that consecutive rows
of one episode are one fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from policies.recurrent_state import State
from policies.sample_batch import ACTIONS, NEW_OBS, OBS, REWARDS, TERMINATEDS, TRUNCATEDS, state_in
from policies.vector_envs import StepResult

Struct = Any


class RecordedStep(NamedTuple):
    """One vector step: what was acted on, how, and what came of it.

    Attributes:
        obs: Struct [num_envs, ...].
        state: Recurrent state before the step, arrays [num_envs, ...].
        actions: The policy's actions, struct [num_envs, ...].
        extras: Further outputs of the policy, arrays [num_envs, ...].
        result: What the environments returned.
    """

    obs: Struct
    state: State
    actions: Struct
    extras: Mapping[str, np.ndarray]
    result: StepResult


class RolloutBuffer:
    """The vector steps of one round.

    Args:
        num_envs: Environments stepped side by side.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._steps: list[RecordedStep] = []

    def __len__(self) -> int:
        """Vector steps."""
        return len(self._steps)

    def append(self, step: RecordedStep) -> None:
        """Records one vector step."""
        self._steps.append(step)

    def made(self) -> np.ndarray:
        """Where transitions were made: bool [num_envs, steps]."""
        return np.array([step.result.valid for step in self._steps]).T.copy()

    def columns(
        self, rows: np.ndarray, ends: Sequence[tuple[int, np.ndarray]]
    ) -> dict[str, Struct]:
        """The chosen rows of everything that was recorded.

        Args:
            rows: int64 [n], vector step * num_envs + environment.
            ends: (vector step, environments whose episode ended in it): `new_obs` is the result's
                `final_obs` there, and the observation of the next step elsewhere.

        Returns:
            Column name to fresh struct [n, ...].
        """
        recorded = self._steps
        columns: dict[str, Struct] = {}
        columns[OBS], columns[NEW_OBS] = self._observations(rows, ends)
        columns[ACTIONS] = _take([step.actions for step in recorded], rows)
        for name in (REWARDS, TERMINATEDS, TRUNCATEDS):
            columns[name] = _take([getattr(step.result, name) for step in recorded], rows)
        for name in recorded[0].extras:
            columns[name] = _take([step.extras[name] for step in recorded], rows)
        for index in range(len(recorded[0].state)):
            columns[state_in(index)] = _take([step.state[index] for step in recorded], rows)
        return columns

    def _observations(
        self, rows: np.ndarray, ends: Sequence[tuple[int, np.ndarray]]
    ) -> tuple[Struct, Struct]:
        recorded = self._steps
        table = _join([*(step.obs for step in recorded), recorded[-1].result.obs])
        obs = _map(lambda leaf: leaf.take(rows, axis=0), table)
        for step, envs in ends:
            result = recorded[step].result
            if result.final_obs is not result.obs:
                _overwrite(table, (step + 1) * self._num_envs + envs, result.final_obs, envs)
        return obs, _map(lambda leaf: leaf.take(rows + self._num_envs, axis=0), table)


def _take(steps: Sequence[Struct], rows: np.ndarray) -> Struct:
    return _map(lambda leaf: leaf.take(rows, axis=0), _join(steps))


def _join(steps: Sequence[Struct]) -> Struct:
    """Structs [num_envs, ...] one after the other: [steps * num_envs, ...] in C order."""
    first = steps[0]
    if isinstance(first, dict):
        return {key: _join([step[key] for step in steps]) for key in first}
    if isinstance(first, tuple):
        return tuple(_join([step[index] for step in steps]) for index in range(len(first)))
    joined = np.empty((len(steps) * len(first), *first.shape[1:]), first.dtype)
    return np.concatenate(steps, out=joined)


def _map(function: Any, struct: Struct) -> Struct:
    if isinstance(struct, dict):
        return {key: _map(function, part) for key, part in struct.items()}
    if isinstance(struct, tuple):
        return tuple(_map(function, part) for part in struct)
    return function(struct)


def _overwrite(table: Struct, rows: np.ndarray, values: Struct, envs: np.ndarray) -> None:
    if isinstance(table, dict):
        for key in table:
            _overwrite(table[key], rows, values[key], envs)
    elif isinstance(table, tuple):
        for part, value in zip(table, values, strict=True):
            _overwrite(part, rows, value, envs)
    else:
        table[rows] = values[envs]
