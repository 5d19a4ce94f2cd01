"""Which episode each transition of a round belongs to, counted for the whole round at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from policies.errors import RunError
from policies.random_streams import episode_ids


class Closings(NamedTuple):
    """Where the running episodes of a round were closed, in any order; arrays [c].

    Attributes:
        env: int64, the environment.
        step: int64, the vector step.
        lost: bool. False: the transition of this step was the last of its episode. True: the
            environment failed in this step, so the episode is dropped as far as it lies in this
            round.
    """

    env: np.ndarray
    step: np.ndarray
    lost: np.ndarray


class RowLabels(NamedTuple):
    """Labels of a round's rows, ordered by environment and step; arrays [n].

    Attributes:
        row: int64, vector step * num_envs + environment.
        env: int32, the environment.
        eps_id: int64, id of the episode.
        t: int32, step in the episode.
        env_step: int64, transitions that the environment made before, in all rounds.
    """

    row: np.ndarray
    env: np.ndarray
    eps_id: np.ndarray
    t: np.ndarray
    env_step: np.ndarray


class ClosedEpisodes(NamedTuple):
    """The episodes of `Closings`, in their order; arrays [c].

    Attributes:
        eps_id: int64, id of the episode.
        length: int64, its transitions in all rounds.
        env_step: int64, `env_step` of its last row.
    """

    eps_id: np.ndarray
    length: np.ndarray
    env_step: np.ndarray


class EpisodeCounters:
    """Counts the episodes and transitions of a shard's environments from round to round.

    Args:
        run_id: Names the run in episode ids.
        shard: The shard.
        num_envs: Number of environments.

    Attributes:
        episode: int64 [num_envs], number of the next episode to begin.
        eps_id: int64 [num_envs], id of the running episode.
        t: int64 [num_envs], its transitions so far.
        env_step: int64 [num_envs], all transitions so far.
    """

    _NAMES = ("episode", "eps_id", "t", "env_step")

    def __init__(self, run_id: str, shard: int, num_envs: int) -> None:
        self._run_id = run_id
        self._shard = shard
        self._num_envs = num_envs
        self.episode = np.zeros(num_envs, np.int64)
        self.eps_id = np.zeros(num_envs, np.int64)
        self.t = np.zeros(num_envs, np.int64)
        self.env_step = np.zeros(num_envs, np.int64)

    def begin_all(self, version: int) -> None:
        """Begins an episode in every environment."""
        self.eps_id = self._ids(version, np.arange(self._num_envs), self.episode)
        self.episode = self.episode + 1
        self.t = np.zeros(self._num_envs, np.int64)

    def skip_to(self, numbers: np.ndarray) -> None:
        """Makes sure that the next episodes to begin have these numbers (int64 [num_envs]) or
        higher ones: no number is ever used again."""
        self.episode = np.maximum(self.episode, numbers)

    def label(
        self, version: int, made: np.ndarray, closings: Closings
    ) -> tuple[RowLabels, ClosedEpisodes]:
        """Labels a round's rows, and moves on to the end of the round.

        The transitions of one environment fall into segments: one for each episode, the last of
        them still running and perhaps empty.

        Args:
            version: Of the weights that act; part of the ids of the episodes that begin.
            made: bool [num_envs, steps], the environment made a transition.
            closings: Where episodes were closed; each begins the next one.
        """
        num_envs, steps = made.shape
        order = np.lexsort((closings.step, closings.env))
        closing_envs = closings.env[order]
        closes = np.bincount(closing_envs, minlength=num_envs)
        last = np.cumsum(closes + 1) - 1
        first = last - closes
        is_closed = np.ones(num_envs + len(order), np.bool_)
        is_closed[last] = False

        counts = made.sum(axis=1)
        stops = np.cumsum(counts)
        ends = np.empty(len(is_closed), np.int64)
        ends[last] = stops
        ends[is_closed] = np.cumsum(made)[closing_envs * steps + closings.step[order]]
        starts = np.concatenate([[0], ends[:-1]])
        t_at_start = np.zeros(len(is_closed), np.int64)
        t_at_start[first] = self.t
        ids = np.empty(len(is_closed), np.int64)
        ids[first] = self.eps_id
        begun = np.flatnonzero(is_closed) + 1
        numbers = self.episode[closing_envs] + (begun - 1 - first[closing_envs])
        ids[begun] = self._ids(version, closing_envs, numbers)

        segments = _Segments(ends - starts, ids, t_at_start, starts)
        offset = self.env_step - (stops - counts)
        rows = _label_rows(made, counts, segments, offset)
        if closings.lost.any():
            dropped = np.zeros(len(is_closed), np.bool_)
            dropped[is_closed] = closings.lost[order]
            kept = np.repeat(~dropped, segments.lengths)
            rows = RowLabels(*(column[kept] for column in rows))
        t_at_end = t_at_start + segments.lengths
        back = np.argsort(order)
        closed = ClosedEpisodes(
            ids[is_closed][back],
            t_at_end[is_closed][back],
            (ends[is_closed] - 1 + offset[closing_envs])[back],
        )
        self.t = t_at_end[last]
        self.eps_id = ids[last]
        self.episode = self.episode + closes
        self.env_step = self.env_step + counts
        return rows, closed

    def _ids(self, version: int, envs: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return episode_ids(self._run_id, version, self._shard, envs, numbers)

    def get_state(self) -> dict[str, np.ndarray]:
        """The counters, int64 [num_envs] each."""
        return {name: getattr(self, name) for name in self._NAMES}

    def set_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes what `get_state` gave; other arrays are ignored.

        Raises:
            KeyError: An array is missing.
            RunError: The arrays are of another number of environments, or damaged.
        """
        for name in self._NAMES:
            array = arrays[name]
            if array.shape != (self._num_envs,) or array.dtype != np.int64:
                raise RunError(
                    f"saved state of shard {self._shard}: {name} is {array.dtype} of shape "
                    f"{array.shape}, expected int64 for {self._num_envs} environments"
                )
            setattr(self, name, array)


class _Segments(NamedTuple):
    """The segments of a round by environment and time: rows, episode, its t at the first row, and
    the number of rows before."""

    lengths: np.ndarray
    ids: np.ndarray
    t_at_start: np.ndarray
    starts: np.ndarray


def _label_rows(
    made: np.ndarray, counts: np.ndarray, segments: _Segments, env_step_offset: np.ndarray
) -> RowLabels:
    """The labels of all rows that were made."""
    num_envs, steps = made.shape
    row = np.arange(made.size).reshape(steps, num_envs).T[made]
    index = np.arange(len(row))
    t = np.repeat((segments.t_at_start - segments.starts).astype(np.int32), segments.lengths)
    t += index.astype(np.int32)
    env_step = np.repeat(env_step_offset, counts)
    env_step += index
    env = np.repeat(np.arange(num_envs, dtype=np.int32), counts)
    return RowLabels(row, env, np.repeat(segments.ids, segments.lengths), t, env_step)
