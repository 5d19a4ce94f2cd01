"""Runs training commands in forked children, which die exactly where a test wants them to.

Imports take seconds, so they are made once; a child starts at once, with nothing trained yet. Reads
one JSON request a line and answers each with one line:

    {"argv": [...], "log": PATH, "kill": {...} or null} -> {"pid": PID}
    {"wait": PID} -> {"code": exit code, minus the number of the signal that ended it, or text}
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelines.training_command import main

_PATIENCE_S = 120.0
_IMPORTED_LATE = (
    "numpy.ma",
    "policies.learners.ppo",
    "policies.gym_vector_env",
    "policies.process_vector_env",
    "policies.torch_distributions",
    "safetensors.numpy",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
)


@dataclass(frozen=True)
class Kill:
    """Sends the process a signal at one call of one function.

    Attributes:
        at: The function, "module:function" or "module:Class.method".
        call: At which of its calls since the last start of `inside`.
        inside: Count only while this function runs.
        entry: Count only from this call of `inside` on.
        how: `before` the call, `after` it, or `half`: with half of its last argument, bytes to be
            written.
        number: The signal.
        links: False makes hard links fail, as some file systems do.
    """

    at: str
    call: int = 1
    inside: str | None = None
    entry: int = 1
    how: str = "before"
    number: int = signal.SIGKILL
    links: bool = True

    def arm(self) -> None:
        """Patches the functions."""
        if not self.links:
            os.link = _refuse  # type: ignore[assignment]
        entries, calls, done = 0, 0, False

        def enter(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal entries, calls
            entries, calls = entries + 1, 0
            try:
                return real(*args, **kwargs)
            finally:
                calls = -(10**9)

        def count(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal calls, done
            if done or entries < self.entry:
                return real(*args, **kwargs)
            calls += 1
            done = calls == self.call
            if not done:
                return real(*args, **kwargs)
            if self.how == "before":
                os.kill(os.getpid(), self.number)
            elif self.how == "half":
                args = (*args[:-1], args[-1][: len(args[-1]) // 2])
            result = real(*args, **kwargs)
            if self.how != "before":
                os.kill(os.getpid(), self.number)
            return result

        _wrap(self.at, count)
        if self.inside is None:
            entries = self.entry
        else:
            _wrap(self.inside, enter)


def _wrap(name: str, wrapper: Callable[..., Any]) -> None:
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, last = path.split(".")
    for cls in classes:
        owner = getattr(owner, cls)
    real = getattr(owner, last)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return wrapper(real, *args, **kwargs)

    setattr(owner, last, replacement)


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def _start(request: dict[str, Any]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        if request["kill"] is not None:
            Kill(**request["kill"]).arm()
        code = main(request["argv"])
        sys.stdout.flush()
    finally:
        # Not sys.exit: the loop of the server is further up on the stack.
        os._exit(code)


def _wait(pid: int) -> int | str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return f"still running after {_PATIENCE_S:.0f} s"


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if "wait" in request:
        return {"code": _wait(request["wait"])}
    return {"pid": _start(request)}


def serve() -> None:
    """Answers requests until standard input ends."""
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(request)), flush=True)


if __name__ == "__main__":
    serve()
