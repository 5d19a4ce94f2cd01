"""PPO on every space and kind of network: acting and learning agree, and it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from policies.env_runner import EnvRunner, RunnerSettings
from policies.filters import MeanStd
from policies.learners import ppo
from policies.learners.adam import Adam
from policies.learners.learner import LearnerState
from policies.policy import Policy
from policies.sample_batch import OBS, concat
from policies.testing import IdentityEnv, SchemaCheckingEnv
from policies.vector_envs import make_vector_env

VECTOR = Box(-1.0, 1.0, (3,))
SMALL = {"hidden": [8]}


def config_of(**values):
    return ppo.PPOConfig(**{"model": SMALL, "minibatch_size": 16, "num_epochs": 2, **values})


def rollout(space, steps=16, config=None, envs=4, env=IdentityEnv):
    """A learner's state and the rows that its policy sampled."""
    config = config or config_of()
    made = make_vector_env(env, {"space": space}, envs, reset_seed=lambda i, k: 100 * i + k)
    state = ppo.initial_state(config, made.observation_space, made.action_space)
    runner = EnvRunner(made, 0, RunnerSettings("test", seed=0, fragment_steps=steps))
    return config, state, runner.sample(state.policy, 0).steps


def weights_of(state):
    return b"".join(array.tobytes() for array in state.policy.get_weights().values())


SPACES = {
    "discrete": Discrete(4, start=2),
    "multi_discrete": MultiDiscrete([2, 3]),
    "multi_binary": MultiBinary(3),
    "box": Box(-2.0, 1.0, (2,)),
    "unbounded_box": Box(-np.inf, np.inf, (2,)),
    "dict": Dict({"a": Discrete(2), "b": Tuple([Box(0.0, 1.0, (1,)), MultiBinary(2)])}),
}


class CountsUnits(torch.nn.Module):
    """A custom network on nested observations, with one parameter that nothing uses."""

    def __init__(self, observation_space, num_outputs, width):
        super().__init__()
        self.head = torch.nn.Linear(1, num_outputs + 1)
        self.unused = torch.nn.Parameter(torch.zeros(width))

    def forward(self, obs):
        outputs = self.head(obs["a"].float()[:, None])
        return outputs[:, 1:], outputs[:, :1]


class TestSpacesAndNetworks:
    """Log-probabilities of acting and learning agree, and an update changes the policy."""

    @staticmethod
    def check(config, state, batch):
        frozen = config.model_copy(update={"lr": 0.0})
        state, stats = ppo.update(frozen, state, batch)
        assert abs(stats["approx_kl"]) < 1e-6 and stats["clip_fraction"] == 0.0
        before = weights_of(state)
        state, stats = ppo.update(config, state, batch)
        assert stats["kl"] > 0 and weights_of(state) != before

    @pytest.mark.parametrize("name", SPACES)
    def test_every_space(self, name):
        self.check(*rollout(SPACES[name]))

    def test_squashed_actions(self):
        config, made, _ = rollout(SPACES["box"])
        policy = Policy(made.policy.observation_space, SPACES["box"], config.model, squash=True)
        state = LearnerState(policy, Adam(dict(policy.network.named_parameters())))
        state.scalars["kl_coeff"] = 0.0
        env = make_vector_env(IdentityEnv, {"space": SPACES["box"]}, 4, reset_seed=lambda i, k: i)
        runner = EnvRunner(env, 0, RunnerSettings("test", seed=0, fragment_steps=16))
        self.check(config, state, runner.sample(policy, 0).steps)

    @pytest.mark.parametrize(
        "model",
        [
            {**SMALL, "share_layers": True},
            {"hidden": []},
            {**SMALL, "free_log_std": False, "activation": "relu"},
        ],
    )
    def test_kinds_of_networks(self, model):
        self.check(*rollout(SPACES["dict"], config=config_of(model=model)))

    def test_a_custom_network_with_a_parameter_that_nothing_uses(self):
        network = {
            "custom_network": f"{__name__}:CountsUnits",
            "custom_network_config": {"width": 2},
        }
        self.check(*rollout(SPACES["dict"], config=config_of(model=network)))

    def test_images(self):
        image, config = Box(0, 255, (36, 36, 3), np.uint8), config_of(minibatch_size=4)
        arguments = {"observation_space": image, "action_space": Discrete(3)}
        env = make_vector_env(SchemaCheckingEnv, arguments, 2, reset_seed=lambda i, k: i)
        state = ppo.initial_state(config, image, Discrete(3))
        runner = EnvRunner(env, 0, RunnerSettings("test", seed=0, fragment_steps=4))
        self.check(config, state, runner.sample(state.policy, 0).steps)

    def test_several_shards_and_a_filter(self):
        config, state, batch = rollout(
            SPACES["box"], config=config_of(observation_filter="mean_std")
        )
        state.policy.filter = MeanStd.from_batch(SPACES["box"], batch[OBS])
        second = rollout(SPACES["box"], envs=3)[2]
        state, stats = ppo.update(config, state, concat([batch, second]))
        assert state.env_steps == len(batch) + len(second) == 112

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        self.check(*rollout(SPACES["dict"], config=config_of(learner_device="cuda")))
