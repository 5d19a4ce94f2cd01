"""PPO with memory: cutting episodes and sequences changes nothing but where gradients flow."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from policies.env_runner import EnvRunner, RunnerSettings
from policies.learners import ppo
from policies.sample_batch import ENV, ENV_STEP, EPS_ID, NEW_OBS, OBS, SampleBatch, concat, state_in
from policies.testing import StatelessCartPole
from policies.vector_envs import make_vector_env

ENVS, STEPS, ROUNDS = 3, 7, 6


class Summing(torch.nn.Module):
    """A network of the user's own with memory: the sum of what it has seen."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.head = torch.nn.Linear(2, num_outputs + 1)

    def initial_state(self, n):
        return (np.zeros((n, 2), np.float32),)

    def forward(self, obs, state):
        total = 0.5 * state[0] + obs
        outputs = self.head(total)
        return outputs[:, 1:], outputs[:, 0], (total,)


MODELS = {
    "lstm": {"use_lstm": True, "hidden": [16], "lstm_size": 8, "max_seq_len": 4},
    "custom": {"custom_network": f"{__name__}:Summing", "max_seq_len": 4},
}


def config_of(kind, **values):
    model = {**MODELS[kind], "max_seq_len": values.pop("max_seq_len", 4)}
    return ppo.PPOConfig(**{"model": model, "minibatch_size": 16, "num_epochs": 2, **values})


def rounds_of(kind):
    """Batches of several rounds that one policy sampled, and its state."""
    config = config_of(kind)
    env = make_vector_env(StatelessCartPole, {}, ENVS, reset_seed=lambda i, k: 10 * i + k)
    state = ppo.initial_state(config, env.observation_space, env.action_space)
    with torch.no_grad():  # The policy head starts near zero; make differences visible.
        for name, parameter in state.policy.network.named_parameters():
            if "head" in name:
                parameter.mul_(20.0)
    runner = EnvRunner(env, 0, RunnerSettings("test", seed=0, fragment_steps=STEPS))
    return state, [runner.sample(state.policy, version).steps for version in range(ROUNDS)]


def stitched(batches):
    """The rounds' rows in one batch, in which every episode is one fragment."""
    rows = concat(batches)
    return rows.take(np.lexsort((rows[ENV_STEP], rows[ENV])))


def whole_episodes(policy, rows):
    """Outputs [n, d] and values [n] of each row, and values of each row's new_obs: one step of the
    network after the other, from the start of each episode."""
    outputs, values, next_values = [], [], []
    state: tuple[torch.Tensor, ...] = ()
    with torch.no_grad():
        for i in range(len(rows)):
            if i == 0 or rows[EPS_ID][i] != rows[EPS_ID][i - 1]:
                state = tuple(torch.from_numpy(x) for x in policy.initial_state(1))
            obs = policy.network_inputs(rows[OBS][i : i + 1])
            out, value, state = policy.network(obs, state)
            outputs.append(out)
            values.append(value)
            new_obs = policy.network_inputs(rows[NEW_OBS][i : i + 1])
            next_values.append(policy.network.value(new_obs, state))
    return torch.cat(outputs), torch.cat(values), torch.cat(next_values)


@pytest.mark.parametrize("kind", MODELS)
def test_stitched_fragments_equal_one_long_unroll(kind):
    state, batches = rounds_of(kind)
    rows = stitched(batches)
    assert len(rows.fragment_offsets()) - 1 < ENVS * ROUNDS  # Episodes go on over rounds.
    outputs, values, next_values = whole_episodes(state.policy, rows)
    advantages = {}
    for lam in (0.0, 0.9):
        config = config_of(kind, gae_lambda=lam, gamma=0.9)
        whole = ppo.postprocess(config, state.policy, rows)
        cut = [ppo.postprocess(config, state.policy, batch) for batch in batches]
        position = np.argsort(np.lexsort((concat(batches)[ENV_STEP], concat(batches)[ENV])))
        for name, expected in (("outputs", outputs), ("values", values)):
            torch.testing.assert_close(getattr(whole, name), expected, rtol=1e-4, atol=1e-5)
            pieces = torch.cat([getattr(data, name) for data in cut])
            torch.testing.assert_close(pieces, expected[position], rtol=1e-4, atol=1e-5)
        advantages[lam] = (
            whole.advantages.numpy()[position],
            torch.cat([data.advantages for data in cut]).numpy(),
        )
    # With lambda = 0 a cut costs nothing, and every next value is the state's after the step.
    ended = rows["terminateds"]
    delta = rows["rewards"] + np.where(ended, 0.0, 0.9 * next_values.numpy()) - values.numpy()
    np.testing.assert_allclose(advantages[0.0][0], delta[position], atol=1e-5)
    np.testing.assert_allclose(advantages[0.0][1], delta[position], atol=1e-5)
    assert np.abs(advantages[0.9][0] - advantages[0.9][1]).max() > 1e-3


