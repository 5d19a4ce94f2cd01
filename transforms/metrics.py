"""Episode metrics as Beam combiners: the shell around `policies.episode_metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import with_input_types, with_output_types

import transforms.coders  # noqa: F401 (registers the coder of record batches)
from policies.episode_metrics import EpisodeMetrics

_Metrics = dict[str, int | float]


@with_input_types(pa.RecordBatch)
@with_output_types(_Metrics)
class EpisodeMetricsFn(beam.CombineFn):
    """Combines episode batches to the numbers of `EpisodeMetrics.result`.

    The result is the same to the bit whatever the bundles and the order of the batches. A batch of
    another kind than `episodes` is a ValueError.
    """

    def create_accumulator(self) -> EpisodeMetrics:
        """Returns the summary of no episodes."""
        return EpisodeMetrics()

    def add_input(
        self, mutable_accumulator: EpisodeMetrics, element: pa.RecordBatch
    ) -> EpisodeMetrics:
        """Returns the accumulator with the episodes of one batch in it."""
        return mutable_accumulator.add_batch(element)

    def merge_accumulators(self, accumulators: Iterable[EpisodeMetrics]) -> EpisodeMetrics:
        """Returns the summary of all accumulators."""
        total = EpisodeMetrics()
        for accumulator in accumulators:
            total = total.merge(accumulator)
        return total

    def get_accumulator_coder(self) -> beam.coders.Coder:
        """Without it, Beam would pickle the accumulators."""
        return EpisodeMetricsCoder()

    def extract_output(self, accumulator: EpisodeMetrics) -> _Metrics:
        """Returns the numbers."""
        return accumulator.result()


class EpisodeMetricsCoder(beam.coders.Coder):
    """Encodes a summary as its numbers in text: exact, and equal summaries give equal bytes."""

    def encode(self, value: EpisodeMetrics) -> bytes:
        """The fields in order; Python writes whole numbers and floats exactly."""
        return " ".join(repr(getattr(value, name)) for name in _FIELDS).encode("ascii")

    def decode(self, encoded: bytes) -> EpisodeMetrics:
        """The summary."""
        words = zip(_FIELDS.items(), encoded.decode("ascii").split(" "), strict=True)
        return EpisodeMetrics(**{name: parse(word) for (name, parse), word in words})

    def is_deterministic(self) -> bool:
        """True."""
        return True


_FIELDS: dict[str, Any] = {field.name: type(field.default) for field in fields(EpisodeMetrics)}


class SummarizeEpisodes:
    """Summarises episode batches: how many episodes, their returns and lengths."""

    class Globally(beam.PTransform):
        """PCollection of episode batches -> one dict, as of `EpisodeMetrics.result`.

        Without episodes in the global window the dict is `{"episodes": 0}`. In other windows there
        is one dict for each window that has batches, and none for empty ones.
        """

        def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> beam.PCollection[_Metrics]:
            """Applies the combiner to all batches of a window."""
            combine = beam.CombineGlobally(EpisodeMetricsFn())
            if not isinstance(batches.windowing.windowfn, GlobalWindows):
                combine = combine.without_defaults()
            return batches | "Combine" >> combine

    class PerKey(beam.PTransform):
        """PCollection of (key, episode batch) -> (key, dict), as of `EpisodeMetrics.result`."""

        def expand(
            self, keyed: beam.PCollection[tuple[Any, pa.RecordBatch]]
        ) -> beam.PCollection[tuple[Any, _Metrics]]:
            """Applies the combiner to the batches of each key and window."""
            return keyed | "Combine" >> beam.CombinePerKey(EpisodeMetricsFn())
