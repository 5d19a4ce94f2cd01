"""What retention keeps, and that a kill inside it leaves a valid run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.errors import ConfigError, RunError
from policies.metrics_log import MetricsLog
from policies.retention import prune, sweep_orphans, versions_to_keep
from policies.run_directory import RunDirectory
from policies.run_lock import RunLock


@pytest.fixture(params=["local", "memory"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunDirectory:
    local = request.param == "local"
    return RunDirectory.create(tmp_path / "r" if local else f"memory://{uuid.uuid4()}/r", {})


@pytest.fixture
def lock(run: RunDirectory) -> Iterator[RunLock]:
    with RunLock(run.url) as held:
        yield held


def _publish(run: RunDirectory, *versions: int) -> None:
    for version in versions:
        record = run.write_arrays(version, "weights", {"w": np.array(version)})
        run.publish(version, {"files": [record], "metrics": {"loss": 1.0 / (version + 1)}})


def test_the_last_the_best_and_the_milestones_stay() -> None:
    kept = versions_to_keep(range(251), keep_last=20, best=[137], every=100)
    assert kept == {0, 100, 137, 200} | set(range(231, 251))


@settings(deadline=None)
@given(st.sets(st.integers(0, 500), min_size=1), st.integers(1, 30), st.integers(0, 50))
def test_the_newest_is_always_kept(versions: set[int], keep_last: int, every: int) -> None:
    kept = versions_to_keep(versions, keep_last=keep_last, every=every)
    assert max(versions) in kept and kept <= versions
    assert len(kept) >= min(keep_last, len(versions))
    assert versions_to_keep(kept, keep_last=keep_last, every=every) == kept


@pytest.mark.parametrize(("keep_last", "every"), [(0, 1), (-1, 1), (1, -1)])
def test_keeping_nothing_is_refused(keep_last: int, every: int) -> None:
    with pytest.raises(ConfigError, match="keep_last"):
        versions_to_keep([1], keep_last=keep_last, every=every)


def test_pruned_versions_go_and_their_metrics_stay(run: RunDirectory, lock: RunLock) -> None:
    _publish(run, *range(10))
    run.write_arrays(10, "weights", {"w": np.array(10)})
    log = MetricsLog(run)
    assert prune(run, lock, log, keep_last=2, best=[3], every=5) == [1, 2, 4, 6, 7]
    assert run.version_numbers() == [0, 3, 5, 8, 9, 10]
    for version in (0, 3, 5, 8, 9):
        run.verify_version(version)
    assert (run.store.read("metrics.jsonl", 10**5) or b"").count(b"\n") == 10
    assert prune(run, lock, log, keep_last=2, best=[3], every=5) == []
    _publish(run, 10)
    assert prune(run, lock, log, keep_last=1, every=0) == [0, 3, 5, 8, 9]
    assert (run.store.read("metrics.jsonl", 10**5) or b"").count(b"\n") == 11
    run.verify_version(10)


def test_a_removal_cut_short_is_finished_later(run: RunDirectory, lock: RunLock) -> None:
    _publish(run, *range(4))
    run.store.remove("versions/00000001/manifest.json")
    assert prune(run, lock, MetricsLog(run), keep_last=1, every=0) == [0, 1, 2]
    assert run.version_numbers() == [3]


def test_the_manifest_goes_first(
    run: RunDirectory, lock: RunLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish(run, 0, 1)

    def killed(folder: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run.store, "remove_folder", killed)
        prune(run, lock, MetricsLog(run), keep_last=1, every=0)
    assert run.find_version(0) is None
    run.verify_version(1)


def test_nothing_is_removed_without_the_lock(run: RunDirectory) -> None:
    _publish(run, 0, 1)
    for action in (lambda lock: prune(run, lock, MetricsLog(run)), lambda k: sweep_orphans(run, k)):
        with pytest.raises(RunError, match="not held"):
            action(RunLock(run.url))
    assert run.version_numbers() == [0, 1]


def test_an_empty_run_has_nothing_to_prune(run: RunDirectory, lock: RunLock) -> None:
    assert prune(run, lock, MetricsLog(run)) == [] and sweep_orphans(run, lock) == []


def test_orphans_are_swept_and_work_in_progress_is_not(run: RunDirectory, lock: RunLock) -> None:
    _publish(run, 0, 1)
    orphans = [
        ".tmp-12-result.json",
        "evaluations/.tmp-3-a.json",
        "versions/00000000/.tmp-4-manifest.json",
        "versions/00000000/weights-0123456789abcdef.safetensors",
        "versions/00000001/.tmp-5-manifest.json",
    ]
    living = [
        ".tmp-13-run.lock",
        "notes.txt",
        "versions/00000001/weights-0123456789abcdef.safetensors",
        "versions/00000002/.tmp-6-manifest.json",
        "versions/00000002/weights-0123456789abcdef.safetensors",
    ]
    for name in orphans + living:
        run.store.replace(name, b"x")
    assert sorted(sweep_orphans(run, lock)) == sorted(orphans)
    assert all(run.store.size(name) is None for name in orphans)
    assert all(run.store.size(name) == 1 for name in living)
    run.verify_version(0)
    run.verify_version(1)