@pytest.mark.parametrize("kind", MODELS)
def test_the_loss_does_not_depend_on_how_sequences_are_cut(kind):
    state, batches = rounds_of(kind)
    rows, losses = stitched(batches), []
    for max_seq_len in (1, 4, 1000):
        config = config_of(kind, max_seq_len=max_seq_len)
        data = ppo.postprocess(config, state.policy, rows)
        units = torch.arange(data.minibatches.units)
        coeffs = ppo.Coefficients(1e-3, 0.2, 0.01, 0.1)
        losses.append(float(ppo.loss_of(config, state.policy, data, units, coeffs).detach()))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_gradients_of_long_sequences_equal_those_of_one_unroll_step_by_step():
    state, batches = rounds_of("lstm")
    rows, network = stitched(batches), state.policy.network
    config = config_of("lstm", max_seq_len=1000, normalize_advantages=False)
    data = ppo.postprocess(config, state.policy, rows)
    coeffs = ppo.Coefficients(1e-3, 0.2, 0.0, 0.0)
    units = torch.arange(data.minibatches.units)
    ppo.loss_of(config, state.policy, data, units, coeffs).backward()
    found = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    outputs, values = [], []
    carried: tuple[torch.Tensor, ...] = ()
    for i in range(len(rows)):
        if i == 0 or rows[EPS_ID][i] != rows[EPS_ID][i - 1]:
            carried = tuple(torch.from_numpy(x) for x in state.policy.initial_state(1))
        out, value, carried = network(torch.tensor(rows[OBS][i : i + 1]), carried)
        outputs.append(out)
        values.append(value)
    logp = state.policy.distribution.torch_log_prob(torch.cat(outputs), data.actions)
    loss = ppo.surrogate_loss((logp - data.logp).exp(), data.advantages, 0.2)
    loss = loss + 0.5 * ppo.value_loss(torch.cat(values), data.targets, data.values, None)
    loss.backward()
    for mine, parameter in zip(found, network.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_acting_and_learning_agree_on_probabilities(kind):
    state, batches = rounds_of(kind)
    frozen = config_of(kind, lr=0.0)
    _, stats = ppo.update(frozen, state, stitched(batches))
    assert abs(stats["approx_kl"]) < 1e-6 and abs(stats["old_approx_kl"]) < 1e-5


@pytest.mark.parametrize("kind", MODELS)
def test_same_state_and_batch_give_the_same_bits(kind):
    results = []
    for _ in range(2):
        state, batches = rounds_of(kind)
        state, stats = ppo.update(config_of(kind), state, batches[0])
        weights = state.policy.get_weights()
        results.append((b"".join(x.tobytes() for x in weights.values()), stats))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", MODELS)
def test_one_row_is_enough(kind):
    state, batches = rounds_of(kind)
    _, stats = ppo.update(config_of(kind), state, batches[0].slice(0, 1))
    assert stats["gradient_steps"] == 2.0


def test_a_batch_without_recorded_states_is_refused_by_name():
    state, batches = rounds_of("lstm")
    names = [name for name in batches[0].names if name != state_in(1)]
    with pytest.raises(KeyError, match="no column 'state_in_1'"):
        ppo.update(config_of("lstm"), state, batches[0].select(names))


class RecallEnv(gym.Env):
    """Shows a bit in the first of 4 steps and pays for naming it in the last."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.bit = 0, int(self.np_random.integers(2))
        return np.array([2 * self.bit - 1, 0], np.float32), {}

    def step(self, action):
        self.steps += 1
        last = self.steps == 4
        reward = float(last and action == self.bit)
        return np.array([0, self.steps / 4], np.float32), reward, last, False, {}


def test_learns_to_remember():
    """Without memory the best return is 0.5."""
    config = ppo.PPOConfig(
        model={"use_lstm": True, "hidden": [16], "lstm_size": 16, "max_seq_len": 4},
        lr=1e-2,
        clip_param=0.2,
        gamma=1.0,
        gae_lambda=0.95,
        minibatch_size=64,
        num_epochs=4,
        entropy_coeff=0.01,
    )
    env = make_vector_env(RecallEnv, {}, 16, reset_seed=lambda i, k: 1000 * i + k)
    state = ppo.initial_state(config, env.observation_space, env.action_space)
    runner = EnvRunner(env, 0, RunnerSettings("test", seed=0, fragment_steps=16))
    for version in range(25):
        rollout = runner.sample(state.policy, version)
        state, _ = ppo.update(config, state, rollout.steps)
    assert np.mean(rollout.episodes.column("episode_return").to_numpy()) > 0.9


def test_episodes_inside_a_batch_do_not_touch_each_other():
    """Changing the first episode's observations changes nothing about the second."""
    state, batches = rounds_of("lstm")
    rows = stitched(batches)
    second = rows[EPS_ID] != rows[EPS_ID][0]
    obs = np.where(second[:, None], rows[OBS], -rows[OBS])
    changed: SampleBatch = rows.with_columns({OBS: obs})
    before, after = (
        ppo.postprocess(config_of("lstm"), state.policy, batch) for batch in (rows, changed)
    )
    assert torch.equal(before.values[second], after.values[second])
    assert not torch.equal(before.values[~second], after.values[~second])
