"""Recorded steps, read by environment."""

from __future__ import annotations

import numpy as np

from policies.rollout_buffer import RecordedStep, RolloutBuffer
from policies.vector_envs import StepResult

NUM_ENVS, STEPS = 3, 4


def observations(step: int) -> dict[str, object]:
    """Observation `step` of environment e is 10 * e + step, in two places."""
    values = 10.0 * np.arange(NUM_ENVS) + step
    return {"a": np.asfortranarray(values[:, None].repeat(2, 1)), "b": (values.astype(np.int64),)}


def recorded(final: dict[int, object] | None = None) -> RolloutBuffer:
    buffer = RolloutBuffer(NUM_ENVS)
    for step in range(STEPS):
        result = StepResult(
            obs=observations(step + 1),
            rewards=np.arange(NUM_ENVS) + 0.1 * step,
            terminateds=np.full(NUM_ENVS, step == 1),
            truncateds=np.full(NUM_ENVS, step == 2),
            valid=np.array([True, step != 1, True]),
            final_obs=(final or {}).get(step),
        )
        extras = {"action_logp": np.full(NUM_ENVS, -float(step))}
        state = (np.full((NUM_ENVS, 2), step, np.float32),)
        actions = np.array([step, 10 + step, 20 + step])
        buffer.append(RecordedStep(observations(step), state, actions, extras, result))
    return buffer


def test_made_is_by_environment() -> None:
    expected = [[True] * 4, [True, False, True, True], [True] * 4]
    assert recorded().made().tolist() == expected
    assert len(recorded()) == STEPS


def test_columns_are_the_chosen_rows_in_their_order() -> None:
    rows = np.array([0, 9, 1, 7])  # env 0: steps 0 and 3; env 1: steps 0 and 2
    columns = recorded().columns(rows, [])
    assert columns["obs"]["b"][0].tolist() == [0, 3, 10, 12]
    assert columns["obs"]["a"].tolist() == [[0, 0], [3, 3], [10, 10], [12, 12]]
    assert columns["new_obs"]["b"][0].tolist() == [1, 4, 11, 13]
    assert columns["actions"].tolist() == [0, 3, 10, 12]
    np.testing.assert_allclose(columns["rewards"], [0.0, 0.3, 1.0, 1.2])
    assert columns["terminateds"].tolist() == [False, False, False, False]
    assert columns["truncateds"].tolist() == [False, False, False, True]
    assert columns["action_logp"].tolist() == [0.0, -3.0, 0.0, -2.0]
    assert columns["state_in_0"].tolist() == [[0, 0], [3, 3], [0, 0], [2, 2]]
    assert columns["obs"]["a"].flags.c_contiguous


def test_new_obs_of_an_end_is_the_final_observation_and_obs_stays() -> None:
    final = {"a": np.full((NUM_ENVS, 2), 99.0), "b": (np.full(NUM_ENVS, 77),)}
    rows = np.arange(STEPS) * NUM_ENVS + 1
    columns = recorded({1: final}).columns(rows, [(1, np.array([1]))])
    assert columns["new_obs"]["b"][0].tolist() == [11, 77, 13, 14]
    assert columns["new_obs"]["a"][:, 1].tolist() == [11, 99, 13, 14]
    assert columns["obs"]["b"][0].tolist() == [10, 11, 12, 13]


def test_no_rows() -> None:
    columns = recorded().columns(np.zeros(0, np.int64), [])
    assert columns["obs"]["a"].shape == (0, 2)
    assert columns["rewards"].shape == (0,)


def test_what_is_read_shares_no_memory_with_what_was_recorded() -> None:
    buffer = recorded()
    rows = np.arange(STEPS * NUM_ENVS)
    columns = buffer.columns(rows, [])
    columns["truncateds"][:] = True
    columns["obs"]["a"][:] = -1
    again = buffer.columns(rows, [])
    assert again["truncateds"].sum() == NUM_ENVS
    assert (again["obs"]["a"] >= 0).all()
