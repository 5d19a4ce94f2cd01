"""Named arrays in Arrow tables."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from policies.batch_kinds import SNAPSHOTS, kind
from policies.errors import RunError
from policies.snapshots import arrays_to_batch, batch_to_arrays, snapshot_sha256

ARRAYS: dict[str, np.ndarray] = {
    "b/int": np.array([[1, -2], [3, 4]], np.int16),
    "a": np.array(7, np.uint64),
    "text": np.array(["x", "longer"]),
    "empty": np.zeros((0, 3), np.float32),
    "bool": np.array([True, False]),
    "nan": np.array([np.nan, -0.0, np.inf]),
    "big endian": np.array([1, 2], ">i4"),
    "transposed": np.arange(6).reshape(2, 3).T,
}


def test_arrays_come_back_to_the_bit_in_name_order_and_writable() -> None:
    batch = arrays_to_batch(3, ARRAYS)
    assert kind(batch) == SNAPSHOTS
    found = batch_to_arrays(batch, 3)
    assert list(found) == sorted(ARRAYS)
    for name, array in found.items():
        assert array.dtype == ARRAYS[name].dtype
        assert array.shape == ARRAYS[name].shape
        assert array.tobytes() == ARRAYS[name].tobytes()
        assert array.flags.writeable


def test_each_shard_finds_its_own_arrays() -> None:
    batches = [arrays_to_batch(s, {"x": np.full(2, s)}) for s in (1, 0, 5)]
    table = pa.Table.from_batches(batches)
    for shard in (0, 1, 5):
        assert batch_to_arrays(table, shard)["x"].tolist() == [shard, shard]
    assert batch_to_arrays(table, 2) == {}
    assert batch_to_arrays(arrays_to_batch(0, {}), 0) == {}


@pytest.mark.parametrize(
    "value", [np.array([object()]), np.array([1j]), np.array(["2020-01-01"], "M8[D]")]
)
def test_only_plain_data_is_packed(value: np.ndarray) -> None:
    with pytest.raises(TypeError, match="'x' has dtype .* not plain data"):
        arrays_to_batch(0, {"x": value})


def damaged(**changes: Any) -> pa.RecordBatch:
    batch = arrays_to_batch(0, {"x": np.arange(3)})
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    columns |= {name: [value] for name, value in changes.items()}
    return pa.RecordBatch.from_pydict(columns, schema=batch.schema)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "O"},
        {"dtype": "no such type"},
        {"dtype": None},
        {"dtype": "i4,f4"},
        {"shape": [4]},
        {"shape": [-1, -3]},
        {"shape": None},
        {"shape": [None]},
        {"bytes": None},
        {"bytes": b"12345"},
        {"name": None},
    ],
)
def test_damage_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="saved state"):
        batch_to_arrays(damaged(**changes), 0)


def test_a_name_twice_and_another_table_are_errors() -> None:
    batch = arrays_to_batch(0, {"x": np.arange(3)})
    with pytest.raises(RunError, match="two arrays of one name"):
        batch_to_arrays(pa.Table.from_batches([batch, batch]), 0)
    with pytest.raises(RunError, match="not a table of arrays"):
        batch_to_arrays(pa.table({"y": [1]}), 0)


def test_the_hash_is_that_of_the_arrays() -> None:
    batch = arrays_to_batch(0, ARRAYS)
    doubled = pa.concat_batches([batch, batch])
    assert snapshot_sha256(doubled.slice(len(batch))) == snapshot_sha256(batch)
    assert snapshot_sha256(arrays_to_batch(1, ARRAYS)) != snapshot_sha256(batch)
    for name, array in ARRAYS.items():
        if array.size and array.dtype.kind in "iu":
            changed = arrays_to_batch(0, ARRAYS | {name: array + 1})
            assert snapshot_sha256(changed) != snapshot_sha256(batch)
    one, other = ({"x": np.zeros(shape)} for shape in ((2, 3), (3, 2)))
    assert snapshot_sha256(arrays_to_batch(0, one)) != snapshot_sha256(arrays_to_batch(0, other))


def test_the_hash_is_pinned() -> None:
    batch = arrays_to_batch(0, {"x": np.arange(3, dtype="<i8")})
    header = b'[0, "x", "<i8", [3], 24]'
    data = header + np.arange(3, dtype="<i8").tobytes()
    assert snapshot_sha256(batch) == hashlib.sha256(data).hexdigest()
