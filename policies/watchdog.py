"""Ends the process when an environment in it hangs, and shows where."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import weakref
from typing import Protocol

_CHECKS_PER_TIMEOUT = 10
_SLOWEST_CHECK_S = 1.0
_SHOW_CURSOR = "\x1b[?25h"


class CallWatch(Protocol):
    """Told when an environment's code starts and ends."""

    def enter(self, label: str) -> None:
        """A call into the environment `label` starts."""
        ...

    def leave(self) -> None:
        """The call returned or raised."""
        ...


class Watchdog:
    """Watches calls into environments from a daemon thread.

    When one call lasts longer than the timeout, the stack of the thread that made it is printed to
    stderr and the process ends with exit code 1: a thread cannot be stopped from outside, and a
    process that waits for ever helps nobody. A call is a few attribute writes; no clock is read. A
    process that was suspended does not count the time that it did not run. Native code that keeps
    the interpreter lock for ever also stops the watching thread: isolate such an environment in a
    process.

    Args:
        timeout_s: Longest time for one call; None watches nothing.

    Example:
        >>> watchdog = Watchdog(timeout_s=60.0)
        >>> watchdog.enter("CartPole-v1 (env 0)")
        >>> watchdog.leave()
        >>> watchdog.close()
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._label: str | None = None
        self._calls = 0
        self._caller = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self, label: str) -> None:
        """Starts watching one call.

        Args:
            label: What is called, for the message.
        """
        if self._thread is None and self._timeout_s is not None:
            self._start()
        self._caller = threading.get_ident()
        self._calls += 1
        self._label = label

    def leave(self) -> None:
        """Ends the watch of the call."""
        self._label = None

    def close(self) -> None:
        """Stops the watching thread."""
        self._stop.set()

    def _start(self) -> None:
        assert self._timeout_s is not None
        arguments = (weakref.ref(self), self._stop, self._timeout_s)
        self._thread = threading.Thread(
            target=_watch, args=arguments, name="env-watchdog", daemon=True
        )
        self._thread.start()


def _watch(ref: weakref.ref[Watchdog], stop: threading.Event, timeout_s: float) -> None:
    """Adds up the time that one and the same call has been seen running."""
    interval = min(_SLOWEST_CHECK_S, timeout_s / _CHECKS_PER_TIMEOUT)
    seen, waited, before = -1, 0.0, time.monotonic()
    while not stop.wait(interval):
        now = time.monotonic()
        # A much longer gap than the interval means that the process was suspended.
        passed, before = min(now - before, 2 * interval), now
        watchdog = ref()
        if watchdog is None:
            return
        calls, label = watchdog._calls, watchdog._label
        waited = waited + passed if calls == seen and label is not None else 0.0
        seen = calls
        if label is not None and waited > timeout_s:
            _end_process(label, timeout_s, watchdog._caller)
        del watchdog


def _end_process(label: str, timeout_s: float, thread_id: int) -> None:
    frame = sys._current_frames().get(thread_id)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "  unknown\n"
    message = (
        f"environment {label} has been in one step or reset for more than {timeout_s:g} s; "
        f"it is at (innermost call last):\n{stack}"
        "The process ends. Raise env_timeout_s, or use isolation=process, which restarts it.\n"
    )
    if os.isatty(2):
        message = f"{_SHOW_CURSOR}{message}"  # A progress bar hides it, and cannot restore it now.
    # Straight to the file descriptor: sys.stderr may be captured, or locked by the hung thread.
    os.write(2, message.encode(errors="replace"))
    os._exit(1)
