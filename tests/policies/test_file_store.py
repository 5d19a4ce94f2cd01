"""Writes are atomic or exclusive, and failures are one line that names the file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from policies.errors import ConfigError, RunError
from policies.file_store import FileStore


@pytest.fixture(params=["plain", "space ünïcode 中", "file://", "relative", "memory://"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FileStore:
    kind = request.param
    if kind == "memory://":
        return FileStore(f"memory://{uuid.uuid4()}/run")
    if kind == "file://":
        return FileStore(f"file://{tmp_path}/run")
    if kind == "relative":
        monkeypatch.chdir(tmp_path)
        return FileStore("runs/a")
    return FileStore(tmp_path / kind)


def test_content_comes_back_and_absence_is_no_error(store: FileStore) -> None:
    assert store.read("a/b", 10) is None and store.size("a/b") is None and store.names("a") == []
    store.replace("a/b", b"one")
    store.replace("a/b", b"three")
    assert store.read("a/b", 5) == b"three" and store.size("a/b") == 5
    assert store.names("") == ["a"] and store.names("a") == ["b"]
    assert store.size("a") is None
    store.remove("a/b")
    store.remove("a/b")
    store.remove_folder("a")
    store.remove_folder("a")
    assert store.names("a") == []


def test_url_opens_the_same_folder_from_elsewhere(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.replace("a b", b"x")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = FileStore(store.url)
    assert again.url == store.url and again.read("a b", 1) == b"x"
    assert store.url.startswith(("/", "memory://"))


def test_a_created_name_is_never_created_again(store: FileStore) -> None:
    assert store.create("v/m", b"first")
    assert not store.create("v/m", b"second")
    assert store.read("v/m", 10) == b"first" and store.names("v") == ["m"]


def test_one_of_many_creators_wins(store: FileStore) -> None:
    wins: list[bytes] = []
    barrier = threading.Barrier(8)

    def create(content: bytes) -> None:
        barrier.wait()
        if store.create("v/m", content):
            wins.append(content)

    threads = [threading.Thread(target=create, args=(b"%d" % i * 1000,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) >= 1
    if store.url.startswith("/"):
        # The memory file system has no lock, so that two of its threads may both "win".
        assert wins == [store.read("v/m", 1000)]


def test_a_file_over_the_limit_is_not_read(store: FileStore) -> None:
    store.replace("a", b"12345")
    with pytest.raises(RunError, match="a is larger than 4 bytes"):
        store.read("a", 4)


def test_a_folder_or_pipe_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.make_folder("a")
    os.mkfifo(tmp_path / "pipe")
    for name in ("a", "pipe"):
        with pytest.raises(RunError, match=f"{name} is not a file"):
            store.read(name, 10)


def test_where_links_fail_creation_is_still_exclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> NoReturn:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = FileStore(tmp_path)
    assert store.create("v/m", b"first") and not store.create("v/m", b"second")
    assert store.read("v/m", 10) == b"first" and store.names("v") == ["m"]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = FileStore(tmp_path)
    store.replace("v/a", b"old")
    for call in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            for action in (store.replace, store.create):
                with pytest.raises(RunError) as caught:
                    action("v/a" if action == store.replace else "v/b", b"new")
                assert str(caught.value).startswith(f"cannot write {tmp_path}/v/")
                assert str(caught.value).endswith(": No space left on device")
    assert store.names("v") == ["a"] and store.read("v/a", 10) == b"old"


def test_a_real_limit_on_file_size_is_one_line(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from policies.file_store import FileStore\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: FileStore(sys.argv[1]).create('v/m', b'x' * 5000)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=root
    )
    assert done.stdout == f"RunError cannot write {tmp_path}/v/m: File too large\n", done.stderr
    assert os.listdir(tmp_path / "v") == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = FileStore(tmp_path / "file" / "run")
    with pytest.raises(RunError, match="cannot write .*file/run/a: Not a directory"):
        store.replace("a", b"")
    assert store.read("a", 1) is None


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(RunError, match=f"^cannot write {tmp_path}/a: Read-only file system$"):
        FileStore(tmp_path).create("a", b"")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [("", "empty"), ("nosuch://bucket/x", "cannot open nosuch://bucket/x: .*not known")],
)
def test_a_bad_url_is_a_config_error(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        FileStore(url)


def test_appending_says_whether_the_store_can(store: FileStore) -> None:
    store.replace("log", b"a\n")
    appended = store.append("log", b"b\n")
    assert appended == store.url.startswith("/")
    assert store.read("log", 100) == (b"a\nb\n" if appended else b"a\n")


@pytest.mark.parametrize(
    "action",
    [
        lambda store, name: store.read(name, 10),
        lambda store, name: store.size(name),
        lambda store, name: store.names(name),
        lambda store, name: store.replace(name, b"x"),
        lambda store, name: store.create(name, b"x"),
        lambda store, name: store.create("new", b"x", after=[name]),
        lambda store, name: store.append(name, b"x"),
        lambda store, name: store.sync(name),
        lambda store, name: store.make_folder(name),
        lambda store, name: store.remove(name),
        lambda store, name: store.remove_folder(name),
        lambda store, name: store.check_inside(name),
    ],
)
def test_links_below_the_root_are_refused(
    tmp_path: Path, action: Callable[[FileStore, str], object]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"mine")
    (tmp_path / "run" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "run" / "file").symlink_to(tmp_path / "outside" / "file")
    (tmp_path / "run" / "dangling").symlink_to(tmp_path / "outside" / "new")
    for name, link in (
        ("folder", "folder"),
        ("folder/file", "folder"),
        ("folder/absent/deeper", "folder"),
        ("file", "file"),
        ("dangling", "dangling"),
    ):
        with pytest.raises(RunError) as caught:
            action(FileStore(tmp_path / "run"), name)
        place = f"{tmp_path}/run/{link}"
        assert str(caught.value) == f"{place} is a link; a run directory must hold no links"
    assert os.listdir(tmp_path / "outside") == ["file"]
    assert (tmp_path / "outside" / "file").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path / "run")) == ["dangling", "file", "folder"]


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    store = FileStore(tmp_path / "run")
    store.replace("a/b", b"x")
    assert store.read("a/b", 1) == b"x" and store.names("") == ["a"]
