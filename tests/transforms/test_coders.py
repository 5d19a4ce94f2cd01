"""The record batch coder: what travels, and how often Beam calls it."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam import coders
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that

from policies import sample_batch as sb
from policies.sample_batch import SampleBatch
from transforms.coders import RecordBatchCoder

CODER = RecordBatchCoder()


def make_batch(n: int, words: int = 1) -> pa.RecordBatch:
    rng = np.random.default_rng(n)
    return SampleBatch.from_columns(
        {
            "eps_id": np.arange(n),
            "t": np.zeros(n, int),
            "agent_id": np.array([f"agent_{i % words}" for i in range(n)], dtype=str),
            "obs": {"image": rng.integers(0, 255, (n, 4, 4), np.uint8), "x": rng.random((n, 3))},
            "terminateds": pa.array([None if i % 3 else True for i in range(n)], pa.bool_()),
            "note": np.array([f"row {i}" for i in range(n)], dtype=str),
        },
        metadata={"source": "here"},
    ).record_batch


def test_coder_is_registered_for_record_batches() -> None:
    assert isinstance(coders.registry.get_coder(pa.RecordBatch), RecordBatchCoder)
    assert CODER.to_type_hint() is pa.RecordBatch
    assert not CODER.is_deterministic()
    assert RecordBatchCoder() == CODER and hash(CODER) == hash(RecordBatchCoder())


@pytest.mark.parametrize("n", [0, 1, 7])
def test_batches_round_trip_with_schema_and_metadata(n: int) -> None:
    batch = make_batch(n, words=3)
    decoded = CODER.decode(CODER.encode(batch))
    assert decoded.schema.equals(batch.schema, check_metadata=True)
    assert decoded.to_pylist() == batch.to_pylist()
    decoded.validate(full=True)


def test_kinds_other_than_steps_travel_too() -> None:
    episodes = sb.record_batch({"length": np.arange(3)}, kind=sb.EPISODES)
    assert sb.kind(CODER.decode(CODER.encode(episodes))) == sb.EPISODES


def test_a_slice_carries_neither_its_parents_rows_nor_its_dictionary() -> None:
    parent = make_batch(10_000, words=1_000)
    part = parent.slice(5_000, 10)
    encoded = CODER.encode(part)
    assert len(encoded) <= 1.1 * len(CODER.encode(make_batch(10))) < 10_000
    decoded = CODER.decode(encoded)
    assert len(decoded.column("agent_id").dictionary) == 10
    assert decoded.get_total_buffer_size() < 10_000
    assert decoded.to_pylist() == part.to_pylist()


def test_estimated_size_is_that_of_the_rows() -> None:
    batch = make_batch(1_000)
    assert CODER.estimate_size(batch) == pytest.approx(len(CODER.encode(batch)), rel=0.1)
    assert CODER.estimate_size(batch.slice(0, 100)) < 0.15 * CODER.estimate_size(batch)


class CountedBatch:
    """An element type of its own, so that counting leaves the registered coder alone."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch


class CountingCoder(RecordBatchCoder):
    """Counts its calls in this process, where FnApiRunner's in-memory workers run."""

    encodes = 0

    def encode(self, value: CountedBatch) -> bytes:
        type(self).encodes += 1
        return super().encode(value.batch)

    def decode(self, encoded: bytes) -> CountedBatch:
        return CountedBatch(super().decode(encoded))

    def estimate_size(self, value: CountedBatch) -> int:
        return super().estimate_size(value.batch)

    def to_type_hint(self) -> type[CountedBatch]:
        return CountedBatch


coders.registry.register_coder(CountedBatch, CountingCoder)


def _make(n: int) -> Iterator[CountedBatch]:
    yield CountedBatch(make_batch(n))


def _make_keyed(n: int) -> Iterator[tuple[int, CountedBatch]]:
    yield n % 2, CountedBatch(make_batch(n))


def _length(element: CountedBatch) -> int:
    return element.batch.num_rows


def _lengths(element: tuple[int, list[CountedBatch]]) -> int:
    return sum(map(_length, element[1]))


SIZES = [3, 4, 5, 8]


def _check_total(actual: list[int]) -> None:
    assert sum(actual) == sum(SIZES)


@pytest.mark.parametrize("shuffle", ["reshuffle", "group"])
def test_each_shuffled_element_is_encoded_once(shuffle: str) -> None:
    CountingCoder.encodes = 0
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        sizes = pipeline | beam.Create(SIZES)
        if shuffle == "reshuffle":
            batches = sizes | beam.FlatMap(_make).with_output_types(CountedBatch)
            lengths = batches | beam.Reshuffle() | "Length" >> beam.Map(_length)
        else:
            keyed = sizes | beam.FlatMap(_make_keyed).with_output_types(tuple[int, CountedBatch])
            lengths = keyed | beam.GroupByKey() | "Lengths" >> beam.Map(_lengths)
        assert_that(lengths, _check_total)
    assert CountingCoder.encodes == len(SIZES)


def _make_batch(n: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    yield 0, make_batch(n, words=2)


def _canonical(batches: list[pa.RecordBatch]) -> list[str]:
    return sorted(str(batch.to_pylist()) for batch in batches)


def _check_batches(actual: list[tuple[int, list[pa.RecordBatch]]]) -> None:
    expected = [make_batch(n, words=2) for n in SIZES]
    (found,) = actual
    assert _canonical(list(found[1])) == _canonical(expected)
    assert all(sb.kind(batch) == sb.STEPS for batch in found[1])


def test_batches_survive_a_group_by_key() -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        grouped = pipeline | beam.Create(SIZES) | beam.FlatMap(_make_batch) | beam.GroupByKey()
        assert_that(grouped, _check_batches)


def test_batches_cannot_be_keys() -> None:
    with (
        pytest.raises(ValueError, match="cannot be made deterministic"),
        beam.Pipeline(runner=FnApiRunner()) as pipeline,
    ):
        batches = pipeline | beam.Create(SIZES) | beam.Map(make_batch)
        keyed = batches | beam.Map(lambda b: (b, 1)).with_output_types(tuple[pa.RecordBatch, int])
        _ = keyed | beam.GroupByKey()
