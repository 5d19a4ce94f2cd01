"""Training progress on a terminal: a live bar, plain lines for logs, or nothing.

A view never slows or stops the run that it shows: `round` stores, text is made when it is drawn,
and a reader that went away (a closed pipe) silences the view.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from pipelines.report.progress import (
    NO_EPISODES,
    Progress,
    count,
    counted,
    duration,
    evaluation_text,
    number,
    printable,
)

_LONGEST_PAUSE_SECONDS = 60.0


def make_view(quiet: bool, stream: TextIO | None = None) -> TrainingView:
    """Returns the view that suits a stream.

    Args:
        quiet: show nothing at all.
        stream: where to draw; standard error by default, so that results may be piped.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        return SilentView()
    if not _can_redraw(stream):
        return PlainView(stream)
    # rich takes as long to import as a small training round: only a terminal pays for it.
    from pipelines.report.live import LiveView

    return LiveView(stream)


class TrainingView:
    """Shows one training command: `start`, many times `stage` and `round`, then `finish`.

    Usable as a context manager, which closes it. Subclasses draw in the `_show_*` methods.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds since any fixed moment."""
        self.progress = Progress(clock)

    def start(
        self,
        title: str,
        facts: Mapping[str, str],
        limits: Mapping[str, float | None],
        best: tuple[int, float] | None = None,
    ) -> None:
        """Shows what is about to be trained.

        Args:
            title: one line, such as "PPO on CartPole-v1".
            facts: names and values, a line each.
            limits: `stop_return`, `max_env_steps`, `max_rounds`, `max_seconds`; None for no limit.
            best: version and mean of the best evaluation so far, when a run is resumed.
        """
        self.progress.start(title, facts, limits, best)
        self._show_start()

    def stage(self, name: str) -> None:
        """Tells what the run does now (collect, learn, ...). Cheap; any thread may call it."""
        self.progress.stage = name

    def round(self, result: Mapping[str, Any]) -> None:
        """Takes in a round's result: stored here, drawn at the next refresh."""
        self._show_round(self.progress.add(result))

    def notice(self, line: str) -> None:
        """Shows a line that stays: a warning, a piece of information."""
        self._show_line(printable(line))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Replaces the progress with a summary: the result, where the run is, what to do next."""
        self._show_summary("\n".join(summary_lines(result, self.progress)))

    def close(self) -> None:
        """Restores the terminal. May be called again, and from a signal handler."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _show_start(self) -> None:
        """Draws the title and the facts."""

    def _show_round(self, events: list[str]) -> None:
        """Draws a round and the lines about what happened in it."""

    def _show_line(self, line: str) -> None:
        """Draws a line that stays."""

    def _show_summary(self, text: str) -> None:
        """Draws the end of the run."""


class SilentView(TrainingView):
    """Shows nothing (`--quiet`)."""

    def round(self, result: Mapping[str, Any]) -> None:
        """Does nothing."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Does nothing."""


class PlainView(TrainingView):
    """Lines for a log file, a pipe or a dumb terminal, without control characters.

    At most one line a second for rounds, fewer as the run gets longer (every tenth second after ten
    minutes, every minute after an hour); new bests, events and notices always.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Writes to `stream`; `clock` returns seconds since any fixed moment."""
        super().__init__(clock)
        self._stream = stream
        self._next_line = 0.0
        self._pending = False

    def _show_start(self) -> None:
        self._write("\n".join(start_lines(self.progress)))

    def _show_round(self, events: list[str]) -> None:
        elapsed = self.progress.elapsed()
        self._pending = elapsed < self._next_line and not self.progress.new_best
        if not self._pending:
            self._write(self._line(elapsed))
            self._next_line = elapsed + min(max(1.0, elapsed / 60), _LONGEST_PAUSE_SECONDS)
        for event in events:
            self._show_line(event)

    def _show_line(self, line: str) -> None:
        self._write(f"{duration(self.progress.elapsed()):>8}  {line}")

    def _show_summary(self, text: str) -> None:
        if self._pending:
            self._write(self._line(self.progress.elapsed()))
        self._write(f"\n{text}")

    def _line(self, elapsed: float) -> str:
        progress = self.progress
        result = progress.latest or {"version": 0, "env_steps": 0, "episode_return_mean": None}
        mean = result["episode_return_mean"]
        parts = [
            f"{duration(elapsed):>8}",
            f"round {result['version']:>5,}",
            f"{result['env_steps']:>11,} steps",
            f"{count(progress.steps_per_second):>7}/s",
            f"eval {progress.evaluation_mean():>8}",
            f"best {progress.best_mean():>8}",
            f"training: {NO_EPISODES}" if mean is None else f"return {number(mean):>8}",
        ]
        return "  ".join([*parts, "new best"] if progress.new_best else parts)

    def _write(self, text: str) -> None:
        # ValueError: the stream is closed.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()


