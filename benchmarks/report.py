"""What every benchmark prints about itself."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Sequence

_PACKAGES = ("apache-beam", "torch", "gymnasium", "pyarrow", "numpy")


def machine() -> str:
    """One line: processor, cores, Python and packages."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            model = next(
                line.split(":", 1)[1].strip() for line in info if line.startswith("model name")
            )
    except (OSError, StopIteration):
        pass
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    load = os.getloadavg()[0]
    return (
        f"# {model}, {os.cpu_count()} cores, load {load:.1f}, "
        f"Python {platform.python_version()}, {versions}"
    )


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)
