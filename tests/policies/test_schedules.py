"""Schedules: values between and beyond the points, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from policies.errors import ConfigError
from policies.schedules import Schedule, ScheduleSpec, parse, value_at


@pytest.mark.parametrize("value", [3, 3.0, np.float64(3.0), [[0, 3.0]], ((500, 3),)])
def test_a_number_or_a_single_point_is_constant(value):
    schedule = parse(value)
    assert [value_at(schedule, step) for step in (0, 1, 10**12)] == [3.0] * 3


def test_points_are_joined_linearly_and_held_outside():
    schedule = parse([[100, 1.0], [200, 0.0], [400, 4.0]])
    steps = [0, 100, 125, 200, 300, 400, 401]
    assert [value_at(schedule, step) for step in steps] == [1, 1, 0.75, 0, 2, 4, 4]


def test_agrees_with_numpy_interpolation():
    points = [[0, 2.5e-4], [30_000, 1e-4], [70_001, 3e-3], [100_000, 0.0]]
    schedule = parse(points)
    steps, values = zip(*points, strict=True)
    for step in range(0, 120_000, 997):
        assert value_at(schedule, step) == pytest.approx(np.interp(step, steps, values), rel=1e-12)


def test_the_value_at_a_point_is_exact():
    schedule = parse([[0, 0.1], [3, 0.3], [7, 0.7]])
    assert [value_at(schedule, step) for step in (0, 3, 7)] == [0.1, 0.3, 0.7]


def test_whole_float_steps_are_steps():
    assert parse([[0.0, 1], [1e6, 0]]) == Schedule((0, 1_000_000), (1.0, 0.0))


def test_a_schedule_is_returned_as_it_is():
    schedule = parse([[0, 1], [10, 0]])
    assert parse(schedule) is schedule


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fast", "expected a number or"),
        (None, "expected a number or"),
        (True, "expected a number or"),
        ({"0": 1.0}, "expected a number or"),
        (math.nan, "expected a finite number"),
        (math.inf, "expected a finite number"),
        ([], "at least one"),
        ([0, 1.0], r"expected a \[step, value\] point, got 0"),
        ([[0, 1.0, 2.0]], r"expected a \[step, value\] point"),
        ([[0, "x"]], "expected a number"),
        ([[0, -math.inf]], "expected a finite number"),
        ([[-1, 1.0]], "whole number from 0 on, got -1"),
        ([[0.5, 1.0]], "whole number from 0 on, got 0.5"),
        ([[math.nan, 1.0]], "whole number from 0 on, got nan"),
        ([[True, 1.0]], "whole number from 0 on, got True"),
        ([["0", 1.0]], "whole number from 0 on, got '0'"),
        ([[0, 1.0], [0, 2.0]], "steps must ascend, but 0 comes after 0"),
        ([[10, 1.0], [5, 2.0]], "steps must ascend, but 5 comes after 10"),
    ],
)
def test_bad_schedules_are_refused_by_name(value, message):
    with pytest.raises(ConfigError, match=f"^lr: .*{message}"):
        parse(value, "lr")


class Settings(BaseModel):
    lr: ScheduleSpec = 0.5


@pytest.mark.parametrize("written", [3.0, [[0, 2e-3], [100_000, 0.0]]])
def test_a_configuration_keeps_a_schedule_as_written(written):
    settings = Settings(lr=written)
    assert settings.lr == written
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert parse(settings.lr) == parse(written)


def test_a_configuration_writes_whole_steps_as_integers():
    assert Settings(lr=((0.0, 1), (1e6, 0))).model_dump_json() == '{"lr":[[0,1.0],[1000000,0.0]]}'
    assert Settings(lr=2).model_dump_json() == '{"lr":2.0}'


@pytest.mark.parametrize("bad", ["0.1", True, [[5, 1.0], [5, 2.0]], math.nan])
def test_a_configuration_refuses_a_bad_schedule_once_and_by_key(bad):
    with pytest.raises(ValidationError) as caught:
        Settings(lr=bad)
    assert [error["loc"] for error in caught.value.errors()] == [("lr",)]
