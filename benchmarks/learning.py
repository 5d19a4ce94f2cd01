"""Learning: environment steps to the published targets, over several seeds.

`python -m benchmarks.learning [cartpole acrobot pendulum stateless] [--seeds=5]` runs whole
commands and prints a line for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import machine, median

CONFIGS = Path(__file__).with_name("configs")


@dataclass(frozen=True)
class Task:
    """One environment with its target.

    Attributes:
        flags: Flags of `pipelines.train`.
        target: Mean return of 20 episodes, confirmed by 100.
        max_env_steps: Within this many environment steps.
    """

    flags: tuple[str, ...]
    target: float
    max_env_steps: int


TASKS = {
    "cartpole": Task((), 475.0, 100_000),
    "acrobot": Task((f"--config={CONFIGS}/acrobot.yaml",), -100.0, 300_000),
    "pendulum": Task((f"--config={CONFIGS}/pendulum.yaml",), -250.0, 300_000),
    "stateless": Task((f"--config={CONFIGS}/stateless_cartpole_lstm.yaml",), 350.0, 500_000),
}


def train(task: Task, seed: int) -> dict[str, Any]:
    """Runs one command; returns its result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pipelines.train", "--runner=DirectRunner", *task.flags]
        command += [f"--seed={seed}", f"--run_dir={folder}/run", "--quiet"]
        command += [f"--stop_return={task.target}", f"--max_env_steps={task.max_env_steps}"]
        subprocess.run(command, check=True)
        result: dict[str, Any] = json.loads(Path(folder, "run", "result.json").read_text())
        return result


def main() -> None:
    """Prints a line per run and a summary per environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    for name in options.tasks:
        task, steps = TASKS[name], []
        for seed in range(options.seeds):
            result = train(task, seed)
            first = result["first_reached"] or {"env_steps": float("inf"), "seconds": None}
            steps.append(first["env_steps"])
            print(
                f"{name:10} seed {seed}: first at {first['env_steps']:>9,} steps, "
                f"stopped by {result['stop_reason']} at {result['env_steps']:,} steps, "
                f"evaluation {result['evaluation']['mean']:.1f} "
                f"(n {result['evaluation']['n']}), {result['wall_seconds']:.0f} s",
                flush=True,
            )
        print(f"{name:10} median {median(steps):,.0f}, largest {max(steps):,.0f}\n", flush=True)


if __name__ == "__main__":
    main()
