"""metrics.jsonl follows from the manifests, whatever happened to it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from policies.metrics_log import MetricsLog
from policies.run_directory import RunDirectory


@pytest.fixture(params=["local", "memory"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunDirectory:
    local = request.param == "local"
    return RunDirectory.create(tmp_path / "r" if local else f"memory://{uuid.uuid4()}/r", {})


def _publish(run: RunDirectory, *versions: int) -> None:
    for version in versions:
        evaluation = {"return_mean": 10.0 * version} if version % 2 else None
        metrics = {"learner": {"loss": 0.5, "kl": None}, "episodes": version}
        facts = {"metrics": metrics, "evaluation": evaluation, "env_steps": 100 * version}
        run.publish(version, facts)


def _rows(run: RunDirectory) -> list[dict[str, Any]]:
    data = run.store.read("metrics.jsonl", 10**6) or b""
    return [json.loads(line) for line in data.splitlines()]


def test_a_line_is_flat_and_complete(run: RunDirectory) -> None:
    _publish(run, 0, 1)
    assert MetricsLog(run).update() == [0, 1]
    first = {"version": 0, "env_steps": 0, "learner/loss": 0.5, "learner/kl": None, "episodes": 0}
    second = {**first, "version": 1, "env_steps": 100, "episodes": 1}
    assert _rows(run) == [first, {**second, "evaluation/return_mean": 10.0}]


def test_step_by_step_and_at_once_give_the_same_bytes(run: RunDirectory) -> None:
    log = MetricsLog(run)
    assert log.update() == []
    for version in range(5):
        _publish(run, version)
        if version != 2:
            log.update()
    bit_by_bit = run.store.read("metrics.jsonl", 10**6)
    run.store.remove("metrics.jsonl")
    assert MetricsLog(run).update() == [0, 1, 2, 3, 4]
    assert run.store.read("metrics.jsonl", 10**6) == bit_by_bit
    assert MetricsLog(run).update() == [] and log.update() == []


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_line_is_mended(run: RunDirectory, cut: int) -> None:
    _publish(run, 0, 1, 2)
    MetricsLog(run).update()
    whole = run.store.read("metrics.jsonl", 10**6) or b""
    run.store.replace("metrics.jsonl", whole[:-cut])
    log = MetricsLog(run)
    assert log.update() == [2]
    assert run.store.read("metrics.jsonl", 10**6) == whole
    _publish(run, 3)
    assert log.update() == [3] and [row["version"] for row in _rows(run)] == [0, 1, 2, 3]


def test_lines_outlive_removed_versions_but_not_versions_taken_back(run: RunDirectory) -> None:
    _publish(run, 0, 1, 2, 3)
    MetricsLog(run).update()
    run.store.remove_folder("versions/00000000")
    run.store.remove_folder("versions/00000003")
    MetricsLog(run).update()
    assert [row["version"] for row in _rows(run)] == [0, 1, 2]


def test_a_torn_manifest_ends_the_log_for_now(run: RunDirectory) -> None:
    _publish(run, 0)
    log = MetricsLog(run)
    log.update()
    run.store.replace("versions/00000001/manifest.json", b'{"metrics"')
    assert log.update() == []
    run.store.remove("versions/00000001/manifest.json")
    _publish(run, 1)
    assert log.update() == [1]


def test_lines_of_impossible_versions_go(run: RunDirectory) -> None:
    _publish(run, 0)
    MetricsLog(run).update()
    whole = run.store.read("metrics.jsonl", 10**6) or b""
    run.store.replace("metrics.jsonl", b'{"version":-1}\n{"version":true}\n[1]\n' + whole)
    assert MetricsLog(run).update() == []
    assert run.store.read("metrics.jsonl", 10**6) == whole
