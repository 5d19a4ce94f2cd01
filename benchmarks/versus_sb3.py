"""Whole command against Stable-Baselines3: process start to the first evaluation at 475.

`python -m benchmarks.versus_sb3 --sb3_python=VENV/bin/python [--seeds=5]`. Both run alternately in
this script, seed by seed; each ratio is of one pair. Both evaluate 20 episodes about every 1,024
steps; the column "no eval" leaves SB3's evaluations out of its time, and ours in ours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import machine, median

TARGET = 0.6


def ours(seed: int) -> tuple[float, int]:
    """Seconds and environment steps of `pipelines.train` with no flags but the seed."""
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        command = [sys.executable, "-m", "pipelines.train", "--runner=DirectRunner"]
        command += [f"--seed={seed}", f"--run_dir={run}", "--quiet"]
        subprocess.run(command, check=True)
        first = json.loads(Path(run, "result.json").read_text())["first_reached"]
        return first["seconds"], first["env_steps"]


def sb3(python: str, seed: int) -> tuple[float, int, float]:
    """The same of Stable-Baselines3, with rl-zoo's hyper-parameters; and seconds of evaluation."""
    script = Path(__file__).with_name("sb3_cartpole.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = time.time()
    done = subprocess.run(
        [python, str(script), str(seed)], check=True, capture_output=True, env=environment
    )
    first = json.loads(done.stdout.splitlines()[-1])
    if first is None:
        return float("inf"), 100_000, 0.0
    return first["at"] - started, int(first["env_steps"]), first["evaluating"]


def main() -> None:
    """Prints a line per seed, then the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sb3_python", required=True, help="Python of SB3's environment.")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    print("seed  ours s   steps   sb3 s   steps  ratio  no eval  ratio")
    rows = []
    for seed in range(options.seeds):
        mine, my_steps = ours(seed)
        theirs, their_steps, evaluating = sb3(options.sb3_python, seed)
        bare = theirs - evaluating
        rows.append((mine, theirs, bare))
        print(
            f"{seed:4} {mine:7.2f} {my_steps:7,} {theirs:7.2f} {their_steps:7,} "
            f"{mine / theirs:6.2f} {bare:8.2f} {mine / bare:6.2f}",
            flush=True,
        )
    mine, theirs, bare = (median([row[i] for row in rows]) for i in range(3))
    print(
        f"medians: ours {mine:.2f} s, sb3 {theirs:.2f} s, ratio {mine / theirs:.2f} "
        f"(asked {TARGET}); without sb3's evaluations {bare:.2f} s, ratio {mine / bare:.2f}"
    )


if __name__ == "__main__":
    main()
