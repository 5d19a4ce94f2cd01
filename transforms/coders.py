"""The coder of the one element type, `pyarrow.RecordBatch`: an Arrow IPC stream.

Importing this module registers the coder. A transform must also declare its element type, since an
untyped collection falls back to pickle, which writes the whole parent of a slice.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from apache_beam import coders

from policies.arrow_columns import compact

KeyedBatch = tuple[str, pa.RecordBatch]
"""A batch and the path of the version that sampled it, which stands for its round."""


class RecordBatchCoder(coders.Coder):
    """Encodes a record batch with its schema and metadata; decoding does not copy.

    A slice is encoded without its parent's rows and dictionary words. Equal batches may differ in
    their bytes, so the coder is not deterministic and batches cannot be keys.
    """

    def encode(self, value: pa.RecordBatch) -> bytes:
        """The batch as one Arrow IPC stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(compact(value))
        return sink.getvalue().to_pybytes()

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        """The batch over the encoded bytes: read-only, and aligned only as they happen to be."""
        return pa.ipc.open_stream(pa.py_buffer(encoded)).read_next_batch()

    def estimate_size(self, value: pa.RecordBatch) -> int:
        """The bytes of the rows; without this Beam encodes every element several times instead."""
        return int(value.nbytes)

    def is_deterministic(self) -> bool:
        """False: the bytes depend on padding and on the order of dictionary words."""
        return False

    def to_type_hint(self) -> type[pa.RecordBatch]:
        """The type that the coder stands for."""
        return pa.RecordBatch

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


coders.registry.register_coder(pa.RecordBatch, RecordBatchCoder)
