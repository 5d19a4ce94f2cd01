"""Episode summaries: right numbers, the same bits in any order."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.episode_metrics import EPISODE_SCHEMA, EpisodeMetrics

RETURNS = st.floats(-1e30, 1e30, allow_subnormal=True)


def episode_batch(returns, lengths, schema=EPISODE_SCHEMA):
    n = len(returns)
    columns = [[0] * n, range(n), range(n), lengths, lengths, returns, [True] * n]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def slow_result(returns, lengths):
    """The numbers by exact fractions."""
    mean = sum(map(Fraction, returns)) / len(returns)
    variance = sum((Fraction(x) - mean) ** 2 for x in returns) / len(returns)
    return {
        "episodes": len(returns),
        "return_mean": float(mean),
        "return_std": math.sqrt(variance),
        "return_min": min(returns),
        "return_max": max(returns),
        "length_mean": sum(lengths) / len(lengths),
        "length_min": min(lengths),
        "length_max": max(lengths),
    }


def test_known_episodes():
    result = EpisodeMetrics().add([1.0, 2.0, 3.0, 6.0], [10, 20, 30, 50]).result()
    assert result == {
        "episodes": 4,
        "return_mean": 3.0,
        "return_std": pytest.approx(math.sqrt(3.5), rel=1e-15),
        "return_min": 1.0,
        "return_max": 6.0,
        "length_mean": 27.5,
        "length_min": 10,
        "length_max": 50,
    }


def test_no_episodes_have_no_mean_and_no_nan():
    assert EpisodeMetrics().result() == {"episodes": 0}
    assert EpisodeMetrics().add([], []).result() == {"episodes": 0}
    assert EpisodeMetrics().add_batch(episode_batch([], [])).result() == {"episodes": 0}


def test_one_episode_has_no_spread():
    result = EpisodeMetrics().add([0.1], [3]).result()
    assert (result["return_mean"], result["return_std"]) == (0.1, 0.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(RETURNS, st.integers(1, 10**9)), min_size=1, max_size=30))
def test_equals_exact_fractions(episodes):
    returns, lengths = zip(*episodes, strict=True)
    assert EpisodeMetrics().add(returns, lengths).result() == slow_result(returns, lengths)


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.lists(RETURNS, max_size=6), min_size=1, max_size=6), order=st.randoms())
def test_any_order_and_grouping_gives_the_same_bits(parts, order):
    together = EpisodeMetrics().add(sum(parts, []), [1] * sum(map(len, parts)))
    summaries = [EpisodeMetrics().add(part, [1] * len(part)) for part in parts]
    while len(summaries) > 1:
        order.shuffle(summaries)
        summaries.append(summaries.pop().merge(summaries.pop()))
    assert summaries[0] == together


def test_spread_survives_a_large_mean():
    returns = [1e12 + x for x in (0.25, 0.5, 0.75)]
    result = EpisodeMetrics().add(returns, [1, 1, 1]).result()
    assert result["return_std"] == pytest.approx(statistics.pstdev([0.25, 0.5, 0.75]), rel=1e-15)


def test_agrees_with_numpy():
    returns = np.random.default_rng(0).normal(100, 30, 500)
    result = EpisodeMetrics().add(returns, np.arange(500)).result()
    assert result["return_mean"] == pytest.approx(returns.mean(), rel=1e-13)
    assert result["return_std"] == pytest.approx(returns.std(), rel=1e-13)


def test_batches_are_read_by_column_name():
    metrics = EpisodeMetrics().add_batch(episode_batch([1.0, 5.0], [2, 4]))
    assert metrics == EpisodeMetrics().add([1.0, 5.0], [2, 4])


def test_batches_of_another_kind_are_refused():
    for metadata in [{b"kind": b"steps"}, None]:
        batch = episode_batch([1.0], [1], EPISODE_SCHEMA.with_metadata(metadata))
        with pytest.raises(ValueError, match="kind 'episodes', got 'steps'"):
            EpisodeMetrics().add_batch(batch)


def test_missing_columns_and_nulls_are_refused():
    batch = episode_batch([1.0, None], [1, 1])
    with pytest.raises(ValueError, match="'episode_return' of the episode batch holds a null"):
        EpisodeMetrics().add_batch(batch)
    with pytest.raises(ValueError, match="lacks the column 'length'"):
        EpisodeMetrics().add_batch(batch.slice(0, 1).drop_columns(["length"]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_returns_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="episode row 1 is not finite"):
        EpisodeMetrics().add([0.0, bad], [1, 1])


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="one shape"):
        EpisodeMetrics().add([1.0, 2.0], [1])
