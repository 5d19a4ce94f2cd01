"""The one data model: a batch of steps is a view over one `pyarrow.RecordBatch`.

The constants name the columns, `COLUMN_TYPES` gives those their Arrow types that do not depend on
the spaces. Every other column passes through untouched. The schema's metadata makes a batch explain
itself: its kind, the schema version, the spaces and the space that the actions are in.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from policies import arrow_columns, batch_rows, spaces
from policies.arrow_columns import DICTIONARY
from policies.batch_kinds import EPISODES as EPISODES
from policies.batch_kinds import SCHEMA_VERSION, STEPS
from policies.batch_kinds import SNAPSHOTS as SNAPSHOTS
from policies.batch_kinds import concat_record_batches as concat_record_batches
from policies.batch_kinds import kind as kind
from policies.batch_kinds import with_kind as with_kind
from policies.spaces import Space, Struct

EPS_ID = "eps_id"
SOURCE_EPS_ID = "source_eps_id"
SOURCE = "source"
SOURCE_FILE = "source_file"
SHARD = "shard"
ENV = "env"
ENV_STEP = "env_step"
AGENT_ID = "agent_id"
POLICY_ID = "policy_id"
T = "t"
OBS = "obs"
NEW_OBS = "new_obs"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINATEDS = "terminateds"
TRUNCATEDS = "truncateds"
END_KIND_SOURCE = "end_kind_source"
ACTION_LOGP = "action_logp"
ACTION_DIST = "action_dist"
ACTION_DIST_INPUTS = "action_dist_inputs"
VF_PREDS = "vf_preds"
ACTION_MASK = "action_mask"
SAMPLE_WEIGHT = "sample_weight"
DISCOUNT = "discount"
P_DROP = "p_drop"
SLOT = "slot"
TIMESTAMP = "timestamp"
WEIGHTS_VERSION = "weights_version"

DEFAULT_AGENT = "agent_0"
DEFAULT_POLICY = "default_policy"

COLUMN_TYPES: dict[str, pa.DataType] = {
    EPS_ID: pa.int64(),
    SOURCE_EPS_ID: pa.string(),
    SOURCE: pa.string(),
    SOURCE_FILE: pa.string(),
    SHARD: pa.int32(),
    ENV: pa.int32(),
    ENV_STEP: pa.int64(),
    AGENT_ID: DICTIONARY,
    POLICY_ID: DICTIONARY,
    T: pa.int32(),
    REWARDS: pa.float64(),
    TERMINATEDS: pa.bool_(),
    TRUNCATEDS: pa.bool_(),
    ACTION_LOGP: pa.float64(),
    SAMPLE_WEIGHT: pa.float64(),
    DISCOUNT: pa.float64(),
    P_DROP: pa.float64(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    WEIGHTS_VERSION: pa.int64(),
}
"""Columns whose type is the same in every batch."""

_SPACE_KEYS = {OBS: "observation_space", NEW_OBS: "observation_space", ACTIONS: "action_space"}


def state_in(i: int) -> str:
    """The name of the column with the i-th recurrent state before the step."""
    return f"state_in_{i}"


class SampleBatch:
    """An immutable view over one record batch of steps.

    `batch["obs"]` is a read-only numpy array [n, ...], or a dict or tuple of them for nested
    spaces. Numbers and tensors are read without a copy.

    Example:
        >>> batch = SampleBatch.from_columns({"eps_id": [7, 7], "t": [0, 1], "rewards": [1, 0.5]})
        >>> batch["rewards"].sum()
        np.float64(1.5)
    """

    def __init__(self, record_batch: pa.RecordBatch) -> None:
        """Wraps a record batch.

        Raises:
            ValueError: if its kind is another than steps or its schema version is unknown.
        """
        if (found := kind(record_batch)) != STEPS:
            raise ValueError(f"a batch of kind {found!r} where {STEPS!r} is expected")
        metadata = record_batch.schema.metadata or {}
        version = metadata.get(b"schema_version", SCHEMA_VERSION.encode()).decode()
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"the batch has schema version {version!r}, this release reads {SCHEMA_VERSION!r}"
            )
        self._record_batch = record_batch

    @property
    def record_batch(self) -> pa.RecordBatch:
        """The Arrow data."""
        return self._record_batch

    @property
    def names(self) -> list[str]:
        """The column names, in order."""
        return self._record_batch.schema.names

    def __len__(self) -> int:
        return self._record_batch.num_rows

    def __contains__(self, name: object) -> bool:
        return name in self._record_batch.schema.names

    def __repr__(self) -> str:
        return f"SampleBatch({len(self)} rows: {', '.join(self.names)})"

    def column(self, name: str) -> pa.Array:
        """One column as an Arrow array.

        Raises:
            KeyError: naming the columns that there are.
        """
        index = self._record_batch.schema.get_field_index(name)
        if index < 0:
            raise KeyError(f"no column {name!r}; the batch has {', '.join(self.names)}")
        return self._record_batch.column(index)

    def __getitem__(self, name: str) -> Struct:
        """One column as a read-only numpy struct [n, ...].

        Raises:
            KeyError: if there is no such column.
            ValueError: if numbers or bools hold nulls (see `nullable`).
        """
        return arrow_columns.to_numpy(self.column(name), name)

    def nullable(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A column of numbers or bools as (values [n], known [n]); 0 or False where null."""
        column = self.column(name)
        known = column.is_valid().to_numpy(zero_copy_only=False)
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(0).cast(column.type))
        return arrow_columns.to_numpy(column, name), known

    def torch(self, name: str, device: Any = None) -> Any:
        """One column as a torch tensor (or dict or tuple of them): a copy, free to be written to.

        Raises:
            TypeError: if the column holds text or times.
        """
        return _to_torch(self[name], name, device)

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> SampleBatch:
        """Builds a batch from columns, without a copy where the types already fit.

        Args:
            columns: name to numpy struct [n, ...], pyarrow array, or one number, bool or text that
                holds for every row (`"agent_id": "agent_0"`).
            observation_space: checks and casts `obs` and `new_obs`; stored in the metadata.
            action_space: the same for `actions`.
            metadata: further metadata; `actions_in` is "policy" unless given.

        Raises:
            ValueError: naming the column whose length, shape or type does not fit.
        """
        texts = {"actions_in": "policy", **(metadata or {}), "kind": STEPS}
        texts["schema_version"] = SCHEMA_VERSION
        if observation_space is not None:
            texts["observation_space"] = _space_text(observation_space)
        if action_space is not None:
            texts["action_space"] = _space_text(action_space)
        known = {OBS: observation_space, NEW_OBS: observation_space, ACTIONS: action_space}
        n = arrow_columns.row_count(columns)
        arrays = arrow_columns.to_arrays(columns, n, known, COLUMN_TYPES)
        return cls(arrow_columns.assemble(arrays, texts))

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[str, Any]],
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> SampleBatch:
        """Builds a batch from one mapping a step: slow, for tests, examples and small logs.

        None in a column of numbers or bools becomes null.

        Raises:
            ValueError: if there are no rows, or naming the row whose keys differ from the first's.
        """
        known = {OBS: observation_space, NEW_OBS: observation_space, ACTIONS: action_space}
        return cls.from_columns(
            batch_rows.to_columns(rows, known, COLUMN_TYPES),
            observation_space=observation_space,
            action_space=action_space,
            metadata=metadata,
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict a step: Python scalars (None where null), numpy arrays for tensors."""
        return batch_rows.from_arrays(
            dict(zip(self.names, self._record_batch.columns, strict=True))
        )

    def with_columns(self, columns: Mapping[str, Any]) -> SampleBatch:
        """Replaces or appends columns, under the rules of `from_columns`."""
        known = {name: self._space(key) for name, key in _SPACE_KEYS.items() if name in columns}
        new = arrow_columns.to_arrays(columns, len(self), known, COLUMN_TYPES)
        arrays = dict(zip(self.names, self._record_batch.columns, strict=True)) | new
        metadata = self._record_batch.schema.metadata
        return SampleBatch(arrow_columns.assemble(arrays, metadata))

    def select(self, names: Sequence[str]) -> SampleBatch:
        """Keeps the named columns, in the order given."""
        for name in names:
            self.column(name)
        return SampleBatch(self._record_batch.select(list(names)))

    def slice(self, start: int, stop: int) -> SampleBatch:
        """The rows start to stop - 1, without a copy; bounds as in Python's slices."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return SampleBatch(self._record_batch.slice(start, max(stop - start, 0)))

    def take(self, indices: np.ndarray | Sequence[int]) -> SampleBatch:
        """A copy of the rows that an index array or a bool mask picks, in its order."""
        chosen = np.asarray(indices)
        if chosen.dtype == bool:
            if len(chosen) != len(self):
                raise ValueError(f"a mask of {len(chosen)} rows for a batch of {len(self)}")
            chosen = np.flatnonzero(chosen)
        return SampleBatch(self._record_batch.take(pa.array(chosen.astype(np.int64))))

    def fragment_offsets(self) -> np.ndarray:
        """The bounds of the fragments: rows offsets[i] to offsets[i + 1] - 1 form the i-th.

        A new fragment starts where `eps_id` or `agent_id` changes or `t` is not its previous value
        plus one.

        Returns:
            int64 [f + 1], from 0 to the number of rows; [0] for an empty batch.
        """
        n = len(self)
        if n == 0:
            return np.zeros(1, np.int64)
        eps_id, t = self[EPS_ID], self[T]
        starts = (eps_id[1:] != eps_id[:-1]) | (t[1:] != t[:-1] + 1)
        if AGENT_ID in self and not _is_constant(self.column(AGENT_ID)):
            agent = self[AGENT_ID]
            starts |= agent[1:] != agent[:-1]
        return np.concatenate([[0], np.flatnonzero(starts) + 1, [n]]).astype(np.int64)

    def fragments(self) -> Iterator[SampleBatch]:
        """The fragments one by one, as slices without a copy."""
        offsets = self.fragment_offsets().tolist()
        for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
            yield self.slice(start, stop)

    @property
    def metadata(self) -> dict[str, str]:
        """The schema's metadata as text."""
        metadata = self._record_batch.schema.metadata or {}
        return {key.decode(): value.decode() for key, value in metadata.items()}

    @property
    def observation_space(self) -> Space | None:
        """The space of single observations, if the metadata has it."""
        return self._space("observation_space")

    @property
    def action_space(self) -> Space | None:
        """The space of single actions, if the metadata has it."""
        return self._space("action_space")

    def _space(self, key: str) -> Space | None:
        text = (self._record_batch.schema.metadata or {}).get(key.encode())
        return None if text is None else _space_from_text(text)


def record_batch(
    columns: Mapping[str, Any], kind: str, metadata: Mapping[str, str] | None = None
) -> pa.RecordBatch:
    """Builds a record batch of any kind from columns, as `SampleBatch.from_columns` does for steps.

    Columns keep the types that they have; nothing is checked against `COLUMN_TYPES`.
    """
    texts = {**(metadata or {}), "kind": kind, "schema_version": SCHEMA_VERSION}
    arrays = arrow_columns.to_arrays(columns, arrow_columns.row_count(columns), {}, {})
    return arrow_columns.assemble(arrays, texts)


def concat(batches: Sequence[SampleBatch]) -> SampleBatch:
    """Joins batches of steps, in order. See `concat_record_batches`."""
    return SampleBatch(concat_record_batches([batch.record_batch for batch in batches]))


def _space_text(space: Space) -> str:
    return json.dumps(spaces.space_to_json(space), separators=(",", ":"), allow_nan=False)


@functools.lru_cache(maxsize=64)
def _space_from_text(text: bytes) -> Space:
    return spaces.space_from_json(json.loads(text))


def _is_constant(column: pa.Array) -> bool:
    return pa.types.is_dictionary(column.type) and len(column.dictionary) <= 1


def _to_torch(values: Struct, name: str, device: Any) -> Any:
    import torch  # Reading logs never needs it, and its import takes seconds.

    if isinstance(values, dict):
        return {key: _to_torch(value, name, device) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_to_torch(value, name, device) for value in values)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"column {name!r} has dtype {values.dtype}, which torch cannot hold")
    return torch.from_numpy(np.array(values, order="C")).to(device)
