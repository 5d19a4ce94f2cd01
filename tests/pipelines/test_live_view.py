from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelines.report.live import LiveView, draw
from pipelines.report.progress import Progress

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def round_result(version: int, **changes: Any) -> dict[str, Any]:
    return {
        "version": version,
        "env_steps": 1000 * version,
        "env_steps_this_round": 1000,
        "episode_return_mean": 20.5,
        "env_restarts": 0,
        "env_error": None,
        "evaluation": None,
        "seconds": {"wall": 0.5},
    } | changes


def evaluation(mean: float) -> dict[str, Any]:
    return {"mean": mean, "std": 1.0, "n": 20, "capped": 0}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def progress_with(clock: Clock, **limits: float) -> Progress:
    progress = Progress(clock)
    progress.start("PPO on X", {}, limits)
    return progress


def drawn(progress: Progress, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, legacy_windows=False).print(draw(progress, width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_drawing_shows_every_number(clock: Clock) -> None:
    progress = progress_with(clock, max_env_steps=10_000)
    clock.now += 1
    progress.add(round_result(1, evaluation=evaluation(30)))
    clock.now += 1
    progress.add(round_result(2, evaluation=evaluation(25)))
    progress.stage = "learn"
    blank, first, second, bar = drawn(progress, 80)
    assert blank == ""
    assert re.split(r" {2,}", first) == ["round 2", "env steps 2,000", "steps/s 1,333", "learn"]
    assert re.split(r" {2,}", second) == [
        *("return 20.5", "evaluation 25.0", "best 30.0", "elapsed 0:02")
    ]
    assert bar.endswith(" 20% of 10,000 env steps, 0:06 left")


@pytest.mark.parametrize("width", [20, 40, 80, 100])
def test_the_drawing_fits_the_terminal(clock: Clock, width: int) -> None:
    progress = progress_with(clock, max_env_steps=1e12)
    big = {"env_steps": 10**9, "episode_return_mean": -1e15, "evaluation": evaluation(-99_999.9)}
    for changes in ({"episode_return_mean": None}, big):
        progress.add(round_result(99_999, **changes))
        lines = drawn(progress, width)
        assert len(lines) == 4
        assert max(map(len, lines)) <= width


def test_before_the_first_round_the_drawing_has_no_numbers(
    clock: Clock,
) -> None:
    _, first, second = drawn(progress_with(clock), 80)
    assert re.split(r" {2,}", first) == ["round -", "env steps -", "steps/s -", "start"]
    assert second.startswith("0 episodes finished  evaluation -")


def test_the_live_view_gives_the_terminal_back() -> None:
    stream, standard = FakeTerminal(), (sys.stdout, sys.stderr)
    with LiveView(stream) as view:
        view.start("PPO on CartPole-v1", {"seed": "0"}, {"max_env_steps": 10_000})
        view.stage("collect")
        view.notice("a notice")
        view.round(round_result(2, evaluation=evaluation(30)))
        view.finish(
            {
                "stop_reason": "max_env_steps",
                "env_steps": 10_000,
                "rounds": 10,
                "wall_seconds": 73.0,
                "best_version": 2,
                "first_reached": None,
                "evaluation": evaluation(30),
                "run_dir": "/runs/x",
            }
        )
    view.close()
    text = stream.getvalue()
    assert (sys.stdout, sys.stderr) == standard
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    for part in ("PPO on CartPole-v1", "a notice", "new best evaluation 30.0", "Stopped: limit of"):
        assert part in text


@pytest.mark.parametrize("how", ["raises", "signal"])
def test_a_run_that_dies_leaves_a_usable_terminal(how: str) -> None:
    code = f"""
        import os, signal, sys, time
        from pipelines.report.terminal import make_view
        view = make_view(False)
        def end(number, frame):
            view.close()
            os._exit(3)
        signal.signal(signal.SIGINT, end)
        with view:
            view.start("PPO", {{}}, {{"max_seconds": 100}})
            view.notice("started")
            if {how == "raises"}:
                sys.exit(3)
            while True:
                view.notice("busy")
    """
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown, interrupted = b"", False
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
        if how == "signal" and b"busy" in shown and not interrupted:
            child.send_signal(signal.SIGINT)
            interrupted = True
    os.close(ours)
    assert child.wait(timeout=20) == 3, shown[-2000:]
    assert b"started" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
