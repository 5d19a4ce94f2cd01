"""Conversions between numpy structs and Arrow columns, without a Python loop over rows.

An array of rank 1 is a plain Arrow column, one of rank 2 or more a `fixed_shape_tensor`, a dict or
tuple a struct of such columns (the fields of a tuple are named "0", "1", ...). Numbers travel in
both directions without a copy: whoever hands an array over must not write to it afterwards, and
arrays that come back are read-only.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from policies import spaces
from policies.spaces import Space, Struct

DICTIONARY = pa.dictionary(pa.int32(), pa.string())
"""The type of columns that repeat a few words."""

_DICT_MARK = {b"container": b"dict"}
"""Metadata of the fields of a dict whose keys look like the positions of a tuple."""


@functools.lru_cache(maxsize=1024)
def _tensor_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.DataType:
    return pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), shape)


def to_arrow(values: Struct, name: str = "values") -> pa.Array:
    """Turns a batched numpy struct into an Arrow array; a pyarrow array is returned as it is.

    Args:
        values: numpy arrays with a leading batch axis, dicts and tuples of them, or lists of them.
        name: what to call the values in an error message.

    Raises:
        ValueError: for arrays without a batch axis, unequal lengths, or types that Arrow lacks.
    """
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, dict):
        return _struct_to_arrow([str(key) for key in values], list(values.values()), name)
    if isinstance(values, tuple):
        return _struct_to_arrow(None, list(values), name)
    array = np.asarray(values)
    if array.ndim == 0:
        raise ValueError(f"{name}: a single value ({values!r}) where a batch is expected")
    if array.dtype.kind in "OUS":
        return _objects_to_arrow(array, name)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        if array.ndim == 1:
            return pa.array(np.ascontiguousarray(array))
        return _tensor_to_arrow(array)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"{name}: Arrow cannot store dtype {array.dtype}: {error}") from error


def _tensor_to_arrow(array: np.ndarray) -> pa.Array:
    """Builds the tensor from its buffers: pyarrow's own way refuses 0 rows, empty shapes and bools,
    and turns a transposed array into a permuted type that equals no other."""
    kind = _tensor_type(array.dtype, array.shape[1:])
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    storage = pa.Array.from_buffers(kind.storage_type, len(array), [None], children=[flat])
    return kind.wrap_array(storage)


def _struct_to_arrow(keys: list[str] | None, values: list[Struct], name: str) -> pa.Array:
    """Builds a struct column; `keys` is None for a tuple."""
    if not values:
        raise ValueError(f"{name}: an empty struct has no rows")
    names = keys or [str(i) for i in range(len(values))]
    children = [to_arrow(v, f'{name}["{key}"]') for key, v in zip(names, values, strict=True)]
    lengths = {len(child) for child in children}
    if len(lengths) > 1:
        raise ValueError(f"{name}: its parts have different lengths {sorted(lengths)}")
    marked = keys is not None and _are_positions(names)
    fields = [
        pa.field(key, child.type, metadata=_DICT_MARK if marked else None)
        for key, child in zip(names, children, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=fields)


def _are_positions(names: Sequence[str]) -> bool:
    return list(names) == [str(i) for i in range(len(names))]


def _objects_to_arrow(array: np.ndarray, name: str) -> pa.Array:
    if array.ndim != 1:
        raise ValueError(f"{name}: text and object arrays need rank 1, got shape {array.shape}")
    try:
        result = pa.array(array.tolist(), pa.string() if array.dtype.kind == "U" else None)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"{name}: {error}") from error
    if pa.types.is_null(result.type):
        if len(array):
            raise ValueError(f"{name}: only nulls; pass a pyarrow array that has a type")
        result = result.cast(pa.string())
    return result


def row_count(columns: Mapping[str, Any]) -> int:
    """The rows of the first column that is not a constant.

    Raises:
        ValueError: if every column is one.
    """
    for values in columns.values():
        while isinstance(values, dict | tuple) and values:
            values = next(iter(values.values())) if isinstance(values, dict) else values[0]
        if isinstance(values, pa.Array | list) or (isinstance(values, np.ndarray) and values.ndim):
            return len(values)
    raise ValueError("no column has rows: give at least one array")


def to_arrays(
    columns: Mapping[str, Any],
    n: int,
    known_spaces: Mapping[str, Space | None],
    types: Mapping[str, pa.DataType],
) -> dict[str, pa.Array]:
    """Turns columns of n rows into Arrow arrays of the types that they must have.

    Args:
        columns: name to struct, pyarrow array, or a constant for all rows.
        n: the number of rows.
        known_spaces: the spaces that columns are checked against and cast to.
        types: the Arrow types of columns by name; others keep their own.

    Raises:
        ValueError: naming the column whose length, shape or type does not fit.
    """
    arrays = {}
    for name, values in columns.items():
        space = known_spaces.get(name)
        if space is not None and not isinstance(values, pa.Array):
            values = _fit_to_space(space, values, name)
        array = _to_type(name, values, types.get(name), n)
        if len(array) != n:
            raise ValueError(f"column {name!r} has {len(array)} rows, expected {n}")
        arrays[name] = array
    return arrays


def _fit_to_space(space: Space, values: Struct, name: str) -> Struct:
    names = iter(f"column {name!r}{spaces.path_text(p)}" for p, _ in spaces.leaf_spaces(space))
    try:
        return spaces.map_leaves(
            lambda leaf, x: spaces.as_leaf_batch(leaf, np.asarray(x), next(names)), space, values
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"column {name!r} has not the structure of {space}: {error!r}") from error


def _to_type(name: str, values: Any, expected: pa.DataType | None, n: int) -> pa.Array:
    """One column in its expected type; nothing is rounded, wrapped or read as a bool on the way."""
    if isinstance(values, str):
        values = _constant_text(values, n)
    elif np.isscalar(values):
        values = np.full(n, values)
    array = to_arrow(values, f"column {name!r}")
    if expected is None or array.type == expected:
        return array
    if pa.types.is_boolean(expected) != pa.types.is_boolean(array.type) or (
        is_text(expected) != is_text(array.type)
    ):
        raise ValueError(f"column {name!r} has type {array.type}, expected {expected}")
    try:
        if pa.types.is_dictionary(expected):
            array = array.cast(pa.string()).dictionary_encode()
        return array.cast(expected)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {name!r} cannot become {expected}: {error}") from error


def _constant_text(word: str, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([word]))


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text, plain or in a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def assemble(arrays: Mapping[str, pa.Array], metadata: Mapping[Any, Any] | None) -> pa.RecordBatch:
    """Puts arrays of equal length into one record batch."""
    fields = [pa.field(name, array.type) for name, array in arrays.items()]
    schema = pa.schema(fields, metadata=dict(metadata or {}))
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)


def to_numpy(column: pa.Array, name: str = "column") -> Struct:
    """Reads an Arrow array as a read-only numpy struct, without a copy for numbers and tensors.

    Text becomes an object array of str (None where null), timestamps datetime64 in UTC.

    Raises:
        ValueError: if numbers, bools or tensors hold nulls, naming column and first row.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_struct(kind):
        refuse_nulls(column, name)
        parts = [
            to_numpy(column.field(i), f'{name}["{kind.field(i).name}"]')
            for i in range(kind.num_fields)
        ]
        if is_tuple(kind):
            return tuple(parts)
        return {kind.field(i).name: part for i, part in enumerate(parts)}
    if isinstance(kind, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(kind):
        return _tensor_to_numpy(column, name)
    if not _reads_nulls(kind):
        refuse_nulls(column, name)
    if pa.types.is_dictionary(kind):
        return _words_to_numpy(column)
    array = column.to_numpy(zero_copy_only=False)
    array.flags.writeable = False
    return array


def is_tuple(kind: pa.DataType) -> bool:
    """Whether a struct type stands for a tuple: fields "0", "1", ... not marked as a dict's."""
    names = [kind.field(i).name for i in range(kind.num_fields)]
    return _are_positions(names) and kind.field(0).metadata != _DICT_MARK


def _reads_nulls(kind: pa.DataType) -> bool:
    """Whether nulls have a place in numpy: None in object arrays, NaT in times."""
    return not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def refuse_nulls(column: pa.Array, name: str) -> None:
    """Raises ValueError, naming the first row, if a column holds nulls."""
    if column.null_count:
        row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(f"column {name!r} has {column.null_count} nulls, the first in row {row}")


def _tensor_to_numpy(column: pa.Array, name: str) -> np.ndarray:
    """Reads tensors and (nested) fixed-size lists, which other writers use for the same thing."""
    n, shape = len(column), []
    while True:
        refuse_nulls(column, name)
        kind = column.type
        if isinstance(kind, pa.FixedShapeTensorType):
            order = kind.permutation
            if order is not None and list(order) != sorted(order):
                raise ValueError(f"column {name!r}: tensors with permuted axes are not supported")
            shape.extend(kind.shape)
            column = column.storage.flatten()
        elif pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            column = column.flatten()
        else:
            break
    array = column.to_numpy(zero_copy_only=False).reshape(n, *shape)
    array.flags.writeable = False
    return array


def _words_to_numpy(column: pa.DictionaryArray) -> np.ndarray:
    words = np.array([*column.dictionary.to_pylist(), None], object)
    indices = column.indices.fill_null(len(words) - 1).to_numpy()
    array = words[indices]
    array.flags.writeable = False
    return array


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drops the dictionary words that no row of the batch uses.

    The Arrow IPC writer trims the buffers of a slice but writes whole dictionaries, so that ten
    rows would carry all the words of the batch that they were cut from.
    """
    columns = batch.columns
    compacted = [_compact_array(column) for column in columns]
    if all(new is old for new, old in zip(compacted, columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(compacted, schema=batch.schema)


def _compact_array(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_struct(kind):
        children = [column.field(i) for i in range(kind.num_fields)]
        compacted = [_compact_array(child) for child in children]
        if column.null_count or all(a is b for a, b in zip(compacted, children, strict=True)):
            return column
        return pa.StructArray.from_arrays(compacted, fields=list(kind))
    if not pa.types.is_dictionary(kind) or len(column.dictionary) <= 1:
        return column
    indices = column.indices
    used = np.zeros(len(column.dictionary), bool)
    used[indices.drop_null().to_numpy()] = True
    if used.all():
        return column
    positions = np.maximum(np.cumsum(used) - 1, 0)
    renumbered = pa.array(
        positions[indices.fill_null(0).to_numpy()],
        kind.index_type,
        mask=indices.is_null().to_numpy(zero_copy_only=False),
    )
    words = column.dictionary.filter(pa.array(used))
    return pa.DictionaryArray.from_arrays(renumbered, words, ordered=kind.ordered)
