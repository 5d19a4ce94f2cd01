"""Worker processes of the in-process runner (`--direct_running_mode=multi_processing`).

Beam starts its workers as a bare SDK harness. That one outlives a runner that was killed, answers
Ctrl-C with tracebacks, and prints every error of a stage that the runner reports as well; and when
it dies, its runner waits for ever. This is the same harness without these habits.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import sys
import threading
import time
from typing import TextIO

import grpc
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    SubprocessSdkWorkerHandler,
    WorkerHandler,
)
from apache_beam.runners.portability.local_job_service import SubprocessSdkWorker
from apache_beam.runners.worker import sdk_worker_main

from policies.errors import RunError

URN = "beamrl:env:local_worker:v1"
_LOOKS_PER_SECOND = 4
_GRACE_SECONDS = 5.0


def use_local_workers(pipeline: beam_runner_api_pb2.Pipeline) -> None:
    """Replaces the processes that a translated pipeline asks for by those of this module."""
    for environment in pipeline.components.environments.values():
        if environment.urn == python_urns.SUBPROCESS_SDK:
            environment.urn = URN
            environment.payload = _command().encode()


def _command() -> str:
    """The shell command that starts a worker of this process."""
    folders = [path or os.getcwd() for path in sys.path]
    code = (
        # Without a handler the first warning, at import, installs one that prints Beam's log.
        "import logging, sys; logging.getLogger().addHandler(logging.NullHandler()); "
        f"sys.path[:] = {folders!r}; "
        f"from transforms.local_worker import main; main({os.getpid()})"
    )
    # `exec`, so that this process and not a shell is the worker's parent.
    return f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"


@WorkerHandler.register_environment(URN, bytes)
class LocalWorkerHandler(SubprocessSdkWorkerHandler):
    """The runner's side of a worker process; a job whose worker dies fails."""

    def start_worker(self) -> None:
        """Starts the process, and a thread that waits for its end."""
        self.worker = SubprocessSdkWorker(
            self._worker_command_line, self.control_address, self.provision_info, self.worker_id
        )
        self._stopping = threading.Event()
        self.worker_thread = threading.Thread(name="run_worker", target=self._run, daemon=True)
        self.worker_thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except RuntimeError as error:
            lost = RunError(f"a worker process of the runner died in the middle of a job ({error})")
            while not self._stopping.wait(1 / _LOOKS_PER_SECOND):
                # Also what was asked of the worker since. RuntimeError: more is asked meanwhile.
                with contextlib.suppress(RuntimeError):
                    self.control_conn.abort(lost)

    def stop_worker(self) -> None:
        """Waits for the process, which ends when its connection does.

        Not for ever: one that missed its end finds it when the runner's server goes.
        """
        self._stopping.set()
        self.worker_thread.join(_GRACE_SECONDS)


def main(parent: int) -> None:
    """Runs the harness in a worker until its runner ends it, or is gone.

    Args:
        parent: Process id of the runner.
    """
    # The runner's process decides what Ctrl-C in their common terminal means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    threading.excepthook = ignore_lost_channels
    sys.stderr = WithoutTracebacks(sys.stderr)
    with contextlib.suppress(grpc.RpcError):  # The runner's server has gone, and so may this.
        sdk_worker_main.main([])


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1 / _LOOKS_PER_SECOND)
    os._exit(1)


def ignore_lost_channels(failure: threading.ExceptHookArgs) -> None:
    """A `threading.excepthook` that is silent when the other side of a gRPC channel has gone."""
    if not failure.exc_type.__module__.startswith("grpc"):
        threading.__excepthook__(failure)


class WithoutTracebacks(io.TextIOBase):
    """A text stream that drops what Beam prints of failed bundles and lost connections.

    The runner reports them too. Everything else goes through, such as what an environment prints. A
    reader that went away is no failure: an error here would keep a bundle's own error from its
    runner, which then waits for ever.

    Args:
        stream: Where it goes to.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._dropped = False

    def write(self, text: str) -> int:
        """Writes the text unless it is Beam's, or the end of the line after it."""
        dropped = self._dropped
        self._dropped = _is_beams(text)
        if self._dropped or (dropped and text == "\n"):
            return len(text)
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream beneath."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def fileno(self) -> int:
        """The file descriptor of the stream beneath."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream beneath is a terminal."""
        return self._stream.isatty()


def _is_beams(text: str) -> bool:
    # Beam prints each of these in one write.
    traceback = text.startswith("Traceback (most recent call last)") and "apache_beam" in text
    return traceback or text.startswith("Logging client failed")
