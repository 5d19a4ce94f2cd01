"""The pipeline's summary equals the direct call."""

from __future__ import annotations

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.typehints import typehints

from policies.episode_metrics import EPISODE_SCHEMA, EpisodeMetrics
from transforms.metrics import EpisodeMetricsCoder, EpisodeMetricsFn, SummarizeEpisodes


def episode_batch(returns, lengths, schema=EPISODE_SCHEMA):
    n = len(returns)
    columns = [[0] * n, range(n), range(n), lengths, lengths, returns, [True] * n]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.fixture
def batches():
    rng = np.random.default_rng(0)
    return [
        episode_batch(rng.normal(0, 10.0**k, n), rng.integers(1, 500, n))
        for k, n in enumerate([5, 0, 1, 40, 7])
    ]


@pytest.fixture
def pipeline():
    return beam.Pipeline(runner=FnApiRunner())


def direct(batches):
    metrics = EpisodeMetrics()
    for batch in batches:
        metrics = metrics.add_batch(batch)
    return metrics.result()


def test_globally_equals_the_direct_call_to_the_bit(pipeline, batches):
    with pipeline:
        result = (
            pipeline
            | beam.Create(range(5))
            | beam.Reshuffle()
            | beam.Map(lambda i: batches[i]).with_output_types(pa.RecordBatch)
            | SummarizeEpisodes.Globally()
        )
        assert_that(result, equal_to([direct(batches[::-1])]))


def test_globally_without_batches_counts_no_episodes(pipeline):
    with pipeline:
        result = (
            pipeline
            | beam.Create([]).with_output_types(pa.RecordBatch)
            | SummarizeEpisodes.Globally()
        )
        assert_that(result, equal_to([{"episodes": 0}]))


def test_per_key_summarises_each_key(pipeline, batches):
    keys = ["a", "b", "a", "b", "c"]
    with pipeline:
        result = (
            pipeline
            | beam.Create(range(5))
            | beam.Map(lambda i: (keys[i], batches[i])).with_output_types(
                tuple[str, pa.RecordBatch]
            )
            | SummarizeEpisodes.PerKey()
        )
        expected = [
            ("a", direct([batches[0], batches[2]])),
            ("b", direct([batches[1], batches[3]])),
            ("c", direct([batches[4]])),
        ]
        assert_that(result, equal_to(expected))


def test_globally_in_windows_gives_one_summary_a_window(pipeline, batches):
    rounds = [0, 0, 2, 2, 3]
    with pipeline:
        result = (
            pipeline
            | beam.Create(range(5))
            | beam.Map(lambda i: TimestampedValue(batches[i], rounds[i])).with_output_types(
                pa.RecordBatch
            )
            | beam.WindowInto(FixedWindows(1))
            | SummarizeEpisodes.Globally()
        )
        expected = [direct(batches[:2]), direct(batches[2:4]), direct(batches[4:])]
        assert_that(result, equal_to(expected))


def test_outputs_are_typed(pipeline):
    empty = pipeline | beam.Create([]).with_output_types(pa.RecordBatch)
    summary = empty | SummarizeEpisodes.Globally()
    keyed = empty | beam.Map(lambda b: ("a", b)).with_output_types(tuple[str, pa.RecordBatch])
    per_key = keyed | SummarizeEpisodes.PerKey()
    numbers = typehints.Dict[str, typehints.Union[int, float]]
    assert summary.element_type == numbers
    assert per_key.element_type == typehints.Tuple[str, numbers]


def test_accumulators_merge_in_any_grouping(batches):
    combine = EpisodeMetricsFn()
    accumulators = [combine.add_input(combine.create_accumulator(), batch) for batch in batches]
    left = combine.merge_accumulators(
        [combine.merge_accumulators(accumulators[:2])] + accumulators[2:]
    )
    right = combine.merge_accumulators(reversed(accumulators))
    assert combine.extract_output(left) == combine.extract_output(right) == direct(batches)


def test_batches_of_another_kind_fail_the_pipeline(batches):
    steps = batches[0].replace_schema_metadata({"kind": "steps"})
    wrong = "expected a record batch of kind 'episodes', got 'steps'"
    with pytest.raises(Exception, match=wrong), beam.Pipeline(runner=FnApiRunner()) as pipeline:
        batches = pipeline | beam.Create([0]) | beam.Map(lambda _: steps)
        batches | SummarizeEpisodes.Globally()


@pytest.mark.parametrize("returns", [[], [0.1], [-1e300, 1e300], [5e-324], [1e30, 3.0, -0.0]])
def test_accumulators_travel_exactly_and_without_pickle(returns):
    coder = EpisodeMetricsFn().get_accumulator_coder()
    assert isinstance(coder, EpisodeMetricsCoder) and coder.is_deterministic()
    metrics = EpisodeMetrics().add(returns, [3] * len(returns))
    encoded = coder.encode(metrics)
    assert coder.decode(encoded) == metrics
    assert repr(coder.decode(encoded)) == repr(metrics)
    assert encoded == coder.encode(EpisodeMetrics().add(returns[::-1], [3] * len(returns)))
