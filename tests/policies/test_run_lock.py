"""One driver a run: refused while its holder lives, taken over when it is dead."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies import processes
from policies.errors import ConfigError, RunError
from policies.file_store import FileStore
from policies.run_lock import LOCK, LockHolder, RunLock

BEAT = 0.05
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    return FileStore(tmp_path if request.param == "local" else f"memory://{uuid.uuid4()}/run")


@pytest.fixture
def child() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def _holder(**changes: object) -> LockHolder:
    return dataclasses.replace(LockHolder.this_process(BEAT), **changes)


def _write(store: FileStore, holder: LockHolder) -> None:
    store.replace(LOCK, holder.encode())


def _read(store: FileStore) -> LockHolder:
    holder = LockHolder.decode(store.read(LOCK, 10**5) or b"")
    assert holder is not None
    return holder


def _lock_threads() -> int:
    return sum(thread.name == "run-lock" for thread in threading.enumerate())


def test_a_free_lock_is_taken_beats_and_is_given_back(store: FileStore) -> None:
    threads = _lock_threads()
    with RunLock(store.url, heartbeat_s=0.02) as lock:
        first = _read(store)
        assert (first.pid, first.host) == (os.getpid(), socket.gethostname())
        deadline = time.monotonic() + 5
        while _read(store).counter < first.counter + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _read(store).counter >= first.counter + 2
        lock.check()
        assert lock.held and _lock_threads() == threads + 1
    assert store.read(LOCK, 10**5) is None and store.names("") == []
    assert not lock.held and _lock_threads() == threads
    with pytest.raises(RunError, match="not held by this process"):
        lock.check()


def test_a_live_holder_here_is_named_with_the_way_out(
    store: FileStore, child: subprocess.Popen
) -> None:
    start = processes.process_start(child.pid)
    assert start is not None
    _write(store, _holder(pid=child.pid, start=start))
    with pytest.raises(ConfigError) as caught:
        RunLock(store.url).acquire()
    message = str(caught.value)
    assert f"is being trained by process {child.pid} on host {socket.gethostname()}" in message
    assert f"kill {child.pid}" in message and store.url in message and "\n" not in message


def test_a_second_lock_in_one_process_is_refused(store: FileStore) -> None:
    complaint = r"is held by another object of this process: close\(\) that one first"
    with RunLock(store.url), pytest.raises(ConfigError, match=complaint):
        RunLock(store.url).acquire()
    with RunLock(store.url):
        pass


def test_a_dead_holder_here_is_replaced_at_once(store: FileStore, child: subprocess.Popen) -> None:
    start = processes.process_start(child.pid)
    assert start is not None
    _write(store, _holder(pid=child.pid, start=start, heartbeat_s=60.0))
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but not waited for
    began = time.monotonic()
    with RunLock(store.url):
        assert _read(store).pid == os.getpid() and store.names("") == [LOCK]
    assert time.monotonic() - began < 2


def test_a_reused_process_id_does_not_keep_the_lock(store: FileStore) -> None:
    _write(store, _holder(start="1", heartbeat_s=60.0))
    began = time.monotonic()
    with RunLock(store.url):
        assert _read(store).start != "1"
    assert time.monotonic() - began < 2


def test_a_holder_whose_start_is_unknown_counts_as_alive(store: FileStore) -> None:
    _write(store, _holder(start=""))
    with pytest.raises(ConfigError, match="is held by another object of this process"):
        RunLock(store.url).acquire()


def test_a_silent_holder_elsewhere_is_waited_for_then_replaced(store: FileStore) -> None:
    _write(store, _holder(machine="far/1/2", host="far", pid=7))
    lines: list[str] = []
    began = time.monotonic()
    with RunLock(store.url, missed=3, notify=lines.append) as lock:
        assert time.monotonic() - began >= 3 * BEAT
        lock.check()
    assert len(lines) == 3
    assert "locked by process 7 on host far; taking over after 3 more missed" in lines[0]
    assert "after 1 more" in lines[2]


def test_a_beating_holder_elsewhere_is_refused(store: FileStore) -> None:
    holder = _holder(machine="far/1/2", host="far", pid=7)
    _write(store, holder)
    timer = threading.Timer(
        1.5 * BEAT, _write, args=(store, dataclasses.replace(holder, counter=1))
    )
    timer.start()
    with pytest.raises(ConfigError, match="trained by process 7 on host far"):
        RunLock(store.url, missed=20).acquire()
    timer.join()


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": 3}', b"[1]", b'"x"'])
def test_a_torn_lock_is_replaced_after_the_wait(
    store: FileStore, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    store.replace(LOCK, content)
    with RunLock(store.url) as lock:
        lock.check()
    assert store.names("") == []


def test_a_stolen_lock_is_noticed_and_left_to_the_thief(store: FileStore) -> None:
    thief = _holder(machine="far/1/2", token="thief")
    with RunLock(store.url, heartbeat_s=0.02) as lock:
        _write(store, thief)
        with pytest.raises(RunError, match="run.lock was lost: another process took it over"):
            lock.check_covers(store.url)
        deadline = time.monotonic() + 5
        while lock.held and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(RunError, match="run.lock was lost"):
            lock.check()
    assert _read(store) == thief


def test_the_heartbeat_notices_a_removed_lock(store: FileStore) -> None:
    with RunLock(store.url, heartbeat_s=0.02) as lock:
        store.remove(LOCK)
        deadline = time.monotonic() + 5
        while lock.held and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(RunError, match="was lost: run.lock was removed"):
            lock.check()


def test_a_removed_lock_is_not_said_to_be_taken_over(store: FileStore) -> None:
    with RunLock(store.url, heartbeat_s=60.0) as lock:
        store.remove(LOCK)
        with pytest.raises(RunError, match="was lost: run.lock was removed"):
            lock.check_covers(store.url)


def test_a_lock_that_neither_exists_nor_can_be_made_ends_the_tries(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = RunLock(store.url)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(lock._store, "create", lambda *_: False)
    with pytest.raises(RunError, match="run.lock can be neither created nor read"):
        lock.acquire()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunError, match="run.lock is a link; a run directory must hold no links"):
        RunLock(tmp_path / "run").acquire()
    assert not (tmp_path / "nowhere").exists()


def test_failing_heartbeats_are_a_loss_once_others_may_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLock(tmp_path, heartbeat_s=0.02, missed=5) as lock:

        def full(*_: object, **__: object) -> None:
            raise RunError("cannot write run.lock: No space left on device")

        monkeypatch.setattr(lock._store, "replace", full)
        lock.check()
        deadline = time.monotonic() + 5
        while lock.held and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(RunError, match="lost: cannot write run.lock: No space left"):
            lock.check()


def test_of_many_that_find_the_holder_dead_one_takes_over(store: FileStore) -> None:
    for _ in range(5):
        _write(store, _holder(start="1"))
        barrier = threading.Barrier(4)
        winners: list[RunLock] = []
        losers: list[ConfigError] = []

        def contend(barrier=barrier, winners=winners, losers=losers) -> None:
            lock = RunLock(store.url)
            barrier.wait()
            try:
                winners.append(lock.acquire())
            except ConfigError as error:
                losers.append(error)

        threads = [threading.Thread(target=contend) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holders = [lock for lock in winners if _read(store).token == lock._me.token]
        assert len(holders) == 1
        if store.url.startswith("/"):
            assert len(winners) == 1 and len(losers) == 3
        for lock in winners:
            lock.release()
        store.remove(LOCK)


def test_a_rival_that_died_while_taking_over_does_not_block(store: FileStore) -> None:
    dead = _holder(start="1")
    _write(store, dead)
    assert store.create(f"{LOCK}.takeover-{dead.token}", b"{}")
    with RunLock(store.url, heartbeat_s=0.02, missed=2) as lock:
        lock.check()
    assert store.names("") == []


def test_a_killed_driver_frees_the_run(tmp_path: Path) -> None:
    code = (
        "import sys; from policies.run_lock import RunLock\n"
        "RunLock(sys.argv[1], heartbeat_s=0.01).acquire(); print('held', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {process.pid} on host"):
        RunLock(tmp_path).acquire()
    process.kill()
    process.communicate()
    with RunLock(tmp_path) as lock:
        lock.check()


def test_a_forked_child_neither_holds_nor_releases(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        held = _read(FileStore(tmp_path)).token
        me = lock._me
        lock._me = dataclasses.replace(me, pid=me.pid + 1)
        assert not lock.held
        with pytest.raises(RunError, match="not held by this process"):
            lock.check()
        lock._me = me
        assert _read(FileStore(tmp_path)).token == held


@pytest.mark.parametrize(("heartbeat_s", "missed"), [(0, 5), (-1, 5), (100, 5), (2, 1)])
def test_impossible_heartbeats_are_refused(tmp_path: Path, heartbeat_s: float, missed: int) -> None:
    with pytest.raises(ConfigError, match="heartbeat"):
        RunLock(tmp_path, heartbeat_s=heartbeat_s, missed=missed)


def test_start_times_tell_processes_apart(child: subprocess.Popen) -> None:
    assert processes.process_start(0) is None and processes.process_start(-5) is None
    assert processes.process_start(2**22 + 1) is None
    mine = processes.process_start(os.getpid())
    assert mine and mine == processes.process_start(os.getpid())
    assert processes.process_start(child.pid)
    child.kill()
    child.wait()
    assert processes.process_start(child.pid) is None


def test_without_proc_the_start_comes_from_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"1": "Ss   Mon Jan  1 00:00:00 2024\n", "2": "Z    Mon Jan  1\n", "3": ""}

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess(command, 0, answers[command[-1]], "")

    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    monkeypatch.setattr(subprocess, "run", run)
    assert processes.process_start(1) == "Mon Jan  1 00:00:00 2024"
    assert processes.process_start(2) is None and processes.process_start(3) is None

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("ps")

    monkeypatch.setattr(subprocess, "run", missing)
    assert processes.process_start(1) == ""
