from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.report.live import LiveView
from pipelines.report.progress import Progress, duration, evaluation_text, number, printable
from pipelines.report.terminal import PlainView, SilentView, TrainingView, make_view

LIMITS = {"stop_return": 475.0, "max_env_steps": 10_000, "max_rounds": None, "max_seconds": None}
ROOT = Path(__file__).resolve().parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

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
        "episodes_this_round": 3,
        "episode_return_mean": 20.5,
        "episodes_in_window": 3,
        "round_return_mean": 20.5,
        "round_length_mean": 20.5,
        "env_restarts": 0,
        "env_error": None,
        "evaluation": None,
        "learner": {"policy_loss": 0.1},
        "seconds": {"wall": 0.5},
        "stop_reason": None,
    } | changes


def evaluation(mean: float, **more: Any) -> dict[str, Any]:
    return {"mean": mean, "std": 1.0, "n": 20, "capped": 0} | more


def final_result(**changes: Any) -> dict[str, Any]:
    return {
        "stop_reason": "stop_return",
        "env_steps": 45_056,
        "rounds": 22,
        "wall_seconds": 73.0,
        "best_version": 22,
        "first_reached": {"env_steps": 45_056, "seconds": 72.0},
        "evaluation": evaluation(480.0),
        "run_dir": "/runs/cart pole",
    } | changes


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def started(clock: Clock) -> Callable[..., Progress]:
    def make(**limits: float) -> Progress:
        progress = Progress(clock)
        progress.start("PPO on X", {"seed": "0"}, limits)
        return progress

    return make


# --- the numbers ----------------------------------------------------------------------------------


def test_numbers_are_short_and_never_nan() -> None:
    assert [number(x) for x in (143.21, 0.7414, 1.5, 475.0, -12345.6, 1234567.0)] == [
        *("143.2", "0.741", "1.50", "475.0", "-12,345.6", "1.235e+06")
    ]
    assert [number(x) for x in (None, float("nan"), float("inf"), 0.0)] == ["-", "-", "inf", "0.0"]


def test_durations_show_hours_only_when_there_are_some() -> None:
    assert [duration(s) for s in (0, 61.9, 3600, 36_061, -1)] == [
        *("0:00", "1:01", "1:00:00", "10:01:01", "0:00")
    ]


def test_texts_lose_escape_codes_and_line_breaks() -> None:
    assert printable("\x1b[31mbad\x1b[0m\nstate\x07 ") == "bad state"


def test_an_evaluation_tells_what_it_rests_on() -> None:
    text = evaluation_text(evaluation(480, capped=2, confirmation={"mean": 476.0, "n": 100}))
    assert (
        text
        == "480.0 (std 1.0, 20 episodes, 2 cut short), confirmed: 476.0 over 100 fresh episodes"
    )
    assert evaluation_text({"mean": 480.0, "n": 100}) == "480.0 (100 episodes)"
    missed = {"mean": 480.0, "n": 1, "confirmation": {"mean": 470.0, "n": 1}}
    text = evaluation_text(missed, target=475.0)
    assert text == "480.0 (1 episode), not confirmed: 470.0 over 1 fresh episode"


def test_no_finished_episode_is_said_in_words(started: Callable[..., Progress]) -> None:
    progress = started()
    assert progress.return_text() == "0 episodes finished"
    progress.add(round_result(1, episode_return_mean=None, episodes_in_window=0))
    assert progress.return_text() == "0 episodes finished"
    progress.add(round_result(2))
    assert progress.return_text() == "return 20.5"


def test_speed_is_that_of_the_last_ten_seconds(
    started: Callable[..., Progress], clock: Clock
) -> None:
    progress = started()
    clock.now += 5  # starting up does not count
    progress.add(round_result(1))
    assert progress.steps_per_second == pytest.approx(1000 / 0.5)
    for version in range(2, 40):
        clock.now += 2
        progress.add(round_result(version))
    assert progress.steps_per_second == pytest.approx(500)


