"""The live view: a few lines at the bottom of a terminal, above which events scroll."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipelines.report.progress import NO_EPISODES, Progress, count, duration, printable
from pipelines.report.terminal import TrainingView, start_lines

_REFRESHES_PER_SECOND = 4
_CELL_WIDTHS = (21, 24, 19, 16)
_WIDEST = 100
_SHOW_CURSOR = b"\x1b[?25h"


class LiveView(TrainingView):
    """A progress bar and the latest numbers, redrawn a few times a second by a thread.

    When the run finishes, the summary takes its place; when it fails, its last state stays.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Draws on `stream`, a terminal; `clock` returns seconds since any fixed moment."""
        super().__init__(clock)
        self._stream = stream
        self._console = Console(
            file=stream, force_terminal=True, force_jupyter=False, highlight=False, markup=False
        )
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=_REFRESHES_PER_SECOND,
            # What an environment prints goes above the bar, unless it goes into a file.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._closing = self._closed = False

    def close(self) -> None:
        """Stops redrawing and restores the cursor and the standard streams."""
        if self._closed:
            return
        try:
            if not self._closing:
                self._closing = True
                with self._silenced():
                    self._live.stop()
        finally:
            # A signal may have arrived inside a write to the terminal, which refuses another one.
            with self._silenced():
                os.write(self._stream.fileno(), _SHOW_CURSOR)
            self._closed = True

    def _show_start(self) -> None:
        title, *facts = start_lines(self.progress)
        self._print(Text(title, style="bold"))
        for fact in facts:
            self._print(Text(fact))
        with self._silenced():
            self._live.start()

    def _show_round(self, events: list[str]) -> None:
        best = [self.progress.best_line()] if self.progress.new_best else []
        for event in [*best, *events]:
            self._show_line(event)

    def _show_line(self, line: str) -> None:
        elapsed = duration(self.progress.elapsed())
        self._print(Text.assemble((f"{elapsed:>8}  ", "dim"), line))

    def _show_summary(self, text: str) -> None:
        self._live.transient = True
        self.close()
        self._print(Text(f"\n{text}"))

    def _print(self, text: Text) -> None:
        with self._silenced():
            self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def _silenced(self) -> Iterator[None]:
        # RuntimeError: a reentrant write from a signal handler. ValueError: the stream is closed.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            yield

    def _draw(self) -> RenderableType:
        return draw(self.progress, min(self._console.width, _WIDEST))


def draw(progress: Progress, width: int) -> RenderableType:
    """Returns the bar and two lines of numbers, `width` characters wide."""
    latest = progress.latest
    cells = Table.grid(padding=(0, 0))
    for cell_width in _CELL_WIDTHS:
        cells.add_column(
            width=cell_width * width // sum(_CELL_WIDTHS), no_wrap=True, overflow="ellipsis"
        )
    cells.add_row(
        _cell("round", count(latest["version"] if latest else None)),
        _cell("env steps", count(latest["env_steps"] if latest else None)),
        _cell("steps/s", count(progress.steps_per_second)),
        Text(printable(progress.stage), style="cyan"),
    )
    text = progress.return_text()
    cells.add_row(
        Text(text, "dim") if text == NO_EPISODES else _cell(*text.split(" ", 1)),
        _cell("evaluation", progress.evaluation_mean()),
        _cell("best", progress.best_mean()),
        _cell("elapsed", duration(progress.elapsed())),
    )
    bar = _bar(progress, width)
    return Group("", cells, *([bar] if bar is not None else []))


def _cell(name: str, value: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), value)


def _bar(progress: Progress, width: int) -> RenderableType | None:
    limit = progress.nearest_limit()
    if limit is None:
        return None
    label = f"{limit.fraction:4.0%} {limit.text}"
    if limit.seconds_left is not None and limit.fraction < 1:
        label += f", {duration(limit.seconds_left)} left"
    line = Table.grid(padding=(0, 1))
    line.add_column(width=max(10, width - len(label) - 2))
    line.add_column(no_wrap=True)
    bar = ProgressBar(
        total=1.0, completed=limit.fraction, complete_style="cyan", finished_style="cyan"
    )
    line.add_row(bar, label)
    return line
