"""Finds numbers that are not finite in columns of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from policies.spaces import Path, path_text

Struct = Any


def first_not_finite(
    columns: Mapping[str, Struct],
    times: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> tuple[str, int, float] | None:
    """The earliest value that is NaN or infinite.

    Args:
        columns: Name to struct [n, ...]; only floats are looked at.
        times: [n], when each row happened. Of equal times the first column counts. By default all
            happened at once.
        rows: bool [n], the rows to look at; by default all.

    Returns:
        Its column (with the path inside a struct), row and value; None if all are finite.
    """
    found: list[tuple[int, str, int, float]] = []
    for name, struct in columns.items():
        for path, leaf in _leaves(struct, ()):
            if leaf.dtype.kind != "f" or np.isfinite(leaf).all():
                continue
            flat = leaf.reshape(len(leaf), -1)
            bad = ~np.isfinite(flat).all(axis=1)
            indices = np.flatnonzero(bad if rows is None else bad & rows)
            if not len(indices):
                continue
            row = int(indices[0] if times is None else indices[times[indices].argmin()])
            time = 0 if times is None else int(times[row])
            value = float(flat[row][~np.isfinite(flat[row])][0])
            found.append((time, f"{name}{path_text(path)}", row, value))
    if not found:
        return None
    return min(found, key=lambda entry: entry[0])[1:]


def _leaves(struct: Struct, path: Path) -> Iterator[tuple[Path, np.ndarray]]:
    if isinstance(struct, dict):
        for key in sorted(struct):
            yield from _leaves(struct[key], (*path, key))
    elif isinstance(struct, tuple):
        for index, part in enumerate(struct):
            yield from _leaves(part, (*path, index))
    else:
        yield path, struct
