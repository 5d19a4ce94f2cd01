"""Rows of batched values: one environment's observation in, one environment's action out.

Everything an environment returns passes through `ObservationRows.write`, which checks shape, kind
of number and range, so that a broken environment is named at its first wrong value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from policies import spaces
from policies.errors import RunError

Space = gym.Space[Any]
Struct = Any


class ObservationRows:
    """Batches of observations that are filled row by row.

    Args:
        name: The environment, for messages.
        space: Of one observation.
        num_envs: Rows of a batch.
        first_index: Index of the environment in row 0, for messages.
    """

    def __init__(self, name: str, space: Space, num_envs: int, first_index: int = 0) -> None:
        self.space = space
        self._name = name
        self._num_envs = num_envs
        self._first_index = first_index
        self._leaf_shape = space.shape if isinstance(space, Box) else None

    def empty(self) -> Struct:
        """A batch of zeros."""
        return spaces.zeros(self.space, self._num_envs)

    def copy(self, batch: Struct) -> Struct:
        """A batch that shares nothing with `batch`."""
        return copy_struct(self.space, batch)

    def write(self, batch: Struct, row: int, value: Any) -> None:
        """Puts one observation into a row.

        Raises:
            RunError: shape, kind of number or range is not that of the space.
        """
        plain = type(value) is np.ndarray and value.shape == self._leaf_shape
        if plain and value.dtype == batch.dtype:
            batch[row] = value
        else:
            self._write(self.space, batch, row, value, ())

    def _write(self, space: Space, batch: Struct, row: int, value: Any, path: spaces.Path) -> None:
        if isinstance(space, Dict):
            if not isinstance(value, Mapping) or set(value) != set(space.spaces):
                keys = sorted(value) if isinstance(value, Mapping) else type(value).__name__
                raise self.error(row, path, f"is {keys}, expected keys {sorted(space.spaces)}")
            for key, child in space.spaces.items():
                self._write(child, batch[key], row, value[key], (*path, key))
        elif isinstance(space, Tuple):
            if not isinstance(value, Sequence) or len(value) != len(space.spaces):
                raise self.error(row, path, f"is not a tuple of {len(space.spaces)} values")
            for i, child in enumerate(space.spaces):
                self._write(child, batch[i], row, value[i], (*path, i))
        else:
            self._write_leaf(space, batch, row, value, path)

    def _write_leaf(
        self, leaf: Space, batch: np.ndarray, row: int, value: Any, path: spaces.Path
    ) -> None:
        expected = leaf.shape or ()
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise self.error(row, path, f"is not an array: {error}") from error
        if array.shape != expected:
            raise self.error(row, path, f"has shape {array.shape}, expected {expected}")
        try:
            batch[row] = spaces.as_leaf_batch(leaf, array[None], "value")[0]
        except ValueError as error:
            raise self.error(
                row, path, f"has dtype {array.dtype}, expected {batch.dtype}"
            ) from error
        if isinstance(leaf, Discrete | MultiDiscrete):
            size = leaf.n if isinstance(leaf, Discrete) else leaf.nvec
            offset = batch[row] - leaf.start
            if not ((offset >= 0) & (offset < size)).all():
                raise self.error(row, path, f"is {value}, which is not in {leaf}")

    def error(self, row: int, path: spaces.Path, problem: str) -> RunError:
        """The error for an observation that is wrong."""
        index = row + self._first_index
        column = f"obs{spaces.path_text(path)}"
        return RunError(f"environment {self._name!r} (env {index}): {column} {problem}")


def single_actions(space: Space, actions: Struct) -> list[Any]:
    """The single actions of a batch, in arrays that nobody else holds."""
    if isinstance(space, Discrete):
        return list(np.asarray(actions))
    copied = copy_struct(space, actions)
    if isinstance(copied, np.ndarray) and copied.ndim > 1:
        return list(copied)
    return spaces.unstack(space, copied)


def copy_struct(space: Space, batch: Struct) -> Struct:
    """A copy of a batch, leaf by leaf, in the space's dtypes."""
    if isinstance(batch, np.ndarray):
        return np.array(batch, spaces.leaf_dtype(space))
    return spaces.map_leaves(lambda leaf, x: np.array(x, spaces.leaf_dtype(leaf)), space, batch)


def leaves(space: Space, batch: Struct) -> list[np.ndarray]:
    """The leaf arrays of a struct, in the order of `spaces.leaf_spaces`."""
    found: list[np.ndarray] = []
    spaces.map_leaves(lambda _, x: found.append(np.asarray(x)), space, batch)
    return found


def from_leaves(space: Space, arrays: Sequence[np.ndarray]) -> Struct:
    """The struct that `leaves` took apart."""
    remaining = iter(arrays)
    return spaces.map_leaves(lambda _: next(remaining), space)
