"""PPO against literal values, a slow reference, and its promises about repeating."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from pydantic import ValidationError

from policies.errors import RunError
from policies.learners import ppo
from policies.policy import Policy
from policies.random_streams import Purpose, stream
from policies.sample_batch import NEW_OBS, OBS, SampleBatch

VECTOR = Box(-1.0, 1.0, (3,))
SMALL = {"hidden": [8]}


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


def weights_of(state):
    return b"".join(array.tobytes() for array in state.policy.get_weights().values())


class TestLoss:
    old = torch.tensor([0.5, 0.25, 0.2, 0.4])
    new = torch.tensor([0.55, 0.1, 0.3, 0.36])
    advantages = torch.tensor([1.0, -1.0, 2.0, -2.0])

    def test_surrogate_of_each_sample_and_of_all(self):
        ratio = self.new / self.old
        one_by_one = [
            float(ppo.surrogate_loss(ratio[i : i + 1], self.advantages[i : i + 1], 0.2))
            for i in range(4)
        ]
        np.testing.assert_allclose(one_by_one, [-1.1, 0.8, -2.4, 1.8], rtol=1e-6)
        assert float(ppo.surrogate_loss(ratio, self.advantages, 0.2)) == pytest.approx(-0.225)

    def test_surrogate_equals_equation_7_and_so_does_its_gradient(self):
        generator = torch.Generator().manual_seed(0)
        advantages = torch.randn(500, generator=generator)
        ratio = (0.4 * torch.randn(500, generator=generator)).exp().requires_grad_()
        clipped = ratio.clamp(0.8, 1.2) * advantages
        literal = -torch.min(ratio * advantages, clipped).mean()
        (expected,) = torch.autograd.grad(literal, ratio)
        loss = ppo.surrogate_loss(ratio, advantages, 0.2)
        (gradient,) = torch.autograd.grad(loss, ratio)
        torch.testing.assert_close(loss, literal)
        torch.testing.assert_close(gradient, expected)

    def test_statistics_of_the_ratio(self):
        stats = ppo.ratio_statistics((self.new / self.old).log(), 0.2)
        assert float(stats["old_approx_kl"]) == pytest.approx(0.130219, abs=1e-6)
        assert float(stats["approx_kl"]) == pytest.approx(0.105219, abs=1e-6)
        assert float(stats["clip_fraction"]) == 0.5

    def test_normalised_advantages(self):
        normalized = ppo.normalized(self.advantages)
        np.testing.assert_allclose(
            normalized, [0.547723, -0.547723, 1.095445, -1.095445], atol=1e-6
        )
        loss = ppo.surrogate_loss(self.new / self.old, normalized, 0.2)
        assert float(loss) == pytest.approx(-0.123238, abs=1e-6)

    def test_one_advantage_and_equal_ones_normalise_to_finite_numbers(self):
        assert ppo.normalized(torch.tensor([3.0])).tolist() == [3.0]
        assert ppo.normalized(torch.full((128,), 0.1)).abs().max() < 10.0

    @pytest.mark.parametrize(("clip", "expected"), [(None, 0.75), (0.2, 0.8475)])
    def test_value_loss(self, clip, expected):
        new, old = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, 2.5, 3.0, 3.0])
        loss = ppo.value_loss(new, torch.full((4,), 2.0), old, clip)
        assert float(loss) == pytest.approx(expected)

    def test_entropy_and_divergence_of_the_fixture(self):
        distribution = Policy(VECTOR, Discrete(3)).distribution
        p, q = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.5, 0.3, 0.2]]).log()
        assert float(distribution.torch_entropy(p)) == pytest.approx(0.801819, abs=1e-6)
        assert float(distribution.torch_kl(p, q)) == pytest.approx(0.085123, abs=1e-6)

    def test_terms_add_up_with_their_weights(self):
        config = config_of(vf_loss_coeff=0.0)
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        data = ppo.postprocess(config, state.policy, random_batch())
        data.outputs = data.outputs + torch.tensor([0.3, 0.0])
        units = torch.arange(len(data))

        def loss(entropy=0.0, kl=0.0, **values):
            coeffs = ppo.Coefficients(1e-3, 0.2, entropy, kl)
            loss = ppo.loss_of(config_of(**values), state.policy, data, units, coeffs)
            return float(loss.detach())

        distribution, policy_loss = state.policy.distribution, loss(vf_loss_coeff=0.0)
        outputs, values = data.minibatches.forward(state.policy.network, units)[1:]
        value_loss = float(ppo.value_loss(values, data.targets, data.values, None).detach())
        entropy = float(distribution.torch_entropy(outputs).mean().detach())
        kl = float(distribution.torch_kl(data.outputs, outputs).mean().detach())
        expected = policy_loss + 0.7 * value_loss - 0.1 * entropy + 2.0 * kl
        assert loss(0.1, 2.0, vf_loss_coeff=0.7) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize(
        ("kl", "expected"), [(0.004, 0.1), (0.006, 0.2), (0.019, 0.2), (0.021, 0.3)]
    )
    def test_adaptive_weight(self, kl, expected):
        assert ppo.adapt_kl(0.2, kl, 0.01) == pytest.approx(expected)


class SlowPPO:
    """One update written out: Python loops, softmax by hand, torch's own Adam."""

    def __init__(self, weights):
        self.weights = {k: torch.tensor(v, requires_grad=True) for k, v in weights.items()}

    def mlp(self, name, x):
        w = self.weights
        x = torch.tanh(
            x @ w[f"{name}_encoder.layers.0.weight"].T + w[f"{name}_encoder.layers.0.bias"]
        )
        return x @ w[f"{name}_head.linear.weight"].T + w[f"{name}_head.linear.bias"]

    def update(self, config, batch, rng, lr, clip, entropy_coeff, kl_coeff):
        obs = torch.tensor(batch[OBS])
        with torch.no_grad():
            v = self.mlp("value", obs)[:, 0].double().numpy()
            next_v = self.mlp("value", torch.tensor(batch[NEW_OBS]))[:, 0].double().numpy()
            old = torch.softmax(self.mlp("policy", obs), 1)
        advantages, following = np.zeros(len(v)), 0.0
        eps_id, z = batch["eps_id"], batch["terminateds"]
        for i in reversed(range(len(v))):
            last = i == len(v) - 1 or eps_id[i + 1] != eps_id[i]
            after = next_v[i] if last else v[i + 1]
            delta = batch["rewards"][i] + (0.0 if z[i] else config.gamma * after) - v[i]
            following = delta + (0.0 if last else config.gamma * config.gae_lambda * following)
            advantages[i] = following
        advantages, v = torch.tensor(advantages).float(), torch.tensor(v).float()
        targets = advantages + v
        actions, logp = torch.tensor(batch["actions"]), torch.tensor(batch["action_logp"])
        parameters = list(self.weights.values())
        adam = torch.optim.Adam(parameters, lr=lr, eps=config.adam_eps)
        for _ in range(config.num_epochs):
            order = rng.permutation(len(v))
            for start in range(0, len(v), config.minibatch_size):
                i = order[start : start + config.minibatch_size]
                p = torch.softmax(self.mlp("policy", obs[i]), 1)
                ratio = p[range(len(i)), actions[i]] / logp[i].exp()
                a = (advantages[i] - advantages[i].mean()) / (advantages[i].std() + 1e-8)
                policy_loss = -torch.min(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a).mean()
                new_v = self.mlp("value", obs[i])[:, 0]
                near = v[i] + (new_v - v[i]).clamp(-config.vf_clip_param, config.vf_clip_param)
                errors = torch.max((new_v - targets[i]) ** 2, (near - targets[i]) ** 2)
                entropy = -(p * p.log()).sum(1).mean()
                kl = (old[i] * (old[i].log() - p.log())).sum(1).mean()
                loss = policy_loss + config.vf_loss_coeff * 0.5 * errors.mean()
                loss = loss - entropy_coeff * entropy + kl_coeff * kl
                adam.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip)
                adam.step()


