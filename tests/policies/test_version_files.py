"""Data files: named by content, checked when read, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from policies.manifest import FileRecord
from policies.version_files import (
    DamagedFileError,
    read_arrays,
    read_arrow,
    write_arrays,
    write_arrow,
)


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid.uuid4()}/v"
    return str(tmp_path / "a version ü")


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    arrays = {f"layer.{i}/w": rng.normal(size=(4, i + 1)).astype(np.float32) for i in range(30)}
    arrays["count"] = np.array(2**40)
    arrays["empty"] = np.zeros((0, 3))
    arrays["flags"] = np.array([True, False])
    arrays["image"] = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    return arrays


def test_arrays_come_back_sorted_writable_and_fresh(folder: str) -> None:
    arrays = _arrays()
    record = write_arrays(folder, "weights", arrays)
    first, second = read_arrays(folder, record), read_arrays(folder, record)
    assert list(first) == list(second) == sorted(arrays)
    for name, array in first.items():
        assert array.dtype == arrays[name].dtype and array.shape == arrays[name].shape
        np.testing.assert_array_equal(array, arrays[name])
        assert array.flags.writeable and array.flags.owndata and array.flags.c_contiguous
        assert array.flags.aligned and not np.shares_memory(array, second[name])


def test_bytes_and_name_follow_from_the_content_alone(tmp_path: Path) -> None:
    arrays = _arrays()
    backwards = {name: arrays[name] for name in reversed(arrays)}
    backwards["layer.5/w"] = np.asfortranarray(backwards["layer.5/w"])
    backwards["layer.7/w"] = backwards["layer.7/w"].astype(">f4")
    record = write_arrays(str(tmp_path / "a"), "weights", arrays)
    assert write_arrays(str(tmp_path / "b"), "weights", backwards) == record
    data = (tmp_path / "a" / record.name).read_bytes()
    assert data == (tmp_path / "b" / record.name).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert record == FileRecord(f"weights-{digest[:16]}.safetensors", len(data), digest)
    assert [path.name for path in (tmp_path / "a").iterdir()] == [record.name]


def test_safetensors_metadata_has_at_most_one_key(tmp_path: Path) -> None:
    record = write_arrays(str(tmp_path), "weights", _arrays())
    data = (tmp_path / record.name).read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert len(header.get("__metadata__", {})) <= 1


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([1j])])
def test_an_array_that_is_no_plain_number_is_named(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="array 'bad' of weights has type"):
        write_arrays(str(tmp_path), "weights", {"bad": array})


def test_tables_come_back_with_their_metadata(folder: str) -> None:
    schema = pa.schema([("shard", pa.int32()), ("bytes", pa.binary())], metadata={"kind": "env"})
    table = pa.table({"shard": [0, 1], "bytes": [b"", b"\x00\xff"]}, schema=schema)
    record = write_arrow(folder, "rollout", table)
    assert record.name.endswith(".arrow") and record.stem == "rollout"
    loaded = read_arrow(folder, record)
    assert loaded.equals(table) and loaded.schema.metadata == {b"kind": b"env"}
    assert write_arrow(folder, "rollout", table.to_batches()[0]) == record


@pytest.mark.parametrize("damage", ["missing", "cut", "longer", "flipped"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    record = write_arrays(str(tmp_path), "weights", _arrays())
    path = tmp_path / record.name
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-1])
    if damage == "longer":
        path.write_bytes(data + b"x")
    if damage == "flipped":
        data[-3] ^= 1
        path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=record.name) as caught:
        read_arrays(str(tmp_path), record)
    assert "\n" not in str(caught.value)
    if damage != "missing":
        assert write_arrays(str(tmp_path), "weights", _arrays()) == record
        assert list(read_arrays(str(tmp_path), record)) == sorted(_arrays())


@pytest.mark.parametrize("suffix", [".safetensors", ".arrow"])
@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff" * 100, b"ARROW1\0\0" * 9])
def test_content_of_another_format_is_refused(tmp_path: Path, suffix: str, data: bytes) -> None:
    record = FileRecord.of("weights", suffix, data)
    (tmp_path / record.name).write_bytes(data)
    read = read_arrays if suffix == ".safetensors" else read_arrow
    with pytest.raises(DamagedFileError, match="cannot be decoded"):
        read(str(tmp_path), record)
