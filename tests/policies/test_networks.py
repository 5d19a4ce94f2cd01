"""Actor-critic networks without memory: initial weights, shapes, images, custom modules."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from policies.encoders import HIDDEN_GAIN, orthogonal
from policies.errors import ConfigError
from policies.heads import POLICY_GAIN, VALUE_GAIN
from policies.model_config import ModelConfig
from policies.networks import build_network

ROOT = Path(__file__).parents[2]
VECTOR = gym.spaces.Box(-1.0, 1.0, (4,))
HWC = gym.spaces.Box(0, 255, (40, 44, 3), np.uint8)


def build(space=VECTOR, outputs=3, seed=0, log_std_indices=(), **model):
    rng = np.random.default_rng(seed)
    settings = ModelConfig(**model)
    return build_network(space, outputs, settings, rng, log_std_indices=log_std_indices)


def gram(weight: torch.Tensor) -> np.ndarray:
    matrix = weight.detach().numpy().reshape(len(weight), -1).astype(np.float64)
    return matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3), (1, 6)])
def test_orthogonal_matrices_are_orthogonal_with_the_gain(shape):
    matrix = orthogonal(shape, 2.0, np.random.default_rng(0))
    assert matrix.shape == shape and matrix.dtype == np.float32
    np.testing.assert_allclose(gram(torch.from_numpy(matrix)), 4.0 * np.eye(min(shape)), atol=1e-5)


def test_orthogonal_matrices_have_no_preferred_direction():
    rng = np.random.default_rng(0)
    mean = np.mean([orthogonal((3, 3), 1.0, rng) for _ in range(2000)], axis=0)
    np.testing.assert_allclose(mean, 0.0, atol=0.06)


def test_initial_weights_have_the_gains_and_zero_biases():
    network = build()
    gains = {
        "policy_encoder.layers.0": HIDDEN_GAIN,
        "policy_encoder.layers.1": HIDDEN_GAIN,
        "value_encoder.layers.0": HIDDEN_GAIN,
        "value_encoder.layers.1": HIDDEN_GAIN,
        "policy_head.linear": POLICY_GAIN,
        "value_head.linear": VALUE_GAIN,
    }
    state = network.state_dict()
    assert set(state) == {f"{name}.{part}" for name in gains for part in ("weight", "bias")}
    for name, gain in gains.items():
        product = gram(state[f"{name}.weight"])
        np.testing.assert_allclose(product, gain**2 * np.eye(len(product)), atol=1e-5)
        assert not state[f"{name}.bias"].any()
        assert state[f"{name}.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("space", "model"),
    [(VECTOR, {}), (VECTOR, {"use_lstm": True}), (VECTOR, {"share_layers": True}), (HWC, {})],
)
def test_the_seed_decides_the_bits_and_torch_generator_is_left_alone(space, model):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(space, **model).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = build(space, **model).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = build(space, seed=1, **model).state_dict()
    weights = [name for name in first if "bias" not in name]
    assert not any(torch.equal(first[name], other[name]) for name in weights)


@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("space", [VECTOR, HWC])
def test_policy_and_value_are_the_parts_of_forward(share_layers, space):
    network = build(space, share_layers=share_layers)
    obs = torch.from_numpy(np.stack([space.sample() for _ in range(6)]))
    inputs, values, state = network(obs)
    assert inputs.shape == (6, 3) and values.shape == (6,) and state == ()
    torch.testing.assert_close(network.policy(obs)[0], inputs)
    torch.testing.assert_close(network.value(obs), values)
    sequences = obs.reshape(2, 3, *obs.shape[1:])
    sequence_inputs, sequence_values = network.forward_sequences(sequences)
    torch.testing.assert_close(sequence_inputs, inputs.reshape(2, 3, -1))
    torch.testing.assert_close(sequence_values, values.reshape(2, 3))


def test_separate_layers_do_not_touch_each_other():
    network = build()
    network.value(torch.ones(2, 4)).sum().backward()
    touched = {name for name, x in network.named_parameters() if x.grad is not None}
    assert touched and all(name.startswith("value_") for name in touched)


def test_the_first_policy_is_nearly_uniform():
    inputs, _ = build().policy(torch.randn(100, 4, generator=torch.Generator().manual_seed(0)))
    assert inputs.abs().max() < 0.1


def test_free_log_stds_are_parameters_in_their_places():
    network = build(outputs=5, log_std_indices=[1, 3], initial_log_std=-0.5)
    inputs, _ = network.policy(torch.randn(7, 4))
    assert (inputs[:, [1, 3]] == -0.5).all() and (inputs[:, [0, 2, 4]] != -0.5).all()
    (gradient,) = torch.autograd.grad(inputs[:, 3].sum(), network.policy_head.log_std)
    assert gradient.tolist() == [0.0, 7.0]


def test_log_stds_can_be_outputs_that_start_at_the_same_value():
    network = build(outputs=4, log_std_indices=[2, 3], free_log_std=False, initial_log_std=-0.5)
    inputs, _ = network.policy(torch.randn(7, 4))
    assert "policy_head.log_std" not in network.state_dict()
    assert ((inputs[:, 2:] + 0.5).abs() < 0.1).all() and inputs[:, 2].std() > 0


def test_nested_spaces_are_flattened_to_the_width_of_the_encoding():
    space = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(0, 1, (2, 2))})
    assert build(space).state_dict()["policy_encoder.layers.0.weight"].shape == (64, 7)


def test_channels_first_and_last_images_are_the_same_to_the_network():
    hwc = np.random.default_rng(0).integers(0, 256, (2, 40, 44, 3), np.uint8)
    chw = np.ascontiguousarray(hwc.transpose(0, 3, 1, 2))
    last = build(HWC)
    first = build(gym.spaces.Box(0, 255, (3, 40, 44), np.uint8))
    torch.testing.assert_close(last(torch.from_numpy(hwc))[0], first(torch.from_numpy(chw))[0])


def test_images_are_scaled_by_255():
    network = build(HWC)
    weight = network.state_dict()["policy_encoder.convolutions.0.weight"]
    image = torch.full((1, 40, 44, 3), 255, dtype=torch.uint8)
    inputs = []
    network.policy_encoder.convolutions[0].register_forward_hook(lambda _, x, y: inputs.append(y))
    network.policy(image)
    torch.testing.assert_close(inputs[0][0, :, 0, 0], weight.sum((1, 2, 3)))


def test_small_images_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="7 x 7 are too small.*custom_network"):
        build(gym.spaces.Box(0, 255, (7, 7, 3), np.uint8))


class Tiny(nn.Module):
    def __init__(self, observation_space, num_outputs, width=4):
        super().__init__()
        self.layer = nn.Linear(observation_space.shape[0], width)
        self.out = nn.Linear(width, num_outputs + 1)

    def forward(self, obs):
        outputs = self.out(self.layer(obs).relu())
        return outputs[:, :-1], outputs[:, -1:]


@pytest.fixture
def custom_module(monkeypatch):
    module = types.ModuleType("my_networks")
    module.Tiny, module.not_a_module = Tiny, lambda *_: 3
    monkeypatch.setitem(sys.modules, "my_networks", module)


@pytest.mark.usefixtures("custom_module")
def test_custom_networks_are_made_by_import_path_from_the_seed():
    settings = {"custom_network": "my_networks:Tiny", "custom_network_config": {"width": 9}}
    network = build(**settings)
    inputs, values, _ = network(torch.ones(5, 4))
    assert inputs.shape == (5, 3) and values.shape == (5,)
    state = network.state_dict()
    assert state["module.layer.weight"].shape == (9, 4)
    torch.manual_seed(77)
    again = build(**settings).state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)
    sequences = network.forward_sequences(torch.ones(2, 3, 4))
    assert sequences[0].shape == (2, 3, 3) and sequences[1].shape == (2, 3)


@pytest.mark.usefixtures("custom_module")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"custom_network": "no_such_module:Tiny"}, "cannot be imported"),
        ({"custom_network": "my_networks:Missing"}, "cannot be imported"),
        ({"custom_network": "my_networks:not_a_module"}, "is not a torch.nn.Module"),
        (
            {"custom_network": "my_networks:Tiny", "custom_network_config": {"depth": 1}},
            "cannot be made.*depth",
        ),
    ],
)
def test_custom_networks_that_fail_are_named(model, message):
    with pytest.raises(ConfigError, match=message):
        build(**model)


def test_building_networks_imports_no_compiler_and_no_beam():
    code = (
        "import sys, gymnasium as gym, numpy as np\n"
        "from policies.policy import Policy\n"
        "Policy(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))\n"
        "heavy = {'torch._dynamo', 'torch._inductor', 'apache_beam'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
