from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipelines.report.tensorboard import scalars, write_events


def round_result(version: int, **changes: Any) -> dict[str, Any]:
    return {
        "version": version,
        "env_steps": 1000 * version,
        "env_steps_this_round": 1000,
        "episodes_this_round": 3,
        "episode_return_mean": 10.0 + version,
        "episodes_in_window": 3,
        "round_return_mean": 20.5,
        "round_length_mean": 20.5,
        "env_restarts": 0,
        "env_error": None,
        "evaluation": None,
        "learner": {"policy_loss": 0.25},
        "seconds": {"collect": 0.3, "wall": 0.5},
        "stop_reason": None,
    } | changes


def rounds(first: int, last: int) -> list[dict[str, Any]]:
    return [round_result(version) for version in range(first, last + 1)]


def read(run: Path | str) -> EventAccumulator:
    accumulator = EventAccumulator(f"{run}/tensorboard", size_guidance={"scalars": 0})
    return accumulator.Reload()


def series(run: Path | str, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(run).Scalars(tag)]


def event_files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "tensorboard").iterdir())


@pytest.fixture
def memory_run() -> Iterator[str]:
    url = f"memory://{uuid.uuid4().hex}/run"
    yield url
    fsspec.filesystem("memory").rm(url, recursive=True)


def test_scalars_are_grouped_and_absent_ones_left_out() -> None:
    evaluation = {
        "mean": 3.0,
        "std": 1.0,
        "n": 20,
        "capped": 1,
        "lengths": [1, 2],
        "confirmation": {"mean": 2.5, "n": 100},
    }
    assert scalars(round_result(2, evaluation=evaluation, round_length_mean=None)) == {
        "rollout/version": 2,
        "rollout/episode_return_mean": 12,
        "rollout/round_return_mean": 20.5,
        "rollout/episodes": 3,
        "rollout/env_restarts": 0,
        "evaluation/mean": 3,
        "evaluation/std": 1,
        "evaluation/n": 20,
        "evaluation/capped": 1,
        "evaluation/confirmation/mean": 2.5,
        "learner/policy_loss": 0.25,
        "time/collect_seconds": 0.3,
        "time/wall_seconds": 0.5,
        "time/steps_per_second": 2000,
    }


def test_a_round_without_an_episode_or_timings_has_no_such_tags() -> None:
    bare = round_result(1, episode_return_mean=None, seconds={}, learner={"kl": np.float32(0.5)})
    tags = scalars(bare)
    assert not [tag for tag in tags if tag.startswith(("time/", "evaluation/"))]
    assert "rollout/episode_return_mean" not in tags
    assert tags["learner/kl"] == 0.5


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    path = write_events(str(tmp_path), rounds(1, 3), from_version=0)
    assert path == str(tmp_path / "tensorboard" / "events.out.tfevents.0000000000.beamrl")
    assert series(tmp_path, "rollout/episode_return_mean") == [(1000, 11), (2000, 12), (3000, 13)]
    assert series(tmp_path, "learner/policy_loss") == [(s, 0.25) for s in (1000, 2000, 3000)]


def test_object_stores_get_the_same_file(tmp_path: Path, memory_run: str) -> None:
    for last in (2, 4):
        path = write_events(memory_run, rounds(1, last), from_version=0)
    assert path is not None
    (tmp_path / "tensorboard").mkdir()
    fsspec.filesystem("memory").get(path, str(tmp_path / "tensorboard"))
    assert [step for step, _ in series(tmp_path, "learner/policy_loss")] == [
        *(1000, 2000, 3000, 4000)
    ]


def test_without_rounds_there_is_no_file(tmp_path: Path) -> None:
    assert write_events(str(tmp_path), [], from_version=0) is None
    assert write_events(str(tmp_path), rounds(1, 2), from_version=5) is None
    assert list(tmp_path.iterdir()) == []


def test_more_rounds_are_appended_so_that_an_open_tensorboard_follows(tmp_path: Path) -> None:
    path = write_events(str(tmp_path), rounds(1, 2), from_version=0)
    assert path is not None
    before, inode = Path(path).read_bytes(), Path(path).stat().st_ino
    write_events(str(tmp_path), rounds(1, 4), from_version=0)
    after = Path(path).read_bytes()
    assert after.startswith(before) and len(after) > len(before)
    assert Path(path).stat().st_ino == inode
    write_events(str(tmp_path), rounds(1, 4), from_version=0)
    assert Path(path).read_bytes() == after


def test_a_torn_file_is_mended(tmp_path: Path) -> None:
    path = write_events(str(tmp_path), rounds(1, 3), from_version=0)
    assert path is not None
    whole = Path(path).read_bytes()
    for length in (5, len(whole) // 2, len(whole) - 1):
        Path(path).write_bytes(whole[:length])
        write_events(str(tmp_path), rounds(1, 3), from_version=0)
        assert len(series(tmp_path, "learner/policy_loss")) == 3


def wall_times(run: Path) -> Sequence[float]:
    return [event.wall_time for event in read(run).Scalars("learner/policy_loss")]


def test_a_resumed_run_is_one_curve_without_a_gap(tmp_path: Path) -> None:
    write_events(str(tmp_path), rounds(1, 3), from_version=0)
    time.sleep(0.02)
    write_events(str(tmp_path), rounds(4, 6), from_version=3)
    assert len(event_files(tmp_path)) == 2
    steps = [step for step, _ in series(tmp_path, "learner/policy_loss")]
    assert steps == [1000, 2000, 3000, 4000, 5000, 6000]
    assert np.diff(wall_times(tmp_path)) == pytest.approx([0.5] * 5, abs=1e-6)
    assert wall_times(tmp_path)[2] == pytest.approx(time.time(), abs=60)


def test_rounds_made_again_are_drawn_once(tmp_path: Path) -> None:
    write_events(str(tmp_path), rounds(1, 6), from_version=0)
    again = [round_result(version, learner={"policy_loss": 0.5}) for version in (4, 5)]
    write_events(str(tmp_path), again, from_version=3)
    assert series(tmp_path, "learner/policy_loss") == [
        *((1000, 0.25), (2000, 0.25), (3000, 0.25), (4000, 0.5), (5000, 0.5))
    ]
    assert np.diff(wall_times(tmp_path)) == pytest.approx([0.5] * 4, abs=1e-6)


def test_a_command_replaces_those_that_began_later(tmp_path: Path) -> None:
    write_events(str(tmp_path), rounds(1, 3), from_version=0)
    write_events(str(tmp_path), rounds(4, 6), from_version=3)
    foreign = tmp_path / "tensorboard" / "events.out.tfevents.9999999999.other"
    foreign.write_bytes(b"")
    write_events(str(tmp_path), rounds(1, 6), from_version=0)
    assert event_files(tmp_path) == [
        "events.out.tfevents.0000000000.beamrl",
        "events.out.tfevents.9999999999.other",
    ]
    assert len(series(tmp_path, "learner/policy_loss")) == 6


def test_tensorboard_is_imported_only_when_events_are_written() -> None:
    code = (
        "import sys, pipelines.report.tensorboard as t; t.write_events('x', [], from_version=0);"
        "assert not {'tensorboard', 'torch', 'tensorflow'} & set(sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
