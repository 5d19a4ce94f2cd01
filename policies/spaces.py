"""Spaces and the batched nested values ("structs") that belong to them.

A struct is a numpy array for a leaf space (Box, Discrete, MultiDiscrete, MultiBinary), a dict of
structs for a Dict space and a tuple of structs for a Tuple space. A batch of n values has a leading
axis n in every leaf. Leaves are visited with Dict keys in sorted order, everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from policies.errors import ConfigError

_TYPE_NAMES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")

Space = gym.Space[Any]
Struct = Any
"""A numpy array, or a dict or tuple of structs."""
Path = tuple[str | int, ...]
"""Where a leaf sits: Dict keys and Tuple positions from the outside in; () for a leaf itself."""

_LEAF_TYPES = (Box, Discrete, MultiDiscrete, MultiBinary)
_DTYPES = frozenset(
    ("bool", "float16", "float32", "float64")
    + tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
)

_MAX_ELEMENTS = 10**8
_MAX_CHOICES = 10**7


def check_supported(space: Space, role: str) -> None:
    """Checks that every part of a space can be stored, acted on and learned from.

    Args:
        space: the space of single observations or actions.
        role: what the space is for, as it should read in the message ("observation", "action").

    Raises:
        ConfigError: naming the unsupported part and where it is.
    """
    _check_supported(space, role, ())


def _check_supported(space: Space, role: str, path: Path) -> None:
    children = _children(space)
    if children is None:
        if not isinstance(space, _LEAF_TYPES):
            problem = f"{type(space).__name__} spaces are not supported"
        elif space.dtype is None or space.dtype.name not in _DTYPES:
            problem = f"dtype {space.dtype} is not supported"
        else:
            _check_size(space, f"{role} space{path_text(path)}")
            return
        raise ConfigError(
            f"{role} space{path_text(path)}: {problem}; use {', '.join(_TYPE_NAMES)} "
            "or convert it with a gymnasium wrapper"
        )
    if not children:
        raise ConfigError(f"{role} space{path_text(path)}: an empty {type(space).__name__} space")
    for key, child in children:
        if isinstance(space, Dict) and not isinstance(key, str):
            raise ConfigError(
                f"{role} space{path_text(path)}: the Dict key {key!r} is not a string"
            )
        _check_supported(child, role, (*path, key))


def _check_size(leaf: Space, where: str) -> None:
    elements = math.prod(leaf.shape or ())
    choices = 0.0
    if isinstance(leaf, Discrete):
        choices = int(leaf.n)
    elif isinstance(leaf, MultiDiscrete):
        choices = float(leaf.nvec.sum(dtype=np.float64))
    kind = type(leaf).__name__
    if elements == 0:
        raise ConfigError(f"{where}: a {kind} space without elements (shape {leaf.shape})")
    if elements > _MAX_ELEMENTS:
        raise ConfigError(f"{where}: {elements} elements, more than the {_MAX_ELEMENTS} supported")
    if choices > _MAX_CHOICES:
        raise ConfigError(
            f"{where}: a {kind} space of {choices:.0f} values, "
            f"more than the {_MAX_CHOICES} supported"
        )


def path_text(path: Path) -> str:
    """The path as an index expression, for messages: `["goal"][0]`."""
    return "".join(f'["{key}"]' if isinstance(key, str) else f"[{key}]" for key in path)


def _children(space: Space) -> list[tuple[Any, Space]] | None:
    """The parts of a Dict (sorted by key) or Tuple space; None for a leaf."""
    if isinstance(space, Dict):
        return sorted(space.spaces.items(), key=lambda item: str(item[0]))
    if isinstance(space, Tuple):
        return list(enumerate(space.spaces))
    return None


def leaf_spaces(space: Space) -> list[tuple[Path, Space]]:
    """All leaf spaces with their paths, Dict keys in sorted order."""
    children = _children(space)
    if children is None:
        return [((), space)]
    return [((key, *path), leaf) for key, child in children for path, leaf in leaf_spaces(child)]


def leaf_dtype(space: Space) -> np.dtype[Any]:
    """The dtype of a leaf's batched values: int64 for Discrete, else the space's own."""
    if isinstance(space, Discrete):
        return np.dtype(np.int64)
    if space.dtype is None:
        raise TypeError(f"{type(space).__name__} is not a leaf space")
    return np.dtype(space.dtype)


def map_leaves(fn: Callable[..., Any], space: Space, *structs: Struct) -> Struct:
    """Applies `fn(leaf_space, *leaf_values)` to every leaf and rebuilds the structure.

    Dict results have their keys in sorted order.
    """
    if isinstance(space, Dict):
        return {
            key: map_leaves(fn, space.spaces[key], *(struct[key] for struct in structs))
            for key in sorted(space.spaces)
        }
    if isinstance(space, Tuple):
        return tuple(
            map_leaves(fn, child, *(struct[i] for struct in structs))
            for i, child in enumerate(space.spaces)
        )
    return fn(space, *structs)


def stack(space: Space, values: Sequence[Any]) -> Struct:
    """Puts n single values into one batch, in the dtypes of the space.

    Raises:
        ValueError: naming the leaf whose values have another shape or kind of number.
    """
    return _stack(space, values, ())


def _stack(space: Space, values: Sequence[Any], path: Path) -> Struct:
    if isinstance(space, Dict):
        return {
            key: _stack(space.spaces[key], [value[key] for value in values], (*path, key))
            for key in sorted(space.spaces)
        }
    if isinstance(space, Tuple):
        return tuple(
            _stack(child, [value[i] for value in values], (*path, i))
            for i, child in enumerate(space.spaces)
        )
    if not len(values):
        return _zeros(space, 0)
    try:
        batch = np.array(values)
    except ValueError as error:
        raise ValueError(f"values{path_text(path)} differ in shape: {error}") from error
    return as_leaf_batch(space, batch, f"values{path_text(path)}")


def as_leaf_batch(space: Space, batch: np.ndarray, name: str) -> np.ndarray:
    """Checks a leaf's batch against its space and casts it to the space's dtype (no copy if equal).

    Args:
        space: a leaf space.
        batch: values with a leading batch axis.
        name: what to call the values in the message.

    Raises:
        ValueError: if the shape differs, or the cast would change the kind of number.
    """
    shape, dtype = space.shape or (), leaf_dtype(space)
    if batch.shape[1:] != shape or batch.ndim == 0:
        raise ValueError(
            f"{name} has shape {batch.shape}, expected (n, {', '.join(map(str, shape))})"
            if shape
            else f"{name} has shape {batch.shape}, expected (n,)"
        )
    if batch.dtype == dtype:
        return batch
    if dtype.kind == "f":
        allowed = np.can_cast(batch.dtype, dtype, "same_kind")
    else:  # Whole numbers may change their width (int64 to uint8) where no value changes.
        allowed = batch.dtype.kind in "iub" and np.array_equal(batch.astype(dtype), batch)
    if not allowed:
        raise ValueError(f"{name} has dtype {batch.dtype}, expected {dtype} for {space}")
    return batch.astype(dtype)


def unstack(space: Space, batch: Struct) -> list[Any]:
    """The single values of a batch, as the space itself would sample them (views of the batch)."""
    return [index(space, batch, i) for i in range(batch_size(space, batch))]


def batch_size(space: Space, batch: Struct) -> int:
    """The number of values in a batch."""
    while (children := _children(space)) is not None:
        key, space = children[0]
        batch = batch[key]
    return len(batch)


def index(space: Space, batch: Struct, where: Any) -> Struct:
    """One value (`where` an int), or the batch of rows picked by a mask, index array or slice."""
    if isinstance(where, int | np.integer):
        return map_leaves(
            # The ellipsis keeps a scalar Box an array, which is what the space contains.
            lambda leaf, x: x[where] if isinstance(leaf, Discrete) else x[where, ...],
            space,
            batch,
        )
    return map_leaves(lambda _, x: x[where], space, batch)


def concat(space: Space, batches: Sequence[Struct]) -> Struct:
    """Joins batches along their leading axis; at least one is needed."""
    return map_leaves(lambda _, *arrays: np.concatenate(arrays), space, *batches)


def zeros(space: Space, n: int) -> Struct:
    """A batch of n zeros: a buffer to fill (zero need not be a value of the space)."""
    return map_leaves(lambda leaf: _zeros(leaf, n), space)


def _zeros(leaf: Space, n: int) -> np.ndarray:
    return np.zeros((n, *(leaf.shape or ())), leaf_dtype(leaf))


def is_image(space: Space) -> bool:
    """Whether a space is a uint8 Box with three axes."""
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3


def flat_size(space: Space) -> int:
    """The width of `flatten_batch`: one-hots for Discrete and MultiDiscrete, else the numbers."""
    return sum(_leaf_flat_size(leaf) for _, leaf in leaf_spaces(space))


def _leaf_flat_size(leaf: Space) -> int:
    if isinstance(leaf, Discrete):
        return int(leaf.n)
    if isinstance(leaf, MultiDiscrete):
        return int(leaf.nvec.sum())
    return int(np.prod(leaf.shape or (), dtype=np.int64))


def flatten_batch(space: Space, batch: Struct) -> np.ndarray:
    """Encodes a batch as float32 [n, flat_size], leaves side by side in sorted order.

    A float32 Box with one axis is returned as it is, without a copy.

    Raises:
        ValueError: if a Discrete or MultiDiscrete value lies outside its space.
    """
    if isinstance(space, Box) and len(space.shape) == 1:
        return np.asarray(batch, dtype=np.float32)
    n = batch_size(space, batch)
    flat = np.zeros((n, flat_size(space)), np.float32)
    start = 0
    for path, leaf in leaf_spaces(space):
        values = batch
        for key in path:
            values = values[key]
        stop = start + _leaf_flat_size(leaf)
        _flatten_leaf(leaf, np.asarray(values), flat[:, start:stop], path)
        start = stop
    return flat


def _flatten_leaf(leaf: Space, values: np.ndarray, out: np.ndarray, path: Path) -> None:
    if isinstance(leaf, Discrete):
        sizes, starts = np.array([leaf.n], np.int64), np.array([leaf.start], np.int64)
    elif isinstance(leaf, MultiDiscrete):
        sizes, starts = leaf.nvec.reshape(-1).astype(np.int64), leaf.start.reshape(-1)
    else:
        out[...] = values.reshape(out.shape)
        return
    chosen = values.reshape(len(values), len(sizes)).astype(np.int64) - starts
    if ((chosen < 0) | (chosen >= sizes)).any():
        row = int(((chosen < 0) | (chosen >= sizes)).any(axis=1).argmax())
        raise ValueError(f"value{path_text(path)} {values[row]} of row {row} is not in {leaf}")
    columns = chosen + (np.cumsum(sizes) - sizes)
    out[np.arange(len(values))[:, None], columns] = 1.0


def space_to_json(space: Space) -> dict[str, Any]:
    """A space as plain JSON data, which `space_from_json` turns back into an equal space.

    Infinite bounds become the strings "inf" and "-inf"; bounds that are the same everywhere become
    one number.

    Raises:
        ConfigError: if the space is not supported.
    """
    kind = type(space).__name__
    if isinstance(space, Dict):
        # A list of pairs, since the order of the keys is part of the space and not of JSON objects.
        return {
            "type": "Dict",
            "spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()],
        }
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
    check_supported(space, "stored")
    dtype = np.dtype(space.dtype).name if space.dtype is not None else kind
    if isinstance(space, Box):
        bounds = {"low": _bounds_to_json(space.low), "high": _bounds_to_json(space.high)}
        return {"type": "Box", "dtype": dtype, "shape": list(space.shape), **bounds}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "dtype": dtype, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, MultiDiscrete):
        counts = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": dtype, **counts}
    n = space.n if isinstance(space, MultiBinary) else ()
    return {"type": "MultiBinary", "n": int(n) if isinstance(n, int) else [int(i) for i in n]}


def _bounds_to_json(bounds: np.ndarray) -> Any:
    if bounds.size and (bounds == bounds.flat[0]).all():
        bounds = bounds.reshape(-1)[0]
    if np.isfinite(bounds).all():
        return bounds.tolist()
    return _inf_to_text(bounds.tolist())


def _inf_to_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_inf_to_text(item) for item in value]
    return value if np.isfinite(value) else str(value)


def space_from_json(obj: Mapping[str, Any]) -> Space:
    """Builds the space that `space_to_json` described.

    Raises:
        ValueError: if the description names an unknown type or dtype, or lacks something.
    """
    try:
        return _space_from_json(obj)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the description of a space: {obj!r} ({error})") from error


def _space_from_json(obj: Mapping[str, Any]) -> Space:
    kind = obj["type"]
    if kind == "Dict":
        return Dict([(key, _space_from_json(child)) for key, child in obj["spaces"]])
    if kind == "Tuple":
        return Tuple([_space_from_json(child) for child in obj["spaces"]])
    if kind == "MultiBinary":
        return MultiBinary(obj["n"])
    if kind not in _TYPE_NAMES or obj["dtype"] not in _DTYPES:
        raise ValueError(f"unknown space {kind!r} with dtype {obj.get('dtype')!r}")
    dtype: Any = np.dtype(obj["dtype"]).type
    if kind == "Discrete":
        return Discrete(obj["n"], start=obj["start"], dtype=dtype)
    if kind == "MultiDiscrete":
        start = np.array(obj["start"], dtype)
        return MultiDiscrete(np.array(obj["nvec"], dtype), start=start, dtype=dtype)
    shape = tuple(obj["shape"])
    low, high = (_bounds_from_json(obj[key], shape, dtype) for key in ("low", "high"))
    return Box(low, high, shape, dtype)


def _bounds_from_json(value: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.broadcast_to(np.array(_text_to_inf(value), dtype), shape).copy()


def _text_to_inf(value: Any) -> Any:
    if isinstance(value, list):
        return [_text_to_inf(item) for item in value]
    return float(value) if isinstance(value, str) else value
