"""Validation names the column, the row and the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from policies.batch_validation import InvalidBatchError, find_invalid, validate
from policies.sample_batch import SampleBatch


def make_batch(
    observation_space: Any = None, action_space: Any = None, **changes: Any
) -> SampleBatch:
    columns: dict[str, Any] = {
        "eps_id": np.zeros(4, int),
        "t": np.arange(4),
        "obs": np.zeros((4, 2), np.float32),
        "actions": np.zeros(4, int),
        "rewards": np.ones(4),
        "terminateds": np.zeros(4, bool),
        "truncateds": np.zeros(4, bool),
        "action_logp": np.full(4, -0.7),
    }
    columns |= changes
    columns = {name: values for name, values in columns.items() if values is not None}
    return SampleBatch.from_columns(
        columns, observation_space=observation_space, action_space=action_space
    )


def with_value(values: Any, row: Any, value: Any) -> np.ndarray:
    array = np.array(values)
    array[row] = value
    return array


BOX = Box(-1.0, 1.0, (2,))
VALID: list[dict[str, Any]] = [
    {"observation_space": BOX, "action_space": Discrete(2)},
    {},
    {"observation_space": BOX, "obs": np.full((4, 2), 7.0)},  # outside the bounds
    {"action_space": BOX, "actions": np.full((4, 2), 7.0), "action_logp": np.full(4, 2.5)},
    {"action_space": Discrete(2), "action_logp": np.full(4, 1e-7)},
    {"action_space": Discrete(2, start=-3), "actions": np.full(4, -3)},
    {"source": "logs/*.json", "sample_weight": np.zeros(4), "discount": np.ones(4)},
]


@pytest.mark.parametrize("changes", VALID)
def test_good_batches_pass(changes: dict[str, Any]) -> None:
    batch = make_batch(**changes)
    validate(batch)
    validate(batch.slice(0, 0))


NAN = np.nan
FAULTS: list[tuple[dict[str, Any], str, int | None, str]] = [
    ({"rewards": with_value(np.ones(4), 2, NAN)}, "rewards", 2, "not finite (nan)"),
    ({"rewards": with_value(np.ones(4), 1, np.inf)}, "rewards", 1, "not finite (inf)"),
    ({"obs": with_value(np.zeros((4, 2)), (3, 1), NAN)}, "obs", 3, "not finite (nan)"),
    ({"action_logp": with_value(-np.ones(4), 0, -np.inf)}, "action_logp", 0, "not finite (-inf)"),
    ({"t": np.array([0, -1, 2, 3])}, "t", 1, "negative (-1)"),
    ({"env_step": np.array([0, 1, 2, -5])}, "env_step", 3, "negative (-5)"),
    ({"discount": with_value(np.ones(4), 2, 1.5)}, "discount", 2, "not in [0, 1] (1.5)"),
    ({"p_drop": with_value(np.zeros(4), 2, 1.0)}, "p_drop", 2, "not in [0, 1) (1.0)"),
    ({"sample_weight": with_value(np.ones(4), 1, -2.0)}, "sample_weight", 1, "negative (-2.0)"),
    ({"vf_preds": with_value(np.ones(4), 1, NAN)}, "vf_preds", 1, "not finite (nan)"),
    (
        {"action_space": BOX, "actions": with_value(np.zeros((4, 2)), (1, 0), NAN)},
        "actions",
        1,
        "not finite (nan)",
    ),
    (
        {"action_space": Discrete(2), "actions": np.array([0, 1, 2, 0])},
        "actions",
        2,
        "not in Discrete(2) (2)",
    ),
    (
        {"action_space": Discrete(2, start=1), "actions": np.array([1, 0, 2, 1])},
        "actions",
        1,
        "not in Discrete(2, start=1) (0)",
    ),
    (
        {"action_space": MultiDiscrete([2, 3]), "actions": np.array([[0, 2], [1, 3]] * 2)},
        "actions",
        1,
        "not in MultiDiscrete([2 3]) (3)",
    ),
    (
        {"action_space": MultiBinary(2), "actions": np.array([[0, 1], [1, 2]] * 2, np.int8)},
        "actions",
        1,
        "neither 0 nor 1 (2)",
    ),
    (
        {"action_space": Discrete(2), "action_logp": with_value(-np.ones(4), 3, 0.5)},
        "action_logp",
        3,
        "a log-probability above 0 (0.5)",
    ),
    ({"truncateds": pa.array([True, None, None, False])}, "truncateds", 1, "null"),
    ({"rewards": pa.array([1.0, None, 1.0, 1.0])}, "rewards", 1, "null"),
]


@pytest.mark.parametrize(("changes", "column", "row", "reason"), FAULTS)
def test_faults_are_named(changes: dict[str, Any], column: str, row: int, reason: str) -> None:
    with pytest.raises(InvalidBatchError) as caught:
        validate(make_batch(**changes))
    assert (caught.value.column, caught.value.row) == (column, row)
    assert caught.value.reason == reason
    assert str(caught.value) == f"column {column!r}, row {row}: {reason}"


def test_nested_leaves_are_named_with_their_path() -> None:
    space = Dict({"a": BOX, "b": Discrete(2)})
    obs = {"a": with_value(np.zeros((4, 2)), (2, 0), NAN), "b": np.zeros(4, int)}
    with pytest.raises(InvalidBatchError, match=r"row 2: not finite") as caught:
        validate(make_batch(space, obs=obs))
    assert caught.value.column == 'obs["a"]'


def test_missing_columns_wrong_types_and_shapes_have_no_row() -> None:
    with pytest.raises(InvalidBatchError, match="column 'rewards': missing") as caught:
        validate(make_batch(rewards=None))
    assert caught.value.row is None
    batch = SampleBatch(pa.RecordBatch.from_pydict({"t": pa.array([0.0])}))
    with pytest.raises(InvalidBatchError, match="column 't': has type double, expected int32"):
        validate(batch, required=["t"])
    with pytest.raises(InvalidBatchError, match=r"column 'obs': is float32 \(4, 2\), expected"):
        validate(make_batch(), observation_space=Box(-1.0, 1.0, (3,)))
    with pytest.raises(InvalidBatchError, match=r"""column 'obs': has no part \["a"\]"""):
        validate(
            make_batch(obs={"b": np.zeros(4)}), observation_space=Dict({"a": BOX, "b": Discrete(2)})
        )


def test_unknown_ends_pass_where_allowed() -> None:
    batch = make_batch(truncateds=pa.array([None, True, None, False]))
    validate(batch, allow_unknown_ends=True)


def test_find_invalid_lists_every_bad_row_of_every_rule() -> None:
    batch = make_batch(
        rewards=np.array([NAN, 1.0, np.inf, 1.0]), t=np.array([0, 1, 2, -1]), shard=np.arange(4) - 1
    )
    found = {(f.column, f.reason): f.rows.tolist() for f in find_invalid(batch)}
    assert found == {
        ("rewards", "not finite"): [0, 2],
        ("t", "negative"): [3],
        ("shard", "negative"): [0],
    }
