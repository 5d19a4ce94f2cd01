"""Layout, newest version, publishing, and errors that name the file and the way back."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pytest

from policies.errors import ConfigError, RunError
from policies.manifest import canonical_json, manifest_sha256
from policies.run_directory import RunDirectory, version_number
from policies.run_lock import RunLock


@pytest.fixture(params=["a run ü", "file://", "relative", "memory://"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str | Path:
    if request.param == "memory://":
        return f"memory://{uuid.uuid4()}/run"
    if request.param == "relative":
        monkeypatch.chdir(tmp_path)
        return "runs/a"
    return f"file://{tmp_path}/run" if request.param == "file://" else tmp_path / request.param


def _publish(run: RunDirectory, version: int, value: float = 0.0) -> bool:
    weights = run.write_arrays(version, "weights", {"w": np.full(3, value + version)})
    table = pa.table({"shard": [version]})
    facts = {"files": [weights, run.write_arrow(version, "env", table)], "metrics": {"v": value}}
    return run.publish(version, facts)[1]


def test_a_run_comes_back_as_it_was_left(url: str | Path) -> None:
    run = RunDirectory.create(url, {"lr": 3e-4, "env": "CartPole-v1"})
    assert run.newest_version() is None and run.newest_good_version() is None
    for version in range(3):
        assert not _publish(run, version)
    again = RunDirectory.open(run.url)
    assert again.config() == {"lr": 3e-4, "env": "CartPole-v1"}
    newest = again.newest_version()
    assert newest is not None and newest.version == 2
    assert newest.path == f"{run.url}/versions/00000002" == again.version_path(2)
    arrays = again.read_arrays(2, newest.file("weights"))
    np.testing.assert_array_equal(arrays["w"], [2.0, 2.0, 2.0])
    assert again.read_arrow(2, newest.file("env")).to_pydict() == {"shard": [2]}
    assert again.verify_version(2) == newest and again.newest_good_version() == 2
    opened, version = RunDirectory.of_version(newest.path)
    assert (opened.url, version) == (run.url, 2)


def test_each_manifest_names_its_parent_by_hash(url: str | Path) -> None:
    run = RunDirectory.create(url, {})
    for version in range(3):
        _publish(run, version)
    assert run.read_manifest(0)["parent"] is None
    for version in (1, 2):
        parent = run.store.read(f"versions/{version - 1:08d}/manifest.json", 10**6)
        assert parent is not None
        expected = {"version": version - 1, "sha256": manifest_sha256(parent)}
        assert run.read_manifest(version)["parent"] == expected


def test_equal_runs_have_equal_files(tmp_path: Path) -> None:
    trees = []
    for name in ("a", "b"):
        run = RunDirectory.create(tmp_path / name, {"x": 1, "y": 2})
        for version in range(2):
            _publish(run, version)
        files = [path for path in Path(run.url).rglob("*") if path.is_file()]
        trees.append({str(path.relative_to(run.url)): path.read_bytes() for path in files})
    assert trees[0] == trees[1] and len(trees[0]) == 7


def test_a_published_version_is_adopted_not_replaced(url: str | Path) -> None:
    run = RunDirectory.create(url, {})
    assert not _publish(run, 0, value=1.0)
    assert _publish(run, 0, value=2.0)
    assert run.read_manifest(0)["metrics"] == {"v": 1.0}


def test_of_many_publishers_one_wins_and_all_see_its_manifest(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    results: list[tuple[dict, bool]] = []
    barrier = threading.Barrier(8)

    def publish(value: int) -> None:
        other = RunDirectory(run.url)
        record = other.write_arrays(0, "weights", {"w": np.array(value)})
        barrier.wait()
        results.append(other.publish(0, {"files": [record], "metrics": {"v": value}}))

    threads = [threading.Thread(target=publish, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(adopted for _, adopted in results) == [False] + [True] * 7
    assert all(manifest == run.read_manifest(0) for manifest, _ in results)
    run.verify_version(0)


def test_publishing_wants_parent_and_files_first(url: str | Path) -> None:
    run = RunDirectory.create(url, {})
    with pytest.raises(
        RunError, match="version 1 of .* cannot be published: .*00000000/manifest.json is"
    ):
        _publish(run, 1)
    record = run.write_arrays(0, "weights", {"w": np.zeros(1)})
    run.store.remove(f"versions/00000000/{record.name}")
    with pytest.raises(RunError, match=f"{record.name} must be written before"):
        run.publish(0, {"files": [record]})
    assert run.newest_version() is None


def test_a_damaged_file_is_named_with_the_newest_good_version(url: str | Path) -> None:
    run = RunDirectory.create(url, {})
    for version in range(4):
        _publish(run, version)
    record = run.read_version(3).file("weights")
    run.store.remove(f"versions/00000003/{record.name}")
    run.store.replace(f"versions/00000002/{run.read_version(2).file('env').name}", b"torn")
    expected = rf"00000003/{record.name} is missing; the newest good version is 1 \(.*00000001\)"
    with pytest.raises(RunError, match=expected):
        run.read_arrays(3, record)
    with pytest.raises(RunError, match=expected):
        run.verify_version(3)
    with pytest.raises(RunError, match="env-.* has 4 bytes, .*newest good version is 1"):
        run.read_arrow(2, run.read_version(2).file("env"))
    with pytest.raises(RunError, match="00000007/manifest.json is missing; the newest good"):
        run.read_version(7)


def test_an_unknown_schema_is_an_error_not_an_older_version(url: str | Path) -> None:
    run = RunDirectory.create(url, {})
    _publish(run, 0)
    future = canonical_json({"schema_version": 2, "version": 1})
    run.store.replace("versions/00000001/manifest.json", future)
    expected = "00000001/manifest.json has schema_version 2, .*newest good version is 0"
    with pytest.raises(RunError, match=expected):
        run.newest_version()
    with pytest.raises(RunError, match=expected):
        run.read_version(1)


@pytest.mark.parametrize("torn", [b"", b'{"evaluation":nul', b"\0" * 50])
def test_a_torn_manifest_is_passed_over_and_removed_only_under_the_lock(
    url: str | Path, torn: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.run_directory._TORN_WAIT_S", 0.001)
    run = RunDirectory.create(url, {})
    _publish(run, 0)
    name = "versions/00000001/manifest.json"
    run.store.replace(name, torn)
    newest = run.newest_version()
    assert newest is not None and newest.version == 0
    with pytest.raises(RunError, match="manifest.json is torn"):
        _publish(run, 1)
    lock = RunLock(run.url)
    with pytest.raises(RunError, match="not held"):
        run.remove_torn_manifests(lock)
    assert run.store.read(name, 100) == torn
    with lock:
        assert run.remove_torn_manifests(lock) == [run.store.url_of(name)]
        assert run.remove_torn_manifests(lock) == []
    assert not _publish(run, 1)
    run.verify_version(1)


def test_the_lock_of_another_run_does_not_count(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a", {})
    with RunLock(tmp_path / "b") as lock, pytest.raises(RunError, match="does not cover"):
        run.remove_torn_manifests(lock)


def test_a_manifest_that_is_still_being_written_is_waited_for(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    _publish(run, 0)
    path = Path(run.version_path(0)) / "manifest.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    timer = threading.Timer(0.15, path.write_bytes, args=(whole,))
    timer.start()
    assert _publish(run, 0, value=5.0)
    timer.join()


def test_publishing_works_where_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> NoReturn:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    run = RunDirectory.create(tmp_path / "run", {})
    assert [_publish(run, 0), _publish(run, 0, 1.0), _publish(run, 1)] == [False, True, False]
    run.verify_version(1)


def test_hundreds_of_versions_cost_one_listing_and_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    for version in range(3):
        _publish(run, version)
    data = Path(run.version_path(2), "manifest.json").read_bytes()
    for version in range(3, 300):
        run.store.replace(f"versions/{version:08d}/manifest.json", b"", durable=False)
    run.store.replace("versions/00000299/manifest.json", data.replace(b":2}", b":299}"))
    run.store.make_folder("versions/00000300")
    run.store.make_folder("versions/notes")
    reads: list[str] = []
    read = run.store.read
    monkeypatch.setattr(run.store, "read", lambda *args: (reads.append(args[0]), read(*args))[1])
    newest = run.newest_version()
    assert newest is not None and newest.version == 299
    assert reads == [f"versions/{version:08d}/manifest.json" for version in (300, 299)]


def test_versions_beyond_eight_digits_still_sort_by_number(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    for name in ("99999999", "100000000", "00000002", "2", "000000003", "x"):
        run.store.make_folder(f"versions/{name}")
    assert run.version_numbers() == [2, 99999999, 100000000]
    assert version_number("٣") is None and version_number("-0000001") is None


def test_creating_over_a_run_and_opening_none_are_refused(url: str | Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory: it holds no config.json"):
        RunDirectory.open(url)
    RunDirectory.create(url, {})
    with pytest.raises(ConfigError, match="holds a run already"):
        RunDirectory.create(url, {})


def test_a_place_that_cannot_hold_a_run_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/run.*: Not a directory; choose a run directory"):
        RunDirectory.create(tmp_path / "file" / "run", {})


@pytest.mark.parametrize("path", ["/a/b", "/a/versions/12", "/a/versions/x", "00000001", ""])
def test_other_paths_are_no_versions(path: str) -> None:
    with pytest.raises(ConfigError, match="is not a version"):
        RunDirectory.of_version(path)


def test_json_files_of_a_run_are_checked(url: str | Path) -> None:
    run = RunDirectory.create(url, {})
    run.write_json("evaluations/a.json", {"mean": 1.5})
    assert run.read_json("evaluations/a.json") == {"mean": 1.5}
    for content, complaint in ((b"{", "is not JSON"), (b"[]", "holds no JSON object")):
        run.store.replace("result.json", content)
        with pytest.raises(RunError, match=f"result.json {complaint}"):
            run.read_json("result.json")
    with pytest.raises(RunError, match="missing.json is missing"):
        run.read_json("missing.json")


@pytest.mark.parametrize("link", ["versions", "versions/00000000"])
def test_a_version_behind_a_link_is_neither_read_nor_written(tmp_path: Path, link: str) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    _publish(run, 0)
    info = run.read_version(0)
    (tmp_path / "run" / link).rename(tmp_path / "outside")
    (tmp_path / "run" / link).symlink_to(tmp_path / "outside")
    before = sorted((tmp_path / "outside").rglob("*"))
    for action in (
        lambda: run.write_arrays(0, "more", {"w": np.zeros(1)}),
        lambda: run.write_arrow(0, "more", pa.table({"a": [1]})),
        lambda: run.read_arrays(0, info.file("weights")),
        lambda: run.read_arrow(0, info.file("env")),
        lambda: run.read_version(0),
        lambda: run.publish(0, {}),
    ):
        with pytest.raises(RunError, match=f"{link} is a link; a run directory must hold no links"):
            action()
    assert sorted((tmp_path / "outside").rglob("*")) == before


def test_writing_does_not_bring_a_removed_run_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    _publish(run, 0)
    run.store.remove_folder("")
    for action in (
        lambda: run.write_arrays(1, "weights", {"w": np.zeros(1)}),
        lambda: run.write_arrow(1, "env", pa.table({"a": [1]})),
    ):
        with pytest.raises(RunError, match="run was removed"):
            action()
    assert not (tmp_path / "run").exists()
