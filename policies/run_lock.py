"""The lock that lets one driver train a run, and is taken over from a dead one.

`run.lock` names its holder: machine, process id, start of that process, a random token, and a
counter that the holder raises at every heartbeat. No clocks are compared, since those of two
machines differ: whoever waits watches the counter.

* The holder is a process of this machine that no longer lives: taken over at once.
* The holder lives on this machine: refused at once.
* The holder is elsewhere: refused when the counter moves, taken over when it stays still for
  `missed` heartbeats.

The lock guards against a second driver, not against workers: a version may still appear just after
its driver died. Publishing is safe without the lock.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any

import orjson

from policies.errors import ConfigError, RunError
from policies.file_store import FileStore
from policies.manifest import canonical_json
from policies.processes import machine_identity, process_start

LOCK = "run.lock"
_MAX_LOCK_BYTES = 65536
_MAX_HEARTBEAT_S = 60.0
_UNREADABLE_RETRIES = 100
_UNREADABLE_WAIT_S = 0.02


@dataclass(frozen=True)
class LockHolder:
    """Who holds a lock, as `run.lock` says.

    Attributes:
        host: the host's name, for people.
        machine: `processes.machine_identity()` of the holder.
        pid: its process id.
        start: `processes.process_start` of the holder.
        token: random, one for each acquisition.
        counter: heartbeats so far.
        heartbeat_s: seconds between them.
    """

    host: str
    machine: str
    pid: int
    start: str
    token: str
    counter: int
    heartbeat_s: float

    @classmethod
    def this_process(cls, heartbeat_s: float) -> LockHolder:
        """Returns a new holder for the calling process."""
        pid = os.getpid()
        start = process_start(pid) or ""
        token = secrets.token_hex(16)
        return cls(socket.gethostname(), machine_identity(), pid, start, token, 0, heartbeat_s)

    @classmethod
    def decode(cls, data: bytes) -> LockHolder | None:
        """Returns the holder that a lock file names, or None when it is torn or malformed."""
        try:
            value: Any = orjson.loads(data)
            holder = cls(**value)
        except (orjson.JSONDecodeError, TypeError):
            return None
        texts = (holder.host, holder.machine, holder.start, holder.token)
        sound = all(isinstance(text, str) and text.isprintable() for text in texts) and all(
            type(number) is int for number in (holder.pid, holder.counter)
        )
        return holder if sound and isinstance(holder.heartbeat_s, int | float) else None

    def encode(self) -> bytes:
        """Returns the content of the lock file."""
        return canonical_json(asdict(self))

    def lives_here(self) -> bool | None:
        """Returns whether the holder lives, or None when that cannot be told from this machine."""
        if self.machine != machine_identity():
            return None
        start = process_start(self.pid)
        return start is not None and (start == self.start or "" in (start, self.start))


class RunLock:
    """Holds a run for one driver; a context manager.

        with RunLock(run.url, notify=print) as lock:
            ...
            lock.check()  # once a round

    Args:
        url: the run directory.
        heartbeat_s: seconds between heartbeats.
        missed: heartbeats without which a holder elsewhere counts as dead.
        notify: gets one line each time there is something to say while waiting.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        heartbeat_s: float = 2.0,
        missed: int = 5,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        if not 0 < heartbeat_s <= _MAX_HEARTBEAT_S or missed < 2:
            raise ConfigError(
                f"heartbeat_s={heartbeat_s}, missed={missed}: a lock needs a heartbeat of up to "
                f"{_MAX_HEARTBEAT_S:.0f} s and at least 2 missed ones"
            )
        self._store = FileStore(url)
        self._missed = missed
        self._notify = notify
        self._me = LockHolder.this_process(heartbeat_s)
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._confirmed = 0.0
        self._lost: str | None = None

    def __enter__(self) -> RunLock:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def held(self) -> bool:
        """Whether this object, in this process, holds the lock as far as it knows."""
        return self._thread is not None and self._lost is None and os.getpid() == self._me.pid

    def acquire(self) -> RunLock:
        """Takes the lock, from a dead holder if need be, and starts the heartbeat.

        Raises:
            ConfigError: the run is being trained; names the process, its host and the way out.
            RunError: the lock file cannot be read or written.
        """
        if self._thread is not None:
            raise RuntimeError("a RunLock is acquired once")
        unreadable = 0
        while not self._store.create(LOCK, self._me.encode()):
            data = self._store.read(LOCK, _MAX_LOCK_BYTES)
            if data is None:
                # Mostly a holder that has just released it.
                unreadable += 1
                if unreadable > _UNREADABLE_RETRIES:
                    url = self._store.url_of(LOCK)
                    raise RunError(f"{url} can be neither created nor read")
                time.sleep(_UNREADABLE_WAIT_S)
                continue
            self._wait_until_dead(data)
            if self._take_over(data):
                break
        self._confirmed = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)
        self._thread.start()
        return self

    def release(self) -> None:
        """Stops the heartbeat and removes the lock file, if it is still ours."""
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._me.pid:
            return
        self._stop.set()
        thread.join()
        with self._writing:
            if self._lost is None and self._token_now() == self._me.token:
                self._store.remove(LOCK)

    def check(self) -> None:
        """Raises RunError when the lock is not, or no longer, ours. Costs no file access, mostly.

        After a pause of the whole process (a suspended laptop) the file is looked at first, since
        another driver may have waited for the missed heartbeats meanwhile.
        """
        if self._thread is None or os.getpid() != self._me.pid:
            raise RunError(f"{self._store.url_of(LOCK)} is not held by this process")
        if self._lost is None and time.monotonic() - self._confirmed > 2 * self._me.heartbeat_s:
            self._refresh()
        if self._lost is not None:
            raise RunError(self._lost)

    def check_covers(self, url: str) -> None:
        """Raises RunError unless this lock is held, by the file itself, and is that run's."""
        if url != self._store.url:
            raise RunError(f"the lock of {self._store.url} does not cover {url}")
        self.check()
        if not self._still_ours():
            self.check()

    def _wait_until_dead(self, data: bytes) -> None:
        holder = LockHolder.decode(data)
        lives = holder.lives_here() if holder else None
        if lives:
            raise ConfigError(self._refusal(holder))
        if lives is False:
            return
        period = min(max(holder.heartbeat_s, 0.01), _MAX_HEARTBEAT_S) if holder else 2.0
        name = f"process {holder.pid} on host {holder.host}" if holder else "an unknown process"
        for still in range(self._missed):
            self._notify(
                f"{self._store.url} is locked by {name}; taking over after "
                f"{self._missed - still} more missed heartbeats of {period:g} s"
            )
            time.sleep(period)
            now = self._store.read(LOCK, _MAX_LOCK_BYTES)
            if now is None:
                return
            if now != data:
                raise ConfigError(self._refusal(LockHolder.decode(now)))

    def _take_over(self, dead: bytes) -> bool:
        # Only the maker of the marker may replace the dead holder's file, so that of several
        # drivers that found it dead one wins, and a slow one cannot replace the winner's.
        holder = LockHolder.decode(dead)
        marker = f"{LOCK}.takeover-{holder.token[:32] if holder else 'torn'}"
        marker = "".join(letter for letter in marker if letter.isalnum() or letter in ".-")
        if not self._store.create(marker, self._me.encode()):
            self._yield_to_rival(marker, dead)
            return False
        try:
            if self._store.read(LOCK, _MAX_LOCK_BYTES) != dead:
                return False
            self._store.replace(LOCK, self._me.encode())
            return self._token_now() == self._me.token
        finally:
            self._store.remove(marker)

    def _yield_to_rival(self, marker: str, dead: bytes) -> None:
        deadline = time.monotonic() + self._missed * self._me.heartbeat_s
        while time.monotonic() < deadline:
            time.sleep(min(0.05, self._me.heartbeat_s))
            if self._store.read(LOCK, _MAX_LOCK_BYTES) != dead or self._store.size(marker) is None:
                return
        # The rival died between its two steps.
        self._store.remove(marker)

    def _refusal(self, holder: LockHolder | None) -> str:
        if holder is None:
            return f"{self._store.url} is being trained by another process; wait for it to end"
        if holder.pid == self._me.pid and holder.lives_here():
            return (
                f"{self._store.url} is held by another object of this process: "
                "close() that one first"
            )
        return (
            f"{self._store.url} is being trained by process {holder.pid} on host {holder.host}: "
            f"wait for it, end it (kill {holder.pid}), or choose another run directory"
        )

    def _beat(self) -> None:
        while self._lost is None and not self._stop.wait(self._me.heartbeat_s):
            self._refresh()

    def _refresh(self) -> None:
        with self._writing:
            try:
                if not self._still_ours():
                    return
                self._me = replace(self._me, counter=self._me.counter + 1)
                self._store.replace(LOCK, self._me.encode(), durable=False)
                self._confirmed = time.monotonic()
            except RunError as error:
                # One failed write is no loss; silence for as long as others wait is.
                if time.monotonic() - self._confirmed > self._missed * self._me.heartbeat_s:
                    self._lose(str(error))

    def _still_ours(self) -> bool:
        data = self._store.read(LOCK, _MAX_LOCK_BYTES)
        holder = LockHolder.decode(data) if data is not None else None
        if holder is not None and holder.token == self._me.token:
            return True
        self._lose(f"{LOCK} was removed" if data is None else "another process took it over")
        return False

    def _token_now(self) -> str | None:
        data = self._store.read(LOCK, _MAX_LOCK_BYTES)
        holder = LockHolder.decode(data) if data is not None else None
        return holder.token if holder else None

    def _lose(self, reason: str) -> None:
        self._lost = f"{self._store.url_of(LOCK)} was lost: {reason}; this driver stops"
