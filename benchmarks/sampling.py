"""Sampling through the EnvRunner into Arrow batches, against bare loops on the same environment.

`python -m benchmarks.sampling [--steps=128] [--repeats=15]`

Both sides run on one thread and never wait, so steps are counted per second of processor time,
which other programs disturb less. Ours and bare take turns; the ratio is the median of the
pairs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Literal

import gymnasium as gym
import numpy as np
import torch

from benchmarks import bare_loops
from benchmarks.report import machine, median
from policies.env_runner import EnvRunner, RunnerSettings
from policies.policy import Policy
from policies.vector_envs import make_vector_env

Actor = Literal["torch", "numpy"]

TARGETS: dict[Actor, float] = {"torch": 0.8, "numpy": 0.5}


def bare_rate(kind: Actor, envs: int, steps: int) -> Callable[[], float]:
    """Returns a function that measures one run of a bare loop: steps per second."""
    vector = gym.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="vector_entry_point")
    network = bare_loops.tanh_network(4, 2)
    layers = bare_loops.numpy_layers(network)
    rng = np.random.default_rng(0)
    state = {"obs": vector.reset(seed=0)[0]}

    def measure() -> float:
        started = time.process_time()
        if kind == "torch":
            state["obs"] = bare_loops.sample_with_torch(vector, state["obs"], network, steps)
        else:
            state["obs"] = bare_loops.sample_with_numpy(vector, state["obs"], layers, steps, rng)
        return steps * envs / (time.process_time() - started)

    return measure


def our_rate(kind: Actor, envs: int, steps: int) -> Callable[[], float]:
    """Returns a function that measures one `EnvRunner.sample`: steps per second."""
    env = make_vector_env(
        "CartPole-v1", {}, envs, reset_seed=lambda env, episode: episode, native=True
    )
    policy = Policy(env.observation_space, env.action_space, actor=kind)
    runner = EnvRunner(env, 0, RunnerSettings("benchmark", seed=0, fragment_steps=steps))
    version = iter(range(1_000_000))

    def measure() -> float:
        started = time.process_time()
        runner.sample(policy, next(version))
        return steps * envs / (time.process_time() - started)

    return measure


def main() -> None:
    """Prints a table of ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    print("actor   envs  ours steps/s  bare steps/s  ratio  asked")
    for kind, target in TARGETS.items():
        for envs in (8, 64, 256):
            ours, bare = our_rate(kind, envs, options.steps), bare_rate(kind, envs, options.steps)
            pairs = [(ours(), bare()) for _ in range(options.repeats)][1:]
            ratio = median([a / b for a, b in pairs])
            mine, theirs = median([a for a, _ in pairs]), median([b for _, b in pairs])
            print(f"{kind:6} {envs:5} {mine:13,.0f} {theirs:13,.0f} {ratio:6.2f} {target:6.2f}")


if __name__ == "__main__":
    main()
