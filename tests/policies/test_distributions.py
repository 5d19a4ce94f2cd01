"""Action distributions on numpy: frequencies, densities, modes and shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from scipy import integrate, stats

from policies.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    SquashedGaussian,
    distribution_for,
    output_order,
)
from policies.errors import ConfigError

PROBABILITIES = np.array([0.7, 0.2, 0.1])
LOGITS = np.log(PROBABILITIES).astype(np.float32)[None] + 3.0

NESTED = gym.spaces.Dict(
    {
        "move": gym.spaces.Box(-1.0, 1.0, (2,)),
        "buttons": gym.spaces.MultiBinary(3),
        "also": gym.spaces.Tuple(
            (gym.spaces.Discrete(4, start=-1), gym.spaces.MultiDiscrete([2, 3]))
        ),
    }
)
SPACES = {
    "discrete": gym.spaces.Discrete(5),
    "discrete_start": gym.spaces.Discrete(3, start=7),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3, 4]),
    "multi_discrete_start": gym.spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "multi_discrete_2d": gym.spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi_binary": gym.spaces.MultiBinary(4),
    "multi_binary_2d": gym.spaces.MultiBinary((2, 3)),
    "box": gym.spaces.Box(-1.0, 1.0, (2, 2)),
    "box_unbounded": gym.spaces.Box(-np.inf, np.inf, (3,)),
    "nested": NESTED,
}


def draw(space: gym.Space, n: int, seed: int = 0, squash: bool = False):
    distribution = distribution_for(space, squash=squash)
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n, distribution.input_size)).astype(np.float32)
    noise = rng.random((n, distribution.noise_size))
    return distribution, inputs, noise


def repeat(inputs: np.ndarray, n: int) -> np.ndarray:
    return np.repeat(np.atleast_2d(inputs), n, axis=0).astype(np.float32)


def test_categorical_frequencies_match_the_probabilities():
    noise = np.random.default_rng(1).random((20_000, 1))
    actions = Categorical(3).sample(repeat(LOGITS, 20_000), noise)
    counts = np.bincount(actions, minlength=3)
    assert stats.chisquare(counts, PROBABILITIES * 20_000).pvalue > 0.01


def test_categorical_inverts_the_cumulative_distribution():
    noise = np.array([[0.0], [0.69], [0.71], [0.89], [0.91], [1.0 - 2.0**-53]])
    actions = Categorical(3).sample(repeat(LOGITS, 6), noise)
    assert actions.tolist() == [0, 0, 1, 1, 2, 2]
    assert actions.dtype == np.int64


def test_categorical_never_draws_an_impossible_action():
    logits = np.array([[-np.inf, 0.0, -np.inf, 1.0, -np.inf]], np.float32)
    noise = np.array([[0.0], [0.2], [0.5], [1.0 - 2.0**-53]])
    distribution = Categorical(5)
    actions, log_prob = distribution.sample_with_log_prob(repeat(logits, 4), noise)
    assert set(actions.tolist()) == {1, 3}
    assert np.isfinite(log_prob).all()
    assert distribution.log_prob(logits, np.array([0])) == [-np.inf]


def test_categorical_log_prob_is_the_log_of_the_probability():
    log_prob = Categorical(3, start=10).log_prob(repeat(LOGITS, 3), np.array([10, 11, 12]))
    np.testing.assert_allclose(np.exp(log_prob), PROBABILITIES, rtol=1e-6)


def test_categorical_is_stable_for_large_logits():
    logits = np.array([[1e4, -1e4, 1e4]], np.float32)
    np.testing.assert_allclose(
        Categorical(3).log_prob(repeat(logits, 2), np.array([0, 1])), [-np.log(2), -2e4 - np.log(2)]
    )


def test_multi_discrete_components_are_independent_and_start_where_the_space_does():
    space = gym.spaces.MultiDiscrete([2, 3], start=[5, -1])
    logits = np.log(np.array([[0.25, 0.75, 0.7, 0.2, 0.1]]))
    noise = np.random.default_rng(2).random((30_000, 2))
    actions = distribution_for(space).sample(repeat(logits, 30_000), noise)
    counts = np.zeros((2, 3))
    np.add.at(counts, (actions[:, 0] - 5, actions[:, 1] + 1), 1)
    expected = np.outer([0.25, 0.75], PROBABILITIES) * 30_000
    assert stats.chisquare(counts.ravel(), expected.ravel()).pvalue > 0.01


def test_multi_binary_frequencies_and_log_prob():
    probabilities = np.array([0.1, 0.5, 0.9])
    logits = np.log(probabilities / (1 - probabilities))
    distribution = Bernoulli((3,))
    noise = np.random.default_rng(3).random((20_000, 3))
    actions = distribution.sample(repeat(logits, 20_000), noise)
    assert actions.dtype == np.int8
    for column, p in zip(actions.T, probabilities, strict=True):
        assert stats.binomtest(int(column.sum()), 20_000, p).pvalue > 0.01
    log_prob = distribution.log_prob(repeat(logits, 1), np.array([[1, 0, 1]]))
    np.testing.assert_allclose(log_prob, [np.log(0.1 * 0.5 * 0.9)], rtol=1e-6)


def test_multi_binary_is_stable_for_large_logits():
    log_prob = Bernoulli((1,)).log_prob(np.array([[800.0]], np.float32), np.array([[0]]))
    np.testing.assert_allclose(log_prob, -800.0)


def test_gaussian_samples_have_the_mean_and_standard_deviation():
    inputs = np.array([[1.0, -2.0, np.log(0.5), np.log(3.0)]], np.float32)
    noise = np.random.default_rng(4).random((20_000, 2))
    actions = DiagGaussian((2,)).sample(repeat(inputs, 20_000), noise)
    for column, mean, std in zip(actions.T, [1.0, -2.0], [0.5, 3.0], strict=True):
        assert stats.kstest(column, stats.norm(mean, std).cdf).pvalue > 0.01


def test_gaussian_log_prob_is_the_normal_density():
    inputs = np.array([[1.0, -2.0, np.log(0.5), np.log(3.0)]], np.float32)
    log_prob = DiagGaussian((2,)).log_prob(inputs, np.array([[0.3, 4.0]]))
    expected = stats.norm(1.0, 0.5).logpdf(0.3) + stats.norm(-2.0, 3.0).logpdf(4.0)
    np.testing.assert_allclose(log_prob, [expected], rtol=1e-6)


@pytest.mark.parametrize("squash", [False, True])
def test_gaussian_survives_extreme_noise_and_log_std(squash):
    space = gym.spaces.Box(-1.0, 1.0, (2,))
    distribution = distribution_for(space, squash=squash)
    inputs = np.array([[0.0, 0.0, -1e9, 1.0]], np.float32)
    noise = np.array([[0.0, 0.0], [1.0 - 2.0**-53] * 2])
    actions, log_prob = distribution.sample_with_log_prob(repeat(inputs, 2), noise)
    assert np.isfinite(actions).all() and np.isfinite(log_prob).all()


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.5, 0.3), (-1.0, 0.8), (0.0, 2.0)])
def test_squashed_density_integrates_to_one_and_gives_the_mass_of_samples(mean, std):
    distribution = SquashedGaussian((1,))
    inputs = np.array([[mean, np.log(std)]], np.float32)

    def density(a: float) -> float:
        return float(np.exp(distribution.log_prob(inputs, np.array([[a]])))[0])

    total, _ = integrate.quad(density, -1.0, 1.0, limit=200)
    assert total == pytest.approx(1.0, abs=1e-4)
    half, _ = integrate.quad(density, -0.5, 0.5, limit=200)
    noise = np.random.default_rng(5).random((50_000, 1))
    actions = distribution.sample(repeat(inputs, 50_000), noise)
    assert (abs(actions) < 0.5).mean() == pytest.approx(half, abs=0.01)


def test_squashed_density_near_the_bounds_is_exact_and_at_them_finite():
    distribution = SquashedGaussian((1,))
    inputs = np.array([[0.0, 0.0]], np.float32)
    a = float(np.float32(1.0 - 2.0**-20))
    expected = stats.norm.logpdf(np.arctanh(a)) - np.log1p(-a) - np.log1p(a)
    np.testing.assert_allclose(
        distribution.log_prob(inputs, np.array([[a]], np.float32)), [expected], rtol=1e-12
    )
    for bound in (1.0, -1.0):
        at_bound = distribution.log_prob(inputs, np.array([[bound]], np.float32))
        assert np.isfinite(at_bound).all() and at_bound < 0


def test_greedy_is_the_mode():
    assert Categorical(3, start=4).greedy(LOGITS).tolist() == [4]
    assert Bernoulli((2,)).greedy(np.array([[0.5, -0.5]], np.float32)).tolist() == [[1, 0]]
    inputs = np.array([[0.3, -2.0]], np.float32)
    np.testing.assert_array_equal(DiagGaussian((1,)).greedy(inputs), inputs[:, :1])
    np.testing.assert_allclose(SquashedGaussian((1,)).greedy(inputs), np.tanh([[0.3]]), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in SPACES if name.startswith("multi_discrete")])
def test_greedy_is_at_least_as_likely_as_any_sample(name):
    distribution, inputs, noise = draw(SPACES[name], 200)
    best = distribution.log_prob(inputs, distribution.greedy(inputs))
    _, drawn = distribution.sample_with_log_prob(inputs, noise)
    assert (best >= drawn).all() and (best > drawn).any()


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_samples_belong_to_the_space_and_carry_their_log_prob(name, squash):
    space = SPACES[name]
    distribution, inputs, noise = draw(space, 50, squash=squash)
    actions, log_prob = distribution.sample_with_log_prob(inputs, noise)
    assert log_prob.dtype == np.float64 and log_prob.shape == (50,)
    np.testing.assert_array_equal(log_prob, distribution.log_prob(inputs, actions))
    if isinstance(space, gym.spaces.Box):
        assert actions.shape == (50, *space.shape) and actions.dtype == np.float32
    elif not isinstance(space, gym.spaces.Dict):
        assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize("name", SPACES)
def test_a_row_does_not_depend_on_its_batch(name):
    distribution, inputs, noise = draw(SPACES[name], 20)
    _, whole = distribution.sample_with_log_prob(inputs, noise)
    for i in range(20):
        _, alone = distribution.sample_with_log_prob(inputs[i : i + 1], noise[i : i + 1])
        np.testing.assert_allclose(alone, whole[i], rtol=1e-12)


def test_nested_spaces_sum_over_leaves_in_sorted_order():
    distribution, inputs, noise = draw(NESTED, 10)
    assert distribution.input_size == 4 + 5 + 3 + 4
    assert distribution.noise_size == 1 + 2 + 3 + 2
    assert distribution.log_std_indices.tolist() == [14, 15]
    actions = distribution.sample(inputs, noise)
    assert list(actions) == ["also", "buttons", "move"]
    parts = [
        (gym.spaces.Discrete(4, start=-1), slice(0, 4), actions["also"][0]),
        (gym.spaces.MultiDiscrete([2, 3]), slice(4, 9), actions["also"][1]),
        (NESTED["buttons"], slice(9, 12), actions["buttons"]),
        (NESTED["move"], slice(12, 16), actions["move"]),
    ]
    total = sum(distribution_for(s).log_prob(inputs[:, i], a) for s, i, a in parts)
    np.testing.assert_allclose(distribution.log_prob(inputs, actions), total)


def test_only_bounded_boxes_are_squashed():
    half_bounded = gym.spaces.Box(0.0, np.inf, (1,))
    assert type(distribution_for(half_bounded, squash=True)) is DiagGaussian
    assert type(distribution_for(SPACES["box"], squash=True)) is SquashedGaussian
    assert type(distribution_for(SPACES["box"])) is DiagGaussian


def test_output_order_puts_log_stds_last():
    assert output_order(5, [1, 3]).tolist() == [0, 2, 4, 1, 3]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Text(3), "no action distribution for Text"),
        (gym.spaces.Box(0, 5, (2,), np.int64), "Box of int64; use MultiDiscrete"),
        (gym.spaces.Dict({"a": gym.spaces.Text(3)}), "Text"),
    ],
)
def test_other_spaces_are_refused_with_the_way_out(space, message):
    with pytest.raises(ConfigError, match=message):
        distribution_for(space)


def test_acting_modules_do_not_import_torch():
    code = (
        "import sys, gymnasium, policies.distributions as d, policies.numpy_networks\n"
        "d.distribution_for(gymnasium.spaces.Discrete(2))\n"
        "sys.exit('torch' in sys.modules or 'apache_beam' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0
