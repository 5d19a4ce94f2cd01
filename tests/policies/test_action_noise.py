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
