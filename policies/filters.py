"""Observation filter: running mean and standard deviation, applied element by element.

`MeanStd` summarises the float Box leaves of an observation space, joined in the order of the
space (Dict keys sorted) into one float64 vector; other leaves (images of uint8, Discrete, ...) pass
untouched. Summaries are made from batches and merged (Chan, Golub and LeVeque 1983), so workers
ship only what they saw since the version they act with, and the learner merges in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from policies.spaces import leaf_spaces, map_leaves

FloatArray = NDArray[np.float64]

CLIP = 10.0
"""Filtered observations are clipped to [-CLIP, CLIP]."""

_EPSILON = 1e-8


@dataclass(frozen=True, eq=False)
class MeanStd:
    """Count, mean and sum of squared deviations of observations. Immutable.

    Attributes:
        count: Number of observations.
        mean: float64 [d], over the d elements of the float leaves.
        m2: float64 [d], sum of squared deviations from the mean.
    """

    count: int
    mean: FloatArray
    m2: FloatArray

    @staticmethod
    def zero(space: gym.Space[Any]) -> MeanStd:
        """Returns the summary of no observations.

        Args:
            space: The observation space.

        Returns:
            A filter that leaves observations as they are.
        """
        size = sum(_size(leaf) for _, leaf in leaf_spaces(space) if _is_float_box(leaf))
        return MeanStd(0, np.zeros(size), np.zeros(size))

    @staticmethod
    def from_batch(space: gym.Space[Any], obs: Any) -> MeanStd:
        """Summarises a batch of raw observations.

        Args:
            space: The observation space.
            obs: Observations [n, ...], an array or a dict or tuple of them as the space.

        Returns:
            The summary of the n observations.

        Raises:
            ValueError: A leaf's shape is not [n, *shape of its space].
        """
        columns: list[FloatArray] = []

        def collect(leaf: gym.Space[Any], values: Any) -> None:
            if _is_float_box(leaf):
                checked = _checked(leaf, values)
                columns.append(checked.reshape(len(checked), _size(leaf)).astype(np.float64))

        map_leaves(collect, space, obs)
        count = len(columns[0]) if columns else 0
        if not count:
            return MeanStd.zero(space)
        vectors = np.concatenate(columns, axis=1) if len(columns) > 1 else columns[0]
        mean = vectors.mean(axis=0)
        return MeanStd(count, mean, np.square(vectors - mean).sum(axis=0))

    @staticmethod
    def merge(first: MeanStd, second: MeanStd) -> MeanStd:
        """Returns the summary of two disjoint sets of observations.

        Associative and commutative up to rounding, not to the bit: merge in a fixed order.

        Args:
            first: One summary.
            second: The other, of the same space.

        Returns:
            The summary of both.

        Raises:
            ValueError: The sizes differ.
        """
        if first.mean.shape != second.mean.shape:
            raise ValueError(
                f"filters of different sizes: {first.mean.shape} and {second.mean.shape}"
            )
        if not first.count or not second.count:
            return first if first.count else second
        count = first.count + second.count
        difference = second.mean - first.mean
        mean = first.mean + difference * (second.count / count)
        between = np.square(difference) * (first.count * second.count / count)
        return MeanStd(count, mean, first.m2 + second.m2 + between)

    @cached_property
    def std(self) -> FloatArray:
        """Sample standard deviation, float64 [d]; ones while fewer than two observations."""
        if self.count < 2:
            return np.ones_like(self.mean)
        return np.sqrt(self.m2 / (self.count - 1))

    @cached_property
    def _scale(self) -> FloatArray:
        return 1.0 / (self.std + _EPSILON)

    def normalize(self, space: gym.Space[Any], obs: Any) -> Any:
        """Applies the filter: (obs - mean) / (std + 1e-8), clipped to [-10, 10].

        Row by row, so a row's result does not depend on its batch. The filter itself stays as it
        is. While it holds fewer than two observations, values are only converted.

        Args:
            space: The observation space.
            obs: Raw observations [n, ...], as in `from_batch`.

        Returns:
            The same structure with float32 float leaves; other leaves are passed on, not copied.

        Raises:
            ValueError: A leaf's shape is not [n, *shape of its space], or the filter was made for
                another space.
        """
        start = 0

        def filtered(leaf: gym.Space[Any], values: Any) -> Any:
            nonlocal start
            if not _is_float_box(leaf):
                return values
            part = slice(start, start + _size(leaf))
            start = part.stop
            if start > len(self.mean):
                return values
            return self._normalize_leaf(leaf, values, part)

        result = map_leaves(filtered, space, obs)
        if start != len(self.mean):
            raise ValueError(f"a filter of {len(self.mean)} elements met a space of {start}")
        return result

    def _normalize_leaf(self, space: gym.Space[Any], obs: Any, part: slice) -> NDArray[np.float32]:
        values = _checked(space, obs)
        if self.count < 2:
            return values.astype(np.float32)
        # One clip by hand: numpy.clip costs more than the arithmetic at the sizes of acting.
        scaled = values - self.mean[part].reshape(space.shape)
        scaled *= self._scale[part].reshape(space.shape)
        np.minimum(scaled, CLIP, out=scaled)
        np.maximum(scaled, -CLIP, out=scaled)
        return scaled.astype(np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the filter as named arrays: `count` int64 [1], `mean` and `m2` float64 [d]."""
        return {
            "count": np.array([self.count], np.int64),
            "mean": self.mean.copy(),
            "m2": self.m2.copy(),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> MeanStd:
        """Makes a filter from the arrays of `to_arrays`.

        Args:
            arrays: `count`, `mean` and `m2`.

        Returns:
            The filter, to the bit.

        Raises:
            ValueError: An array is missing, or shapes or count make no filter.
        """
        missing = sorted({"count", "mean", "m2"} - set(arrays))
        if missing:
            raise ValueError(f"filter arrays lack {', '.join(missing)}")
        count = np.asarray(arrays["count"])
        mean = np.array(arrays["mean"], np.float64)
        m2 = np.array(arrays["m2"], np.float64)
        if count.size != 1 or count.item() < 0 or mean.ndim != 1 or mean.shape != m2.shape:
            raise ValueError(f"no filter: count {count.tolist()}, mean {mean.shape}, m2 {m2.shape}")
        return MeanStd(int(count.item()), mean, m2)


def _is_float_box(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind == "f"


def _size(space: gym.Space[Any]) -> int:
    return math.prod(space.shape or ())


def _checked(space: gym.Space[Any], obs: Any) -> NDArray[Any]:
    """Returns the observations of a leaf, or raises ValueError unless [n, *shape]."""
    values = np.asarray(obs)
    if values.shape[1:] != space.shape or values.ndim == 0:
        raise ValueError(
            f"observations of {space} must have shape [n, *{space.shape}], got {values.shape}"
        )
    return values
