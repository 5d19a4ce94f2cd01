"""Evaluates a policy on exactly N episodes, each with its own seed.

Episodes are counted in the order in which they start: environment i of k plays episodes i, i + k,
i + 2k, ... to their ends. Taking whichever finish first would favour short ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from policies.config import AlgorithmConfig
from policies.env_setup import uses_native_env, vector_env_for
from policies.errors import ConfigError, RunError
from policies.finite_rows import first_not_finite
from policies.policy import Policy
from policies.random_streams import Purpose, seed_for, stream
from policies.recurrent_state import State, choose_rows
from policies.sample_batch import OBS, REWARDS
from policies.vector_envs import StepResult, VectorEnv

MAX_NATIVE_ENVS = 128
"""Native environments of one evaluation at the most."""


def evaluation_env(
    config: AlgorithmConfig, version: int, episodes: int, purpose: Purpose
) -> VectorEnv:
    """Fresh environments for one evaluation.

    Each episode has a seed of its own, of (version, episode), so its start does not depend on the
    number of environments; native ones take one seed, of (version).
    """
    limit = MAX_NATIVE_ENVS if uses_native_env(config) else config.num_envs_per_worker
    count = min(episodes, limit)
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
        and `capped`, the number of episodes cut at `evaluation_max_episode_steps`. An episode whose
        environment failed and was started again is played again, with another seed.

    Raises:
        ConfigError: `episodes` is less than 1.
        RunError: An environment kept failing, or returned a number that is not finite.
    """
    if episodes < 1:
        raise ConfigError(f"an evaluation needs at least 1 episode, not {episodes}")
    env = evaluation_env(config, version, episodes, purpose)
    try:
        evaluation = _Evaluation(env, policy, config, version, episodes, purpose)
        evaluation.play()
    finally:
        env.close()
    returns = evaluation.returns
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std(ddof=1)) if episodes > 1 else 0.0,
        "n": episodes,
        "lengths": evaluation.lengths.tolist(),
        "returns": returns.tolist(),
        "capped": evaluation.capped,
    }


class _Evaluation:
    """An evaluation in progress.

    Attributes:
        returns: float64 [episodes], so far.
        lengths: int64 [episodes], so far.
        capped: Episodes that were cut.
    """

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        config: AlgorithmConfig,
        version: int,
        episodes: int,
        purpose: Purpose,
    ) -> None:
        self._env = env
        self._policy = policy
        self._explore = config.evaluation_explore
        self._max_steps = config.evaluation_max_episode_steps
        self._noise_key = (config.seed, Purpose.ACTION_NOISE, version, int(purpose))
        self.returns = np.zeros(episodes)
        self.lengths = np.zeros(episodes, np.int64)
        self.capped = 0
        self._playing = np.arange(env.num_envs)  # the episode that each environment plays
        self._noise = np.zeros((env.num_envs, policy.noise_size))
        self._streams: list[np.random.Generator] = []
        if self._explore:
            self._streams = [self._stream(episode) for episode in self._playing.tolist()]
            self._draw(range(env.num_envs))

    def play(self) -> None:
        """Plays all episodes to their ends."""
        episodes = len(self.returns)
        while (self._playing < episodes).any():
            active = self._playing < episodes
            obs, state = self._env.reset(), self._policy.initial_state(self._env.num_envs)
            while active.any():
                actions, next_state = self._act(obs, state)
                result = self._env.step(actions, active)
                obs = result.obs
                self._require_finite(result, active)
                ended, capped = self._count(result)
                over = ended | capped
                for index, _ in result.failed:
                    over[index] = True
                state = self._next_state(state, next_state, result.valid, over)
                self._move_on(ended | capped, over, result.valid)
                active &= self._playing < episodes
                if capped.any() and self._env.can_skip:
                    obs = self._env.reset_envs(capped)
                elif capped.any():
                    # A native environment cannot be reset by itself: this one waits for all.
                    active &= ~capped

    def _act(self, obs: Any, state: State) -> tuple[Any, State]:
        noise = self._noise if self._explore else None
        actions, next_state, _ = self._policy.compute_actions(
            obs, state, explore=self._explore, noise=noise, extras=()
        )
        return self._policy.to_env_action(actions), next_state

    def _count(self, result: StepResult) -> tuple[np.ndarray, np.ndarray]:
        """Adds a step to the episodes; returns where they ended and where they are cut."""
        valid = result.valid
        rows = self._playing[valid]
        self.returns[rows] += result.rewards[valid]
        self.lengths[rows] += 1
        for index, _ in result.failed:
            self.returns[self._playing[index]] = 0.0
            self.lengths[self._playing[index]] = 0
        ended = (result.terminateds | result.truncateds) & valid
        capped = np.zeros(len(valid), np.bool_)
        capped[valid] = self.lengths[rows] >= self._max_steps
        capped &= ~ended
        self.capped += int(capped.sum())
        return ended, capped

    def _move_on(self, finished: np.ndarray, over: np.ndarray, valid: np.ndarray) -> None:
        """Turns environments to their next episodes, and draws the noise that was used up anew."""
        self._playing[finished] += self._env.num_envs
        if self._explore:
            for env in np.flatnonzero(over).tolist():
                self._streams[env] = self._stream(int(self._playing[env]))
            self._draw(np.flatnonzero(valid | over).tolist())

    def _stream(self, episode: int) -> np.random.Generator:
        return stream(*self._noise_key, episode)

    def _draw(self, envs: Iterable[int]) -> None:
        for env in envs:
            self._noise[env] = self._streams[env].random(self._policy.noise_size)

    def _next_state(
        self, state: State, next_state: State, valid: np.ndarray, over: np.ndarray
    ) -> State:
        if not state:
            return state
        kept = choose_rows(valid, next_state, state)
        return choose_rows(over, self._policy.initial_state(len(over)), kept)

    def _require_finite(self, result: StepResult, active: np.ndarray) -> None:
        values = {REWARDS: result.rewards, OBS: result.obs}
        # What idle environments return is of no interest.
        found = first_not_finite(values, rows=active)
        if found is not None:
            column, env, value = found
            episode = self._playing[env]
            raise RunError(
                f"environment {self._env.name!r}: {column} is not finite ({value}): evaluation "
                f"episode {episode}, env {env}, step {self.lengths[episode]}"
            )
