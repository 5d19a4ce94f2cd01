"""`python -m pipelines.train`: trains a policy, from the start or from where a run stopped."""

from __future__ import annotations

import gc

# Collecting garbage while modules load costs a tenth of the start; nothing there is garbage.
gc.disable()

import os  # noqa: E402
import signal  # noqa: E402

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")


def _end(number: int, frame: object) -> None:
    os.write(2, b"interrupted; nothing was written\n")
    os._exit(130)


# Imports take seconds, in which Ctrl-C has nothing to tidy up; training sets handlers of its own.
for _signal in (signal.SIGINT, signal.SIGTERM):
    if __name__ == "__main__" and signal.getsignal(_signal) is not signal.SIG_IGN:
        signal.signal(_signal, _end)

import logging  # noqa: E402
import sys  # noqa: E402

# Beam warns about optional parts while it loads.
logging.getLogger().addHandler(logging.NullHandler())

from pipelines.training_command import main, run  # noqa: E402

gc.freeze()
gc.enable()

__all__ = ["main", "run"]

if __name__ == "__main__":
    sys.exit(main())
