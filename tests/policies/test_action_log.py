"""The actions of running episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from policies import action_log, spaces
from policies.action_log import ActionLog

NESTED = Dict({"b": Tuple([Discrete(3), Box(-1, 1, (2,))]), "a": MultiDiscrete([2, 3])})


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, ()), NESTED])
def test_actions_since_the_last_reset_come_back_by_environment(space: gym.Space[Any]) -> None:
    space.seed(0)
    log = ActionLog(space, 3)
    expected: list[list[Any]] = [[], [], []]
    rng = np.random.default_rng(1)
    for step in range(40):
        batch = spaces.stack(space, [space.sample() for _ in range(3)])
        made = rng.random(3) < 0.8
        log.append(batch, made)
        for i in range(3):
            if made[i]:
                expected[i].append(spaces.index(space, batch, i))
        if step == 20:
            log.begin(1)
            expected[1] = []
        if step % 7 == 0:
            log.to_arrays()
    arrays = log.to_arrays()
    counts = np.array([len(actions) for actions in expected])
    fresh = ActionLog(space, 3)
    found = fresh.load(arrays, counts)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert space.contains(a)
            spaces.map_leaves(lambda _, x, y: np.testing.assert_array_equal(x, y), space, a, b)
    again = fresh.to_arrays()
    assert list(again) == list(arrays)
    assert all(again[name].tobytes() == arrays[name].tobytes() for name in arrays)


def test_an_action_becomes_part_of_an_array_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[int] = []
    stack = spaces.stack

    def watched(space: Any, values: Any) -> Any:
        stacked.append(len(values))
        return stack(space, values)

    log = ActionLog(Discrete(2), 2)
    monkeypatch.setattr(action_log.spaces, "stack", watched)
    for _ in range(5):
        for _ in range(10):
            log.append(np.array([0, 1]), np.array([True, False]))
        log.to_arrays()
    assert stacked == [10] * 5


def test_nothing_is_kept_of_an_episode_beyond_the_limit() -> None:
    log = ActionLog(Discrete(2), 2, limit=3)
    for step in range(5):
        log.append(np.array([0, 1]), np.array([step < 2, True]))
        assert log.too_long() == (1 if step >= 3 else None)
    assert log.to_arrays()["0"].tolist() == [0, 0]
    log.begin(1)
    assert log.too_long() is None
    log.append(np.array([0, 1]), np.array([False, True]))
    assert log.to_arrays()["0"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("counts", [[1, 1], [2, 2], [4, -1]])
def test_lost_actions_are_noticed(counts: list[int]) -> None:
    log = ActionLog(Discrete(2), 2)
    with pytest.raises(ValueError, match="lost actions"):
        log.load({"0": np.zeros(3, np.int64)}, np.array(counts))
    with pytest.raises(KeyError):
        log.load({}, np.array(counts))
