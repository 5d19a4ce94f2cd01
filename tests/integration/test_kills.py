"""Drivers killed at exact points and at random ones, resumed to the bits of an unbroken run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.training_command import main
from policies.run_directory import RunDirectory
from policies.run_lock import LOCK, LockHolder, RunLock
from policies.training_run import forget_live_objects

if TYPE_CHECKING:
    from tests.integration.conftest import Bits, Commands, Running

pytestmark = pytest.mark.faults

SAMPLE = "policies.env_runner:EnvRunner.sample"
ACT = "policies.policy:Policy.to_env_action"
EVALUATE = "policies.training_round:evaluate"
LEARN = "transforms.learner:learn"
PUBLISH = "policies.run_directory:RunDirectory.publish"

# Name: (where the driver dies, versions it has published by then).
KILLS: dict[str, tuple[dict[str, Any], int | None]] = {
    "before the run has a config": (
        {"inside": "policies.run_directory:RunDirectory.create", "at": "os:link"},
        None,
    ),
    "before version 0": (
        {"inside": "policies.training_run:TrainingRun.publish_initial", "at": "os:link"},
        None,
    ),
    "while it samples": ({"inside": SAMPLE, "entry": 2, "at": ACT, "call": 5}, 1),
    "while it learns": (
        {
            "inside": LEARN,
            "entry": 3,
            "at": "policies.learners.adam:Adam.step",
            "how": "after",
        },
        2,
    ),
    "between the files of a version": (
        {"inside": LEARN, "entry": 2, "at": "policies.file_store:FileStore.replace", "call": 2},
        1,
    ),
    "while it evaluates": ({"inside": EVALUATE, "entry": 2, "at": ACT, "call": 5}, 1),
    "before the manifest": ({"inside": PUBLISH, "entry": 3, "at": "os:link"}, 1),
    "inside the manifest": (
        {
            "inside": PUBLISH,
            "entry": 3,
            "at": "policies.file_store:_write_and_close",
            "call": 2,
            "how": "half",
            "links": False,
        },
        1,
    ),
    "after the manifest": ({"inside": PUBLISH, "entry": 3, "at": "os:link", "how": "after"}, 2),
    "inside the metrics log": (
        {
            "at": "policies.file_store:FileStore.append",
            "call": 2,
            "how": "half",
        },
        2,
    ),
}


@pytest.fixture(scope="module")
def killed_runs(
    commands: Commands, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Running, Path]]:
    """Drivers that were started side by side, to die at each of the points, and their runs."""
    folder = tmp_path_factory.mktemp("killed")
    return {
        where: (
            commands.start(folder / str(index), "--max_rounds=3", kill=kill),
            folder / str(index),
        )
        for index, (where, (kill, _)) in enumerate(KILLS.items())
    }


@pytest.mark.parametrize("where", KILLS)
def test_a_killed_run_goes_on_to_the_same_bits(
    commands: Commands,
    bits: type[Bits],
    five_rounds: Path,
    killed_runs: dict[str, tuple[Running, Path]],
    where: str,
) -> None:
    killed, run_dir = killed_runs[where]
    assert killed.wait() == -signal.SIGKILL, killed.output
    newest = RunDirectory(str(run_dir)).newest_version()
    assert (newest.version if newest else None) == KILLS[where][1]
    commands.run(run_dir, "--resume", "--max_rounds=5", "--rounds_per_job=2")
    bits.require_same(run_dir, five_rounds)
    assert not (run_dir / LOCK).exists()


def test_a_killed_job_of_many_rounds_goes_on_by_single_ones(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    kill = {"inside": SAMPLE, "entry": 4, "at": ACT, "call": 9}
    killed = commands.start(tmp_path / "run", "--max_rounds=5", "--rounds_per_job=4", kill=kill)
    assert killed.wait() == -signal.SIGKILL
    # The real command, without any other flag: the limit is the run's own.
    done = commands.real(tmp_path / "run", "--resume", "--rounds_per_job=1")
    assert (done.returncode, done.stderr) == (0, "")
    bits.require_same(tmp_path / "run", five_rounds)


def test_a_raised_limit_outlives_the_driver_that_raised_it(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    commands.run(tmp_path / "run", "--max_rounds=1")
    kill = {"inside": SAMPLE, "entry": 2, "at": ACT}
    killed = commands.start(tmp_path / "run", "--max_rounds=5", "--resume", kill=kill)
    assert killed.wait() == -signal.SIGKILL
    commands.run(tmp_path / "run", "--resume")
    bits.require_same(tmp_path / "run", five_rounds)


def test_the_lock_of_a_killed_driver_is_taken_over_at_once(
    commands: Commands, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    killed = commands.start(run_dir, "--max_rounds=2", kill={"at": SAMPLE})
    assert killed.wait() == -signal.SIGKILL
    holder = LockHolder.decode((run_dir / LOCK).read_bytes())
    assert holder is not None and holder.pid == killed.pid
    started = time.monotonic()
    waits: list[str] = []
    with RunLock(str(run_dir), notify=waits.append):
        assert time.monotonic() - started < 5.0
    assert not waits


def _kill_at_random_times(
    commands: Commands, run_dir: Path, seed: int, flags: tuple[str, ...], longest: float
) -> int:
    """Kills a run's process group again and again until it is done; returns how often."""
    rng = random.Random(seed)
    kills = 0
    while True:
        running = commands.start(run_dir, "--resume", *flags)
        # The last attempts may finish.
        time.sleep(rng.uniform(0.05, longest) * (1 + kills / 4))
        os.killpg(running.pid, signal.SIGKILL)
        code = running.wait()
        if code == 0:
            return kills
        assert code == -signal.SIGKILL, running.output
        kills += 1


