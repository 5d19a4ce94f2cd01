"""Evaluates a policy on exactly N episodes, each with its own seed.

Episodes are counted in the order in which they start: environment i of k plays episodes i, i + k,
i + 2k, ... to their ends. Taking whichever finish first would favour short ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.config import AlgorithmConfig
from policies.env_setup import uses_native_env, vector_env_for
from policies.policy import Policy
from policies.random_streams import Purpose, seed_for, stream
from policies.vector_envs import VectorEnv

MAX_NATIVE_ENVS = 128


def evaluation_env(
    config: AlgorithmConfig, version: int, episodes: int, purpose: Purpose
) -> VectorEnv:
    """Fresh environments for one evaluation, seeded by (version, episode)."""
    count = min(episodes, MAX_NATIVE_ENVS if uses_native_env(config) else config.num_envs_per_worker)
    return vector_env_for(
        config,
        count,
        lambda env, episode: seed_for(config.seed, purpose, version, episode * count + env),
        seed_for(config.seed, purpose, version),
    )


def evaluate(
    policy: Policy,
    config: AlgorithmConfig,
    version: int,
    episodes: int,
    purpose: Purpose = Purpose.EVALUATION,
) -> dict[str, Any]:
    """Plays exactly `episodes` episodes with a frozen filter.

    Returns:
        `mean`, `std` (ddof 1; 0 for one episode), `n`, `lengths` and `returns` by episode number,
        and `capped`, the number of episodes cut at `evaluation_max_episode_steps`.

    Raises:
        RunError: An environment kept failing.
    """
    env = evaluation_env(config, version, episodes, purpose)
    try:
        returns, lengths, capped = _play(env, policy, config, version, episodes, purpose)
    finally:
        env.close()
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std(ddof=1)) if episodes > 1 else 0.0,
        "n": episodes,
        "lengths": lengths.tolist(),
        "returns": returns.tolist(),
        "capped": capped,
    }


def _play(
    env: VectorEnv,
    policy: Policy,
    config: AlgorithmConfig,
    version: int,
    episodes: int,
    purpose: Purpose,
) -> tuple[np.ndarray, np.ndarray, int]:
    count = env.num_envs
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    playing = np.arange(count)  # the episode that each environment plays
    active = playing < episodes
    capped = 0
    obs, state = env.reset(), policy.initial_state(count)
    noise = stream(config.seed, Purpose.ACTION_NOISE, version, int(purpose))
    explore = config.evaluation_explore
    while active.any():
        numbers = noise.random((count, policy.noise_size)) if explore else None
        actions, state, _ = policy.compute_actions(
            obs, state, explore=explore, noise=numbers, extras=()
        )
        result = env.step(policy.to_env_action(actions), active)
        obs = result.obs
        counted = result.valid
        rows = playing[counted]
        returns[rows] += result.rewards[counted]
        lengths[rows] += 1
        done = (result.terminateds | result.truncateds) & counted
        too_long = np.zeros(count, np.bool_)
        too_long[counted] = lengths[rows] >= config.evaluation_max_episode_steps
        capped += int((too_long & ~done).sum())
        active &= ~(too_long & ~done)
        for index, _ in result.failed:
            returns[playing[index]], lengths[playing[index]] = 0.0, 0
            state = _reset_state(state, policy, np.arange(count) == index)
        if done.any():
            playing[done] += count
            active &= playing < episodes
            state = _reset_state(state, policy, done)
    return returns, lengths, capped


def _reset_state(
    state: tuple[np.ndarray, ...], policy: Policy, rows: np.ndarray
) -> tuple[np.ndarray, ...]:
    initial = policy.initial_state(len(rows))
    return tuple(
        np.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)
        for old, new in zip(state, initial, strict=True)
    )
