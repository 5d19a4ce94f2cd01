"""The numbers that a training run shows while it goes on, and how they are written.

`Progress.add` only stores and compares: it runs in the training loop. Everything that formats is
called when a view draws, possibly from another thread, and reads plain attributes only.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

NO_EPISODES = "0 episodes finished"
"""Stands in the place of the return before the first episode has ended."""

_RATE_WINDOW_SECONDS = 10.0
_NEARER = 2.0
_LEAST_WAY = 0.1
_ESCAPE_CODES = r"\x1b\[[0-?]*[ -/]*[@-~]"


class NearestLimit(NamedTuple):
    """The stop condition that will be met first.

    Attributes:
        text: what the fraction is of ("of 100,000 env steps").
        fraction: how much of it is done, 0 to 1.
        seconds_left: until it is met at the present speed, or None where that is not known.
    """

    text: str
    fraction: float
    seconds_left: float | None


class Progress:
    """The state of a run as far as a view shows it.

    Attributes:
        title: what is trained, in one line.
        facts: names and values that do not change during the run.
        limits: the stop conditions `stop_return`, `max_env_steps`, `max_rounds`, `max_seconds`.
        stage: what the run does now (collect, learn, evaluate, ...).
        latest: the result of the latest round, or None before the first.
        evaluation: the latest evaluation, or None.
        best: version and mean of the best evaluation so far, or None.
        new_best: whether the latest round's evaluation is the best so far.
        steps_per_second: env steps a second over about the last ten seconds, or None.
        env_restarts: environments restarted since the start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds since any fixed moment."""
        self._clock = clock
        self.title = ""
        self.facts: Mapping[str, str] = {}
        self.limits: Mapping[str, float | None] = {}
        self.stage = "start"
        self.latest: Mapping[str, Any] | None = None
        self.evaluation: Mapping[str, Any] | None = None
        self.best: tuple[int, float] | None = None
        self.new_best = False
        self.steps_per_second: float | None = None
        self.env_restarts = 0
        self._env_error: str | None = None
        self._started = clock()
        self._first: tuple[float, int, int] | None = None  # time, env steps, rounds before it
        self._first_evaluation: float | None = None
        self._recent: deque[tuple[float, int]] = deque()  # time and env steps of recent rounds

    def start(
        self,
        title: str,
        facts: Mapping[str, str],
        limits: Mapping[str, float | None],
        best: tuple[int, float] | None = None,
    ) -> None:
        """Sets what does not change and starts the clock.

        Args:
            title: what is trained.
            facts: shown once, at the start.
            limits: the stop conditions; None or absent where there is none.
            best: version and mean of the best evaluation before this command (a resumed run).
        """
        self.title, self.facts, self.limits, self.best = title, facts, limits, best
        self._started = self._clock()

    def add(self, result: Mapping[str, Any]) -> list[str]:
        """Takes in the result of a round.

        Returns:
            Lines about what happened in it that should stay on the screen; mostly none. A new best
            is told by `new_best` instead, which every view shows in its own way.
        """
        now = self._clock()
        self._measure(result, now)
        self.latest = result
        self.new_best = False
        events = []
        if result["env_restarts"]:
            self.env_restarts += result["env_restarts"]
            if result["env_error"] != self._env_error:
                self._env_error = result["env_error"]
                events.append(f"environment restarted: {printable(str(self._env_error))}")
        evaluation = result["evaluation"]
        if evaluation is not None:
            self.evaluation = evaluation
            self.new_best = self._is_best(result["version"], evaluation["mean"])
            if again := evaluation.get("confirmation"):
                text = _confirmation_text(again, self.limits.get("stop_return"))
                events.append(f"{_where(result)}  {text}")
        return events

    def best_line(self) -> str:
        """The line that tells of the latest round's new best."""
        assert self.latest is not None
        return f"{_where(self.latest)}  new best evaluation {self.evaluation_mean()}"

    def elapsed(self) -> float:
        """Seconds since the start of this command."""
        return self._clock() - self._started

    def return_text(self) -> str:
        """The mean return of the latest episodes, or that none has ended."""
        mean = self.latest["episode_return_mean"] if self.latest else None
        return NO_EPISODES if mean is None else f"return {number(mean)}"

    def evaluation_mean(self) -> str:
        """The latest evaluation's mean return, or "-"."""
        return number(self.evaluation["mean"] if self.evaluation else None)

    def best_mean(self) -> str:
        """The best evaluation's mean return, or "-"."""
        return number(self.best[1] if self.best else None)

    def nearest_limit(self) -> NearestLimit | None:
        """Returns the stop condition that comes first at the present speed; None without any.

        They are compared by the part of the way that this command has gone since it began, which
        for a resumed run differs from the part that is done. Returns rise in leaps: another
        limit takes the place of `stop_return` only where it is clearly nearer.
        """
        limits = [*self._counts(), *self._seconds()]
        nearest = max(limits, key=lambda item: item[0]) if limits else None
        target = self._return()
        if target is None:
            return nearest[1] if nearest else None
        if nearest and nearest[0] > max(_LEAST_WAY, _NEARER * target[0]):
            return nearest[1]
        return target[1]

    def _counts(self) -> list[tuple[float, NearestLimit]]:
        steps = self.latest["env_steps"] if self.latest else 0
        rounds = self.latest["version"] if self.latest else 0
        now = self._clock()
        began, first_steps, first_rounds = self._first or (now, 0, 0)
        candidates = []
        for key, done, before, unit in (
            ("max_env_steps", steps, first_steps, "env step"),
            ("max_rounds", rounds, first_rounds, "round"),
        ):
            limit = self.limits.get(key)
            if limit is None:
                continue
            way = _part(done - before, limit - before)
            last = self._recent[-1][0] if self._recent else now
            left = (last - began) * (1 - way) / way - (now - last) if way > 0 else None
            text = f"of {counted(limit, unit)}"
            candidates.append((way, NearestLimit(text, _part(done, limit), left)))
        return candidates

    def _seconds(self) -> list[tuple[float, NearestLimit]]:
        limit = self.limits.get("max_seconds")
        if limit is None:
            return []
        way = _part(self.elapsed(), limit)
        return [(way, NearestLimit(f"of {duration(limit)}", way, limit - self.elapsed()))]

    def _return(self) -> tuple[float, NearestLimit] | None:
        target = self.limits.get("stop_return")
        if target is None:
            return None
        first = self._first_evaluation
        way = 0.0
        if self.best is not None and first is not None:
            way = _part(self.best[1] - first, target - first)
        return way, NearestLimit(f"to return {target:,g}", way, None)

    def _measure(self, result: Mapping[str, Any], now: float) -> None:
        steps, recent = result["env_steps"], self._recent
        if self._first is None:
            began = now - result["seconds"].get("wall", now - self._started)
            self._first = (began, steps - result["env_steps_this_round"], result["version"] - 1)
            recent.append(self._first[:2])
        recent.append((now, steps))
        while len(recent) > 2 and recent[1][0] < now - _RATE_WINDOW_SECONDS:
            recent.popleft()
        then, before = recent[0]
        if now > then:
            self.steps_per_second = (steps - before) / (now - then)

    def _is_best(self, version: int, mean: float) -> bool:
        if self._first_evaluation is None:
            self._first_evaluation = mean
        if self.best is not None and not mean > self.best[1]:
            return False
        self.best = (version, mean)
        return True


