"""Rollouts as a transform: from the path of a version to the record batches of its next round."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from policies.training_round import collect, shards_to_collect
from policies.training_run import TrainingRun
from transforms.coders import KeyedBatch

Ticket = tuple[str, int]


class CollectRollouts(beam.PTransform):
    """Samples one round of every shard with the policy of a version.

    Args:
        run: The run. Its weights do not travel in the pipeline: each element names a version, and
            stages read its files.

    Input: paths of versions. Output: (path, record batch), where `kind` in a batch's schema
    metadata tells steps, episodes and snapshots apart. A path whose run has stopped
    gives exactly one batch of kind `pass`, so that every round ends in exactly one path. Several
    shards are spread over workers by a shuffle of their tickets.

    Example:
        >>> batches = paths | CollectRollouts(run)
        >>> paths = batches | beam.GroupByKey() | UpdatePolicy(run) | PublishVersion(run)
    """

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        self.run = run

    def expand(self, paths: beam.PCollection[str]) -> beam.PCollection[KeyedBatch]:
        if self.run.config.num_rollout_workers == 1:
            # Nothing to spread: a stage less is some milliseconds less a round.
            return paths | "Sample" >> beam.ParDo(_SampleAll(self.run)).with_output_types(
                KeyedBatch
            )
        tickets = paths | "IssueTickets" >> beam.ParDo(_IssueTickets(self.run)).with_output_types(
            Ticket
        )
        tickets |= "SpreadShards" >> beam.Reshuffle()
        return tickets | "Sample" >> beam.ParDo(_Sample(self.run)).with_output_types(KeyedBatch)


class _SampleAll(beam.DoFn):
    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def process(self, path: str) -> Iterator[KeyedBatch]:
        for shard in shards_to_collect(self._run, path):
            for batch in collect(self._run, path, shard):
                yield path, batch


class _IssueTickets(beam.DoFn):
    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def process(self, path: str) -> Iterator[Ticket]:
        for shard in shards_to_collect(self._run, path):
            yield path, shard


class _Sample(beam.DoFn):
    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def process(self, ticket: Ticket) -> Iterator[KeyedBatch]:
        path, shard = ticket
        for batch in collect(self._run, path, shard):
            yield path, batch
