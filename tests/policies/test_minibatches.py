"""What minibatches are made of: every row once, sequences inside fragments, no padding."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.learners import minibatches
from policies.learners.minibatches import (
    Rows,
    Sequences,
    chunk_bounds,
    forward_all,
    split_evenly,
    train_batches,
)
from policies.model_config import ModelConfig
from policies.networks import build_network

SPACE = gym.spaces.Box(-1.0, 1.0, (3,))
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def offsets_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def network(recurrent):
    model = ModelConfig(hidden=[8], use_lstm=recurrent, lstm_size=5)
    return build_network(SPACE, 2, model, np.random.default_rng(0))


def sequences(lengths, length, seed=0):
    n = sum(lengths)
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn((n, 3), generator=generator)
    state = tuple(torch.randn((n, 5), generator=generator) for _ in range(2))
    return Sequences(obs, state, offsets_of(lengths), length), obs, state


@given(LENGTHS, st.integers(1, 9))
def test_chunks_cut_each_fragment_from_its_start(lengths, length):
    expected = [
        (start, min(start + length, b))
        for a, b in zip(offsets_of(lengths)[:-1], offsets_of(lengths)[1:], strict=True)
        for start in range(a, b, length)
    ]
    starts, ends = chunk_bounds(offsets_of(lengths), length)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected


@settings(deadline=None, max_examples=30)
@given(LENGTHS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_sequences_give_each_row_once_whatever_the_order(lengths, length, random):
    batch, _, _ = sequences(lengths, length)
    order = list(range(batch.units))
    random.shuffle(order)
    rows, outputs, values = batch.forward(network(True), torch.tensor(order))
    assert sorted(rows.tolist()) == list(range(sum(lengths)))
    assert len(outputs) == len(values) == len(rows)


def test_a_sequence_equals_its_steps_one_by_one_from_the_recorded_state():
    batch, obs, state = sequences([7, 3], length=4)
    net = network(True)
    rows, outputs, values = batch.forward(net, torch.tensor([2, 1]))
    assert rows.tolist() == [7, 8, 9, 4, 5, 6]
    for first, start in ((0, 7), (3, 4)):
        carried = tuple(x[start : start + 1] for x in state)
        for k in range(3):
            out, value, carried = net(obs[start + k : start + k + 1], carried)
            torch.testing.assert_close(outputs[first + k], out[0])
            torch.testing.assert_close(values[first + k], value[0])


def test_padding_changes_neither_outputs_nor_gradients():
    """The same short chunks with others beside them, which makes padding, and without."""
    net = network(True)
    gradients = []
    for lengths, units in (([2, 9, 3], [0, 2]), ([2, 3], [0, 1])):
        batch, obs, state = sequences([2, 9, 3], length=9)
        if len(lengths) == 2:
            kept = torch.tensor([0, 1, 11, 12, 13])
            batch = Sequences(obs[kept], tuple(x[kept] for x in state), offsets_of(lengths), 9)
        _, outputs, values = batch.forward(net, torch.tensor(units))
        net.zero_grad()
        (outputs.square().sum() + values.square().sum()).backward()
        gradients.append([outputs, values, *(p.grad.clone() for p in net.parameters())])
    for padded, alone in zip(*gradients, strict=True):
        torch.testing.assert_close(padded, alone)


def test_a_minibatch_of_sequences_has_about_the_rows_asked_for():
    batch, _, _ = sequences([8, 8, 4, 4], length=8)
    assert batch.units == 4
    assert [batch.per_minibatch(rows) for rows in (1, 6, 12, 100)] == [1, 1, 2, 17]


@pytest.mark.parametrize("recurrent", [False, True])
def test_forward_all_is_in_the_order_of_the_rows(recurrent, monkeypatch):
    monkeypatch.setattr(minibatches, "ROWS_AT_ONCE", 4)
    batch, obs, _ = sequences([7, 1, 5], length=3)
    net = network(recurrent)
    chosen = batch if recurrent else Rows(obs, len(obs))
    outputs, values = forward_all(net, chosen, "cpu")
    assert not outputs.requires_grad
    rows, expected, expected_values = chosen.forward(net, torch.arange(chosen.units))
    assert rows.tolist() == list(range(13))
    torch.testing.assert_close(outputs, expected.detach())
    torch.testing.assert_close(values, expected_values.detach())


def test_rows_of_nested_observations():
    obs = {"a": torch.arange(4.0)[:, None], "b": (torch.arange(4),)}

    def fake(struct, state):
        return struct["a"], struct["b"][0], state

    rows, outputs, values = Rows(obs, 4).forward(fake, torch.tensor([2, 0]))
    assert (rows.tolist(), outputs[:, 0].tolist(), values.tolist()) == ([2, 0], [2, 0], [2, 0])


@given(st.integers(1, 200), st.integers(1, 50))
def test_parts_of_a_permutation_are_full_but_for_the_last(n, size):
    parts = split_evenly(torch.arange(n), size)
    assert torch.cat(parts).tolist() == list(range(n))
    assert all(len(part) == size for part in parts[:-1])
    assert len(parts[-1]) == n if n < size else 2 * len(parts[-1]) >= size
    assert len(parts[-1]) < 1.5 * size


@given(st.integers(1, 100), st.one_of(st.none(), st.integers(1, 150)))
def test_train_batches_keep_the_order_and_differ_by_one_row_at_most(n, batch_rows):
    batches = train_batches(Rows(None, n), n, batch_rows)
    assert np.concatenate(batches).tolist() == list(range(n))
    sizes = {len(batch) for batch in batches}
    assert max(sizes) - min(sizes) <= 1
    wanted = 1 if batch_rows is None else max(1, round(n / batch_rows))
    assert len(batches) == wanted
