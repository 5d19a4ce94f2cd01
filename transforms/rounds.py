"""A job of training: K rounds, unrolled, in windows of logical time.

    path of v -> CollectRollouts -> GroupByKey -> UpdatePolicy -> EvaluatePolicy -> PublishVersion
              -> path of v + 1 -> CollectRollouts -> ...

Logical time is the round: a path is stamped with the round that reads it, windows are one round
wide, so one window is one learner call whatever a runner does with processing time. The path is the
only thing that goes from round to round, along the edge of the graph: no side input has to be ready
first.
"""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from policies.errors import RunError
from policies.run_directory import RunDirectory
from policies.training_run import TrainingRun
from transforms.learner import EvaluatePolicy, UpdatePolicy
from transforms.publish import PublishVersion
from transforms.rollouts import CollectRollouts


class TrainRounds(beam.PTransform):
    """Trains up to `rounds` rounds from the newest version of a run.

    Args:
        run: The run.
        rounds: Rounds to unroll. Rounds after a stop condition pass the path on.
        resource_hints: Beam resource hints of the three stages that learn.
        stable_start: Shuffle the path that the job starts from, so that a runner that computes a
            lost partition again does not look a newer version up. Not needed in one process.

    Input: the pipeline. Output: the path of the newest version at the end. The graph holds no
    state of the run, its first stage looks the newest version up: the same graph may run again.
    """

    def __init__(
        self,
        run: TrainingRun,
        rounds: int,
        resource_hints: dict[str, str] | None = None,
        stable_start: bool = False,
    ) -> None:
        super().__init__()
        self.run = run
        self.rounds = rounds
        self.hints = resource_hints
        self.stable_start = stable_start

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[str]:
        paths = (
            root
            | "Start" >> beam.Impulse()
            | "RoundWindows" >> beam.WindowInto(FixedWindows(1))
            | "NewestVersion" >> beam.ParDo(_NewestVersion(self.run.url)).with_output_types(str)
        )
        if self.stable_start:
            paths |= "KeepStart" >> beam.Reshuffle()
        for index in range(self.rounds):
            paths |= f"Round{index + 1}" >> TrainRound(self.run, self.hints)
        return paths


class TrainRound(beam.PTransform):
    """One round: from the path of a version to the path of the next.

    Args:
        run: The run.
        resource_hints: Beam resource hints of the three stages that learn. They have the same, or
            runners would not fuse them.

    Everything of a round goes through one GroupByKey, and the three stages after it stay fused.
    """

    def __init__(self, run: TrainingRun, resource_hints: dict[str, str] | None = None) -> None:
        super().__init__()
        self.run = run
        self.hints = resource_hints

    def expand(self, paths: beam.PCollection[str]) -> beam.PCollection[str]:
        stages: list[beam.PTransform] = [
            UpdatePolicy(self.run),
            EvaluatePolicy(self.run),
            PublishVersion(self.run),
        ]
        batches = paths | CollectRollouts(self.run)
        learned = batches | "GroupRound" >> beam.GroupByKey()
        for stage in stages:
            learned |= stage.with_resource_hints(**self.hints) if self.hints else stage
        return learned


class _NewestVersion(beam.DoFn):
    def __init__(self, url: str) -> None:
        self._url = url

    def process(self, impulse: bytes) -> Iterator[TimestampedValue[str]]:
        newest = RunDirectory.open(self._url).newest_version()
        if newest is None:
            raise RunError(f"{self._url} has no version to start from")
        yield TimestampedValue(newest.path, newest.version)
