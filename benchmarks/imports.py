"""Import time of `pipelines.train` against the bare imports that it cannot do without.

`python -m benchmarks.imports [--repeats=7]`
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from benchmarks.report import machine, median

TARGET = 1.25
BARE = "import apache_beam, torch, gymnasium, pyarrow"
OURS = "import pipelines.train"


def seconds(statement: str) -> float:
    """Wall time of a fresh interpreter that runs one statement."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", statement], check=True, env=environment, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - started


def main() -> None:
    """Prints both times and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(machine())
    seconds(BARE), seconds(OURS)
    pairs = [(seconds(OURS), seconds(BARE)) for _ in range(options.repeats)]
    ours, bare = (median([pair[i] for pair in pairs]) for i in (0, 1))
    ratio = median([a / b for a, b in pairs])
    print(f"pipelines.train {ours:.2f} s, bare {bare:.2f} s: ratio {ratio:.2f}, asked {TARGET}")


if __name__ == "__main__":
    main()