def start_lines(progress: Progress) -> list[str]:
    """The title, the facts and the stop conditions, a line each."""
    facts = {**progress.facts, "until": _until(progress.limits)}
    return [printable(progress.title), *_aligned(facts, max(map(len, facts)))]


def summary_lines(result: Mapping[str, Any], progress: Progress) -> list[str]:
    """What came out, where the run is and what to do with it, a line each.

    Args:
        result: as `TrainingView.finish` gets it.
        progress: holds the limits and the count of restarted environments.
    """
    run = result["run_dir"]
    evaluation, reached = result["evaluation"], result["first_reached"]
    facts = {
        "env steps": f"{count(result['env_steps'])} in {counted(result['rounds'], 'round')}",
        "time": duration(result["wall_seconds"]),
    }
    if evaluation is not None:
        facts["evaluation"] = evaluation_text(evaluation, progress.limits.get("stop_return"))
    if reached is not None:
        facts["target met"] = f"after {counted(reached['env_steps'], 'env step')}"
        if reached["seconds"] is not None:  # Unknown when that command was killed.
            facts["target met"] += f", {duration(reached['seconds'])}"
    if result["best_version"] is not None:
        facts["best version"] = f"{result['best_version']:,}"
    if progress.env_restarts:
        facts["env restarts"] = f"{progress.env_restarts:,}"
    ways_on = {
        "run": run,
        "resume": f"the same command with --run_dir={_quoted(run)} --resume{_allowed(result)}",
        "plot": f"tensorboard --logdir {_quoted(run.rstrip('/') + '/tensorboard')}",
        "in Python": f"pipelines.algorithm.Algorithm.restore({_arguments(run, result)})",
    }
    width = max(map(len, facts | ways_on))
    return [
        _stop_text(result["stop_reason"], progress.limits),
        *_aligned(facts, width),
        "",
        *_aligned(ways_on, width),
    ]


def _aligned(facts: Mapping[str, str], width: int) -> Iterator[str]:
    for name, value in facts.items():
        yield f"  {printable(name):<{width}}  {printable(value)}"


def _until(limits: Mapping[str, float | None]) -> str:
    texts = [_limit_text(key, value) for key, value in limits.items() if value is not None]
    return " or ".join(texts) or "interrupted"


def _limit_text(key: str, limit: float) -> str:
    if key == "stop_return":
        return f"return {limit:,g}"
    if key == "max_seconds":
        return f"time {duration(limit)}"
    return counted(limit, key.removeprefix("max_").removesuffix("s").replace("_", " "))


def _allowed(result: Mapping[str, Any]) -> str:
    """Flags that let a resumed run import the code it names."""
    return "".join(f" --allow_import={module}" for module in result.get("allow_import", ()))


def _arguments(run: str, result: Mapping[str, Any]) -> str:
    modules = list(result.get("allow_import", ()))
    return f"{run!r}, allow_import={modules!r}" if modules else repr(run)


def _stop_text(reason: str | None, limits: Mapping[str, float | None]) -> str:
    limit = limits.get(reason) if reason is not None else None
    if reason is None or limit is None:
        return f"Stopped: {printable(reason or 'no stop condition is met')}"
    if reason == "stop_return":
        return f"Done: {_limit_text(reason, limit)} reached"
    return f"Stopped: limit of {_limit_text(reason, limit)} reached"


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)


def _can_redraw(stream: TextIO) -> bool:
    terminal = os.environ.get("TERM", "" if os.name != "nt" else "windows").lower()
    try:
        return stream.isatty() and terminal not in ("", "dumb", "unknown")
    except ValueError:  # closed
        return False
