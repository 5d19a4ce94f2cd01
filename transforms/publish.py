"""Publishing: a draft becomes a version by its manifest, which is made last and by one writer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue

from policies.training_round import VersionDraft, publish
from policies.training_run import TrainingRun


class PublishVersion(beam.PTransform):
    """Commits drafts, or adopts versions that others have committed.

    Args:
        run: The run.

    Input: `VersionDraft`, in windows of rounds. Output: paths of versions, one for each draft,
    stamped with the next round. Also a path that is only passed on moves to a window of its own:
    it would be late in the one that has just closed.
    """

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        self.run = run

    def expand(self, drafts: beam.PCollection[VersionDraft]) -> beam.PCollection[str]:
        return drafts | "Publish" >> beam.ParDo(_Publish(self.run)).with_output_types(str)


class _Publish(beam.DoFn):
    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def process(
        self, draft: VersionDraft, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[TimestampedValue[str]]:
        yield TimestampedValue(publish(self._run, draft), window.end)
