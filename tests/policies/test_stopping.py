"""When a run ends."""

from __future__ import annotations

from typing import Any

import pytest

from policies.config import AlgorithmConfig
from policies.stopping import reaches, stop_reason


def config(**values: Any) -> AlgorithmConfig:
    return AlgorithmConfig(**values)


def confirmed(mean: float | None, confirmation: float | None) -> dict[str, Any]:
    second = {} if confirmation is None else {"confirmation": {"mean": confirmation}}
    return {"mean": mean, **second}


def test_without_conditions_a_run_never_ends() -> None:
    assert stop_reason(10**6, 10**12, confirmed(1e9, 1e9), config()) is None


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (None, None),
        ({}, None),
        (confirmed(475.0, None), None),
        (confirmed(500.0, 474.9), None),
        (confirmed(474.9, 500.0), None),
        (confirmed(None, 500.0), None),
        (confirmed(float("nan"), 500.0), None),
        ({"mean": 500.0, "confirmation": None}, None),
        (confirmed(475.0, 475.0), "stop_return"),
    ],
)
def test_a_return_target_needs_both_means(
    evaluation: dict[str, Any] | None, expected: str | None
) -> None:
    assert stop_reason(1, 1, evaluation, config(stop_return=475.0)) == expected


@pytest.mark.parametrize(("target", "mean"), [(0.0, 0.0), (-150.0, -149.0)])
def test_targets_may_be_zero_or_negative(target: float, mean: float) -> None:
    assert stop_reason(1, 1, confirmed(mean, mean), config(stop_return=target)) == "stop_return"


def test_limits_of_steps_and_rounds() -> None:
    limits = config(max_env_steps=1000, max_rounds=7)
    assert stop_reason(6, 999, None, limits) is None
    assert stop_reason(6, 1000, None, limits) == "max_env_steps"
    assert stop_reason(7, 999, None, limits) == "max_rounds"
    assert stop_reason(7, 1000, None, limits) == "max_env_steps"


def test_the_return_comes_first_and_seconds_are_not_its_business() -> None:
    limits = config(max_env_steps=1, max_rounds=1, stop_return=1.0, max_seconds=0.001)
    assert stop_reason(1, 1, confirmed(1.0, 1.0), limits) == "stop_return"
    assert stop_reason(1, 1, None, config(max_seconds=0.001)) is None


def test_reaches() -> None:
    assert reaches({"mean": 1.0}, 1.0)
    assert not reaches({"mean": 0.9}, 1.0)
    assert not reaches({"mean": 1.0}, None)
    assert not reaches({}, 1.0)
