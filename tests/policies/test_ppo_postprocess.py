"""Advantages and targets that PPO computes, at every kind of end of a fragment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from policies.env_runner import EnvRunner, RunnerSettings
from policies.filters import MeanStd
from policies.learners import ppo
from policies.sample_batch import OBS, SampleBatch
from policies.vector_envs import make_vector_env

SCALAR = Box(-np.inf, np.inf, (1,))
VECTOR = Box(-1.0, 1.0, (3,))
SMALL = {"hidden": [8]}


class ObservationIsValue(torch.nn.Module):
    """A network whose value of an observation is the observation."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(num_outputs))

    def forward(self, obs):
        return self.logits.expand(len(obs), -1), obs[:, 0]


def config_of(**values):
    return ppo.PPOConfig(**{"model": SMALL, "minibatch_size": 16, "num_epochs": 2, **values})


def random_batch(n=50, observation_space=VECTOR, action_space=None, seed=0, episode=12):
    """Rows of one env whose episodes of `episode` steps are terminated and truncated in turn."""
    rng = np.random.default_rng(seed)
    t = np.arange(n) % episode
    number, last = np.arange(n) // episode, t == episode - 1
    return SampleBatch.from_columns(
        {
            "eps_id": number,
            "t": t.astype(np.int32),
            "obs": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
            "new_obs": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
            "actions": rng.integers(0, 2, n),
            "rewards": rng.normal(size=n),
            "terminateds": last & (number % 2 == 0),
            "truncateds": last & (number % 2 == 1),
            "action_logp": np.log(rng.uniform(0.3, 0.7, n)),
        },
        observation_space=observation_space,
        action_space=action_space or Discrete(2),
    )


TWO = [1, 1, 2, 2]


class TestPostprocess:
    """Advantages through the network's own values, gamma .9, lambda .8."""

    @staticmethod
    def advantages(eps_id, t, new_obs, terminateds, truncateds, lam=0.8):
        config = ppo.PPOConfig(
            gamma=0.9,
            gae_lambda=lam,
            model={"custom_network": f"{__name__}:ObservationIsValue"},
        )
        policy = ppo.initial_state(config, SCALAR, Discrete(2)).policy
        batch = SampleBatch.from_columns(
            {
                "eps_id": np.array(eps_id),
                "t": np.array(t, np.int32),
                "obs": np.array([[0.5], [1.0], [1.5], [2.0]], np.float32),
                "new_obs": np.array(new_obs, np.float32)[:, None],
                "actions": np.zeros(4, np.int64),
                "rewards": np.array([1.0, 2.0, 3.0, 4.0]),
                "terminateds": np.array(terminateds, bool),
                "truncateds": np.array(truncateds, bool),
                "action_logp": np.full(4, np.log(0.5)),
            },
            observation_space=SCALAR,
            action_space=Discrete(2),
        )
        data = ppo.postprocess(config, policy, batch)
        assert data.values.tolist() == [0.5, 1.0, 1.5, 2.0]
        np.testing.assert_allclose(data.targets, data.advantages + data.values, rtol=1e-6)
        return data.advantages.numpy()

    @pytest.mark.parametrize(
        ("eps_id", "t", "new_obs", "terminateds", "truncateds", "expected"),
        [
            # Running: the fragment is cut.
            ([1] * 4, range(4), [1, 1.5, 2, 2.5], [0] * 4, [0] * 4, [6.389024, 6.9292, 6.36, 4.25]),
            # Terminated at the last row: its new_obs is not looked at.
            (
                [1] * 4,
                range(4),
                [1, 1.5, 2, 99],
                [0, 0, 0, 1],
                [0] * 4,
                [5.549216, 5.7628, 4.74, 2.0],
            ),
            # Truncated at row 1, where the true last observation has the value 7.
            (TWO, [0, 1] * 2, [1, 7, 2, 2.5], [0] * 4, [0, 1, 0, 0], [6.656, 7.3, 6.36, 4.25]),
            # Terminated at row 1.
            (TWO, [0, 1] * 2, [1, 7, 2, 2.5], [0, 1, 0, 0], [0] * 4, [2.12, 1.0, 6.36, 4.25]),
            # Cut at row 1, and the episode goes on elsewhere: bootstrapped as a truncation is.
            (TWO, [0, 1] * 2, [1, 7, 2, 2.5], [0] * 4, [0] * 4, [6.656, 7.3, 6.36, 4.25]),
        ],
    )  # fmt: skip
    def test_ends_of_fragments(self, eps_id, t, new_obs, terminateds, truncateds, expected):
        found = self.advantages(eps_id, t, new_obs, terminateds, truncateds)
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_with_lambda_0_a_cut_changes_nothing(self):
        none = [0] * 4
        whole = self.advantages([1] * 4, range(4), [1, 1.5, 2, 2.5], none, none, lam=0.0)
        cut = self.advantages([1] * 4, [0, 1, 9, 10], [1, 1.5, 2, 2.5], none, none, lam=0.0)
        np.testing.assert_array_equal(whole, cut)

    def test_sees_observations_through_the_filter(self):
        config = config_of(observation_filter="mean_std")
        policy = ppo.initial_state(config, VECTOR, Discrete(2)).policy
        batch = random_batch()
        policy.filter = MeanStd.from_batch(VECTOR, 3.0 * batch[OBS] + 1.0)
        filtered = torch.from_numpy(policy.filter.normalize(VECTOR, batch[OBS]))
        with torch.no_grad():
            expected = policy.network.value(filtered)
        torch.testing.assert_close(ppo.postprocess(config, policy, batch).values, expected)


class ConstantReward(gym.Env):
    """Reward 1 for ever; a time limit truncates each episode after 10 steps."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(1, np.float32), 1.0, False, self.steps == 10, {}


def test_a_time_limit_does_not_lower_the_value_of_an_endless_task():
    """V = 1 / (1 - gamma) = 10; taking the limit for an end would make it about 4."""
    config = config_of(gamma=0.9, gae_lambda=0.95, lr=5e-3, num_epochs=10, minibatch_size=32)
    env = make_vector_env(ConstantReward, {}, 4, reset_seed=lambda i, k: i)
    state = ppo.initial_state(config, env.observation_space, env.action_space)
    runner = EnvRunner(env, 0, RunnerSettings("test", seed=0, fragment_steps=25))
    for version in range(30):
        state, _ = ppo.update(config, state, runner.sample(state.policy, version).steps)
    assert float(state.policy.value(np.ones((1, 1), np.float32))[0]) == pytest.approx(10.0, abs=1.0)