def number(value: float | None) -> str:
    """Writes a return in few characters: "143.2", "0.741", "1.23e+06"; "-" for none or NaN."""
    if value is None or math.isnan(value):
        return "-"
    size = abs(value)
    if size >= 1e6:
        return f"{value:.4g}"
    if size >= 10 or value == int(value):
        return f"{value:,.1f}"
    return f"{value:.3f}" if size < 1 else f"{value:.2f}"


def count(value: float | None) -> str:
    """Writes a whole number with thousands separators; "-" for none."""
    return "-" if value is None else f"{value:,.0f}"


def counted(value: float, unit: str) -> str:
    """Writes a number with its unit: "1 round", "2 rounds"."""
    return f"{count(value)} {unit}{'' if value == 1 else 's'}"


def duration(seconds: float) -> str:
    """Writes a time as M:SS or H:MM:SS."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def evaluation_text(evaluation: Mapping[str, Any], target: float | None = None) -> str:
    """Writes an evaluation with its spread, its episodes and the confirmation, if there is one.

    `target` is the return that a confirmation had to reach.
    """
    details = []
    if evaluation.get("std") is not None:
        details.append(f"std {number(evaluation['std'])}")
    details.append(counted(evaluation["n"], "episode"))
    if evaluation.get("capped"):
        details.append(f"{count(evaluation['capped'])} cut short")
    text = f"{number(evaluation['mean'])} ({', '.join(details)})"
    again = evaluation.get("confirmation")
    return f"{text}, {_confirmation_text(again, target)}" if again else text


def printable(text: str) -> str:
    """Makes one line of a text, without control characters.

    Texts may come from an environment or a log, whose escape codes are not for this terminal.
    """
    plain = re.sub(_ESCAPE_CODES, "", text)
    return "".join(c if c.isprintable() else " " for c in plain).strip()


def _confirmation_text(confirmation: Mapping[str, Any], target: float | None) -> str:
    mean, episodes = confirmation["mean"], counted(confirmation["n"], "fresh episode")
    missed = target is not None and not mean >= target
    return f"{'not confirmed' if missed else 'confirmed'}: {number(mean)} over {episodes}"


def _where(result: Mapping[str, Any]) -> str:
    return f"round {result['version']:>5,}  {result['env_steps']:>11,} steps"


def _part(done: float, whole: float) -> float:
    return min(1.0, max(0.0, done / whole)) if whole > 0 else 1.0
