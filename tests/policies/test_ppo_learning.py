"""PPO learns the identity task to 90 % of the best return, in every action space."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from policies.env_runner import EnvRunner, RunnerSettings
from policies.learners import ppo
from policies.learners.adam import Adam
from policies.learners.learner import LearnerState
from policies.policy import Policy
from policies.testing import IdentityEnv
from policies.vector_envs import make_vector_env

STEPS = 20
SETTINGS = {
    "lr": 1e-2,
    "clip_param": 0.2,
    "gamma": 0.0,
    "gae_lambda": 0.0,
    "minibatch_size": 64,
    "num_epochs": 5,
    "model": {"hidden": [32], "initial_log_std": -1.0},
}
SPACES = {
    "discrete": (Discrete(4), {}),
    "discrete_from_2": (Discrete(3, start=2), {}),
    "multi_discrete": (MultiDiscrete([3, 4]), {}),
    "multi_binary": (MultiBinary(4), {}),
    "box": (Box(-2.0, 1.0, (2,)), {}),
    "box_clipped": (Box(-1.0, 1.0, (2,)), {"normalize_actions": False}),
    "box_unbounded": (Box(-np.inf, np.inf, (1,)), {}),
    "box_filtered": (Box(10.0, 12.0, (1,)), {"observation_filter": "mean_std"}),
    "dict": (Dict({"a": Discrete(3), "b": Box(-1.0, 1.0, (1,)), "c": MultiBinary(2)}), {}),
    "tuple": (Tuple([Discrete(3), MultiDiscrete([2, 2])]), {}),
}


def returns_of_trained(space, config, rounds, squash=False):
    """Returns of episodes that the trained policy plays without exploring, over the best."""
    env = make_vector_env(IdentityEnv, {"space": space}, 16, reset_seed=lambda i, k: 1000 * i + k)
    state = ppo.initial_state(config, space, space)
    if squash:
        policy = Policy(space, space, config.model, squash=True)
        optimizer = Adam(dict(policy.network.named_parameters()))
        state = LearnerState(policy, optimizer, scalars=state.scalars)
    runner = EnvRunner(env, 0, RunnerSettings("test", seed=0, fragment_steps=STEPS))
    for version in range(rounds):
        steps = runner.sample(state.policy, version).steps
        state, _ = ppo.update(config, state, steps)
    total, obs = np.zeros(16), env.reset()
    for _ in range(STEPS):
        actions, _, _ = state.policy.compute_actions(obs, explore=False)
        result = env.step(state.policy.to_env_action(actions))
        obs, total = result.obs, total + result.rewards
    return total / STEPS


@pytest.mark.parametrize("name", SPACES)
def test_learns_the_identity(name):
    space, more = SPACES[name]
    config = ppo.PPOConfig(**(SETTINGS | more))
    assert returns_of_trained(space, config, rounds=12).mean() >= 0.9


def test_learns_the_identity_with_squashed_actions():
    space = Box(-2.0, 1.0, (2,))
    returns = returns_of_trained(space, ppo.PPOConfig(**SETTINGS), rounds=12, squash=True)
    assert returns.mean() >= 0.9


@pytest.mark.parametrize("name", SPACES)
def test_an_untrained_policy_is_not_there_yet(name):
    space, more = SPACES[name]
    config = ppo.PPOConfig(**(SETTINGS | more))
    assert returns_of_trained(space, config, rounds=0).mean() < 0.85
