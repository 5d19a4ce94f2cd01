"""Batches as Python rows and back: one dict a step, for tests, examples and small logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from policies import arrow_columns, spaces
from policies.spaces import Space


def from_arrays(arrays: Mapping[str, pa.Array]) -> list[dict[str, Any]]:
    """Turns columns into rows: Python scalars (None where null), numpy arrays for tensors."""
    columns = [_values(array, name) for name, array in arrays.items()]
    return [dict(zip(arrays, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(array: pa.Array, name: str) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        arrow_columns.refuse_nulls(array, name)
        fields = [array.field(i) for i in range(kind.num_fields)]
        parts = zip(*(_values(field, name) for field in fields), strict=True)
        if arrow_columns.is_tuple(kind):
            return list(parts)
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return [dict(zip(names, part, strict=True)) for part in parts]
    if isinstance(kind, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(kind):
        return list(arrow_columns.to_numpy(array, name))
    return array.to_pylist()


def to_columns(
    rows: Sequence[Mapping[str, Any]],
    known_spaces: Mapping[str, Space | None],
    types: Mapping[str, pa.DataType],
) -> dict[str, Any]:
    """Turns rows that share their keys into columns for `SampleBatch.from_columns`.

    Raises:
        ValueError: if there are no rows, or naming the row or column that does not fit.
    """
    if not rows:
        raise ValueError("no rows: their columns are unknown")
    names = list(rows[0])
    for i, row in enumerate(rows):
        if set(row) != set(names):
            odd = sorted(set(row) ^ set(names))
            raise ValueError(f"row {i} differs from row 0 in the columns {', '.join(odd)}")
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        space = known_spaces.get(name)
        try:
            columns[name] = (
                _stack(values, types.get(name)) if space is None else spaces.stack(space, values)
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"column {name!r}: {error}") from error
    return columns


def _stack(values: list[Any], expected: pa.DataType | None) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _stack([value[key] for value in values], None) for key in first}
    if isinstance(first, tuple):
        return tuple(_stack([value[i] for value in values], None) for i in range(len(first)))
    if isinstance(first, np.ndarray | list):
        return np.array(values)
    if expected is None or pa.types.is_dictionary(expected):
        return pa.array(values)
    return pa.array(values, expected)
