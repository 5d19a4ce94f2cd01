"""Summary of finished episodes: how many, their returns and their lengths.

An episode batch is a RecordBatch of kind `episodes`, one row for each finished episode, with the
columns of `EPISODE_SCHEMA`. Sums are kept as exact integers, so a summary has the same bits in
whatever order and grouping the batches arrive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from policies.batch_kinds import EPISODES, kind

EPISODE_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("env", pa.int32()),
        pa.field("eps_id", pa.int64()),
        pa.field("env_step", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("episode_return", pa.float64()),
        pa.field("terminated", pa.bool_()),
    ],
    metadata={b"kind": EPISODES.encode()},
)
"""Columns of an episode batch. `env_step` is the environment's step count at the episode's end."""

# Every finite float64 is a whole multiple of 2**-1074, the smallest subnormal number.
_SCALE_BITS = 1074


@dataclass(frozen=True)
class EpisodeMetrics:
    """A mergeable summary of episodes. Immutable; start from `EpisodeMetrics()`.

    Attributes:
        episodes: Number of episodes.
        return_sum: Exact sum of the returns, in units of 2**-1074.
        return_square_sum: Exact sum of the squared returns, in units of 2**-2148.
        return_min: Smallest return; inf without episodes.
        return_max: Largest return; -inf without episodes.
        length_sum: Sum of the lengths in environment steps.
        length_min: Shortest length; 0 without episodes.
        length_max: Longest length; 0 without episodes.
    """

    episodes: int = 0
    return_sum: int = 0
    return_square_sum: int = 0
    return_min: float = math.inf
    return_max: float = -math.inf
    length_sum: int = 0
    length_min: int = 0
    length_max: int = 0

    def add(self, returns: ArrayLike, lengths: ArrayLike) -> EpisodeMetrics:
        """Returns this summary with more episodes in it.

        Args:
            returns: float [n], the undiscounted return of each episode.
            lengths: int [n], the length of each episode in environment steps.

        Returns:
            A new summary.

        Raises:
            ValueError: The shapes differ or a return is not finite.
        """
        return self.merge(_summary(np.asarray(returns, np.float64), np.asarray(lengths, np.int64)))

    def add_batch(self, batch: pa.RecordBatch) -> EpisodeMetrics:
        """Returns this summary with the episodes of an episode batch in it.

        Args:
            batch: A RecordBatch of kind `episodes` with at least `episode_return` and `length`.

        Returns:
            A new summary.

        Raises:
            ValueError: The batch is of another kind, lacks a column or holds a null, or a return
                is not finite.
        """
        _check_kind(batch)
        return self.add(_values(batch, "episode_return"), _values(batch, "length"))

    def merge(self, other: EpisodeMetrics) -> EpisodeMetrics:
        """Returns the summary of both; exactly associative and commutative.

        Args:
            other: A summary of other episodes.

        Returns:
            A new summary.
        """
        if not self.episodes or not other.episodes:
            return self if self.episodes else other
        return EpisodeMetrics(
            episodes=self.episodes + other.episodes,
            return_sum=self.return_sum + other.return_sum,
            return_square_sum=self.return_square_sum + other.return_square_sum,
            return_min=min(self.return_min, other.return_min),
            return_max=max(self.return_max, other.return_max),
            length_sum=self.length_sum + other.length_sum,
            length_min=min(self.length_min, other.length_min),
            length_max=max(self.length_max, other.length_max),
        )

    def result(self) -> dict[str, int | float]:
        """Returns the summary in numbers.

        Returns:
            `episodes`; and, if there are any, `return_mean`, `return_std` (population form, as
            numpy.std: 0 for one episode), `return_min`, `return_max`, `length_mean`, `length_min`,
            `length_max`. Never a NaN.
        """
        n = self.episodes
        if not n:
            return {"episodes": 0}
        square_deviations = n * self.return_square_sum - self.return_sum**2
        return {
            "episodes": n,
            "return_mean": self.return_sum / (n << _SCALE_BITS),
            "return_std": math.sqrt(square_deviations / (n * n << 2 * _SCALE_BITS)),
            "return_min": self.return_min,
            "return_max": self.return_max,
            "length_mean": self.length_sum / n,
            "length_min": self.length_min,
            "length_max": self.length_max,
        }


def _summary(returns: np.ndarray, lengths: np.ndarray) -> EpisodeMetrics:
    """Summarises returns float64 [n] and lengths int64 [n]."""
    if returns.ndim != 1 or returns.shape != lengths.shape:
        raise ValueError(
            f"returns and lengths must have one shape [n], got {returns.shape} and {lengths.shape}"
        )
    if not len(returns):
        return EpisodeMetrics()
    finite = np.isfinite(returns)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"the return of episode row {row} is not finite: {returns[row]}")
    scaled = [_scaled(value) for value in returns.tolist()]
    return EpisodeMetrics(
        episodes=len(scaled),
        return_sum=sum(scaled),
        return_square_sum=sum(value * value for value in scaled),
        return_min=float(returns.min()),
        return_max=float(returns.max()),
        length_sum=sum(lengths.tolist()),
        length_min=int(lengths.min()),
        length_max=int(lengths.max()),
    )


def _scaled(value: float) -> int:
    """Returns value * 2**1074, which is a whole number."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_SCALE_BITS + 1 - denominator.bit_length())


def _check_kind(batch: pa.RecordBatch) -> None:
    """Raises ValueError unless the batch says that it holds episodes."""
    found = kind(batch)
    if found != EPISODES:
        raise ValueError(f"expected a record batch of kind {EPISODES!r}, got {found!r}")


def _values(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Returns a column without nulls as numpy."""
    if name not in batch.schema.names:
        raise ValueError(f"the episode batch lacks the column {name!r}: {batch.schema.names}")
    column = batch.column(name)
    if column.null_count:
        raise ValueError(f"the column {name!r} of the episode batch holds a null")
    return column.to_numpy(zero_copy_only=False)