class TestUpdate:
    def test_equals_the_slow_reference(self):
        config = config_of(
            seed=5,
            lr=[[0, 0.0], [200, 2e-2]],
            clip_param=[[0, 0.3], [200, 0.1]],
            entropy_coeff=0.02,
            vf_clip_param=0.1,
            kl_coeff=0.5,
            num_epochs=3,
        )
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        state.version, state.env_steps = 3, 100
        batch = random_batch(48)
        slow = SlowPPO(state.policy.get_weights())
        slow.update(config, batch, stream(5, Purpose.LEARNER, 3), 1e-2, 0.2, 0.02, 0.5)
        state, stats = ppo.update(config, state, batch)
        weights = state.policy.get_weights()
        for name, expected in slow.weights.items():
            np.testing.assert_allclose(weights[name], expected.detach(), atol=2e-5, err_msg=name)
        assert (stats["epochs"], stats["gradient_steps"]) == (3.0, 9.0)
        assert stats["lr"] == pytest.approx(1e-2) and stats["clip_param"] == pytest.approx(0.2)
        assert (state.version, state.env_steps) == (4, 148)

    def test_same_state_and_batch_give_the_same_bits(self):
        config, results = config_of(train_batch_size=25), []
        for _ in range(2):
            state = ppo.initial_state(config, VECTOR, Discrete(2))
            state, stats = ppo.update(config, state, random_batch())
            results.append((weights_of(state), stats))
        assert results[0] == results[1]

    def test_going_on_from_saved_arrays_equals_never_stopping_to_the_bit(self):
        config = config_of(kl_coeff=0.2, lr=[[0, 1e-2], [150, 0.0]])
        whole = ppo.initial_state(config, VECTOR, Discrete(2))
        for round_number in range(3):
            if round_number == 2:
                saved = (whole.policy.get_weights(), whole.optimizer.to_arrays())
                scalars = dict(whole.scalars)
            whole, _ = ppo.update(config, whole, random_batch(seed=round_number))
        resumed = ppo.initial_state(config, VECTOR, Discrete(2))
        resumed.load(*saved, version=2, env_steps=100, scalars=scalars)
        resumed, _ = ppo.update(config, resumed, random_batch(seed=2))
        assert weights_of(resumed) == weights_of(whole)
        assert resumed.scalars == whole.scalars

    def test_acting_follows_the_update(self):
        config, batch = config_of(), random_batch()
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        state, _ = ppo.update(config, state, batch)
        with torch.no_grad():
            expected = state.policy.network.value(state.policy.network_inputs(batch[OBS]))
        np.testing.assert_allclose(state.policy.value(batch[OBS]), expected, atol=1e-5)

    def test_a_learning_rate_of_0_changes_no_weight(self):
        config = config_of(lr=0.0)
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        before = weights_of(state)
        state, stats = ppo.update(config, state, random_batch())
        assert weights_of(state) == before
        assert (stats["kl"], stats["lr"]) == (0.0, 0.0)

    def test_without_value_loss_the_value_function_stays(self):
        config = config_of(vf_loss_coeff=0.0)
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        before = state.policy.get_weights()
        state, _ = ppo.update(config, state, random_batch())
        same = [k for k, v in state.policy.get_weights().items() if np.array_equal(v, before[k])]
        assert same == [name for name in before if name.startswith("value_")]

    @pytest.mark.parametrize("n", [1, 2, 15])
    def test_few_rows_make_one_minibatch(self, n):
        config = config_of(lr=1e-2)
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        before = weights_of(state)
        state, stats = ppo.update(config, state, random_batch(n))
        assert weights_of(state) != before
        assert stats["gradient_steps"] == 2.0

    def test_no_rows_are_an_error_that_names_the_round(self):
        state = ppo.initial_state(config_of(), VECTOR, Discrete(2))
        state.version = 6
        with pytest.raises(RunError, match="round 7 has no rows"):
            ppo.update(config_of(), state, random_batch().slice(0, 0))

    @pytest.mark.parametrize(
        ("config", "rewards"), [({}, np.full(50, 1e300)), ({"lr": 1e30, "grad_clip": None}, None)]
    )
    def test_a_loss_that_is_not_finite_is_an_error_that_names_the_round(self, config, rewards):
        batch = random_batch()
        if rewards is not None:
            batch = batch.with_columns({"rewards": rewards})
        state = ppo.initial_state(config_of(**config), VECTOR, Discrete(2))
        with pytest.raises(RunError, match=r"not finite in round 1.*lower lr"):
            ppo.update(config_of(**config), state, batch)

    def test_train_batches_are_learned_from_one_after_the_other(self):
        config = config_of(train_batch_size=16, num_envs_per_worker=4, rollout_fragment_length=12)
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        _, stats = ppo.update(config, state, random_batch(48))
        assert (stats["epochs"], stats["gradient_steps"]) == (6.0, 6.0)

    def test_the_divergence_limit_ends_the_round(self):
        config = config_of(train_batch_size=24, num_epochs=20, lr=0.05, target_kl=0.02)
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        _, stats = ppo.update(config, state, random_batch(48))
        assert stats["epochs"] < 20
        assert stats["kl"] > 1.5 * 0.02

    def test_the_divergence_penalty_adapts_and_holds_back(self):
        kl = {}
        for coeff in (0.0, 1.0):
            config = config_of(kl_coeff=coeff, lr=0.05, num_epochs=10)
            state = ppo.initial_state(config, VECTOR, Discrete(2))
            state, stats = ppo.update(config, state, random_batch())
            kl[coeff] = stats["kl"]
            assert stats["kl_coeff"] == coeff
            assert state.scalars["kl_coeff"] == ppo.adapt_kl(coeff, stats["kl"], 0.01)
        assert kl[0.0] > 2 * kl[1.0]

    def test_statistics_have_the_values_that_they_claim(self):
        config = config_of()
        state = ppo.initial_state(config, VECTOR, Discrete(2))
        data = ppo.postprocess(config, state.policy, random_batch())
        state, stats = ppo.update(config, state, random_batch())
        targets, old = data.targets.double().numpy(), data.values.double().numpy()
        explained = 1 - np.var(targets - old) / np.var(targets)
        assert stats["explained_variance"] == pytest.approx(explained)
        outputs, values = data.minibatches.forward(state.policy.network, torch.arange(50))[1:]
        entropy = torch.distributions.Categorical(logits=outputs.detach()).entropy().mean()
        assert stats["entropy"] == pytest.approx(float(entropy), rel=1e-5)
        error = 0.5 * np.mean((values.detach().numpy() - targets) ** 2)
        assert stats["value_loss"] == pytest.approx(error, rel=1e-5)
        assert all(type(value) is float for value in stats.values())

    def test_torch_keeps_its_threads(self):
        before = torch.get_num_threads()
        config = config_of(learner_threads=before + 1)
        ppo.update(config, ppo.initial_state(config, VECTOR, Discrete(2)), random_batch())
        assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": -1e-3}, "lr must not be negative"),
        ({"clip_param": [[0, 0.2], [10, -0.1]]}, "clip_param must not be negative"),
        ({"entropy_coeff": -0.1}, "entropy_coeff must not be negative"),
        ({"vf_loss_coeff": float("inf")}, "vf_loss_coeff"),
        ({"gamma": 1.1}, "gamma"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, words):
    with pytest.raises(ValidationError, match=words):
        ppo.PPOConfig(**values)
