"""The observation filter against concatenated data, its fixture and its algebra."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.filters import MeanStd

SCALAR = Box(-np.inf, np.inf, (1,), np.float32)
VECTOR = Box(-np.inf, np.inf, (3,), np.float32)
NESTED = Dict(
    {
        "speed": Box(-1, 1, (2,), np.float32),
        "image": Box(0, 255, (4, 4, 3), np.uint8),
        "gear": Discrete(5),
        "arm": Tuple((Box(-9, 9, (), np.float64), Discrete(2))),
    }
)


def column(*values):
    return np.array(values, np.float32).reshape(-1, 1)


def random_filter(rng, n, size=3, scale=1.0):
    space = Box(-np.inf, np.inf, (size,), np.float64)
    return MeanStd.from_batch(space, rng.normal(rng.normal() * scale, 1.0, (n, size)))


def slow_normalize(rows, row):
    """One row by the definition, in Python numbers."""
    result = []
    for j in range(len(row)):
        values = [float(r[j]) for r in rows]
        mean = sum(values) / len(values)
        std = (sum((x - mean) ** 2 for x in values) / (len(values) - 1)) ** 0.5
        result.append(min(10.0, max(-10.0, (float(row[j]) - mean) / (std + 1e-8))))
    return result


def nested_batch(rng, n):
    return {
        "speed": rng.normal(size=(n, 2)).astype(np.float32),
        "image": rng.integers(0, 256, (n, 4, 4, 3)).astype(np.uint8),
        "gear": rng.integers(0, 5, n),
        "arm": (rng.normal(5, 2, n), rng.integers(0, 2, n)),
    }


def test_merge_fixture():
    merged = MeanStd.merge(
        MeanStd.from_batch(SCALAR, column(1, 2, 3, 4)), MeanStd.from_batch(SCALAR, column(10, 20))
    )
    assert merged.count == 6
    assert merged.mean == pytest.approx([6.666667], abs=1e-6)
    assert merged.m2 == pytest.approx([263.333333], abs=1e-6)
    assert merged.std == pytest.approx([7.257180], abs=1e-6)


def test_parts_of_the_fixture():
    first = MeanStd.from_batch(SCALAR, column(1, 2, 3, 4))
    second = MeanStd.from_batch(SCALAR, column(10, 20))
    assert (first.count, first.mean.item(), first.m2.item()) == (4, 2.5, 5.0)
    assert (second.count, second.mean.item(), second.m2.item()) == (2, 15.0, 50.0)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=10),
    offset=st.sampled_from([0.0, 1e4, -1e6]),
    seed=st.integers(0, 1000),
)
def test_merged_parts_equal_the_concatenated_data(sizes, offset, seed):
    rng = np.random.default_rng(seed)
    space = Box(-np.inf, np.inf, (3,), np.float64)
    parts = [rng.normal(offset, 2.0, (n, 3)) for n in sizes]
    total = MeanStd.zero(space)
    for part in parts:
        total = MeanStd.merge(total, MeanStd.from_batch(space, part))
    data = np.concatenate(parts)
    assert total.count == len(data)
    if len(data) > 1:
        np.testing.assert_allclose(total.mean, data.mean(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(total.std, data.std(axis=0, ddof=1), rtol=1e-7)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, 30)] * 3),
    seed=st.integers(0, 1000),
)
def test_merge_is_associative_and_commutative_to_rounding(sizes, seed):
    rng = np.random.default_rng(seed)
    a, b, c = (random_filter(rng, n, scale=50.0) for n in sizes)
    left = MeanStd.merge(MeanStd.merge(a, b), c)
    for other in (MeanStd.merge(a, MeanStd.merge(b, c)), MeanStd.merge(c, MeanStd.merge(b, a))):
        assert other.count == left.count
        np.testing.assert_allclose(other.mean, left.mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(other.m2, left.m2, rtol=1e-9, atol=1e-9)


def test_merging_with_an_empty_filter_changes_no_bit():
    full = random_filter(np.random.default_rng(0), 9)
    empty = MeanStd.zero(VECTOR)
    for merged in (MeanStd.merge(full, empty), MeanStd.merge(empty, full)):
        assert merged.count == 9
        assert merged.mean.tobytes() == full.mean.tobytes()
        assert merged.m2.tobytes() == full.m2.tobytes()


def test_variance_survives_a_mean_a_million_times_larger():
    rng = np.random.default_rng(1)
    space = Box(-np.inf, np.inf, (1,), np.float64)
    total = MeanStd.zero(space)
    for _ in range(50):
        total = MeanStd.merge(total, MeanStd.from_batch(space, rng.normal(1e6, 1.0, (100, 1))))
    assert total.std.item() == pytest.approx(1.0, abs=0.03)


def test_normalize_equals_the_row_by_row_reference():
    rng = np.random.default_rng(2)
    seen = rng.normal([0, 100, -3], [1, 5, 0.01], (50, 3)).astype(np.float32)
    obs = rng.normal([0, 100, -3], [3, 50, 0.01], (20, 3)).astype(np.float32)
    result = MeanStd.from_batch(VECTOR, seen).normalize(VECTOR, obs)
    expected = [slow_normalize(seen, row) for row in obs]
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    assert np.abs(result).max() == 10.0


def test_normalize_gives_a_row_the_same_bits_in_any_batch():
    rng = np.random.default_rng(3)
    filter_ = random_filter(rng, 100)
    obs = rng.normal(size=(33, 3)).astype(np.float32)
    together = filter_.normalize(VECTOR, obs)
    alone = np.concatenate([filter_.normalize(VECTOR, obs[i : i + 1]) for i in range(33)])
    assert together.tobytes() == alone.tobytes()


def test_normalize_changes_neither_the_filter_nor_the_observations():
    filter_ = random_filter(np.random.default_rng(4), 10)
    obs = np.ones((2, 3), np.float32)
    obs.setflags(write=False)
    before = filter_.mean.copy(), filter_.m2.copy()
    filter_.normalize(VECTOR, obs)
    np.testing.assert_array_equal((filter_.mean, filter_.m2), before)
    assert filter_.count == 10


@pytest.mark.parametrize("seen", [column(), column(7)])
def test_fewer_than_two_observations_leave_values_as_they_are(seen):
    result = MeanStd.from_batch(SCALAR, seen).normalize(SCALAR, column(1, 500))
    np.testing.assert_array_equal(result, column(1, 500))
    assert result.dtype == np.float32


def test_a_constant_observation_becomes_0():
    filter_ = MeanStd.from_batch(SCALAR, column(*[0.1] * 7))
    np.testing.assert_allclose(filter_.normalize(SCALAR, column(0.1)), [[0.0]], atol=1e-3)


def test_nested_spaces_filter_float_leaves_and_pass_the_others():
    rng = np.random.default_rng(5)
    seen, obs = nested_batch(rng, 40), nested_batch(rng, 6)
    filter_ = MeanStd.from_batch(NESTED, seen)
    assert filter_.mean.shape == (3,)
    result = filter_.normalize(NESTED, obs)
    assert set(result) == set(obs)
    np.testing.assert_allclose(
        result["speed"], [slow_normalize(seen["speed"], row) for row in obs["speed"]], rtol=1e-5
    )
    arm = seen["arm"][0].reshape(-1, 1)
    np.testing.assert_allclose(
        result["arm"][0].reshape(-1, 1),
        [slow_normalize(arm, [x]) for x in obs["arm"][0]],
        rtol=1e-5,
    )
    assert result["arm"][0].shape == (6,) and result["arm"][0].dtype == np.float32
    assert result["image"] is obs["image"]
    assert result["gear"] is obs["gear"]
    assert result["arm"][1] is obs["arm"][1]


def test_a_space_without_float_leaves_has_an_empty_filter():
    obs = np.array([1, 2, 0])
    filter_ = MeanStd.from_batch(Discrete(3), obs)
    assert (filter_.count, filter_.mean.shape) == (0, (0,))
    assert filter_.normalize(Discrete(3), obs) is obs


def test_arrays_round_trip_to_the_bit():
    filter_ = random_filter(np.random.default_rng(6), 12)
    arrays = filter_.to_arrays()
    assert {name: array.dtype for name, array in arrays.items()} == {
        "count": np.int64,
        "mean": np.float64,
        "m2": np.float64,
    }
    again = MeanStd.from_arrays(arrays)
    assert again.count == 12
    assert again.mean.tobytes() == filter_.mean.tobytes()
    assert again.m2.tobytes() == filter_.m2.tobytes()


def test_arrays_that_make_no_filter_are_refused():
    arrays = MeanStd.zero(VECTOR).to_arrays()
    with pytest.raises(ValueError, match="lack m2"):
        MeanStd.from_arrays({"count": arrays["count"], "mean": arrays["mean"]})
    with pytest.raises(ValueError, match="no filter"):
        MeanStd.from_arrays({**arrays, "m2": np.zeros(2)})
    with pytest.raises(ValueError, match="no filter"):
        MeanStd.from_arrays({**arrays, "count": np.array([-1])})


def test_wrong_shapes_and_foreign_spaces_are_refused():
    filter_ = random_filter(np.random.default_rng(7), 5)
    with pytest.raises(ValueError, match="must have shape"):
        filter_.normalize(VECTOR, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="must have shape"):
        MeanStd.from_batch(VECTOR, np.zeros((4, 2), np.float32))
    with pytest.raises(ValueError, match="3 elements met a space of 1"):
        filter_.normalize(SCALAR, column(1))
    with pytest.raises(ValueError, match="3 elements met a space of 5"):
        filter_.normalize(Box(-1, 1, (5,), np.float32), np.zeros((2, 5), np.float32))
    with pytest.raises(ValueError, match="different sizes"):
        MeanStd.merge(filter_, MeanStd.zero(SCALAR))
