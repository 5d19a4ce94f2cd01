"""Stable-Baselines3's PPO on CartPole-v1, rl-zoo's hyper-parameters, until an evaluation is at 475.

Runs in a virtual environment of its own (`pip install stable-baselines3`), as one command:
`python sb3_cartpole.py SEED`. Prints one line of JSON. Evaluates 20 deterministic episodes every
1,024 steps, as often as ours does.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

TARGET, EVERY, EPISODES = 475.0, 1_024, 20


class StopAtTarget(BaseCallback):
    """Evaluates between rollouts and stops at the target."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.envs = make_vec_env("CartPole-v1", n_envs=EPISODES, seed=seed + 10_000)
        self.next = EVERY
        self.evaluating = 0.0
        self.reached: dict[str, float] | None = None

    def _on_rollout_start(self) -> None:
        if self.num_timesteps < self.next or self.reached:
            return
        self.next = self.num_timesteps + EVERY
        started = time.perf_counter()
        mean, _ = evaluate_policy(self.model, self.envs, n_eval_episodes=EPISODES)
        self.evaluating += time.perf_counter() - started
        if mean >= TARGET:
            self.reached = {
                "env_steps": self.num_timesteps,
                "at": time.time(),
                "mean": float(mean),
                "evaluating": self.evaluating,
            }

    def _on_step(self) -> bool:
        return self.reached is None


def main() -> None:
    """Trains and prints when the target was first reached."""
    torch.set_num_threads(1)
    seed = int(sys.argv[1])
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=lambda left: 0.001 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    callback = StopAtTarget(seed)
    model.learn(100_000, callback=callback)
    print(json.dumps(callback.reached))


if __name__ == "__main__":
    main()
