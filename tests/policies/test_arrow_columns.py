"""numpy structs to Arrow and back: no copies, no wrapped layouts, no leftovers of a parent."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from policies import arrow_columns

DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "float32", "float64"]


def _through_ipc(array: pa.Array) -> pa.Array:
    batch = pa.RecordBatch.from_arrays([array], names=["x"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().column(0)


def _through_parquet(array: pa.Array) -> pa.Array:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": array}), sink)
    sink.seek(0)
    return pq.read_table(sink).column(0)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_round_trip(dtype: str, n: int, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, (n, *shape)).astype(dtype)
    column = arrow_columns.to_arrow(array)
    for stored in (column, _through_ipc(column)):
        restored = arrow_columns.to_numpy(stored)
        assert restored.dtype == array.dtype and restored.shape == array.shape
        assert np.array_equal(restored, array)
        assert not restored.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
        np.arange(24).reshape(4, 3, 2).transpose(1, 2, 0),
        np.arange(20)[::-2],
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.arange(4.0).astype(">f8"),
        np.asfortranarray(np.ones((3, 2), bool)),
    ],
    ids=["transposed", "permuted", "reversed", "strided", "big endian", "fortran"],
)
def test_other_memory_layouts_give_the_same_values_and_the_plain_type(array: np.ndarray) -> None:
    column = arrow_columns.to_arrow(array)
    assert np.array_equal(arrow_columns.to_numpy(column), array)
    assert column.type == arrow_columns.to_arrow(array.astype(array.dtype.name).copy("C")).type


def test_numbers_and_tensors_are_not_copied() -> None:
    for array in (np.arange(5.0), np.ones((5, 2, 3), np.uint8)):
        assert np.shares_memory(arrow_columns.to_numpy(arrow_columns.to_arrow(array)), array)


NESTED: dict[str, Any] = {
    "pair": (np.arange(3), np.ones((3, 2), np.float32)),
    "inner": {"flag": np.array([True, False, True])},
}


@pytest.mark.parametrize("store", [lambda x: x, _through_ipc, _through_parquet])
def test_nested_structs_round_trip(store: Any) -> None:
    restored = arrow_columns.to_numpy(store(arrow_columns.to_arrow(NESTED)))
    assert isinstance(restored["pair"], tuple)
    assert np.array_equal(restored["pair"][1], NESTED["pair"][1])
    assert np.array_equal(restored["inner"]["flag"], NESTED["inner"]["flag"])


@pytest.mark.parametrize("store", [lambda x: x, _through_ipc, _through_parquet])
def test_a_dict_whose_keys_are_numbers_does_not_become_a_tuple(store: Any) -> None:
    column = arrow_columns.to_arrow({"0": np.arange(3), "1": np.arange(3)})
    assert set(arrow_columns.to_numpy(store(column))) == {"0", "1"}


def test_slices_of_tensors_and_structs_read_their_own_rows() -> None:
    column = arrow_columns.to_arrow({"a": np.arange(12).reshape(6, 2), "b": np.arange(6)})
    restored = arrow_columns.to_numpy(column.slice(2, 3))
    assert np.array_equal(restored["a"], np.arange(4, 10).reshape(3, 2))
    assert np.array_equal(restored["b"], [2, 3, 4])


def test_fixed_size_lists_of_other_writers_read_as_tensors() -> None:
    kind = pa.list_(pa.list_(pa.int64(), 2), 2)
    column = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], kind)
    assert np.array_equal(arrow_columns.to_numpy(column), np.arange(1, 9).reshape(2, 2, 2))


def test_text_and_times_keep_their_nulls() -> None:
    words = pa.array(["a", None, "b"])
    expected = ["a", None, "b"]
    assert arrow_columns.to_numpy(words).tolist() == expected
    assert arrow_columns.to_numpy(words.dictionary_encode()).tolist() == expected
    times = pa.array([0, None], pa.timestamp("us", "UTC"))
    assert np.isnat(arrow_columns.to_numpy(times)).tolist() == [False, True]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, None]),
        pa.array([True, False, None]),
        pa.array([[1.0], [2.0], None], pa.list_(pa.float64(), 1)),
        pa.array([{"a": 1}, {"a": 2}, None]),
    ],
    ids=["number", "bool", "tensor", "struct"],
)
def test_nulls_without_a_place_in_numpy_are_named(column: pa.Array) -> None:
    with pytest.raises(ValueError, match="column 'x' has 1 nulls, the first in row 2"):
        arrow_columns.to_numpy(column, "x")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.float64(1.0), "single value"),
        ({}, "empty struct"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "different lengths"),
        (np.zeros(2, complex), "dtype complex128"),
        (np.array([None, None]), "only nulls"),
        (np.array(["a", 1], object), "x: "),
    ],
)
def test_values_that_arrow_cannot_hold_are_refused(values: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        arrow_columns.to_arrow(values, "x")


def _dictionary(indices: list[int | None], words: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(words))


def test_compact_keeps_the_used_words_in_their_order() -> None:
    column = _dictionary([3, None, 1, 3, 0], list("abcd")).slice(0, 4)
    batch = pa.RecordBatch.from_arrays([column], names=["w"])
    small = arrow_columns.compact(batch).column(0)
    assert small.dictionary.to_pylist() == ["b", "d"]
    assert small.to_pylist() == ["d", None, "b", "d"]
    assert small.type == column.type


def test_compact_reaches_into_structs_and_keeps_schema_and_metadata() -> None:
    inner = _dictionary([0, 1, 2], list("abc"))
    column = pa.StructArray.from_arrays([inner], names=["w"])
    schema = pa.schema([pa.field("s", column.type)], metadata={"kind": "episodes"})
    batch = pa.RecordBatch.from_arrays([column], schema=schema).slice(1, 1)
    small = arrow_columns.compact(batch)
    assert small.column(0).field(0).dictionary.to_pylist() == ["b"]
    assert small.schema.equals(schema, check_metadata=True)
    assert small.to_pylist() == batch.to_pylist()


def test_compact_of_no_rows_keeps_no_words() -> None:
    batch = pa.RecordBatch.from_arrays([_dictionary([0, 1], list("ab"))], names=["w"]).slice(0, 0)
    assert len(arrow_columns.compact(batch).column(0).dictionary) == 0


def test_compact_returns_a_full_batch_as_it_is() -> None:
    batch = pa.RecordBatch.from_arrays([_dictionary([0, 1], list("ab"))], names=["w"])
    assert arrow_columns.compact(batch) is batch
