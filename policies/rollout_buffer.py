"""Steps of several environments, recorded per vector step and returned per environment.

Rows are written time-major ([steps, envs, ...], the order in which they happen) and come out
environment-major, so that the consecutive rows of one episode are one fragment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Separates the parts of a leaf's name; a control character, so that no key of a Dict space clashes.
_PART = "\x1f"


class RolloutBuffer:
    """Growing time-major storage of named arrays, with a mask of the rows that count.

    Args:
        num_envs: Environments stepped side by side.
        capacity: Vector steps to allocate at first; doubled when full.

    Example:
        >>> buffer = RolloutBuffer(num_envs=2, capacity=4)
        >>> buffer.append({"rewards": np.array([1.0, 2.0])}, np.array([True, False]))
        >>> buffer.columns()["rewards"].tolist()
        [1.0]
    """

    def __init__(self, num_envs: int, capacity: int) -> None:
        self._num_envs = num_envs
        self.capacity = max(1, capacity)
        self._arrays: dict[str, np.ndarray] = {}
        self._valid = np.zeros((self.capacity, num_envs), np.bool_)
        self.steps = 0

    def append(self, values: dict[str, np.ndarray], valid: np.ndarray | None) -> None:
        """Records one vector step; `valid` marks the environments whose row is a transition.

        The first call fixes the names, shapes ([num_envs, ...]) and dtypes.
        """
        if not self._arrays:
            self._allocate(values)
        if self.steps == self.capacity:
            self._grow()
        step, arrays = self.steps, self._arrays
        for name, value in values.items():
            arrays[name][step] = value
        self._valid[step] = True if valid is None else valid
        self.steps = step + 1

    def overwrite(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Replaces column `name` of the newest step for the environments in the mask `rows`."""
        self._arrays[name][self.steps - 1][rows] = values[rows]

    def mark_last(self, name: str, envs: np.ndarray) -> None:
        """Sets a bool column to True in the last counted row of the environments in a mask."""
        valid = self._valid[: self.steps]
        last = self.steps - 1 - np.argmax(valid[::-1], axis=0)
        chosen = np.flatnonzero(envs & valid.any(axis=0))
        self._arrays[name][last[chosen], chosen] = True

    def discard(self, env: int, since_step: int) -> int:
        """Drops the rows of one environment from a vector step on; returns how many counted."""
        dropped = int(self._valid[since_step : self.steps, env].sum())
        self._valid[since_step : self.steps, env] = False
        return dropped

    def columns(self) -> dict[str, np.ndarray]:
        """The recorded rows as contiguous arrays [n, ...], ordered by (environment, step)."""
        valid = self._valid[: self.steps].T
        whole = bool(valid.all())
        result = {}
        for name, array in self._arrays.items():
            by_env = array[: self.steps].swapaxes(0, 1)
            if whole:
                shape = (self.steps * self._num_envs, *array.shape[2:])
                result[name] = np.ascontiguousarray(by_env).reshape(shape)
            else:
                result[name] = by_env[valid]
        return result

    def env_index(self) -> np.ndarray:
        """Environment of each row of `columns()`: int32 [n]."""
        counts = self._valid[: self.steps].sum(axis=0)
        return np.repeat(np.arange(self._num_envs, dtype=np.int32), counts)

    def _allocate(self, values: dict[str, np.ndarray]) -> None:
        for name, value in values.items():
            self._arrays[name] = np.empty((self.capacity, *value.shape), value.dtype)

    def _grow(self) -> None:
        for name, array in self._arrays.items():
            self._arrays[name] = np.concatenate([array, np.empty_like(array)])
        self._valid = np.concatenate([self._valid, np.zeros_like(self._valid)])
        self.capacity *= 2


def struct_columns(name: str, struct: object) -> dict[str, np.ndarray]:
    """Flattens a batched struct into named leaves; a plain array keeps the name `name`."""
    if isinstance(struct, dict):
        items: Sequence[tuple[object, object]] = [(key, struct[key]) for key in sorted(struct)]
    elif isinstance(struct, tuple):
        items = list(enumerate(struct))
    else:
        return {name: np.asarray(struct)}
    leaves: dict[str, np.ndarray] = {}
    for key, value in items:
        leaves.update(struct_columns(f"{name}{_PART}{key}", value))
    return leaves


def struct_from_columns(name: str, like: object, columns: dict[str, np.ndarray]) -> object:
    """The inverse of `struct_columns`, shaped like the struct `like`."""
    if isinstance(like, dict):
        return {key: struct_from_columns(f"{name}{_PART}{key}", like[key], columns) for key in like}
    if isinstance(like, tuple):
        return tuple(
            struct_from_columns(f"{name}{_PART}{index}", value, columns)
            for index, value in enumerate(like)
        )
    return columns[name]
