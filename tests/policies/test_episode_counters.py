"""Labels of a round's rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.episode_counters import Closings, EpisodeCounters
from policies.errors import RunError
from policies.random_streams import episode_ids


def closings_of(ended: np.ndarray, lost: np.ndarray) -> Closings:
    """Of bool [num_envs, steps] masks: the ended ones step by step, then the lost ones."""
    steps, envs = np.nonzero(ended.T)
    lost_steps, lost_envs = np.nonzero(lost.T)
    return Closings(
        env=np.concatenate([envs, lost_envs]),
        step=np.concatenate([steps, lost_steps]),
        lost=np.arange(len(envs) + len(lost_envs)) >= len(envs),
    )


class SlowCounters:
    """The same, one step at a time."""

    def __init__(self, num_envs: int) -> None:
        self.state = [{"episode": 1, "t": 0, "env_step": 0, "version": 0} for _ in range(num_envs)]

    def label(
        self, version: int, made: np.ndarray, ended: np.ndarray, lost: np.ndarray
    ) -> tuple[list[tuple[int, ...]], dict[tuple[int, int], tuple[int, ...]]]:
        rows, closed = [], {}
        num_envs, steps = made.shape
        for env, s in enumerate(self.state):
            running: list[tuple[int, ...]] = []
            for step in range(steps):
                number = np.array([s["episode"] - 1])
                (eps_id,) = episode_ids("run", s["version"], 3, np.array([env]), number).tolist()
                if made[env, step]:
                    running.append((step * num_envs + env, env, eps_id, s["t"], s["env_step"]))
                    s["t"] += 1
                    s["env_step"] += 1
                if lost[env, step]:
                    running = []
                if ended[env, step] or lost[env, step]:
                    rows += running
                    running = []
                    closed[env, step] = (eps_id, s["t"], s["env_step"] - 1)
                    s.update(t=0, version=version, episode=s["episode"] + 1)
            rows += running
        return rows, closed


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_labels_equal_those_of_a_slow_loop(
    num_envs: int, steps: int, seed: int, all_made: bool
) -> None:
    rng = np.random.default_rng(seed)
    fast, slow = EpisodeCounters("run", 3, num_envs), SlowCounters(num_envs)
    fast.begin_all(0)
    for version in range(3):
        made = rng.random((num_envs, steps)) < (2 if all_made else 0.8)
        ended = made & (rng.random(made.shape) < 0.3)
        lost = ~made & (rng.random(made.shape) < 0.3)
        closings = closings_of(ended, lost)
        labels, summaries = fast.label(version, made, closings)
        rows, closed = slow.label(version, made, ended, lost)
        assert list(zip(*(column.tolist() for column in labels), strict=True)) == rows
        found = zip(
            closings.env.tolist(),
            closings.step.tolist(),
            *(column.tolist() for column in summaries),
            strict=True,
        )
        assert {(env, step): tuple(rest) for env, step, *rest in found} == closed
        assert fast.t.tolist() == [s["t"] for s in slow.state]
        assert fast.env_step.tolist() == [s["env_step"] for s in slow.state]
        assert fast.episode.tolist() == [s["episode"] for s in slow.state]


def test_state_round_trip_and_damage() -> None:
    counters = EpisodeCounters("run", 0, 3)
    counters.begin_all(2)
    state = counters.get_state()
    other = EpisodeCounters("run", 0, 3)
    other.set_state(state)
    for name, array in other.get_state().items():
        assert np.array_equal(array, state[name])
    with pytest.raises(RunError, match="t is float64"):
        other.set_state(state | {"t": np.zeros(3)})
    with pytest.raises(RunError, match="expected int64 for 2 environments"):
        EpisodeCounters("run", 0, 2).set_state(state)
    with pytest.raises(KeyError):
        other.set_state({})
