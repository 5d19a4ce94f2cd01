"""Whole commands for tests: started at once, killed where a test wants, compared bit by bit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = (
    "--seed=3",
    "--num_envs_per_worker=4",
    "--rollout_fragment_length=16",
    "--set=num_epochs=1",
    "--evaluation_episodes=2",
    "--quiet",
)


@dataclass(frozen=True)
class Running:
    """A command that was started.

    Attributes:
        pid: Its process, which leads a process group of its own.
        log: The file with what it prints.
    """

    pid: int
    log: Path
    server: Commands

    def wait(self) -> int:
        """Its exit code, or minus the number of the signal that ended it."""
        return self.server.ask({"wait": self.pid})["code"]

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text()


class Commands:
    """Starts training commands in processes of their own; see `command_server.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("command_server.py"))],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, run_dir: Path, *flags: str, kill: dict[str, Any] | None = None) -> Running:
        """Starts `pipelines.train` on a run directory, with a tiny configuration."""
        self._count += 1
        log = self._folder / f"{self._count}.log"
        argv = _tiny(run_dir, *flags)
        pid = self.ask({"argv": argv, "log": str(log), "kill": kill})["pid"]
        return Running(pid, log, self)

    def run(self, run_dir: Path, *flags: str, code: int = 0) -> str:
        """Runs the command to its end, checks its exit code, and returns what it printed."""
        running = self.start(run_dir, *flags)
        found = running.wait()
        assert found == code, running.output
        return running.output

    @staticmethod
    def real(run_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m pipelines.train`, imports and all."""
        words = [sys.executable, "-m", "pipelines.train", *_tiny(run_dir, *flags)]
        return subprocess.run(
            words, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=120
        )

    def close(self) -> None:
        """Ends the server."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Training commands in processes that start at once."""
    server = Commands(tmp_path_factory.mktemp("commands"))
    yield server
    server.close()


class Bits:
    """What must be equal, bit by bit, in runs that differ in nothing that matters."""

    @staticmethod
    def manifests(run_dir: Path) -> dict[int, str]:
        """Version to the SHA-256 of its manifest, which names the hashes of all its files."""
        return {
            int(path.parent.name): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(run_dir.glob("versions/*/manifest.json"))
        }

    @staticmethod
    def weights(run_dir: Path) -> dict[int, str]:
        """Version to the SHA-256 of its weights file."""
        return {
            int(path.parent.name): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(run_dir.glob("versions/*/weights-*.safetensors"))
        }

    @staticmethod
    def reports(run_dir: Path) -> tuple[bytes, dict[str, Any]]:
        """The metrics log, and the result without times, paths and the number of rounds a job."""
        result = json.loads((run_dir / "result.json").read_bytes())
        for key in ("wall_seconds", "run_dir", "config_sha256"):
            del result[key]
        if result["first_reached"]:
            del result["first_reached"]["seconds"]
        return (run_dir / "metrics.jsonl").read_bytes(), result

    @classmethod
    def require_same(cls, run_dir: Path, reference: Path) -> None:
        """Compares versions, their files, the metrics log and the result of two runs."""
        assert cls.weights(run_dir) == cls.weights(reference)
        assert cls.manifests(run_dir) == cls.manifests(reference)
        assert cls.reports(run_dir) == cls.reports(reference)


@pytest.fixture(scope="session")
def bits() -> type[Bits]:
    """Compares runs."""
    return Bits


@pytest.fixture(scope="session")
def five_rounds(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds in one go, one job each, to compare others with."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    commands.run(run_dir, "--max_rounds=5")
    return run_dir


def _tiny(run_dir: Path, *flags: str) -> list[str]:
    given = {flag.split("=")[0] for flag in flags} - {"--set"}
    tiny = [flag for flag in TINY if flag.split("=")[0] not in given]
    return [*tiny, f"--run_dir={run_dir}", *flags]


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
