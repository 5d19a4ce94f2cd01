"""Advantages and returns against fixtures, a row-by-row reference, and their identities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.returns import (
    discounted_returns,
    explained_variance,
    generalized_advantages,
    lambda_returns,
)

REWARDS = [1.0, 2.0, 3.0, 4.0]
VALUES = [0.5, 1.0, 1.5, 2.0]
NEVER = [False] * 4
AT_ROW_1 = [False, True, False, False]
AT_LAST = [False, False, False, True]


def slow_advantages(r, v, nv, z, b, gamma, lam, offsets):
    """The definition, row by row and fragment by fragment, in Python numbers."""
    advantages = [0.0] * len(r)
    for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
        following = 0.0
        for i in reversed(range(start, stop)):
            bootstrap = 0.0 if z[i] else gamma * nv[i]
            delta = r[i] + bootstrap - v[i]
            following = delta + (0.0 if b[i] else gamma * lam * following)
            advantages[i] = following
    return np.array(advantages)


def slow_lambda_returns(r, nv, z, b, gamma, lam, offsets):
    """The definition, row by row; `gamma` [n]."""
    returns = [0.0] * len(r)
    for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
        for i in reversed(range(start, stop)):
            d = 0.0 if z[i] else gamma[i]
            last = b[i] or i == stop - 1
            returns[i] = r[i] + d * (nv[i] if last else (1 - lam) * nv[i] + lam * returns[i + 1])
    return np.array(returns)


def ragged_batch(seed, lengths, end_rate=0.1):
    """Random columns of fragments with these lengths, with episodes that end inside them."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    terminated = rng.random(n) < end_rate
    boundary = terminated | (rng.random(n) < end_rate)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return (*rng.normal(size=(3, n)), terminated, boundary), offsets


