"""Networks of the user's own whose layers act differently in training: Dropout, BatchNorm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from policies.learners import ppo
from policies.sample_batch import OBS, SampleBatch

VECTOR, ACTIONS = Box(-1.0, 1.0, (3,)), Discrete(2)


class Moody(nn.Module):
    """Counts its calls in training and in evaluation mode."""

    def __init__(self, observation_space, num_outputs, kind="dropout"):
        super().__init__()
        layers = {"dropout": nn.Dropout(0.5), "norm": nn.BatchNorm1d(16)}
        self.body = nn.Sequential(nn.Linear(3, 16), layers[kind], nn.Tanh())
        self.head = nn.Linear(16, num_outputs + 1)
        self.calls = {True: 0, False: 0}

    def forward(self, obs):
        self.calls[self.training] += 1
        outputs = self.head(self.body(obs))
        return outputs[:, 1:], outputs[:, 0]


def config_of(kind, **values):
    model = {
        "custom_network": f"{__name__}:Moody",
        "custom_network_config": {"kind": kind},
    }
    return ppo.PPOConfig(model=model, minibatch_size=16, num_epochs=2, **values)


def rows(n=48):
    rng = np.random.default_rng(0)
    return SampleBatch.from_columns(
        {
            "eps_id": np.arange(n),
            "t": np.zeros(n, np.int32),
            "obs": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
            "new_obs": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
            "actions": rng.integers(0, 2, n),
            "rewards": rng.normal(size=n),
            "terminateds": np.ones(n, bool),
            "truncateds": np.zeros(n, bool),
            "action_logp": np.log(rng.uniform(0.3, 0.7, n)),
        }
    )


def bits(state):
    return {name: array.tobytes() for name, array in state.policy.get_weights().items()}


@pytest.mark.parametrize("kind", ["dropout", "norm"])
def test_acting_and_values_are_the_same_each_time(kind):
    state = ppo.initial_state(config_of(kind), VECTOR, ACTIONS)
    batch, before = rows(), bits(state)
    first, second = (
        state.policy.compute_actions(batch[OBS], explore=False, extras=["vf_preds", "action_logp"])
        for _ in range(2)
    )
    for name, values in first[2].items():
        assert np.array_equal(values, second[2][name]), name
    one_by_one = np.concatenate([state.policy.value(batch[OBS][i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(one_by_one, state.policy.value(batch[OBS])[:5], atol=1e-6)
    assert bits(state) == before


@pytest.mark.parametrize("kind", ["dropout", "norm"])
def test_only_gradient_steps_are_in_training_mode(kind):
    config = config_of(kind, target_kl=100.0)
    state = ppo.initial_state(config, VECTOR, ACTIONS)
    module = state.policy.network.module
    ppo.postprocess(config, state.policy, rows())
    assert module.calls[True] == 0
    state, stats = ppo.update(config, state, rows())
    assert module.calls[True] == stats["gradient_steps"] == 6
    assert not module.training


@pytest.mark.parametrize("kind", ["dropout", "norm"])
def test_an_update_repeats_to_the_bit_and_leaves_torchs_generator(kind):
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = ppo.initial_state(config_of(kind), VECTOR, ACTIONS)
        before = torch.get_rng_state()
        state, stats = ppo.update(config_of(kind), state, rows())
        assert torch.equal(torch.get_rng_state(), before)
        results.append((bits(state), stats))
    assert results[0] == results[1]


def test_each_epoch_and_each_round_drops_other_units(monkeypatch):
    seeds = []
    monkeypatch.setattr(
        Moody, "forward", lambda self, obs: _note_seed(self, obs, seeds, Moody_forward)
    )
    state = ppo.initial_state(config_of("dropout"), VECTOR, ACTIONS)
    for _ in range(2):
        state, _ = ppo.update(config_of("dropout"), state, rows())
    assert len(set(seeds)) == 12


Moody_forward = Moody.forward


def _note_seed(module, obs, seeds, forward):
    if module.training:
        seeds.append(torch.get_rng_state().numpy().tobytes())
    return forward(module, obs)


def test_running_statistics_are_weights_that_an_update_moves():
    config = config_of("norm")
    state = ppo.initial_state(config, VECTOR, ACTIONS)
    name = "module.body.1.running_mean"
    before = state.policy.get_weights()
    state, _ = ppo.update(config, state, rows())
    after = state.policy.get_weights()
    assert not np.array_equal(after[name], before[name])
    other = ppo.initial_state(config_of("norm", seed=9), VECTOR, ACTIONS)
    other.policy.set_weights(after)
    assert bits(other) == bits(state)
    obs = rows()[OBS]
    assert np.array_equal(other.policy.value(obs), state.policy.value(obs))
