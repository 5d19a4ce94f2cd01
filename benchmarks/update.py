"""PPO's `update` against a bare torch loop with fused Adam on the same minibatches.

`python -m benchmarks.update [--repeats=21]`

Ours is the whole round: values and advantages of the rows, all gradient steps, statistics. The
bare loop gets tensors with ready advantages. Times are CPU times of one thread, in pairs one after
the other, so that other work on the machine disturbs the ratio less.
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
from policies.sample_batch import ACTION_LOGP, ACTIONS, OBS, SampleBatch
from policies.vector_envs import make_vector_env

TARGET = 0.9


def compare(steps: int, minibatch: int, repeats: int) -> tuple[int, list[tuple[float, float]]]:
    """Rows of a round, and pairs of CPU seconds for one update: ours, bare."""
    config = ppo.PPOConfig(minibatch_size=minibatch)
    env = make_vector_env(
        "CartPole-v1", {}, 16, reset_seed=lambda env, episode: episode, native=True
    )
    state = ppo.initial_state(config, env.observation_space, env.action_space)
    runner = EnvRunner(env, 0, RunnerSettings("benchmark", seed=0, fragment_steps=steps))
    batch = runner.sample(state.policy, 0).steps
    bare, tensors = _bare(config, state.policy, batch)
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(repeats):
        started = time.process_time()
        state, _ = ppo.update(config, state, batch)
        between = time.process_time()
        bare.update(*tensors, config.num_epochs, minibatch, rng)
        pairs.append((between - started, time.process_time() - between))
    return len(batch), pairs[1:]


def _bare(
    config: ppo.PPOConfig, policy: ppo.Policy, batch: SampleBatch
) -> tuple[BarePPO, tuple[torch.Tensor, ...]]:
    data = ppo.postprocess(config, policy, batch)
    logp = batch.torch(ACTION_LOGP).float()
    tensors = (batch.torch(OBS), batch.torch(ACTIONS), logp, data.advantages, data.targets)
    return BarePPO(tanh_network(4, 2), tanh_network(4, 1)), tensors


def main() -> None:
    """Prints the ratio for the default minibatches and two other sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    print(f"{'rows':>6} {'minibatch':>9} {'ours ms':>8} {'bare ms':>8} {'ratio':>6} {'asked':>6}")
    for steps, minibatch in ((64, 128), (64, 64), (256, 512)):
        rows, pairs = compare(steps, minibatch, options.repeats)
        ours, bare = (median([pair[i] for pair in pairs]) * 1e3 for i in (0, 1))
        ratio = median([b / a for a, b in pairs])
        print(f"{rows:6} {minibatch:9} {ours:8.1f} {bare:8.1f} {ratio:6.2f} {TARGET:6.2f}")


if __name__ == "__main__":
    main()
