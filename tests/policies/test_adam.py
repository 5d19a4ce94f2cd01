"""Adam against torch's own class, and its state as arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policies.errors import RunError
from policies.learners.adam import Adam

SHAPES = {"b.weight": (5, 3), "a.bias": (3,), "c.scale": ()}


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }


def gradients(step):
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def advance(optimizer, params, steps, max_norm=None, lr=1e-2):
    for step in steps:
        for name, gradient in gradients(step).items():
            params[name].grad = gradient
        optimizer.step(lr, max_norm)


def arrays(params):
    return {name: parameter.detach().numpy().copy() for name, parameter in params.items()}


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_equals_torch_adam_with_clipped_gradients(max_norm):
    ours, theirs = parameters(), parameters()
    reference = torch.optim.Adam(theirs.values(), lr=1e-2, eps=1e-5)
    optimizer = Adam(ours, eps=1e-5)
    for step in range(20):
        advance(optimizer, ours, [step], max_norm)
        for name, gradient in gradients(step).items():
            theirs[name].grad = gradient
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(theirs.values()), max_norm)
        reference.step()
    for name in SHAPES:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_first_step_moves_each_number_by_the_learning_rate():
    params = {"x": torch.nn.Parameter(torch.zeros(3))}
    params["x"].grad = torch.tensor([2.0, -0.5, 100.0])
    Adam(params, eps=1e-12).step(0.1)
    np.testing.assert_allclose(params["x"].detach().numpy(), [-0.1, 0.1, -0.1], rtol=1e-5)


def test_returns_the_norm_before_clipping_and_clears_the_gradients():
    params = {"x": torch.nn.Parameter(torch.zeros(2)), "y": torch.nn.Parameter(torch.zeros(1))}
    params["x"].grad, params["y"].grad = torch.tensor([2.0, 3.0]), torch.tensor([6.0])
    assert float(Adam(params).step(0.1, max_norm=0.5)) == pytest.approx(7.0)
    assert params["x"].grad is None and params["y"].grad is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(bad, max_norm):
    params = {"x": torch.nn.Parameter(torch.zeros(2))}
    params["x"].grad = torch.tensor([1.0, bad])
    assert not np.isfinite(float(Adam(params).step(0.1, max_norm)))


def test_a_parameter_without_gradient_stays():
    params = parameters()
    before = arrays(params)
    params["a.bias"].grad = torch.ones(3)
    Adam(params).step(0.1, max_norm=0.5)
    assert np.array_equal(params["b.weight"].detach().numpy(), before["b.weight"])
    assert not np.array_equal(params["a.bias"].detach().numpy(), before["a.bias"])


def test_a_frozen_parameter_is_left_out():
    params = parameters()
    params["b.weight"].requires_grad_(False)
    optimizer = Adam(params)
    assert sorted(optimizer.to_arrays()) == [
        "first/a.bias",
        "first/c.scale",
        "second/a.bias",
        "second/c.scale",
        "steps",
    ]


def test_going_on_from_saved_arrays_equals_never_stopping_to_the_bit():
    whole = parameters()
    advance(Adam(whole), whole, range(10), max_norm=0.5)
    first = parameters()
    optimizer = Adam(first)
    advance(optimizer, first, range(6), max_norm=0.5)
    saved, weights = optimizer.to_arrays(), arrays(first)
    advance(optimizer, first, [9])  # What happens later must not change what was saved.
    second = {name: torch.nn.Parameter(torch.from_numpy(x)) for name, x in weights.items()}
    restored = Adam(second)
    restored.load_arrays(dict(reversed(saved.items())))
    advance(restored, second, range(6, 10), max_norm=0.5)
    for name in SHAPES:
        assert whole[name].detach().numpy().tobytes() == second[name].detach().numpy().tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("steps"), "steps is missing"),
        (lambda a: a.update(extra=np.zeros(1)), "extra is unexpected"),
        (
            lambda a: a.update({"first/a.bias": np.zeros(4, np.float32)}),
            r"first/a.bias has shape \[4\] instead of \[3\]",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused_and_change_nothing(change, words):
    params = parameters()
    optimizer = Adam(params)
    advance(optimizer, params, range(2))
    before = optimizer.to_arrays()
    wrong = {name: array + 1 for name, array in before.items()}
    change(wrong)
    with pytest.raises(RunError, match=words):
        optimizer.load_arrays(wrong)
    after = optimizer.to_arrays()
    assert all(np.array_equal(after[name], before[name]) for name in before)