def test_kills_at_random_times_change_nothing(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    flags = ("--max_rounds=5", "--rounds_per_job=2")
    assert _kill_at_random_times(commands, tmp_path / "run", 1, flags, 0.6) >= 1
    commands.run(tmp_path / "run", "--resume", *flags)
    bits.require_same(tmp_path / "run", five_rounds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_times_with_worker_processes_change_nothing(
    commands: Commands, bits: type[Bits], tmp_path: Path, seed: int
) -> None:
    flags = ("--max_rounds=8", "--rounds_per_job=4", "--num_rollout_workers=2")
    spread = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    commands.run(tmp_path / "whole", *flags)
    _kill_at_random_times(commands, tmp_path / "run", seed, (*flags, *spread), 12.0)
    bits.require_same(tmp_path / "run", tmp_path / "whole")


# --- resuming -----------------------------------------------------------------------------------


def _files(run_dir: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run_dir)): path.read_bytes()
        for path in sorted(run_dir.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def copied(five_rounds: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, for this process to go on with."""
    forget_live_objects()
    return Path(shutil.copytree(five_rounds, tmp_path / "copied"))


def _resume(run_dir: Path, *flags: str) -> int:
    return main([f"--run_dir={run_dir}", "--resume", *flags])


def test_resuming_a_finished_run_changes_nothing(copied: Path) -> None:
    assert _resume(copied, "--quiet") == 0
    before = _files(copied)
    started = time.monotonic()
    assert _resume(copied, "--quiet") == 0
    assert time.monotonic() - started < 5.0
    assert _files(copied) == before


@pytest.mark.parametrize("exists", [False, True])
def test_resuming_an_absent_or_empty_folder_starts_a_run(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path, exists: bool
) -> None:
    run_dir = tmp_path / "run"
    if exists:
        run_dir.mkdir()
    commands.run(run_dir, "--resume", "--max_rounds=1")
    found = bits.manifests(run_dir)
    assert found == {v: h for v, h in bits.manifests(five_rounds).items() if v <= 1}


def test_a_resume_refuses_other_settings_and_lists_them(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _files(copied)
    assert _resume(copied, "--seed=4", "--set=num_epochs=7", "--max_rounds=9") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert "seed: 3 -> 4" in error and "num_epochs: 1 -> 7" in error
    assert "max_rounds:" not in error
    assert _files(copied) == before


def test_a_resume_may_raise_a_return_target(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    commands.run(run_dir, "--stop_return=5", "--set=confirmation_episodes=2")
    assert max(bits.manifests(run_dir)) == 1
    commands.run(run_dir, "--resume", "--stop_return=1000", "--max_rounds=5")
    assert bits.weights(run_dir) == bits.weights(five_rounds)


def test_a_run_that_starts_anew_refuses_a_used_folder(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--run_dir={copied}", "--max_rounds=1"]) == 2
    assert "--resume" in capsys.readouterr().err


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["weights", "optimizer", "rollout"])
@pytest.mark.parametrize("damage", ["missing", "changed", "cut short"])
def test_a_damaged_file_ends_the_resume_with_its_name_and_a_way_back(
    copied: Path,
    bits: type[Bits],
    five_rounds: Path,
    capsys: pytest.CaptureFixture[str],
    stem: str,
    damage: str,
) -> None:
    (path,) = copied.glob(f"versions/00000005/{stem}-*")
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "changed":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut short":
        path.write_bytes(data[:100])
    before = _files(copied)
    assert _resume(copied, "--max_rounds=6", "--quiet") == 1
    error = capsys.readouterr().err
    assert error.startswith("failed: ") and error.count("\n") == 1
    assert str(path) in error
    assert "the newest good version is 4" in error
    assert "remove the folders of higher versions to go on from it" in error
    assert (
        _files(copied)["versions/00000005/manifest.json"]
        == (before["versions/00000005/manifest.json"])
    )
    assert not (copied / "versions/00000006/manifest.json").exists()
    # The way back that the message names.
    shutil.rmtree(copied / "versions/00000005")
    shutil.rmtree(copied / "versions/00000006", ignore_errors=True)
    assert _resume(copied, "--max_rounds=5", "--quiet") == 0
    bits.require_same(copied, five_rounds)


def test_a_manifest_of_another_program_ends_the_resume(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "versions/00000005/manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":99'))
    assert _resume(copied, "--max_rounds=6", "--quiet") == 1
    error = capsys.readouterr().err
    assert error.startswith("failed: ") and error.count("\n") == 1
    assert str(path) in error and "schema_version 99" in error
    assert "the newest good version is 4" in error
    assert path.exists()


def test_a_torn_manifest_is_removed_aloud_and_its_round_made_again(
    copied: Path, bits: type[Bits], five_rounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "versions/00000005/manifest.json"
    path.write_bytes(path.read_bytes()[:200])
    assert _resume(copied) == 0
    output = capsys.readouterr()
    assert f"removed {path}, which was not written whole" in output.out + output.err
    bits.require_same(copied, five_rounds)


def test_a_damaged_config_ends_the_resume_with_its_name(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "config.json").write_text('{"schema_version": 1}')
    assert _resume(copied) == 1
    error = capsys.readouterr().err
    assert str(copied / "config.json") in error and error.count("\n") == 1
