"""What rounds and runs report, in one go or resumed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.metrics_log import MetricsLog
from policies.round_results import Beside, RunSummary, process_started, read_beside, round_result
from policies.run_directory import TIMINGS, RunDirectory, VersionInfo


def _evaluation(mean: float, confirmation: float | None = None) -> dict[str, Any]:
    result: dict[str, Any] = {"mean": mean, "std": 0.5, "n": 2, "lengths": [3, 4], "capped": 0}
    if confirmation is not None:
        result["confirmation"] = {"mean": confirmation, "std": 1.5, "n": 3, "lengths": [1, 2, 3]}
    return result


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {})


def _publish(run: RunDirectory, *evaluations: dict[str, Any] | None) -> None:
    for version, evaluation in enumerate(evaluations):
        weights = run.write_arrays(version, "weights", {"a": np.full(2, version, np.float32)})
        facts = {"files": [weights], "env_steps": 10 * version, "evaluation": evaluation}
        run.publish(version, facts)


def _added(target: float | None, *evaluations: dict[str, Any] | None) -> RunSummary:
    summary = RunSummary(target)
    for version, evaluation in enumerate(evaluations):
        summary.add(version, 10 * version, evaluation, None)
    return summary


def test_a_round_reports_its_numbers_and_the_mean_of_recent_returns() -> None:
    metrics = {
        "env_steps": 64,
        "env_restarts": 1,
        "episodes": {"episodes": 3, "return_mean": 2.0, "length_mean": 7.0},
        "learner": {"kl": 0.5},
    }
    manifest = {
        "env_steps": 128,
        "metrics": metrics,
        "recent_returns": [1.0, 2.0, 6.0],
        "evaluation": _evaluation(4.0),
    }
    info = VersionInfo(2, "/run/versions/00000002", manifest, "")
    result = round_result(info, {"learn": 0.25}, "env 0: ValueError")
    assert result == {
        "version": 2,
        "env_steps": 128,
        "env_steps_this_round": 64,
        "episodes_this_round": 3,
        "episode_return_mean": 3.0,
        "episodes_in_window": 3,
        "round_return_mean": 2.0,
        "round_length_mean": 7.0,
        "env_restarts": 1,
        "env_error": "env 0: ValueError",
        "evaluation": _evaluation(4.0),
        "learner": {"kl": 0.5},
        "seconds": {"learn": 0.25},
        "stop_reason": None,
    }


def test_a_round_without_a_finished_episode_has_no_mean_return() -> None:
    manifest = {"env_steps": 0, "metrics": {}, "recent_returns": [], "evaluation": None}
    result = round_result(VersionInfo(0, "/run/versions/00000000", manifest, ""), {})
    assert result["episode_return_mean"] is None
    assert result["episodes_this_round"] == 0


def test_timings_that_a_killed_writer_left_out_are_empty(run: RunDirectory) -> None:
    assert read_beside(run, 1) == Beside()
    run.write_json(f"versions/00000001/{TIMINGS}", {"learn": 0.5, "env_error": "bad", "x": [1]})
    assert read_beside(run, 1) == Beside({"learn": 0.5}, "bad")


def test_the_best_version_is_the_latest_of_equals() -> None:
    summary = _added(None, None, _evaluation(2.0), _evaluation(5.0), _evaluation(5.0))
    assert (summary.best_version, summary.best_mean) == (3, 5.0)
    assert not summary.add(4, 40, _evaluation(4.0), None)
    assert summary.add(5, 50, _evaluation(6.0), None)
    assert not summary.add(6, 60, None, None)
    assert summary.best_version == 5 and summary.evaluation == _evaluation(6.0)


def test_the_target_is_reached_once() -> None:
    summary = RunSummary(5.0)
    summary.add(1, 10, _evaluation(4.9), 1.0)
    assert summary.first_reached is None
    summary.add(2, 20, _evaluation(5.0), 2.0)
    summary.add(3, 30, _evaluation(9.0), 3.0)
    assert summary.first_reached == {"env_steps": 20, "seconds": 2.0}


def test_the_log_gives_the_summary_that_the_rounds_gave(run: RunDirectory) -> None:
    evaluations = (None, _evaluation(3.0), _evaluation(7.0, 6.0), _evaluation(5.0), None)
    _publish(run, *evaluations)
    MetricsLog(run).update()
    assert RunSummary.of_log(run, 6.5) == _added(6.5, *evaluations)
    assert RunSummary.of_log(run, None) == _added(None, *evaluations)


def test_a_torn_or_foreign_line_of_the_log_is_passed_over(run: RunDirectory) -> None:
    _publish(run, None, _evaluation(3.0))
    MetricsLog(run).update()
    run.store.append("metrics.jsonl", b'[1]\n{"version": 2}\n{"version": 3, "env_st')
    assert RunSummary.of_log(run, None) == _added(None, None, _evaluation(3.0))


def test_an_absent_log_gives_an_empty_summary(run: RunDirectory) -> None:
    assert RunSummary.of_log(run, 1.0) == RunSummary(1.0)


def test_the_process_started_before_now_and_does_not_move() -> None:
    first = process_started()
    time.sleep(0.02)
    assert first < time.time()
    assert abs(process_started() - first) < 0.02
