"""Two drivers on one run directory: one is refused, or both go on to the same versions."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from policies.run_directory import RunDirectory
from policies.run_lock import LOCK

if TYPE_CHECKING:
    from tests.integration.conftest import Bits, Commands, Running

pytestmark = pytest.mark.faults

PAUSE_IN_ROUND_2 = {
    "inside": "policies.env_runner:EnvRunner.sample",
    "entry": 2,
    "at": "policies.policy:Policy.to_env_action",
    "number": signal.SIGSTOP,
}
PAUSE_BEFORE_MANIFEST_2 = {
    "inside": "policies.run_directory:RunDirectory.publish",
    "entry": 3,
    "at": "os:link",
    "number": signal.SIGSTOP,
}


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} did not stop")


@pytest.fixture
def paused(commands: Commands, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A driver that stands still in its second round, its lock held."""
    flags = ("--max_rounds=5", "--rounds_per_job=3")
    running = commands.start(tmp_path / "run", *flags, kill=request.param)
    _wait_until_stopped(running.pid)
    yield running
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("paused", [PAUSE_IN_ROUND_2], indirect=True)
def test_a_second_driver_is_refused_with_the_process_of_the_first(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path, paused: Running
) -> None:
    second = commands.start(tmp_path / "run", "--max_rounds=5", "--resume")
    assert second.wait() == 2
    assert second.output.startswith("error: ") and second.output.count("\n") == 1
    assert f"process {paused.pid} " in second.output
    os.kill(paused.pid, signal.SIGCONT)
    assert paused.wait() == 0, paused.output
    bits.require_same(tmp_path / "run", five_rounds)


@pytest.mark.parametrize(
    "paused", [PAUSE_IN_ROUND_2, PAUSE_BEFORE_MANIFEST_2], indirect=True, ids=["round", "manifest"]
)
def test_a_driver_that_lost_its_lock_adopts_what_the_other_published(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path, paused: Running
) -> None:
    run_dir = tmp_path / "run"
    # As if the first one's host had been silent for so long that a second took over.
    (run_dir / LOCK).unlink()
    commands.run(run_dir, "--max_rounds=5", "--resume", "--rounds_per_job=2")
    bits.require_same(run_dir, five_rounds)
    before = {path: path.stat().st_ino for path in run_dir.glob("versions/*/manifest.json")}
    os.kill(paused.pid, signal.SIGCONT)
    code = paused.wait()
    # It trains to the end of its job without harm, and ends where it needs the lock.
    assert code == 1, paused.output
    assert "run.lock was lost" in paused.output
    after = {path: path.stat().st_ino for path in run_dir.glob("versions/*/manifest.json")}
    assert after == before
    bits.require_same(run_dir, five_rounds)


@pytest.mark.parametrize("start", ["absent", "half done"])
def test_of_two_drivers_started_at_once_none_does_harm(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path, start: str
) -> None:
    run_dir = tmp_path / "run"
    if start == "half done":
        commands.run(run_dir, "--max_rounds=2")
    drivers = [commands.start(run_dir, "--max_rounds=5", "--resume") for _ in range(2)]
    codes = {driver.pid: driver.wait() for driver in drivers}
    assert 0 in codes.values()
    for driver, other in (drivers, drivers[::-1]):
        if codes[driver.pid] != 0:
            assert codes[driver.pid] == 2
            assert f"process {other.pid} " in driver.output
    bits.require_same(run_dir, five_rounds)
    assert RunDirectory(str(run_dir)).newest_good_version() == 5
