"""The data files of a version: arrays as safetensors, tables as Arrow IPC, named by their content.

Equal content has an equal name, so writing again after a crash is harmless, and a reader that
checks the hash knows that it has what the writer meant. Nothing here runs code from a file.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from policies.errors import RunError
from policies.file_store import FileStore
from policies.manifest import FileRecord

if TYPE_CHECKING:
    import pyarrow as pa

_ARRAY_TYPES = frozenset(
    ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
    + ("float16", "float32", "float64")
)


class DamagedFileError(RunError):
    """A file of a version is missing, has another size or hash, or does not decode."""


def write_arrays(version_dir: str, stem: str, arrays: Mapping[str, np.ndarray]) -> FileRecord:
    """Writes named arrays as one safetensors file.

    Args:
        version_dir: path or URL of the version's folder; made when absent.
        stem: what the arrays are, for example "weights".
        arrays: bool, integer or float arrays of any shape, also 0-dimensional or empty.

    Returns:
        The file's record, for the manifest.

    Raises:
        ValueError: an array's type has no place in safetensors; the message names the array.
        RunError: the file cannot be written.
    """
    import safetensors.numpy

    tensors: dict[str, np.ndarray] = {}
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.name not in _ARRAY_TYPES:
            raise ValueError(f"array {name!r} of {stem} has type {array.dtype}, not a plain number")
        tensors[name] = np.asarray(array, order="C")
    # No metadata: safetensors writes several keys of it in random order, which changes the hash.
    return _write(version_dir, stem, ".safetensors", safetensors.numpy.save(tensors))


def read_arrays(version_dir: str, record: FileRecord) -> dict[str, np.ndarray]:
    """Reads arrays back, checked against the record.

    Returns:
        Fresh writable arrays, in the order of their names: safetensors gives them in random order,
        and the order of a sum over parameters shows in its last bits.

    Raises:
        DamagedFileError: the file is missing or is not what the record says.
    """
    import safetensors
    import safetensors.numpy

    data = read_verified(version_dir, record)
    try:
        loaded = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _undecodable(version_dir, record, error) from error
    return {name: np.array(loaded[name], copy=True, order="C") for name in sorted(loaded)}


def write_arrow(version_dir: str, stem: str, table: pa.Table | pa.RecordBatch) -> FileRecord:
    """Writes a table, or one record batch, as an Arrow IPC file.

    Returns:
        The file's record, for the manifest.

    Raises:
        RunError: the file cannot be written.
    """
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    return _write(version_dir, stem, ".arrow", sink.getvalue().to_pybytes())


def read_arrow(version_dir: str, record: FileRecord) -> pa.Table:
    """Reads a table back, checked against the record and by Arrow's own full validation.

    Raises:
        DamagedFileError: the file is missing or is not what the record says.
    """
    import pyarrow as pa

    data = read_verified(version_dir, record)
    try:
        table: pa.Table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise _undecodable(version_dir, record, error) from error
    return table


def read_verified(version_dir: str, record: FileRecord) -> bytes:
    """Returns the bytes of a file whose size and SHA-256 are those of its record.

    Raises:
        DamagedFileError: the file is missing, or differs; the message names it.
        RunError: it cannot be read.
    """
    store = folder_store(version_dir)
    url = store.url_of(record.name)
    size = store.size(record.name)
    if size is None:
        raise DamagedFileError(f"{url} is missing")
    if size != record.size:
        raise DamagedFileError(f"{url} has {size} bytes, {record.size} expected")
    data = store.read(record.name, limit=record.size)
    if data is None:
        raise DamagedFileError(f"{url} is missing")
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise DamagedFileError(f"{url} is damaged: its SHA-256 is not {record.sha256}")
    return data


def folder_store(version_dir: str) -> FileStore:
    """Returns the store of a folder; absolute paths and URLs share one (opening costs 0.1 ms)."""
    if version_dir.startswith("/") or "://" in version_dir:
        return _shared_store(version_dir)
    return FileStore(version_dir)


@functools.lru_cache(maxsize=64)
def _shared_store(url: str) -> FileStore:
    return FileStore(url)


def _write(version_dir: str, stem: str, suffix: str, data: bytes) -> FileRecord:
    record = FileRecord.of(stem, suffix, data)
    # Always written, so that a retry mends what a power cut damaged: files are synced, all at once,
    # just before the manifest that names them appears.
    folder_store(version_dir).replace(record.name, data, durable=False)
    return record


def _undecodable(version_dir: str, record: FileRecord, error: Exception) -> DamagedFileError:
    reason = " ".join(str(error).split())
    url = folder_store(version_dir).url_of(record.name)
    return DamagedFileError(f"{url} cannot be decoded: {reason}")
