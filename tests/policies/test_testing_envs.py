"""The environments to test with do what they promise."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from policies.spaces import space_to_json
from policies.testing import CountingEnv, IdentityEnv, SchemaCheckingEnv, StatelessCartPole

SPACES = [
    Discrete(5, start=2),
    MultiDiscrete([2, 4]),
    MultiBinary((2, 2)),
    Box(-2.0, 6.0, (3,), np.float32),
    Box(-np.inf, np.inf, (2,), np.float64),
    Box(0, 255, (2, 2, 1), np.uint8),
    Dict({"b": Tuple([Discrete(3), Box(0, 1, (2,))]), "a": MultiBinary(2)}),
]


def test_counting_env_counts_over_episodes_of_the_given_lengths() -> None:
    env = CountingEnv([2, 1], truncate=True)
    seen = []
    for _ in range(3):
        obs, _ = env.reset(seed=0)
        truncated = False
        while not truncated:
            seen.append(float(obs[0]))
            obs, reward, terminated, truncated, _ = env.step(0)
            assert reward == obs[0] and not terminated
    assert seen == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("space", SPACES)
def test_identity_env_gives_the_most_for_its_observation(space: gym.Space[Any]) -> None:
    env = IdentityEnv(space_to_json(space), steps=3)
    obs, _ = env.reset(seed=0)
    space.seed(1)
    total, ends = 0.0, []
    for _ in range(3):
        assert env.observation_space.contains(obs)
        obs, reward, _, truncated, _ = env.step(obs)
        total += reward
        ends.append(truncated)
    assert total == pytest.approx(3.0) and ends == [False, False, True]
    env.reset(seed=0)
    rewards = [env.step(space.sample())[1] for _ in range(50)]
    assert 0.0 <= np.mean(rewards) < 0.9


def test_identity_env_rewards_by_distance_in_a_box() -> None:
    env = IdentityEnv(Box(0.0, 4.0, (1,), np.float32))
    obs, _ = env.reset(seed=0)
    away = obs + (1.0 if obs[0] < 2 else -1.0)
    assert env.step(away)[1] == pytest.approx(0.75)


def test_stateless_cart_pole_hides_the_velocities() -> None:
    env, whole = StatelessCartPole(max_episode_steps=4), gym.make("CartPole-v1")
    obs, _ = env.reset(seed=3)
    full, _ = whole.reset(seed=3)
    np.testing.assert_array_equal(obs, full[[0, 2]])
    for t in range(4):
        obs, reward, terminated, truncated, _ = env.step(t % 2)
        np.testing.assert_array_equal(obs, whole.step(t % 2)[0][[0, 2]])
        assert (reward, terminated, truncated) == (1.0, False, t == 3)


def test_schema_checking_env_refuses_wrong_use() -> None:
    env = SchemaCheckingEnv(Discrete(2), Box(-1, 1, (2,), np.float32), length=1)
    with pytest.raises(AssertionError, match="without an integer seed"):
        env.reset()
    with pytest.raises(AssertionError, match="step before a reset"):
        env.step(np.zeros(2, np.float32))
    env.reset(seed=0)
    with pytest.raises(AssertionError, match="is not in"):
        env.step(np.full(2, 2.0, np.float32))
    assert env.step(np.zeros(2, np.float32))[2]
    with pytest.raises(AssertionError, match="after the end"):
        env.step(np.zeros(2, np.float32))
