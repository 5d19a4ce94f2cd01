"""The policy: acting, log-probabilities, values, weights, states, filters."""

from __future__ import annotations

import sys
import types
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.optim.adam import adam

from policies.errors import ConfigError, RunError
from policies.filters import MeanStd
from policies.model_config import ModelConfig
from policies.policy import Policy
from policies.sample_batch import SampleBatch

VECTOR = gym.spaces.Box(-np.inf, np.inf, (4,))
DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
IMAGE = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
NESTED = gym.spaces.Dict({"d": gym.spaces.Discrete(3, start=1), "b": gym.spaces.Box(-1, 1, (2, 2))})
ALL_EXTRAS = ("action_logp", "action_dist_inputs", "vf_preds")
LSTM = ModelConfig(use_lstm=True, lstm_size=5, hidden=[8])


class DictNetwork(torch.nn.Module):
    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.out = torch.nn.Linear(5, num_outputs + 1)
        self.seen: dict[str, torch.dtype] = {}

    def forward(self, obs):
        self.seen = {key: x.dtype for key, x in obs.items()}
        columns = [obs["b"].flatten(1), obs["d"].unsqueeze(1).float()]
        outputs = self.out(torch.cat(columns, 1))
        return outputs[:, 1:], outputs[:, 0]


@pytest.fixture
def custom(monkeypatch):
    module = types.ModuleType("my_dict_network")
    module.DictNetwork = DictNetwork
    monkeypatch.setitem(sys.modules, "my_dict_network", module)
    return ModelConfig(custom_network="my_dict_network:DictNetwork")


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)


def shaken(policy: Policy, seed: int = 0) -> Policy:
    """The policy with weights far from the nearly uniform first ones."""
    rng = np.random.default_rng(seed)
    weights = {
        name: x + 0.3 * rng.standard_normal(x.shape).astype(x.dtype)
        for name, x in policy.get_weights().items()
    }
    policy.set_weights(weights)
    return policy


def steps(obs, actions, **columns) -> SampleBatch:
    n = len(actions)
    base = {"eps_id": np.zeros(n, np.int64), "t": np.arange(n, dtype=np.int32)}
    metadata = columns.pop("metadata", None)
    return SampleBatch.from_columns(
        {**base, "obs": obs, "actions": actions, **columns}, metadata=metadata
    )