def test_only_a_better_evaluation_is_a_new_best(started: Callable[..., Progress]) -> None:
    progress = started()
    progress.add(round_result(1))
    assert not progress.new_best
    progress.add(round_result(2, evaluation=evaluation(30)))
    assert progress.new_best
    assert progress.best_line() == "round     2        2,000 steps  new best evaluation 30.0"
    progress.add(round_result(3, evaluation=evaluation(29)))
    assert not progress.new_best
    assert progress.evaluation_mean() == "29.0"
    assert progress.best == (2, 30)


def test_a_resumed_run_keeps_its_best(clock: Clock) -> None:
    progress = Progress(clock)
    progress.start("", {}, {}, best=(7, 100.0))
    progress.add(round_result(9, evaluation=evaluation(99)))
    assert not progress.new_best
    assert progress.best_mean() == "100.0"


@pytest.mark.parametrize(("mean", "word"), [(475.0, "confirmed"), (474.9, "not confirmed")])
def test_a_confirmation_is_told_against_its_target(
    started: Callable[..., Progress], mean: float, word: str
) -> None:
    again = {"mean": mean, "n": 100}
    result = round_result(2, evaluation=evaluation(480, confirmation=again))
    assert started(stop_return=475.0).add(result) == [
        f"round     2        2,000 steps  {word}: {mean} over 100 fresh episodes"
    ]


def test_restarts_are_counted_and_each_error_told_once(started: Callable[..., Progress]) -> None:
    progress = started()
    failing = {"env_restarts": 2, "env_error": "ValueError: bad"}
    assert progress.add(round_result(1, **failing)) == ["environment restarted: ValueError: bad"]
    assert progress.add(round_result(2, **failing)) == []
    assert progress.env_restarts == 4


def test_the_limit_that_comes_first_is_shown(
    started: Callable[..., Progress], clock: Clock
) -> None:
    progress = started(max_env_steps=10_000, max_rounds=5, max_seconds=100)
    clock.now += 1
    progress.add(round_result(1, seconds={"wall": 1.0}))
    clock.now += 1
    progress.add(round_result(2))
    limit = progress.nearest_limit()
    assert limit is not None
    assert (limit.text, limit.fraction) == ("of 5 rounds", pytest.approx(0.4))
    assert limit.seconds_left == pytest.approx(3.0)


def test_a_resumed_run_compares_limits_from_where_it_began(
    started: Callable[..., Progress], clock: Clock
) -> None:
    progress = started(max_env_steps=100_000, max_seconds=10)
    clock.now += 1
    progress.add(round_result(50, seconds={"wall": 1.0}))
    limit = progress.nearest_limit()
    assert limit is not None
    assert (limit.text, limit.seconds_left) == ("of 0:10", pytest.approx(9.0))


def test_the_way_to_a_return_begins_at_the_first_evaluation(
    started: Callable[..., Progress],
) -> None:
    progress = started(stop_return=-100.0)
    progress.add(round_result(1, evaluation=evaluation(-200)))
    progress.add(round_result(2, evaluation=evaluation(-150)))
    limit = progress.nearest_limit()
    assert limit is not None
    assert limit == ("to return -100", pytest.approx(0.5), None)


@pytest.mark.parametrize(
    ("max_env_steps", "shown"),
    [(1_000_000, "to return 100"), (8_000, "to return 100"), (3_000, "of 3,000 env steps")],
)
def test_a_return_gives_way_only_to_a_limit_that_is_clearly_nearer(
    started: Callable[..., Progress], clock: Clock, max_env_steps: int, shown: str
) -> None:
    progress = started(stop_return=100.0, max_env_steps=max_env_steps)
    for version, mean in ((1, 0.0), (2, 30.0)):
        limit = progress.nearest_limit()
        assert limit is not None
        if version == 1 or max_env_steps == 1_000_000:
            assert (limit.text, limit.seconds_left) == ("to return 100", None)
        clock.now += 1
        progress.add(round_result(version, evaluation=evaluation(mean)))
    limit = progress.nearest_limit()
    assert limit is not None
    assert limit.text == shown


def test_without_limits_there_is_none_to_show(started: Callable[..., Progress]) -> None:
    assert started().nearest_limit() is None


# --- choosing a view ------------------------------------------------------------------------------


def test_the_view_suits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert type(make_view(False, FakeTerminal())) is LiveView
    assert type(make_view(False, io.StringIO())) is PlainView
    assert type(make_view(True, FakeTerminal())) is SilentView
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_view(False, FakeTerminal())) is PlainView


