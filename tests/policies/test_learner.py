"""The registry of learners, and the state that training carries."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from policies.errors import ConfigError
from policies.learners import ppo
from policies.learners.learner import learner_named, learner_threads, policy_for

SPACES = (gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2))


def test_a_learner_is_found_by_name():
    assert learner_named("ppo") is ppo
    assert learner_named("ppo").CONFIG is ppo.PPOConfig


@pytest.mark.parametrize(("name", "hint"), [("PPO", "did you mean 'ppo'"), ("xyz", "known: ppo")])
def test_an_unknown_learner_is_named_with_the_nearest(name, hint):
    with pytest.raises(ConfigError, match=f"unknown algorithm '{name}'.*{hint}"):
        learner_named(name)


def test_a_policy_is_made_as_the_configuration_says():
    config = ppo.PPOConfig(
        seed=3, observation_filter="mean_std", model={"hidden": [8]}, normalize_actions=False
    )
    box = gym.spaces.Box(-2.0, 2.0, (1,))
    policy = policy_for(config, SPACES[0], box)
    assert policy.filter is not None
    assert policy.get_weights()["policy_encoder.layers.0.weight"].shape == (8, 3)
    assert policy.to_env_action(np.array([[0.5]], np.float32)).item() == 0.5
    same, other = (
        policy_for(ppo.PPOConfig(seed=seed, model={"hidden": [8]}), SPACES[0], box).get_weights()
        for seed in (3, 4)
    )
    name = "policy_encoder.layers.0.weight"
    assert np.array_equal(same[name], policy.get_weights()[name])
    assert not np.array_equal(other[name], policy.get_weights()[name])


def test_a_loaded_state_has_everything_that_was_saved():
    saved = ppo.initial_state(ppo.PPOConfig(seed=1), *SPACES)
    saved.policy.network(torch.randn(4, 3))[1].sum().backward()
    saved.optimizer.step(1e-2)
    fresh = ppo.initial_state(ppo.PPOConfig(seed=2), *SPACES)
    scalars = {"kl_coeff": 0.3}
    weights, moments = saved.policy.get_weights(), saved.optimizer.to_arrays()
    fresh.load(weights, moments, version=7, env_steps=70, scalars=scalars)
    scalars["kl_coeff"] = 9.0
    assert (fresh.version, fresh.env_steps, fresh.scalars) == (7, 70, {"kl_coeff": 0.3})
    for mine, theirs in (
        (fresh.policy.get_weights(), weights),
        (fresh.optimizer.to_arrays(), moments),
    ):
        assert list(mine) == list(theirs)
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


def test_threads_are_put_back_also_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), learner_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before
