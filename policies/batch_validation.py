"""Checks of a batch of steps: what no estimator or learner should ever have to look for.

`find_invalid` lists every bad row by column and reason, so that a reader can set rows aside;
`validate` raises the first finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from policies import sample_batch as sb
from policies import spaces
from policies.arrow_columns import is_text
from policies.sample_batch import SampleBatch
from policies.spaces import Space

REQUIRED = (sb.EPS_ID, sb.T, sb.OBS, sb.ACTIONS, sb.REWARDS, sb.TERMINATEDS, sb.TRUNCATEDS)
"""The columns that every batch of steps has."""

LOGP_TOLERANCE = 1e-6
"""How far rounding may lift the log-probability of a sure action above 0."""

_FINITE = (sb.REWARDS, sb.ACTION_LOGP, sb.SAMPLE_WEIGHT, sb.DISCOUNT, sb.P_DROP, sb.VF_PREDS)

_RANGES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    sb.T: ("negative", lambda x: x < 0),
    sb.SHARD: ("negative", lambda x: x < 0),
    sb.ENV: ("negative", lambda x: x < 0),
    sb.ENV_STEP: ("negative", lambda x: x < 0),
    sb.SAMPLE_WEIGHT: ("negative", lambda x: x < 0),
    sb.DISCOUNT: ("not in [0, 1]", lambda x: (x < 0) | (x > 1)),
    sb.P_DROP: ("not in [0, 1)", lambda x: (x < 0) | (x >= 1)),
}


class InvalidBatchError(ValueError):
    """A batch breaks a rule of the data model.

    Attributes:
        column: the column's name.
        row: the first such row of the batch, or None if the whole column is wrong.
        reason: what is wrong with it.
    """

    def __init__(self, column: str, row: int | None, reason: str) -> None:
        """Makes the one-line message from its parts."""
        where = "" if row is None else f", row {row}"
        super().__init__(f"column {column!r}{where}: {reason}")
        self.column = column
        self.row = row
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Finding:
    """Rows of one column that break one rule.

    Attributes:
        column: the column's name, with the path of the leaf inside a nested one.
        rows: int64 [k], ascending.
        reason: what is wrong.
        values: the offending values of these rows (the part that shows the fault).
    """

    column: str
    rows: np.ndarray
    reason: str
    values: np.ndarray


def validate(
    batch: SampleBatch,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    required: Collection[str] = REQUIRED,
    allow_unknown_ends: bool = False,
) -> None:
    """Checks a batch and raises for its first fault.

    Args:
        batch: the steps.
        observation_space: the space of `obs` and `new_obs`; by default the one in the metadata.
        action_space: the space of `actions`; by default the one in the metadata.
        required: the columns that must be there.
        allow_unknown_ends: whether `terminateds` and `truncateds` may be null, as in read logs.

    Raises:
        InvalidBatchError: naming column, row and reason.
    """
    for finding in find_invalid(
        batch,
        observation_space=observation_space,
        action_space=action_space,
        required=required,
        allow_unknown_ends=allow_unknown_ends,
    ):
        shown = f"{finding.reason} ({finding.values[0]})" if len(finding.values) else finding.reason
        raise InvalidBatchError(finding.column, int(finding.rows[0]), shown)


def find_invalid(
    batch: SampleBatch,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    required: Collection[str] = REQUIRED,
    allow_unknown_ends: bool = False,
) -> Iterator[Finding]:
    """Lists the rows that break a rule, one finding for each column and rule.

    The rules: no nulls in the columns of the data model; rewards, observations, actions and
    log-probabilities finite; counts not negative; Discrete, MultiDiscrete and MultiBinary values
    inside their space; `action_logp` at most 0 for actions without a density. Actions outside a
    Box's bounds are valid, since actions are stored as sampled.

    Raises:
        InvalidBatchError: without a row, for a missing column or one of the wrong type or shape.
    """
    obs_space = observation_space if observation_space is not None else batch.observation_space
    act_space = action_space if action_space is not None else batch.action_space
    for name in required:
        if name not in batch:
            raise InvalidBatchError(name, None, f"missing; the batch has {', '.join(batch.names)}")
    _check_types(batch)
    nullable = {sb.TERMINATEDS, sb.TRUNCATEDS} if allow_unknown_ends else set()
    faulty = set()
    for finding in _nulls(batch, nullable):
        faulty.add(finding.column)
        yield finding
    yield from _scalars(batch, faulty)
    for name, space in ((sb.OBS, obs_space), (sb.NEW_OBS, obs_space), (sb.ACTIONS, act_space)):
        if name in batch and name not in faulty:
            yield from _values(batch, name, space)
    has_density = act_space is None or any(
        isinstance(leaf, Box) for _, leaf in spaces.leaf_spaces(act_space)
    )
    if not has_density and sb.ACTION_LOGP in batch and sb.ACTION_LOGP not in faulty:
        logp = batch[sb.ACTION_LOGP]
        above = (logp > LOGP_TOLERANCE) & np.isfinite(logp)
        yield from _finding(sb.ACTION_LOGP, "a log-probability above 0", above, logp)


def _check_types(batch: SampleBatch) -> None:
    for name in batch.names:
        expected, found = sb.COLUMN_TYPES.get(name), batch.column(name).type
        if expected is None or found == expected or (is_text(expected) and is_text(found)):
            continue
        raise InvalidBatchError(name, None, f"has type {found}, expected {expected}")


def _nulls(batch: SampleBatch, nullable: Collection[str]) -> Iterator[Finding]:
    checked = [*sb.COLUMN_TYPES, sb.OBS, sb.NEW_OBS, sb.ACTIONS, sb.VF_PREDS]
    for name in checked:
        if name in batch and name not in nullable and batch.column(name).null_count:
            missing = batch.column(name).is_null().to_numpy(zero_copy_only=False)
            yield Finding(name, np.flatnonzero(missing), "null", np.empty(0))


def _scalars(batch: SampleBatch, faulty: Collection[str]) -> Iterator[Finding]:
    for name in _FINITE:
        if name in batch and name not in faulty:
            values = batch[name]
            yield from _finding(name, "not finite", ~np.isfinite(values), values)
    for name, (reason, is_bad) in _RANGES.items():
        if name in batch and name not in faulty:
            values = batch[name]
            yield from _finding(name, reason, is_bad(values), values)


def _values(batch: SampleBatch, name: str, space: Space | None) -> Iterator[Finding]:
    try:
        struct = batch[name]
    except ValueError as error:
        raise InvalidBatchError(name, None, str(error)) from error
    if space is None:
        if isinstance(struct, np.ndarray) and struct.dtype.kind == "f":
            yield from _finding(name, "not finite", ~np.isfinite(struct), struct)
        return
    for path, leaf in spaces.leaf_spaces(space):
        column = name + spaces.path_text(path)
        values = struct
        for key in path:
            try:
                values = values[key]
            except (KeyError, IndexError) as error:
                raise InvalidBatchError(
                    name, None, f"has no part {spaces.path_text(path)}"
                ) from error
        yield from _leaf_values(column, leaf, values)


def _leaf_values(column: str, leaf: Space, values: np.ndarray) -> Iterator[Finding]:
    shape, dtype = (len(values), *(leaf.shape or ())), spaces.leaf_dtype(leaf)
    if not isinstance(values, np.ndarray) or values.shape != shape or values.dtype != dtype:
        found = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else "a struct"
        raise InvalidBatchError(column, None, f"is {found}, expected {dtype} {shape} for {leaf}")
    if isinstance(leaf, Discrete | MultiDiscrete):
        sizes = np.asarray(leaf.n if isinstance(leaf, Discrete) else leaf.nvec, np.int64)
        outside = (values < leaf.start) | (values >= sizes + leaf.start)
        yield from _finding(column, f"not in {leaf}", outside, values)
    elif isinstance(leaf, MultiBinary):
        yield from _finding(column, "neither 0 nor 1", (values != 0) & (values != 1), values)
    elif values.dtype.kind == "f":
        yield from _finding(column, "not finite", ~np.isfinite(values), values)


def _finding(column: str, reason: str, bad: np.ndarray, values: np.ndarray) -> Iterator[Finding]:
    """A finding if anything is bad; `values` shows the first bad number of each such row."""
    if not bad.any():
        return
    bad, values = bad.reshape(len(bad), -1), values.reshape(len(values), -1)
    rows = np.flatnonzero(bad.any(axis=1))
    yield Finding(column, rows, reason, values[rows, bad[rows].argmax(axis=1)])
