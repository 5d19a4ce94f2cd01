"""kill -9 at any point, and publishers racing in processes of their own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from policies.metrics_log import MetricsLog
from policies.retention import prune, sweep_orphans
from policies.run_directory import RunDirectory
from policies.run_lock import RunLock

ROOT = Path(__file__).parents[2]
# Publishes versions; argv: run, tag, a function of `os` to die in ("nolink," first: links fail), at
# which of its calls, and the version to stop before.
PUBLISHER = """
import os, signal, sys
import numpy as np
from policies.run_directory import RunDirectory

run, tag, deadly, count = RunDirectory(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
if deadly.startswith("nolink"):
    def refuse(*args):
        raise PermissionError(1, "Operation not permitted")
    os.link = refuse
    deadly = deadly[len("nolink,"):]
if deadly:
    real, calls = getattr(os, deadly), []
    def dying(*args, **kwargs):
        calls.append(args)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(os, deadly, dying)
newest = run.newest_version()
version = newest.version + 1 if newest else 0
print("ready", flush=True)
for version in range(version, int(sys.argv[5])):
    rng = np.random.default_rng(version)
    files = [run.write_arrays(version, stem, {"a": rng.normal(size=900)}) for stem in ("w", "o")]
    manifest, adopted = run.publish(version, {"files": files, "metrics": {"tag": tag}})
    print(version, manifest["metrics"]["tag"], adopted, flush=True)
"""


def _start(
    run: RunDirectory, tag: str, deadly: str = "", count: int = 0, end: int = 10**6
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PUBLISHER, run.url, tag, deadly, str(count), str(end)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _check_all(run: RunDirectory) -> int:
    """Verifies what any reader may find, and returns the number of the newest version or -1."""
    newest = run.newest_version()
    if newest is None:
        return -1
    for version in range(newest.version + 1):
        run.verify_version(version)
    assert run.newest_good_version() == newest.version
    return newest.version


@pytest.mark.parametrize(
    ("call", "counts"),
    [("link", (1, 3)), ("replace", (2, 5)), ("fsync", (1, 6)), ("write", (3, 6))],
)
def test_a_kill_at_each_step_leaves_whole_versions(
    tmp_path: Path, call: str, counts: tuple[int, ...]
) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    for count in counts:
        before = _check_all(run)
        process = _start(run, "a", call, count)
        printed = process.communicate()[0].splitlines()[1:]
        assert process.returncode == -signal.SIGKILL
        assert _check_all(run) >= before + len(printed)
    if call == "link":
        version = counts[0] + counts[1] - 2
        names = os.listdir(run.version_path(version))
        assert [name.endswith("-manifest.json") for name in sorted(names)] == [True, False, False]
        assert run.find_version(version) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_a_random_time_leaves_whole_versions(tmp_path: Path, seed: int) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    process = _start(run, "a")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(random.Random(seed).uniform(0.0, 0.15))
    process.kill()
    printed = process.communicate()[0].splitlines()
    last = _check_all(run)
    assert last >= len(printed) - 1
    with RunLock(run.url) as lock:
        assert run.remove_torn_manifests(lock) == []
        sweep_orphans(run, lock)
        assert _check_all(run) == last
        log = MetricsLog(run)
        prune(run, lock, log, keep_last=1, every=0)
    if last >= 0:
        assert run.version_numbers()[0] == last
    _start(run, "b", end=last + 3).communicate()
    newest = run.newest_version()
    assert newest is not None and newest.version == last + 2
    run.verify_version(newest.version)


def test_without_links_a_kill_leaves_a_torn_manifest_that_no_one_takes_for_a_version(
    tmp_path: Path,
) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    process = _start(run, "a", "nolink,write", 8)
    assert process.communicate()[0].splitlines() == ["ready", "0 a False"]
    torn = Path(run.version_path(1), "manifest.json")
    assert torn.read_bytes() == b"" and _check_all(run) == 0
    with RunLock(run.url) as lock:
        assert run.remove_torn_manifests(lock) == [str(torn)]
    _start(run, "b", "nolink", end=3).communicate()
    assert _check_all(run) == 2


@pytest.mark.parametrize("links", ["", "nolink"])
def test_racing_processes_agree_on_every_version(tmp_path: Path, links: str) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    racers = [_start(run, tag, links, end=12) for tag in "ab"]
    seen: dict[int, list[tuple[str, str]]] = {}
    for racer in racers:
        for line in racer.communicate()[0].splitlines()[1:]:
            version, tag, adopted = line.split()
            seen.setdefault(int(version), []).append((tag, adopted))
        assert racer.returncode == 0
    assert _check_all(run) == 11
    for version, results in seen.items():
        stored = run.read_manifest(version)["metrics"]["tag"]
        assert {tag for tag, _ in results} == {stored}
        assert [adopted for _, adopted in results].count("False") == 1