def test_rich_is_imported_only_for_a_terminal() -> None:
    code = """
        import io, sys
        from pipelines.report.terminal import make_view
        make_view(False, io.StringIO()), make_view(True)
        assert not {"rich", "numpy", "apache_beam", "torch"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=True)


# --- silent and plain -----------------------------------------------------------------------------


def play(view: TrainingView) -> None:
    with view:
        view.start("PPO on CartPole-v1", {"seed": "0"}, LIMITS)
        view.stage("collect")
        view.round(round_result(1, episode_return_mean=None))
        view.notice("a notice")
        view.round(round_result(2, evaluation=evaluation(30)))
        view.finish(final_result())
    view.close()


def test_quiet_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    play(make_view(True))
    assert capfd.readouterr() == ("", "")


def test_plain_lines_tell_the_run_from_start_to_end(clock: Clock) -> None:
    stream = io.StringIO()
    play(PlainView(stream, clock))
    assert stream.getvalue().splitlines() == [
        "PPO on CartPole-v1",
        "  seed   0",
        "  until  return 475 or 10,000 env steps",
        "    0:00  round     1        1,000 steps    2,000/s"
        "  eval        -  best        -  training: 0 episodes finished",
        "    0:00  a notice",
        "    0:00  round     2        2,000 steps    4,000/s"
        "  eval     30.0  best     30.0  return     20.5  new best",
        "",
        "Done: return 475 reached",
        "  env steps     45,056 in 22 rounds",
        "  time          1:13",
        "  evaluation    480.0 (std 1.0, 20 episodes)",
        "  target met    after 45,056 env steps, 1:12",
        "  best version  22",
        "",
        "  run           /runs/cart pole",
        "  resume        the same command with --run_dir='/runs/cart pole' --resume",
        "  plot          tensorboard --logdir '/runs/cart pole/tensorboard'",
        "  in Python     pipelines.algorithm.Algorithm.restore('/runs/cart pole')",
    ]


def test_plain_lines_come_once_a_second_and_then_more_rarely(clock: Clock) -> None:
    stream = io.StringIO()
    view = PlainView(stream, clock)
    view.start("PPO", {}, {})
    elapsed = []
    for version in range(1, 40_001):
        before = stream.tell()
        view.round(round_result(version))
        if stream.tell() > before:
            elapsed.append(clock.now - 1000)
        clock.now += 0.1
    pauses = [b - a for a, b in zip(elapsed, elapsed[1:], strict=False)]
    assert min(pauses) >= 1 - 1e-6
    assert pauses[:5] == pytest.approx([1.0] * 5)
    assert max(pauses) <= 60.2
    assert len(elapsed) < 350  # of 4000 seconds


def test_a_reader_that_went_away_does_not_stop_the_run(clock: Clock) -> None:
    read, write = os.pipe()
    os.close(read)
    stream = open(write, "w")  # noqa: SIM115
    play(PlainView(stream, clock))
    with pytest.raises(BrokenPipeError):
        stream.close()
    play(PlainView(stream, clock))  # closed now


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("max_env_steps", "Stopped: limit of 10,000 env steps reached"),
        ("interrupted", "Stopped: interrupted"),
        (None, "Stopped: no stop condition is met"),
    ],
)
def test_the_summary_says_why_it_ended(clock: Clock, reason: str | None, text: str) -> None:
    stream = io.StringIO()
    view = PlainView(stream, clock)
    view.start("PPO", {}, LIMITS)
    view.finish(
        final_result(stop_reason=reason, best_version=None, first_reached=None, evaluation=None)
    )
    assert text in stream.getvalue().splitlines()
    assert "None" not in stream.getvalue()


def test_one_round_is_one_round(clock: Clock) -> None:
    stream = io.StringIO()
    view = PlainView(stream, clock)
    view.start("PPO", {}, {"max_rounds": 1})
    view.finish(final_result(stop_reason="max_rounds", rounds=1))
    lines = stream.getvalue().splitlines()
    assert "  until  1 round" in lines
    assert "Stopped: limit of 1 round reached" in lines
    assert "  env steps     45,056 in 1 round" in lines
