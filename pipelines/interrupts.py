"""Ctrl-C and SIGTERM: the command ends at once, and the run can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

EXIT_INTERRUPTED = 130
_TIDY_SECONDS = 3.0


@contextlib.contextmanager
def ending_on_signals(
    restore_terminal: Callable[[], None],
    tidy: Callable[[], None],
    farewell: Callable[[], str],
) -> Iterator[None]:
    """Ends the process with code 130 at the first Ctrl-C or SIGTERM inside the block.

    What is published stays, and the rest is sampled again by a resume, so nothing has to be waited
    for. A second signal ends it without tidying.

    Args:
        restore_terminal: Called in the handler.
        tidy: Called in a thread of its own, since the interrupted code may hold locks; given up
            after 3 seconds.
        farewell: Makes the last line, on standard error; called after `tidy`.
    """
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        # Not an exception: it would have to find its way through the runner's threads.
        if ending:
            os._exit(EXIT_INTERRUPTED)
        ending = True
        with contextlib.suppress(Exception):
            restore_terminal()
        thread = threading.Thread(target=_attempt, args=(tidy,), daemon=True)
        thread.start()
        thread.join(_TIDY_SECONDS)
        with contextlib.suppress(Exception):
            # Past sys.stderr, in whose middle the signal may have come.
            os.write(2, f"{farewell()}\n".encode(errors="replace"))
        os._exit(EXIT_INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets the main thread alone handle signals.
        return
    names = [
        name
        for name in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(name) is not signal.SIG_IGN  # A shell's background job, or nohup.
    ]
    before = {name: signal.signal(name, end) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _attempt(tidy: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        tidy()
