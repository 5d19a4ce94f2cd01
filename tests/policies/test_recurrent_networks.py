"""Networks with memory: one step at a time, whole sequences and carried state are the same."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from policies.custom_networks import Custom
from policies.model_config import ModelConfig
from policies.networks import build_network

B, L = 3, 12
VECTOR = gym.spaces.Box(-1.0, 1.0, (4,))
IMAGE = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)


class Summing(torch.nn.Module):
    """Remembers the sum of what it has seen."""

    def initial_state(self, n):
        return (np.zeros((n, 4), np.float32),)

    def forward(self, obs, state):
        total = state[0] + obs
        return total[:, :2], total[:, 2], (total,)


def lstm(space=VECTOR):
    model = ModelConfig(use_lstm=True, lstm_size=7, hidden=[16])
    network = build_network(space, 2, model, np.random.default_rng(0))
    # The policy head starts near zero; make differences visible.
    with torch.no_grad():
        network.policy_head.linear.weight.mul_(100.0)
    return network


def tensors(state):
    return tuple(torch.from_numpy(x) for x in state)


def observations(space):
    rng = np.random.default_rng(1)
    if space is IMAGE:
        return torch.from_numpy(rng.integers(0, 256, (B, L, *IMAGE.shape), np.uint8))
    return torch.from_numpy(rng.standard_normal((B, L, *VECTOR.shape)).astype(np.float32))


def step_by_step(network, obs):
    """Inputs, values and the state before each step."""
    state = tensors(network.initial_state(B))
    steps, states = [], []
    for i in range(obs.shape[1]):
        states.append(state)
        inputs, values, state = network(obs[:, i], state)
        steps.append((inputs, values))
    return torch.stack([s[0] for s in steps], 1), torch.stack([s[1] for s in steps], 1), states


CASES = {
    "lstm": (lstm(), VECTOR),
    "image": (lstm(IMAGE), IMAGE),
    "custom": (Custom(Summing()), VECTOR),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_whole_sequences(name):
    network, space = CASES[name]
    obs = observations(space)
    inputs, values, _ = step_by_step(network, obs)
    whole = network.forward_sequences(obs, tensors(network.initial_state(B)))
    torch.testing.assert_close(whole[0], inputs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole[1], values, rtol=1e-5, atol=1e-6)
    assert inputs[:, 1:].std() > 0.01


@pytest.mark.parametrize("cuts", [[0, 5, 12], [0, 1, 2, 11, 12], list(range(13))])
@pytest.mark.parametrize("name", CASES)
def test_chunks_with_carried_state_equal_whole_sequences(name, cuts):
    network, space = CASES[name]
    obs = observations(space)
    whole = network.forward_sequences(obs, tensors(network.initial_state(B)))
    _, _, states = step_by_step(network, obs)
    chunks = [
        network.forward_sequences(obs[:, start:stop], states[start])
        for start, stop in zip(cuts[:-1], cuts[1:], strict=True)
    ]
    for part in (0, 1):
        stitched = torch.cat([chunk[part] for chunk in chunks], dim=1)
        torch.testing.assert_close(stitched, whole[part], rtol=1e-5, atol=1e-6)


def test_padding_at_the_end_changes_nothing_before_it():
    network, obs = lstm(), observations(VECTOR)
    state = tensors(network.initial_state(B))
    padded = torch.cat([obs, torch.full((B, 3, 4), 9.0)], dim=1)
    torch.testing.assert_close(
        network.forward_sequences(padded, state)[0][:, :L], network.forward_sequences(obs, state)[0]
    )


def test_parts_of_a_step_agree_and_the_state_matters():
    network, obs = lstm(), observations(VECTOR)[:, 0]
    state = tensors(network.initial_state(B))
    inputs, values, next_state = network(obs, state)
    policy_inputs, policy_state = network.policy(obs, state)
    torch.testing.assert_close(policy_inputs, inputs)
    torch.testing.assert_close(policy_state, next_state)
    torch.testing.assert_close(network.value(obs, state), values)
    assert [tuple(x.shape) for x in next_state] == [(B, 7), (B, 7)]
    assert not torch.allclose(network.policy(obs, next_state)[0], inputs)


def test_recurrent_weights_are_orthogonal():
    weight = lstm().state_dict()["lstm.weight_hh_l0"]
    torch.testing.assert_close(weight.T @ weight, torch.eye(7), rtol=0, atol=1e-5)
