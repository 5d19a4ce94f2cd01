"""Beam's overhead a round: wall - sampling - learning - evaluation, at K = 1 and K = 10.

Metrics, hashing, publishing and the runner are all in it. `python -m benchmarks.overhead`
"""

from __future__ import annotations

import argparse
import logging
import tempfile

import torch

import pipelines.train  # noqa: F401  (as the command does: no garbage collection of its imports)
from benchmarks.report import machine, median
from pipelines.algorithm import Algorithm

TARGET_SECONDS = 0.10


def measure(rounds_per_job: int, jobs: int, shards: int) -> list[dict[str, float]]:
    """Timings of every round after the first job."""
    settings = {"num_rollout_workers": shards, "seed": 1}
    timings: list[dict[str, float]] = []
    with Algorithm(settings, run_dir=f"{tempfile.mkdtemp()}/run") as algorithm:
        algorithm.train(rounds_per_job)
        for _ in range(jobs):
            algorithm.train(rounds_per_job)
            timings += [result["seconds"] for result in algorithm.results]
    return timings


def main() -> None:
    """Prints seconds a round and their parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    torch.set_num_threads(1)
    print(machine())
    print("shards   K  overhead  asked   wall = collect learn evaluate, publish")
    for shards in (1, 4):
        for k in (1, 10):
            rounds = measure(k, max(1, options.rounds // k), shards)
            parts = {
                name: median([r.get(name, 0.0) for r in rounds])
                for name in ("overhead", "wall", "collect", "learn", "evaluate", "publish")
            }
            print(
                f"{shards:6} {k:3} {parts['overhead']:9.3f} {TARGET_SECONDS:6.2f}   "
                f"{parts['wall']:.3f} = {parts['collect']:.3f} {parts['learn']:.3f} "
                f"{parts['evaluate']:.3f}, {parts['publish']:.3f}"
            )


if __name__ == "__main__":
    main()
