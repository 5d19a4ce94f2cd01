"""Rows of batched observations and actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from policies.env_rows import ObservationRows, from_leaves, leaves, single_actions
from policies.errors import RunError

NESTED = Dict(
    {
        "b": Tuple([Discrete(3, start=1), Box(-1, 1, (2,), np.float32)]),
        "a": MultiBinary(2),
        "c": MultiDiscrete([2, 3]),
    }
)


@pytest.mark.parametrize(
    "space",
    [Box(-1, 1, (3,)), Box(0, 255, (2, 2, 3), np.uint8), Box(0, 1, ()), Discrete(4), NESTED],
)
def test_rows_hold_the_observations(space: gym.Space[Any]) -> None:
    space.seed(0)
    values = [space.sample() for _ in range(3)]
    rows = ObservationRows("E", space, 3)
    batch = rows.empty()
    for i, value in enumerate(values):
        rows.write(batch, i, value)
    for leaf, *single in zip(
        leaves(space, batch), *(leaves(space, value) for value in values), strict=True
    ):
        np.testing.assert_array_equal(leaf, np.stack(single))
    rebuilt = from_leaves(space, leaves(space, batch))
    assert all(a is b for a, b in zip(leaves(space, rebuilt), leaves(space, batch), strict=True))


@pytest.mark.parametrize(
    ("space", "value", "problem"),
    [
        (Box(-1, 1, (2,)), np.zeros(3, np.float32), r"obs has shape \(3,\), expected \(2,\)"),
        (Box(-1, 1, (2,)), np.float32(1), r"obs has shape \(\), expected \(2,\)"),
        (Box(-1, 1, (2,)), [[1], [1, 2]], "obs is not an array"),
        (Box(0, 9, (2,), np.int64), np.array([0.5, 1.0]), "obs has dtype float64, expected int64"),
        (Discrete(3, start=1), 0, "obs is 0, which is not in"),
        (Discrete(3, start=1), 4, "obs is 4, which is not in"),
        (MultiDiscrete([2, 2]), np.array([0, 2]), "which is not in"),
        (NESTED, {"a": 0}, "expected keys"),
        (NESTED, np.zeros(2), "is ndarray, expected keys"),
        (
            NESTED,
            {"a": np.zeros(2, np.int8), "b": (1,), "c": np.zeros(2, np.int64)},
            r'obs\["b"\] is not a tuple of 2',
        ),
    ],
)
def test_a_wrong_observation_names_environment_index_and_leaf(
    space: gym.Space[Any], value: Any, problem: str
) -> None:
    rows = ObservationRows("E", space, 1, first_index=5)
    with pytest.raises(RunError, match=rf"environment 'E' \(env 5\): .*{problem}"):
        rows.write(rows.empty(), 0, value)


def test_float64_observations_are_cast_to_the_space() -> None:
    rows = ObservationRows("E", Box(-1, 1, (2,), np.float32), 1)
    batch = rows.empty()
    rows.write(batch, 0, np.array([0.1, 0.2]))
    assert batch.dtype == np.float32
    np.testing.assert_array_equal(batch[0], np.array([0.1, 0.2], np.float32))


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (2,)), Box(-1, 1, ()), NESTED])
def test_single_actions_are_in_the_space_and_are_copies(space: gym.Space[Any]) -> None:
    space.seed(0)
    rows = ObservationRows("E", space, 4)
    batch = rows.empty()
    for i in range(4):
        rows.write(batch, i, space.sample())
    singles = single_actions(space, batch)
    assert len(singles) == 4 and all(space.contains(action) for action in singles)
    for i, action in enumerate(singles):
        for whole, single in zip(leaves(space, batch), leaves(space, action), strict=True):
            np.testing.assert_array_equal(whole[i], single)
            assert not np.shares_memory(whole, single)
