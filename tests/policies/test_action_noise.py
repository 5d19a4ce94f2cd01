"""The uniforms behind a round's actions."""

from __future__ import annotations

import numpy as np

from policies.action_noise import ActionNoise
from policies.random_streams import Purpose, stream


def test_the_k_th_transition_of_an_environment_has_entry_k_of_its_column() -> None:
    table = stream(3, Purpose.ACTION_NOISE, 8, 2).random((20, 4, 2))
    noise = ActionNoise(3, 8, 2, num_envs=4, size=2, rows=3)
    made_so_far = np.zeros(4, int)
    moves = np.random.default_rng(0).random((20, 4)) < 0.6
    for made in moves:
        assert np.array_equal(noise.next(), table[made_so_far, np.arange(4)])
        noise.advance(made)
        made_so_far += made
    assert made_so_far.max() > 9


def test_the_rows_drawn_at_a_time_change_no_number() -> None:
    noises = [ActionNoise(0, 1, 0, 3, 1, rows) for rows in (0, 1, 7, 100)]
    for _ in range(30):
        numbers = [noise.next() for noise in noises]
        assert all(np.array_equal(numbers[0], other) for other in numbers)
        for noise in noises:
            noise.advance(np.ones(3, bool))


def test_numbers_that_all_environments_have_used_are_dropped() -> None:
    noise = ActionNoise(0, 1, 0, num_envs=3, size=2, rows=5)
    for _ in range(500):
        noise.next()
        noise.advance(np.ones(3, bool))
        assert len(noise._table) <= 5 * 3


def test_an_idle_environment_does_not_make_a_long_episode_slow() -> None:
    noise = ActionNoise(0, 1, 0, num_envs=2, size=1, rows=5)
    expected = stream(0, Purpose.ACTION_NOISE, 1, 0).random((5000, 2, 1))
    tables = set()
    for step in range(5000):
        numbers = noise.next()
        tables.add(len(noise._table))
        assert numbers[:, 0].tolist() == [expected[step, 0, 0], expected[0, 1, 0]]
        noise.advance(np.array([True, False]))
    # Each copy of the table at least doubles it.
    assert len(tables) <= 12
