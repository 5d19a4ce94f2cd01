"""Resident memory over 300 rounds: flat after round 30, and below 900 MB.

`python -m benchmarks.memory [--rounds=300]`
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile

import torch

from benchmarks.report import machine
from pipelines.algorithm import Algorithm

LIMIT_MB = 900
TOLERANCE = 0.05
SETTLED = 30


def resident_mb() -> float:
    """Resident set size of this process in MB (10^6 bytes)."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Prints the size every 30 rounds and the spread after round 30."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    torch.set_num_threads(1)
    print(machine())
    sizes: list[float] = []
    settings = {"seed": 1, "num_epochs": 2}
    with Algorithm(settings, run_dir=f"{tempfile.mkdtemp()}/run") as algorithm:
        for number in range(1, options.rounds + 1):
            algorithm.train()
            sizes.append(resident_mb())
            if number % SETTLED == 0:
                print(f"round {number:4}: {sizes[-1]:6.0f} MB", flush=True)
    settled = sizes[SETTLED - 1 :]
    spread = max(max(settled) / settled[0] - 1, 1 - min(settled) / settled[0])
    print(
        f"after round {SETTLED}: within {spread:.1%} (asked {TOLERANCE:.0%}), "
        f"largest {max(sizes):.0f} MB (asked {LIMIT_MB} MB)"
    )


if __name__ == "__main__":
    main()