@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("explore", [True, False])
def test_numpy_and_torch_act_the_same(action_space, explore):
    by_numpy = shaken(Policy(VECTOR, action_space, actor="numpy"))
    by_torch = Policy(VECTOR, action_space, actor="torch")
    by_torch.set_weights(by_numpy.get_weights())
    obs, noise = vectors(50), np.random.default_rng(1).random((50, by_numpy.noise_size))
    a, _, a_extras = by_numpy.compute_actions(obs, (), explore, noise, ALL_EXTRAS)
    b, _, b_extras = by_torch.compute_actions(obs, (), explore, noise, ALL_EXTRAS)
    np.testing.assert_allclose(a, b, atol=1e-5)
    assert set(a_extras) == set(b_extras) == set(ALL_EXTRAS)
    for name in ALL_EXTRAS:
        np.testing.assert_allclose(a_extras[name], b_extras[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_numpy.value(obs), a_extras["vf_preds"])


def test_a_single_action_is_a_batch_of_one():
    policy = shaken(Policy(VECTOR, BOX))
    obs, noise = vectors(20), np.random.default_rng(1).random((20, 2))
    whole, _, extras = policy.compute_actions(obs, noise=noise)
    for i in range(20):
        one, _, one_extras = policy.compute_actions(obs[i : i + 1], noise=noise[i : i + 1])
        np.testing.assert_allclose(one[0], whole[i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one_extras["action_logp"][0], extras["action_logp"][i], 1e-5)


def test_only_the_extras_asked_for_are_made():
    policy = Policy(VECTOR, DISCRETE)
    assert policy.compute_actions(vectors(3), extras=())[2] == {}
    assert set(policy.compute_actions(vectors(3))[2]) == {"action_logp"}
    greedy = policy.compute_actions(vectors(3), explore=False, extras=("vf_preds",))
    assert set(greedy[2]) == {"vf_preds"}


def test_greedy_actions_are_the_modes_and_use_no_noise():
    policy = shaken(Policy(VECTOR, DISCRETE))
    obs = vectors(30)
    actions, _, extras = policy.compute_actions(obs, explore=False, extras=ALL_EXTRAS)
    np.testing.assert_array_equal(actions, extras["action_dist_inputs"].argmax(1))
    np.testing.assert_array_equal(policy.compute_actions(obs, explore=False)[0], actions)


def test_without_noise_the_seed_decides_and_global_generators_are_left_alone():
    before, numpy_before = torch.get_rng_state(), np.random.get_state()
    first = Policy(VECTOR, BOX, seed=3)
    second = Policy(VECTOR, BOX, seed=3)
    for _ in range(2):
        np.testing.assert_array_equal(
            first.compute_actions(vectors(5))[0], second.compute_actions(vectors(5))[0]
        )
    other = Policy(VECTOR, BOX, seed=4)
    assert (other.compute_actions(vectors(5))[0] != second.compute_actions(vectors(5))[0]).all()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before[1])


def test_stored_actions_are_float32_before_unsquashing():
    space = gym.spaces.Box(-0.01, 0.01, (2,), np.float64)
    policy = Policy(VECTOR, space)
    actions, _, _ = policy.compute_actions(vectors(40))
    assert actions.dtype == np.float32 and abs(actions).max() > 1.0
    env_actions = policy.to_env_action(actions)
    assert all(space.contains(action) for action in env_actions)
    assert policy.zero_actions.shape == (1, 2) and policy.zero_actions.dtype == np.float32


@pytest.mark.parametrize(
    ("normalize", "clip", "expected"),
    [
        (True, True, [2.0, 0.0]),
        (True, False, [2.0, 0.0]),
        (False, True, [2.0, 0.0]),
        (False, False, [3.0, -30.0]),
    ],
)
def test_single_actions_are_unsquashed_or_clipped_by_default(normalize, clip, expected):
    policy = Policy(VECTOR, BOX, normalize_actions=normalize, clip_actions=clip)
    weights = {name: np.zeros_like(x) for name, x in policy.get_weights().items()}
    weights["policy_head.linear.bias"] = np.array([3.0, -30.0], np.float32)
    policy.set_weights(weights)
    action, state, extras = policy.compute_single_action(np.zeros(4, np.float32))
    assert action.tolist() == expected and action.dtype == np.float32
    assert state == () and extras["action_logp"].shape == ()
    raw, _, _ = policy.compute_single_action(
        np.zeros(4, np.float32), unsquash_action=False, clip_action=False
    )
    assert raw.tolist() == [3.0, -30.0]


def test_single_actions_draw_from_the_given_generator():
    policy = Policy(VECTOR, DISCRETE)
    obs = np.zeros(4, np.float32)
    drawn = [
        [policy.compute_single_action(obs, (), True, rng)[0] for _ in range(20)]
        for rng in (np.random.default_rng(5), np.random.default_rng(5))
    ]
    assert drawn[0] == drawn[1] and len(set(drawn[0])) > 1
    assert all(DISCRETE.contains(action) for action in drawn[0])


@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_log_prob_of_a_batch_is_that_of_acting(action_space):
    policy = shaken(Policy(VECTOR, action_space))
    obs = vectors(30)
    actions, _, extras = policy.compute_actions(obs)
    batch = steps(obs, actions, metadata={"actions_in": "policy"})
    np.testing.assert_allclose(policy.log_prob(batch), extras["action_logp"], rtol=1e-12)


def test_log_prob_of_env_actions_accounts_for_the_jacobian():
    policy = shaken(Policy(VECTOR, BOX, squash=True))
    obs = vectors(30)
    actions, _, extras = policy.compute_actions(obs)
    inside = (abs(actions) < 0.99).all(1)
    batch = steps(obs, policy.to_env_action(actions), metadata={"actions_in": "env"})
    expected = extras["action_logp"] - np.log(2.0) - np.log(5.0)
    np.testing.assert_allclose(policy.log_prob(batch)[inside], expected[inside], atol=1e-3)


def test_torch_log_prob_of_the_network_is_that_of_acting():
    policy = shaken(Policy(VECTOR, BOX))
    obs = vectors(30)
    actions, _, extras = policy.compute_actions(obs)
    inputs, _ = policy.network.policy(policy.network_inputs(obs))
    got = policy.distribution.torch_log_prob(inputs, torch.from_numpy(actions))
    np.testing.assert_allclose(got.detach(), extras["action_logp"], rtol=1e-5, atol=1e-5)


def multiply(parameter: torch.nn.Parameter) -> None:
    parameter.mul_(0.5)


def replace_memory(parameter: torch.nn.Parameter) -> None:
    parameter.data = 0.5 * parameter.data


def adam_step(parameter: torch.nn.Parameter) -> None:
    moments, step = [torch.zeros_like(parameter) for _ in range(2)], torch.tensor(0.0)
    gradient = torch.ones_like(parameter)
    adam(
        [parameter], [gradient], [moments[0]], [moments[1]], [], [step],
        fused=True, amsgrad=False, maximize=False, beta1=0.9, beta2=0.99, lr=0.1, weight_decay=0.0,
        eps=1e-8,
    )  # fmt: skip


@pytest.mark.parametrize("actor", ["numpy", "torch"])
@pytest.mark.parametrize("change", [multiply, replace_memory, adam_step])
def test_acting_follows_weights_that_are_trained_in_place(change, actor):
    policy = shaken(Policy(VECTOR, DISCRETE, actor=actor))
    obs = vectors(3)
    before = policy.value(obs)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            change(parameter)
    assert (policy.value(obs) != before).all()
    expected = policy.network.value(policy.network_inputs(obs)).detach()
    np.testing.assert_allclose(policy.value(obs), expected, rtol=1e-5)


def test_weights_round_trip_sorted_and_copied():
    policy = Policy(VECTOR, BOX, observation_filter="mean_std")
    policy.filter = MeanStd.from_batch(VECTOR, vectors(10))
    weights = policy.get_weights()
    assert list(weights) == sorted(weights)
    assert {"filter/count", "filter/mean", "filter/m2", "policy_head.log_std"} <= set(weights)
    other = Policy(VECTOR, BOX, observation_filter="mean_std", seed=9)
    other.set_weights(weights)
    again = other.get_weights()
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    noise = np.random.default_rng(0).random((6, 2))
    np.testing.assert_array_equal(
        other.compute_actions(vectors(6), noise=noise)[0],
        policy.compute_actions(vectors(6), noise=noise)[0],
    )
    weights["policy_head.log_std"][...] = 5.0
    assert not np.array_equal(policy.get_weights()["policy_head.log_std"], [5.0, 5.0])


def test_read_only_and_unaligned_weights_are_taken_without_a_warning():
    policy = Policy(VECTOR, DISCRETE)
    odd = {}
    for name, array in policy.get_weights().items():
        data = b"x" + array.tobytes()
        odd[name] = np.frombuffer(data, np.float32, offset=1).reshape(array.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.set_weights(odd)


def test_weights_that_do_not_fit_are_named_and_change_nothing():
    policy = Policy(VECTOR, DISCRETE)
    weights = policy.get_weights()
    bad = {**weights, "surplus": np.zeros(1), "value_head.linear.bias": np.zeros(3, np.float32)}
    del bad["policy_head.linear.bias"]
    with pytest.raises(ConfigError) as error:
        policy.set_weights(bad)
    message = str(error.value)
    assert "policy_head.linear.bias is missing" in message
    assert "surplus is unexpected" in message
    assert "value_head.linear.bias has shape [3] instead of [1]" in message
    after = policy.get_weights()
    assert all(np.array_equal(weights[name], after[name]) for name in weights)


def test_weights_that_are_not_finite_are_refused():
    policy = Policy(VECTOR, DISCRETE)
    weights = policy.get_weights()
    weights["value_head.linear.bias"][0] = np.nan
    with pytest.raises(RunError, match="value_head.linear.bias"):
        policy.set_weights(weights)


def test_the_filter_is_applied_and_never_learns_from_acting():
    policy = Policy(VECTOR, DISCRETE, observation_filter="mean_std")
    obs = 100.0 + 5.0 * vectors(50)
    policy.filter = MeanStd.from_batch(VECTOR, obs)
    features = policy.preprocess(obs)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, (obs - obs.mean(0)) / obs.std(0, ddof=1), atol=1e-3)
    policy.compute_actions(obs)
    assert policy.filter.count == 50


def test_nested_observations_are_encoded_side_by_side():
    policy = Policy(NESTED, DISCRETE)
    obs = {"b": np.arange(8, dtype=np.float32).reshape(2, 2, 2), "d": np.array([1, 3])}
    expected = [[0, 1, 2, 3, 1, 0, 0], [4, 5, 6, 7, 0, 0, 1]]
    assert policy.preprocess(obs).tolist() == expected
    assert policy.compute_actions(obs)[0].shape == (2,)


def test_custom_networks_get_the_structure_of_the_space(custom):
    policy = Policy(NESTED, DISCRETE, custom)
    obs = {"b": np.zeros((6, 2, 2), np.float32), "d": np.full(6, 2)}
    actions, _, extras = policy.compute_actions(obs, extras=ALL_EXTRAS)
    assert actions.shape == (6,) and extras["vf_preds"].shape == (6,)
    assert policy.network.module.seen == {"b": torch.float32, "d": torch.int64}


def test_images_stay_uint8_until_the_network():
    policy = Policy(IMAGE, DISCRETE, observation_filter="mean_std")
    obs = np.random.default_rng(0).integers(0, 256, (2, 36, 36, 3), np.uint8)
    assert policy.preprocess(obs) is obs
    assert policy.network_inputs(obs).dtype == torch.uint8
    actions, _, extras = policy.compute_actions(obs, extras=ALL_EXTRAS)
    assert actions.shape == (2,) and extras["vf_preds"].shape == (2,)


def test_numpy_actors_are_refused_where_only_torch_can_act():
    for space, model in ((IMAGE, ModelConfig()), (VECTOR, LSTM)):
        with pytest.raises(ConfigError, match="actor=auto"):
            Policy(space, DISCRETE, model, actor="numpy")


def test_unsupported_spaces_are_named():
    with pytest.raises(ConfigError, match="observation space"):
        Policy(gym.spaces.Text(4), DISCRETE)


def test_read_only_observations_do_not_warn():
    policy = Policy(VECTOR, DISCRETE, actor="torch")
    obs = vectors(4)
    obs.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.compute_actions(obs)


def test_recurrent_states_carry_over_and_log_prob_replays_fragments():
    policy = shaken(Policy(VECTOR, DISCRETE, LSTM))
    assert policy.is_recurrent and [x.shape for x in policy.initial_state(3)] == [(3, 5)] * 2
    obs = vectors(7)
    state, rows = policy.initial_state(1), []
    for i in range(7):
        before = state
        actions, state, extras = policy.compute_actions(obs[i : i + 1], state)
        rows.append((actions[0], extras["action_logp"][0], before[0][0], before[1][0]))
    actions, log_prob, hidden, cell = (np.stack(column) for column in zip(*rows, strict=True))
    whole = steps(obs, actions)
    np.testing.assert_allclose(policy.log_prob(whole), log_prob, rtol=1e-5, atol=1e-6)
    # The same steps as two fragments in another order, with recorded states.
    order = np.array([4, 5, 6, 0, 1, 2, 3])
    cut = steps(
        obs[order],
        actions[order],
        t=order.astype(np.int32),
        state_in_0=hidden[order],
        state_in_1=cell[order],
    )
    np.testing.assert_allclose(policy.log_prob(cut), log_prob[order], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="state_in_0"):
        policy.log_prob(steps(obs[4:], actions[4:], t=np.arange(4, 7, dtype=np.int32)))


def test_single_recurrent_actions_take_and_give_unbatched_states():
    policy = shaken(Policy(VECTOR, DISCRETE, LSTM))
    obs = vectors(2)
    _, state, _ = policy.compute_single_action(obs[0])
    assert [x.shape for x in state] == [(5,), (5,)]
    _, batch_state, _ = policy.compute_actions(obs[:1], policy.initial_state(1), explore=False)
    _, next_state, _ = policy.compute_single_action(obs[1], state)
    _, batch_next, _ = policy.compute_actions(obs[1:], batch_state, explore=False)
    np.testing.assert_allclose(next_state[0], batch_next[0][0], rtol=1e-6)
