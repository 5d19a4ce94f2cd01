"""The kinds of record batches, and joining batches of one kind."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from policies import arrow_columns

STEPS = "steps"
SNAPSHOTS = "snapshots"
EPISODES = "episodes"

SCHEMA_VERSION = "1"

_MEANINGS = ("schema_version", "observation_space", "action_space", "actions_in")
"""Metadata that says how to read the rows: batches that differ in it cannot be joined."""


def kind(record_batch: pa.RecordBatch) -> str:
    """What the rows of a record batch are: its metadata's `kind`, "steps" where it has none."""
    return (record_batch.schema.metadata or {}).get(b"kind", b"steps").decode()


def with_kind(record_batch: pa.RecordBatch, kind: str) -> pa.RecordBatch:
    """The same data under another kind."""
    metadata = {**(record_batch.schema.metadata or {}), b"kind": kind.encode()}
    return record_batch.replace_schema_metadata(metadata)


def concat_record_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins record batches of one kind, in order, and unifies their dictionaries.

    Metadata that all share is kept; other differences (say of the source) drop the key.

    Raises:
        ValueError: if there is nothing to join, or kinds, columns, types, spaces, schema versions
            or `actions_in` differ.
    """
    if not batches:
        raise ValueError("no batches to join")
    first = batches[0]
    for other in batches[1:]:
        _check_joinable(first, other)
    if len(batches) == 1:
        return first
    arrays = {
        name: pa.concat_arrays([batch.column(name) for batch in batches])
        for name in first.schema.names
    }
    shared = dict(first.schema.metadata or {})
    for other in batches[1:]:
        theirs = other.schema.metadata or {}
        shared = {key: value for key, value in shared.items() if theirs.get(key) == value}
    return arrow_columns.assemble(arrays, shared)


def _check_joinable(first: pa.RecordBatch, other: pa.RecordBatch) -> None:
    if kind(first) != kind(other):
        raise ValueError(f"cannot join batches of kinds {kind(first)!r} and {kind(other)!r}")
    ours, theirs = first.schema, other.schema
    if ours.equals(theirs, check_metadata=True):
        return
    if set(ours.names) != set(theirs.names):
        only = sorted(set(ours.names) ^ set(theirs.names))
        raise ValueError(f"cannot join batches: only some have the columns {', '.join(only)}")
    for field in ours:
        found = theirs.field(field.name).type
        if field.type != found:
            raise ValueError(
                f"cannot join batches: column {field.name!r} is {field.type} in one, "
                f"{found} in another"
            )
    for key in _MEANINGS:
        pair = [(schema.metadata or {}).get(key.encode()) for schema in (ours, theirs)]
        if pair[0] != pair[1]:
            raise ValueError(
                f"cannot join batches: {key} is {pair[0]!r} in one, {pair[1]!r} in another"
            )
