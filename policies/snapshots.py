"""Named arrays as one Arrow table of (shard, name, dtype, shape, bytes).

Environment state travels between stages and lies on disk in this form: data only, no pickle.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from policies.batch_kinds import SNAPSHOTS
from policies.errors import RunError

_FIELDS = [
    pa.field("shard", pa.int32()),
    pa.field("name", pa.string()),
    pa.field("dtype", pa.string()),
    pa.field("shape", pa.list_(pa.int64())),
    pa.field("bytes", pa.large_binary()),
]
_SCHEMA = pa.schema(_FIELDS, metadata={b"kind": SNAPSHOTS.encode()})
_PLAIN_KINDS = "biufSU"


def arrays_to_batch(shard: int, arrays: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    """Packs named arrays of one shard, in name order.

    Args:
        shard: The shard that owns the arrays.
        arrays: Numbers, bools or fixed-width text of any shape.

    Raises:
        TypeError: An array has a dtype that is not plain data.
    """
    names = sorted(arrays)
    values = [np.asarray(arrays[name]) for name in names]
    for name, value in zip(names, values, strict=True):
        if value.dtype.kind not in _PLAIN_KINDS:
            raise TypeError(f"array {name!r} has dtype {value.dtype}, which is not plain data")
    return pa.RecordBatch.from_arrays(
        [
            pa.array([shard] * len(names), pa.int32()),
            pa.array(names, pa.string()),
            pa.array([value.dtype.str for value in values], pa.string()),
            pa.array([list(value.shape) for value in values], pa.list_(pa.int64())),
            pa.array([value.tobytes() for value in values], pa.large_binary()),
        ],
        schema=_SCHEMA,
    )


def batch_to_arrays(batch: pa.RecordBatch | pa.Table, shard: int) -> dict[str, np.ndarray]:
    """Unpacks the arrays of one shard: fresh, writable copies in name order.

    Raises:
        RunError: A row does not describe a plain array (the table may come from a file), or two
            have one name.
    """
    try:
        rows = batch.filter(pc.equal(batch.column("shard"), shard)).to_pylist()
    except (KeyError, pa.ArrowException) as error:
        raise RunError(f"saved state: not a table of arrays: {error}") from error
    arrays = dict(sorted((_array(row) for row in rows), key=lambda item: item[0]))
    if len(arrays) != len(rows):
        raise RunError(f"saved state: shard {shard} has two arrays of one name")
    return arrays


def _array(row: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    name = row.get("name")
    try:
        dtype = np.dtype(str(row["dtype"]))
        shape = tuple(int(size) for size in row["shape"])
        data = bytes(row["bytes"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"saved state: array {name!r} is damaged: {error}") from error
    if not isinstance(name, str):
        raise RunError("saved state: an array has no name")
    if dtype.kind not in _PLAIN_KINDS or min(shape, default=0) < 0:
        raise RunError(f"saved state: array {name!r} has dtype {dtype}, shape {shape}")
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise RunError(
            f"saved state: array {name!r} has {len(data)} bytes for {dtype} of shape {shape}"
        )
    return name, np.frombuffer(data, dtype=dtype).reshape(shape).copy()


def snapshot_sha256(batch: pa.RecordBatch) -> str:
    """Hash of one shard's arrays: equal arrays, equal hash, whatever Arrow's framing does."""
    digest = hashlib.sha256()
    for row in batch.to_pylist():
        header = [row["shard"], row["name"], row["dtype"], row["shape"], len(row["bytes"])]
        digest.update(json.dumps(header).encode())
        digest.update(row["bytes"])
    return digest.hexdigest()
