"""The ends of a round's episodes, noted as they happen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from policies.batch_kinds import EPISODES
from policies.episode_counters import ClosedEpisodes, Closings
from policies.episode_metrics import EPISODE_SCHEMA


class EpisodeEnds:
    """Episodes that ended or were lost to a failure during one round."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, np.ndarray]] = []
        """(vector step, environments whose episode ended in it), in order."""
        self._returns: list[np.ndarray] = []
        self._terminated: list[np.ndarray] = []
        self._lost: list[tuple[int, int]] = []

    def add(self, step: int, envs: np.ndarray, returns: np.ndarray, terminated: np.ndarray) -> None:
        """Notes ends.

        Args:
            step: The vector step.
            envs: int64 [k], the environments.
            returns: float64 [k], undiscounted returns of the episodes.
            terminated: bool [k], whether the environment ended them.
        """
        self.steps.append((step, envs))
        self._returns.append(returns)
        self._terminated.append(terminated)

    def lose(self, step: int, env: int) -> None:
        """Notes that an environment failed in a vector step, which loses its episode."""
        self._lost.append((step, env))

    def closings(self) -> Closings:
        """All of them: first those that ended, in order, then the lost ones."""
        envs = [envs for _, envs in self.steps]
        steps = [np.full(len(envs), step) for step, envs in self.steps]
        lost = np.array(self._lost, np.int64).reshape(-1, 2)
        ended = sum(map(len, envs))
        return Closings(
            env=np.concatenate([*envs, lost[:, 1]]),
            step=np.concatenate([*steps, lost[:, 0]]),
            lost=np.arange(ended + len(lost)) >= ended,
        )

    def record_batch(
        self, shard: int, closed: ClosedEpisodes, metadata: Mapping[str, str]
    ) -> pa.RecordBatch:
        """A batch of kind `episodes` with a row for each end.

        Args:
            shard: The shard.
            closed: What became of the `closings`.
            metadata: Further metadata.
        """
        count = sum(map(len, self._returns))
        columns = [
            np.full(count, shard, np.int32),
            np.concatenate([np.zeros(0, np.int32), *(envs for _, envs in self.steps)]),
            closed.eps_id[:count],
            closed.env_step[:count],
            closed.length[:count],
            np.concatenate([np.zeros(0), *self._returns]),
            np.concatenate([np.zeros(0, np.bool_), *self._terminated]),
        ]
        schema = EPISODE_SCHEMA.with_metadata({**metadata, "kind": EPISODES})
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