class TestGeneralizedAdvantages:
    @pytest.mark.parametrize(
        ("next_values", "terminateds", "boundaries", "advantages", "returns"),
        [
            pytest.param(
                [1, 1.5, 2, 2.5],
                NEVER,
                NEVER,
                [6.389024, 6.9292, 6.36, 4.25],
                [6.889024, 7.9292, 7.86, 6.25],
                id="cut-while-running",
            ),
            pytest.param(
                [1, 1.5, 2, 2.5],
                AT_LAST,
                AT_LAST,
                [5.549216, 5.7628, 4.74, 2.0],
                [6.049216, 6.7628, 6.24, 4.0],
                id="terminated-at-the-last-row",
            ),
            pytest.param(
                [1, 7, 2, 2.5],
                NEVER,
                AT_ROW_1,
                [6.656, 7.3, 6.36, 4.25],
                [7.156, 8.3, 7.86, 6.25],
                id="truncated-inside",
            ),
            pytest.param(
                [1, 1.5, 2, 2.5],
                AT_ROW_1,
                AT_ROW_1,
                [2.12, 1.0, 6.36, 4.25],
                [2.62, 2.0, 7.86, 6.25],
                id="terminated-inside",
            ),
        ],
    )
    def test_fixtures(self, next_values, terminateds, boundaries, advantages, returns):
        result = generalized_advantages(
            REWARDS, VALUES, next_values, terminateds, boundaries, 0.9, 0.8
        )
        np.testing.assert_allclose(result[0], advantages, rtol=0, atol=1e-9)
        np.testing.assert_allclose(result[1], returns, rtol=0, atol=1e-9)
        assert result[0].dtype == result[1].dtype == np.float64

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param([3.092, 2.35], id="value-of-the-reset-observation"),
            pytest.param([2.12, 1.0], id="truncation-as-termination"),
            pytest.param([9.953024, 11.8792], id="trace-over-the-boundary"),
        ],
    )
    def test_truncation_avoids_the_known_mistakes(self, wrong):
        advantages, _ = generalized_advantages(
            REWARDS, VALUES, [1, 7, 2, 2.5], NEVER, AT_ROW_1, 0.9, 0.8
        )
        assert np.abs(advantages[:2] - wrong).min() > 0.5

    @pytest.mark.parametrize(
        ("lam", "expected"),
        [
            (1.0, [-1.451188, -4.455746, 2.539651, 0.5249, -0.49]),
            (0.7, [-0.676980, -5.248167, 2.484608, 0.67043, -0.49]),
        ],
    )
    @pytest.mark.parametrize("gamma", [0.99, [0.99] * 5], ids=["scalar", "per-row"])
    def test_rlax_fixture(self, lam, expected, gamma):
        values = [1, 4, -3, -2, -1, -1]
        never = [False] * 5
        advantages, _ = generalized_advantages(
            [0, 0, 1, 0, -0.5], values[:-1], values[1:], never, never, gamma, lam
        )
        np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-6)

    @pytest.mark.parametrize(
        ("truncated_rows", "first"),
        [
            (
                [],
                [454.8345, 376.1143, 291.298, 200, 464.5610, 383.1085, 295.387, 201],
            ),
            (
                [3, 7],
                [454.0109, 375.2386, 290.3669, 199.01, 462.9138, 381.3571, 293.5248, 199.02],
            ),
        ],
        ids=["all-terminated", "two-truncated"],
    )
    def test_tianshou_fixture(self, truncated_rows, first):
        rewards = [101, 102, 103, 200, 104, 105, 106, 201, 107, 108, 109, 202]
        next_values = np.array([2, 3, 4, -1, 5, 6, 7, -2, 8, 9, 10, -3.0])
        boundaries = np.isin(np.arange(12), [3, 7, 11])
        terminateds = boundaries & ~np.isin(np.arange(12), truncated_rows)
        _, returns = generalized_advantages(
            rewards, np.roll(next_values, 1), next_values, terminateds, boundaries, 0.99, 0.95
        )
        expected = [*first, 474.2876, 390.1027, 299.476, 202]
        np.testing.assert_allclose(returns, expected, rtol=0, atol=6e-5)

    @settings(max_examples=60, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 70), min_size=1, max_size=12),
        gamma=st.floats(0, 1),
        lam=st.floats(0, 1),
        seed=st.integers(0, 1000),
        end_rate=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    )
    def test_equals_the_row_by_row_reference(self, lengths, gamma, lam, seed, end_rate):
        columns, offsets = ragged_batch(seed, lengths, end_rate)
        advantages, targets = generalized_advantages(*columns, gamma, lam, offsets)
        expected = slow_advantages(*columns, gamma, lam, offsets)
        np.testing.assert_allclose(advantages, expected, rtol=1e-11, atol=1e-11)
        np.testing.assert_array_equal(targets, advantages + columns[1])

    def test_equals_the_reference_on_one_long_fragment_without_ends(self):
        columns, offsets = ragged_batch(3, [20_000], end_rate=0.0)
        advantages, _ = generalized_advantages(*columns, 0.999, 1.0, offsets)
        expected = slow_advantages(*columns, 0.999, 1.0, offsets)
        np.testing.assert_allclose(advantages, expected, rtol=1e-11, atol=1e-11)

    @settings(max_examples=40, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 300), min_size=2, max_size=9),
        seed=st.integers(0, 1000),
        end_rate=st.sampled_from([0.0, 0.05]),
    )
    def test_a_fragment_gets_the_same_bits_alone_and_among_others(self, lengths, seed, end_rate):
        columns, offsets = ragged_batch(seed, lengths, end_rate)
        together, _ = generalized_advantages(*columns, 0.99, 0.95, offsets)
        for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
            alone, _ = generalized_advantages(*(c[start:stop] for c in columns), 0.99, 0.95)
            assert alone.tobytes() == together[start:stop].tobytes()

    def test_negative_zeros_do_not_depend_on_the_neighbours(self):
        alone, _ = generalized_advantages([-0.0], [0.0], [-0.0], [False], [False], 0.9, 0.8)
        among, _ = generalized_advantages(
            [-0.0, 1, 1], [0.0, 1, 1], [-0.0, 1, 1], [False] * 3, [False] * 3, 0.9, 0.8, [0, 1, 3]
        )
        assert alone.tobytes() == among[:1].tobytes()

    def test_fragments_may_come_in_any_order(self):
        lengths = [5, 64, 1, 17]
        columns, offsets = ragged_batch(8, lengths)
        parts = [slice(a, b) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        straight, _ = generalized_advantages(*columns, 0.99, 0.95, offsets)
        backward, _ = generalized_advantages(
            *(np.concatenate([c[p] for p in reversed(parts)]) for c in columns),
            0.99,
            0.95,
            np.concatenate([[0], np.cumsum(lengths[::-1])]),
        )
        expected = np.concatenate([straight[p] for p in reversed(parts)])
        assert backward.tobytes() == expected.tobytes()

    def test_the_next_value_of_a_terminated_row_is_never_read(self):
        advantages, _ = generalized_advantages(
            REWARDS, VALUES, [1, np.nan, 2, 2.5], AT_ROW_1, AT_ROW_1, 0.9, 0.8
        )
        np.testing.assert_allclose(advantages, [2.12, 1.0, 6.36, 4.25])

    def test_float32_values_are_computed_in_float64(self):
        columns, offsets = ragged_batch(4, [40, 30])
        narrow = [c.astype(np.float32) if c.dtype == float else c for c in columns]
        wide = [c.astype(np.float64) if c.dtype == np.float32 else c for c in narrow]
        np.testing.assert_array_equal(
            generalized_advantages(*narrow, 0.99, 0.95, offsets),
            generalized_advantages(*wide, 0.99, 0.95, offsets),
        )

    def test_inputs_stay_unchanged_and_may_be_read_only(self):
        columns, offsets = ragged_batch(5, [9, 9])
        before = [c.copy() for c in columns]
        for column in columns:
            column.setflags(write=False)
        advantages, targets = generalized_advantages(*columns, 0.99, 0.95, offsets)
        for column, old in zip(columns, before, strict=True):
            np.testing.assert_array_equal(column, old)
        assert advantages.flags.writeable and targets.flags.writeable

    @pytest.mark.parametrize("offsets", [None, [0]])
    def test_no_rows_give_empty_results(self, offsets):
        advantages, targets = generalized_advantages([], [], [], [], [], 0.99, 0.95, offsets)
        assert advantages.shape == targets.shape == (0,)

    @pytest.mark.parametrize("offsets", [[0, 3], [1, 4], [0, 2, 2, 4], [0, 3, 2, 4], [4], [0.0, 4]])
    def test_bad_offsets_are_refused(self, offsets):
        with pytest.raises(ValueError, match="fragment_offsets must be integers ascending"):
            generalized_advantages(REWARDS, VALUES, VALUES, NEVER, NEVER, 0.9, 0.8, offsets)

    def test_a_terminated_row_must_be_a_boundary(self):
        with pytest.raises(ValueError, match="row 1 is terminated but not a boundary"):
            generalized_advantages(REWARDS, VALUES, VALUES, AT_ROW_1, NEVER, 0.9, 0.8)

    @pytest.mark.parametrize(
        ("position", "name"),
        list(enumerate(["rewards", "values", "next_values", "terminateds", "boundaries"])),
    )
    def test_a_wrong_shape_names_the_column(self, position, name):
        columns = [REWARDS, VALUES, VALUES, NEVER, NEVER]
        columns[position] = np.zeros((4, 1))
        with pytest.raises(ValueError, match=f"^{name} must have shape"):
            generalized_advantages(*columns, 0.9, 0.8)

    def test_a_wrong_number_of_discounts_is_refused(self):
        with pytest.raises(ValueError, match="^gamma must have shape"):
            generalized_advantages(REWARDS, VALUES, VALUES, NEVER, NEVER, [0.9, 0.9], 0.8)


class TestIdentities:
    def test_lambda_0_is_the_temporal_difference_error(self):
        (r, v, nv, z, b), offsets = ragged_batch(11, [30, 40, 1])
        advantages, _ = generalized_advantages(r, v, nv, z, b, 0.97, 0.0, offsets)
        np.testing.assert_allclose(advantages, r + 0.97 * np.where(z, 0, nv) - v, atol=1e-12)

    def test_lambda_1_is_the_discounted_return_minus_the_value(self):
        (r, v, nv, z, b), offsets = ragged_batch(12, [30, 40, 1])
        ends = b.copy()
        ends[offsets[1:] - 1] = True
        nv = np.where(ends, nv, np.roll(v, -1))
        advantages, targets = generalized_advantages(r, v, nv, z, b, 0.97, 1.0, offsets)
        returns = discounted_returns(r, nv, z, b, 0.97, offsets)
        np.testing.assert_allclose(advantages, returns - v, atol=1e-11)
        np.testing.assert_allclose(targets, lambda_returns(r, nv, z, b, 0.97, 1.0, offsets))

    @pytest.mark.parametrize("cut", [1, 7, 20, 39])
    def test_cutting_a_trajectory_changes_only_the_lambda_tail(self, cut):
        (r, v, _, z, b), _ = ragged_batch(13, [40], end_rate=0.0)
        nv = np.append(v[1:], 0.3)
        whole, _ = generalized_advantages(r, v, nv, z, b, 0.97, 0.9, [0, 40])
        parts, _ = generalized_advantages(r, v, nv, z, b, 0.97, 0.9, [0, cut, 40])
        np.testing.assert_array_equal(parts[cut:], whole[cut:])
        tail = (0.97 * 0.9) ** np.arange(cut, 0, -1) * whole[cut]
        np.testing.assert_allclose(whole[:cut] - parts[:cut], tail, atol=1e-12)
        for lam_0 in ([0, 40], [0, cut, 40]):
            advantages, _ = generalized_advantages(r, v, nv, z, b, 0.97, 0.0, lam_0)
            np.testing.assert_allclose(advantages, r + 0.97 * nv - v, atol=1e-12)

    def test_cutting_at_an_episode_end_changes_nothing(self):
        columns, offsets = ragged_batch(14, [80])
        end = int(np.flatnonzero(columns[4])[0]) + 1
        assert end < 80
        whole, _ = generalized_advantages(*columns, 0.97, 0.9, offsets)
        parts, _ = generalized_advantages(*columns, 0.97, 0.9, [0, end, 80])
        assert whole.tobytes() == parts.tobytes()

    def test_padding_with_fragments_equals_leaving_them_out(self):
        columns, offsets = ragged_batch(15, [10, 6, 20])
        padded, _ = generalized_advantages(*columns, 0.97, 0.9, offsets)
        kept = np.r_[0:10, 16:36]
        removed, _ = generalized_advantages(*(c[kept] for c in columns), 0.97, 0.9, [0, 10, 30])
        assert padded[kept].tobytes() == removed.tobytes()

    @pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
    def test_infinite_horizon_value_needs_the_truncation_bootstrapped(self, lam):
        """Reward 1 for ever, cut by a time limit: V is 1 / (1 - gamma), not the limit's sum."""

        def learned_value(terminates: bool) -> float:
            time_limit, gamma, value = 8, 0.9, 0.0
            boundaries = np.arange(4 * time_limit) % time_limit == time_limit - 1
            terminateds = boundaries & terminates
            for _ in range(400):
                values = np.full(len(boundaries), value)
                _, targets = generalized_advantages(
                    np.ones(len(boundaries)), values, values, terminateds, boundaries, gamma, lam
                )
                value = float(targets.mean())
            return value

        assert learned_value(terminates=False) == pytest.approx(10.0, abs=1e-6)
        assert learned_value(terminates=True) < 6.0


class TestLambdaReturns:
    def test_rlax_fixture(self):
        never = [False] * 5
        returns = lambda_returns(
            [1, 0, -1, 0, 1], [3, 1, 5, -5, 3], never, never, [0.5, 0.9, 1, 0.5, 0.8], 0.75
        )
        np.testing.assert_allclose(returns, [1.646055, 0.722813, 0.7375, 0.65, 3.4], atol=1e-6)

    @settings(max_examples=40, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8),
        lam=st.floats(0, 1),
        seed=st.integers(0, 1000),
    )
    def test_equals_the_row_by_row_reference(self, lengths, lam, seed):
        (r, _, nv, z, b), offsets = ragged_batch(seed, lengths)
        gamma = np.random.default_rng(seed).random(len(r))
        returns = lambda_returns(r, nv, z, b, gamma, lam, offsets)
        expected = slow_lambda_returns(r, nv, z, b, gamma, lam, offsets)
        np.testing.assert_allclose(returns, expected, rtol=1e-11, atol=1e-11)

    def test_equals_the_advantage_targets_where_next_values_are_the_next_rows_values(self):
        (r, v, _, z, b), _ = ragged_batch(16, [50], end_rate=0.0)
        nv = np.append(v[1:], 2.0)
        _, targets = generalized_advantages(r, v, nv, z, b, 0.97, 0.6)
        np.testing.assert_allclose(lambda_returns(r, nv, z, b, 0.97, 0.6), targets, atol=1e-12)


