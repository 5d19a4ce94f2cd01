"""Ctrl-C and SIGTERM: the command ends at once with code 130, and the run goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.interrupts import ending_on_signals

if TYPE_CHECKING:
    from tests.integration.conftest import Bits, Commands, Running

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
PROCESSES = (
    "--direct_running_mode=multi_processing",
    "--direct_num_workers=2",
    "--num_rollout_workers=2",
)


def wait_for_version(run_dir: Path, version: int, running: Running) -> None:
    deadline = time.monotonic() + 60
    while not (run_dir / "versions" / f"{version:08d}" / "manifest.json").exists():
        assert time.monotonic() < deadline, running.output
        time.sleep(0.01)


def living_members(group: int) -> list[int]:
    """Processes of a process group that are more than an entry in the table."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            state, _, pgrp = (path / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state != "Z":
            found.append(int(path.name))
    return found


def require_nobody_left(group: int) -> None:
    deadline = time.monotonic() + 10
    while living_members(group):
        assert time.monotonic() < deadline, f"still running: {living_members(group)}"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on_and_does(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path, number: int
) -> None:
    run_dir = tmp_path / "run of mine"
    kill = {
        "inside": "policies.env_runner:EnvRunner.sample",
        "entry": 3,
        "at": "policies.policy:Policy.to_env_action",
        "number": number,
    }
    running = commands.start(run_dir, "--max_rounds=5", "--rounds_per_job=5", kill=kill)
    assert running.wait() == 130
    assert running.output == (
        f"interrupted after round 2; go on with --run_dir='{run_dir}' --resume\n"
    )
    assert not (run_dir / "run.lock").exists()
    commands.run(run_dir, "--resume")
    bits.require_same(run_dir, five_rounds)


def test_a_second_ctrl_c_does_not_wait(commands: Commands, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    running = commands.start(run_dir, "--max_rounds=100000")
    wait_for_version(run_dir, 1, running)
    for _ in range(2):
        os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130
    assert running.output.count("interrupted") <= 1
    commands.run(run_dir, "--resume", "--max_rounds=1")


def test_ctrl_c_ends_the_processes_of_environments_too(commands: Commands, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ("--max_rounds=100000", "--env_isolation=process")
    running = commands.start(run_dir, *flags)
    wait_for_version(run_dir, 1, running)
    assert len(living_members(running.pid)) == 5
    os.killpg(running.pid, signal.SIGINT)  # As a terminal does.
    assert running.wait() == 130
    assert running.output.startswith("interrupted after round ")
    assert running.output.count("\n") == 1
    require_nobody_left(running.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_process_outlives_the_command(
    commands: Commands, tmp_path: Path, number: signal.Signals
) -> None:
    run_dir = tmp_path / "run"
    flags = ("--max_rounds=1000000", "--rounds_per_job=10", "--evaluation_interval=0")
    running = commands.start(run_dir, *flags, *PROCESSES)
    wait_for_version(run_dir, 1, running)
    assert len(living_members(running.pid)) == 3
    if number == signal.SIGINT:
        os.killpg(running.pid, number)  # As a terminal does.
    else:
        os.kill(running.pid, number)
    assert running.wait() == (-number if number == signal.SIGKILL else 130)
    require_nobody_left(running.pid)
    assert "Traceback" not in running.output
    assert ("interrupted after round" in running.output) == (number != signal.SIGKILL)
    commands.run(run_dir, "--resume", "--max_rounds=1")


def test_ctrl_c_while_modules_load_is_one_line(tmp_path: Path) -> None:
    # Stops in the first of the slow imports, as if Ctrl-C came there.
    (tmp_path / "apache_beam.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.train", f"--run_dir={tmp_path / 'run'}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        # A shell may have started the tests in the background, where Ctrl-C is ignored.
        preexec_fn=_take_ctrl_c,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing was written\n")
    assert not (tmp_path / "run").exists()


def _take_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """`nohup` and shells' background jobs want that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_on_signals(lambda: None, lambda: None, lambda: ""):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_tidying_that_hangs_or_fails_holds_nothing_up() -> None:
    code = (
        "import os, signal, time\n"
        "from pipelines import interrupts\n"
        "interrupts._TIDY_SECONDS = 0.2\n"
        "def fail(): raise ValueError\n"
        "with interrupts.ending_on_signals(fail, lambda: time.sleep(60), lambda: 'bye'):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "bye\n")
