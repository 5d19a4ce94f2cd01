"""The learning side of distributions agrees with the acting side, closed forms and Monte Carlo."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from policies.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    SquashedGaussian,
    distribution_for,
)

SPACES = {
    "discrete": gym.spaces.Discrete(5),
    "discrete_start": gym.spaces.Discrete(3, start=7),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3, 4], start=[0, 1, -5]),
    "multi_discrete_2d": gym.spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi_binary": gym.spaces.MultiBinary((2, 3)),
    "box": gym.spaces.Box(-1.0, 1.0, (2, 2)),
    "nested": gym.spaces.Dict(
        {
            "b": gym.spaces.Box(-1.0, 1.0, (2,)),
            "a": gym.spaces.Tuple((gym.spaces.Discrete(4), gym.spaces.MultiBinary(2))),
        }
    ),
}
CASES = [(name, squash) for name in SPACES for squash in (False, True)]


def tensors(struct):
    if isinstance(struct, dict):
        return {key: tensors(value) for key, value in struct.items()}
    if isinstance(struct, tuple):
        return tuple(tensors(value) for value in struct)
    return torch.from_numpy(struct)


def drawn(name: str, squash: bool, n: int = 64):
    distribution = distribution_for(SPACES[name], squash=squash)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((n, distribution.input_size)).astype(np.float32)
    actions = distribution.sample(inputs, rng.random((n, distribution.noise_size)))
    return distribution, inputs, actions


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_log_prob_agrees_with_numpy(name, squash):
    distribution, inputs, actions = drawn(name, squash)
    expected = distribution.log_prob(inputs, actions)
    got = distribution.torch_log_prob(torch.from_numpy(inputs), tensors(actions))
    assert got.dtype == torch.float32 and got.shape == (64,)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    wide = distribution.torch_log_prob(torch.from_numpy(inputs).double(), tensors(actions))
    np.testing.assert_allclose(wide, expected, rtol=1e-10, atol=1e-10)


def test_log_prob_of_saturated_actions_agrees_and_has_finite_gradients():
    distribution = SquashedGaussian((1,))
    actions = np.array([[1.0], [-1.0], [0.9999999], [-0.99999], [0.0]], np.float32)
    inputs = np.tile(np.array([[0.5, -1.0]], np.float32), (5, 1))
    expected = distribution.log_prob(inputs, actions)
    leaf = torch.from_numpy(inputs).requires_grad_()
    got = distribution.torch_log_prob(leaf, torch.from_numpy(actions))
    np.testing.assert_allclose(got.detach(), expected, rtol=2e-6)
    got.sum().backward()
    assert leaf.grad is not None and torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize(("name", "squash"), CASES)
def test_kl_and_entropy_agree_with_monte_carlo(name, squash):
    distribution = distribution_for(SPACES[name], squash=squash)
    rng = np.random.default_rng(1)
    n = 40_000
    old, new = (0.7 * rng.standard_normal((2, 1, distribution.input_size))).astype(np.float32)
    olds, news = np.repeat(old, n, 0), np.repeat(new, n, 0)
    actions, log_old = distribution.sample_with_log_prob(
        olds, rng.random((n, distribution.noise_size))
    )
    differences = log_old - distribution.log_prob(news, actions)
    kl = float(distribution.torch_kl(torch.from_numpy(old), torch.from_numpy(new)))
    entropy = float(distribution.torch_entropy(torch.from_numpy(old)))
    assert kl == pytest.approx(differences.mean(), abs=5 * differences.std() / np.sqrt(n))
    assert entropy == pytest.approx(-log_old.mean(), abs=5 * log_old.std() / np.sqrt(n))


def test_categorical_fixtures():
    p, q = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.5, 0.3, 0.2]]).log()
    distribution = Categorical(3)
    assert float(distribution.torch_entropy(p)) == pytest.approx(0.801819, abs=1e-6)
    assert float(distribution.torch_kl(p, q)) == pytest.approx(0.085123, abs=1e-6)
    assert float(distribution.torch_kl(p, p)) == 0.0


def test_closed_forms_of_normals_and_bits():
    normal = DiagGaussian((1,))
    old, new = torch.tensor([[0.0, np.log(2.0)]]), torch.tensor([[1.0, np.log(3.0)]])
    assert float(normal.torch_entropy(old)) == pytest.approx(stats.norm(0, 2).entropy(), abs=1e-6)
    expected = np.log(3 / 2) + (4 + 1) / (2 * 9) - 0.5
    assert float(normal.torch_kl(old, new)) == pytest.approx(expected, abs=1e-6)
    bit = Bernoulli((1,))
    p, q = torch.tensor([[0.3]]), torch.tensor([[0.6]])
    divergence = 0.3 * np.log(0.3 / 0.6) + 0.7 * np.log(0.7 / 0.4)
    assert float(bit.torch_kl(p.logit(), q.logit())) == pytest.approx(divergence, abs=1e-6)
    assert float(bit.torch_entropy(p.logit())) == pytest.approx(stats.bernoulli(0.3).entropy())


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.7, 1.0), (-1.5, 2.0)])
def test_entropy_of_a_squashed_normal_agrees_with_integration(mean, std):
    normal = stats.norm(mean, std)

    def integrand(x: float) -> float:
        return normal.pdf(x) * 2 * (np.log(2) - x - np.logaddexp(0, -2 * x))

    correction, _ = integrate.quad(integrand, mean - 12 * std, mean + 12 * std, limit=200)
    inputs = torch.tensor([[mean, np.log(std)]], dtype=torch.float32)
    got = float(SquashedGaussian((1,)).torch_entropy(inputs))
    assert got == pytest.approx(normal.entropy() + correction, abs=1e-3)


@pytest.mark.parametrize("kind", [Categorical(3), Bernoulli((3,))])
def test_certain_actions_have_finite_entropy_and_gradients(kind):
    logits = torch.tensor([[-torch.inf, 1.0, 2.0]], requires_grad=True)
    total = kind.torch_entropy(logits) + kind.torch_kl(logits, logits)
    total.sum().backward()
    assert torch.isfinite(total).all()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


def test_log_prob_gradient_agrees_with_differences():
    distribution = SquashedGaussian((2,))
    actions = torch.tensor([[0.3, -0.9]], dtype=torch.float64)
    inputs = torch.tensor([[0.1, 0.2, -0.3, 0.4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: distribution.torch_log_prob(x, actions), (inputs,))
    assert torch.autograd.gradcheck(distribution.torch_entropy, (inputs,))
