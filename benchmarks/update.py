"""PPO's `update` against a bare torch loop with fused Adam on the same minibatches.

`python -m benchmarks.update [--repeats=15]`
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from benchmarks.bare_loops import BarePPO, tanh_network
from benchmarks.report import machine, median
from policies.env_runner import EnvRunner, RunnerSettings
from policies.learners import ppo
from policies.sample_batch import ACTION_LOGP, ACTIONS, OBS
from policies.vector_envs import make_vector_env

TARGET = 0.9


def main() -> None:
    """Prints the ratio for the default minibatches and two other sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    print(f"{'rows':>6} {'minibatch':>9} {'ours ms':>8} {'bare ms':>8} {'ratio':>6} {'asked':>6}")
    for steps, minibatch in ((64, 128), (64, 64), (256, 512)):
        config = ppo.PPOConfig(minibatch_size=minibatch)
        env = make_vector_env(
            "CartPole-v1", {}, 16, reset_seed=lambda env, episode: episode, native=True
        )
        state = ppo.initial_state(config, env.observation_space, env.action_space)
        runner = EnvRunner(env, 0, RunnerSettings("benchmark", seed=0, fragment_steps=steps))
        batch = runner.sample(state.policy, 0).steps
        bare = BarePPO(tanh_network(4, 2), tanh_network(4, 1))
        data = ppo.postprocess(config, state, batch)
        rng = np.random.default_rng(0)
        pairs = []
        for _ in range(options.repeats):
            started = time.perf_counter()
            state, _ = ppo.update(config, state, batch)
            ours = time.perf_counter() - started
            started = time.perf_counter()
            bare.update(
                batch.torch(OBS),
                batch.torch(ACTIONS),
                batch.torch(ACTION_LOGP).float(),
                data.advantages,
                data.targets,
                config.num_epochs,
                minibatch,
                rng,
            )
            pairs.append((ours, time.perf_counter() - started))
        pairs = pairs[1:]
        ours, theirs = (median([pair[i] for pair in pairs]) for i in (0, 1))
        ratio = median([b / a for a, b in pairs])
        print(
            f"{len(batch):6} {minibatch:9} {ours * 1e3:8.1f} {theirs * 1e3:8.1f} "
            f"{ratio:6.2f} {TARGET:6.2f}"
        )


if __name__ == "__main__":
    main()
