"""Schedules: a hyperparameter that is constant or piecewise linear in environment steps.

Written as a number, or as `[[step, value], ...]`: linear between the points, constant before the
first and after the last.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated

from pydantic import BeforeValidator

from policies.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Points of a piecewise linear function; make one with `parse`.

    Attributes:
        steps: Environment steps of the points, strictly ascending, at least one.
        values: Value at each point, finite.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


def parse(value: object, name: str = "schedule") -> Schedule:
    """Reads a schedule from a number or from `[[step, value], ...]`.

    Args:
        value: The number, the list of points, or a `Schedule`, which is returned as it is.
        name: The configuration key, for error messages.

    Returns:
        The schedule.

    Raises:
        ConfigError: The value is neither a finite number nor a list of points with whole,
            non-negative, strictly ascending steps.
    """
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, list | tuple):
        return Schedule((0,), (_number(value, name),))
    if not value:
        raise ConfigError(f"{name}: a schedule needs at least one [step, value] point")
    points = [_point(point, name) for point in value]
    steps = tuple(step for step, _ in points)
    for earlier, later in zip(steps, steps[1:], strict=False):
        if later <= earlier:
            raise ConfigError(f"{name}: steps must ascend, but {later} comes after {earlier}")
    return Schedule(steps, tuple(number for _, number in points))


def value_at(schedule: Schedule, env_steps: int) -> float:
    """Returns the schedule's value after `env_steps` environment steps.

    Args:
        schedule: From `parse`.
        env_steps: Environment steps so far, over all environments of the run.

    Returns:
        The interpolated value; exactly the point's value at a point.
    """
    steps, values = schedule.steps, schedule.values
    right = bisect_right(steps, env_steps)
    if right == 0:
        return values[0]
    if right == len(steps):
        return values[-1]
    left = right - 1
    share = (env_steps - steps[left]) / (steps[right] - steps[left])
    return values[left] + share * (values[right] - values[left])


def _checked(value: object) -> float | list[list[int | float]]:
    """Returns a schedule in its written form, whole steps as integers; raises as `parse`."""
    schedule = parse(value)
    if not isinstance(value, list | tuple | Schedule):
        return schedule.values[0]
    return [[step, number] for step, number in zip(schedule.steps, schedule.values, strict=True)]


ScheduleSpec = Annotated[float | list[list[int | float]], BeforeValidator(_checked)]
"""Type of a configuration field that holds a schedule as it is written; pass it to `parse`."""


def _point(point: object, name: str) -> tuple[int, float]:
    """Reads one [step, value] pair."""
    if not isinstance(point, list | tuple) or len(point) != 2:
        raise ConfigError(f"{name}: expected a [step, value] point, got {point!r}")
    step = point[0]
    whole = isinstance(step, Integral) or (isinstance(step, float) and step.is_integer())
    if isinstance(step, bool) or not whole or step < 0:
        raise ConfigError(f"{name}: a step must be a whole number from 0 on, got {step!r}")
    return int(step), _number(point[1], name)


def _number(value: object, name: str) -> float:
    """Reads one finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}: expected a number or [[step, value], ...], got {value!r}")
    if not math.isfinite(value):
        raise ConfigError(f"{name}: expected a finite number, got {value!r}")
    return float(value)
