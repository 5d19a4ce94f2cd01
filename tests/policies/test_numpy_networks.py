"""The numpy forward pass agrees with torch's."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from policies.model_config import ModelConfig
from policies.networks import build_network
from policies.numpy_networks import NumpyMLP

SPACE = gym.spaces.Box(-np.inf, np.inf, (6,))
RNG = np.random.default_rng(0)


def pair(outputs=5, log_std_indices=(), **settings):
    model = ModelConfig(**settings)
    network = build_network(
        SPACE, outputs, model, np.random.default_rng(1), log_std_indices=log_std_indices
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.from_numpy(RNG.standard_normal(parameter.shape)))
    weights = {name: x.numpy().copy() for name, x in network.state_dict().items()}
    return network, NumpyMLP.from_weights(weights, model, log_std_indices), weights


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("hidden", [[], [8], [64, 64]])
def test_agrees_with_torch(n, activation, share_layers, hidden):
    network, mlp, _ = pair(activation=activation, share_layers=share_layers, hidden=hidden)
    obs = RNG.standard_normal((n, 6)).astype(np.float32)
    with torch.no_grad():
        inputs, values, _ = network(torch.from_numpy(obs))
    assert mlp.policy(obs).dtype == mlp.value(obs).dtype == np.float32
    np.testing.assert_allclose(mlp.policy(obs), inputs, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mlp.value(obs), values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("log_std_indices", [(2, 3), (1, 3), (0,)])
@pytest.mark.parametrize("free_log_std", [True, False])
def test_log_stds_are_in_their_places(log_std_indices, free_log_std):
    network, mlp, _ = pair(4, log_std_indices, free_log_std=free_log_std)
    obs = RNG.standard_normal((9, 6)).astype(np.float32)
    with torch.no_grad():
        expected, _ = network.policy(torch.from_numpy(obs))
    np.testing.assert_allclose(mlp.policy(obs), expected, rtol=1e-6, atol=1e-6)


def test_a_batch_of_one_is_the_row_of_a_batch_and_observations_stay():
    _, mlp, _ = pair(hidden=[])
    obs = RNG.standard_normal((16, 6)).astype(np.float32)
    kept = obs.copy()
    whole = mlp.policy(obs)
    rows = np.concatenate([mlp.policy(obs[i : i + 1]) for i in range(16)])
    np.testing.assert_allclose(rows, whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(obs, kept)


def test_weights_that_change_in_place_are_followed():
    _, mlp, weights = pair()
    weights["policy_head.linear.weight"][...] = 0.0
    weights["policy_head.linear.bias"][...] = 3.0
    assert (mlp.policy(np.ones((2, 6), np.float32)) == 3.0).all()


def test_large_inputs_do_not_overflow():
    _, mlp, _ = pair(activation="silu")
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(mlp.policy(np.full((1, 6), -1e4, np.float32))).all()
