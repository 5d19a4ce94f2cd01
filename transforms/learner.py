"""The learner stage: from everything a round sampled to the files of the next version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import pyarrow as pa
from apache_beam import coders

from policies.training_round import VersionDraft, evaluate_draft, learn
from policies.training_run import TrainingRun


class VersionDraftCoder(coders.Coder):
    """A draft as canonical JSON, for runners that do not fuse the stages after the shuffle."""

    def encode(self, value: VersionDraft) -> bytes:
        """The draft as JSON."""
        return value.to_json()

    def decode(self, encoded: bytes) -> VersionDraft:
        """The draft again."""
        return VersionDraft.from_json(encoded)

    def is_deterministic(self) -> bool:
        """True: equal drafts have equal bytes."""
        return True

    def to_type_hint(self) -> type[VersionDraft]:
        """The type that the coder stands for."""
        return VersionDraft


coders.registry.register_coder(VersionDraft, VersionDraftCoder)


class UpdatePolicy(beam.PTransform):
    """Applies one round's batches to the policies of a version.

    Args:
        run: The run.

    Input: (path of a version, all record batches of its round), grouped. Output: a `VersionDraft`,
    whose files are written and whose manifest is not. The rows are sorted, so the order in which
    a runner delivers them changes nothing. A bundle that runs again writes the same files.
    """

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        self.run = run

    def expand(
        self, rounds: beam.PCollection[tuple[str, Iterable[pa.RecordBatch]]]
    ) -> beam.PCollection[VersionDraft]:
        return rounds | "Learn" >> beam.ParDo(_Learn(self.run)).with_output_types(VersionDraft)


class EvaluatePolicy(beam.PTransform):
    """Evaluates drafts on exactly N episodes where the configuration's interval says so.

    Args:
        run: The run.

    Input and output: `VersionDraft`.
    """

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        self.run = run

    def expand(self, drafts: beam.PCollection[VersionDraft]) -> beam.PCollection[VersionDraft]:
        return drafts | "Evaluate" >> beam.ParDo(_Evaluate(self.run)).with_output_types(
            VersionDraft
        )


class _Learn(beam.DoFn):
    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def process(self, element: tuple[str, Iterable[pa.RecordBatch]]) -> Iterator[VersionDraft]:
        path, batches = element
        yield learn(self._run, path, list(batches))


class _Evaluate(beam.DoFn):
    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def process(self, draft: VersionDraft) -> Iterator[VersionDraft]:
        yield evaluate_draft(self._run, draft)