class TestDiscountedReturns:
    def test_bootstraps_a_cut_and_a_truncation_but_not_a_termination(self):
        terminated = [False, True, False, False, False, False]
        boundary = [False, True, False, True, False, False]
        returns = discounted_returns(
            [1.0] * 6, [9, 9, 9, 10, 9, 20], terminated, boundary, 0.5, [0, 4, 6]
        )
        np.testing.assert_allclose(returns, [1.5, 1.0, 4.0, 6.0, 6.5, 11.0])


class TestExplainedVariance:
    @pytest.mark.parametrize("prediction", [[1, 2, 2, 5], [2, 3, 3, 6]])
    def test_fixture_ignores_a_constant_error(self, prediction):
        assert explained_variance([1, 2, 3, 4], prediction) == pytest.approx(0.6)

    def test_perfect_constant_and_harmful_predictions(self):
        assert explained_variance([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
        assert explained_variance([1, 2, 3, 4], [7, 7, 7, 7]) == 0.0
        assert explained_variance([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-3.0)

    @pytest.mark.parametrize("targets", [[], [3.0], [2.0, 2.0]])
    def test_targets_without_variance_give_0(self, targets):
        assert explained_variance(targets, [0.5] * len(targets)) == 0.0

    def test_shapes_that_would_broadcast_are_refused(self):
        with pytest.raises(ValueError, match="predictions must have shape"):
            explained_variance([1, 2, 3], [[1], [2], [3]])
