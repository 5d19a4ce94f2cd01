"""Evaluations: exactly N episodes, by the order in which they start."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from policies import evaluation
from policies.config import AlgorithmConfig
from policies.env_setup import vector_env_for
from policies.errors import ConfigError, RunError
from policies.evaluation import evaluate, evaluation_env
from policies.gym_vector_env import GymVectorEnv
from policies.model_config import ModelConfig
from policies.policy import Policy
from policies.random_streams import Purpose, seed_for, stream
from policies.testing import CountingVectorEnv
from policies.vector_envs import VectorEnv

COUNTING = "policies.testing:CountingEnv"


def config(env: str = COUNTING, **values: Any) -> AlgorithmConfig:
    return AlgorithmConfig(env=env, **{"seed": 3, "native_vector_env": False, **values})


def policy_of(config: AlgorithmConfig, **arguments: Any) -> Policy:
    env = vector_env_for(config, 1, lambda env, episode: 0, 0)
    env.close()
    return Policy(env.observation_space, env.action_space, seed=1, **arguments)


def replaced_env(monkeypatch: pytest.MonkeyPatch, env: VectorEnv) -> None:
    monkeypatch.setattr(evaluation, "evaluation_env", lambda *arguments: env)


@pytest.mark.parametrize("episodes", [1, 2, 3, 5, 8, 13, 40])
@pytest.mark.parametrize("envs", [1, 2, 3, 8, 16])
def test_exactly_n_episodes_counted_by_their_start(episodes: int, envs: int) -> None:
    lengths = [2, 9, 1, 4]
    settings = config(env_config={"lengths": lengths}, num_envs_per_worker=envs)
    result = evaluate(policy_of(settings), settings, 0, episodes)
    count = min(envs, episodes)
    expected = [lengths[(k // count) % 4] for k in range(episodes)]
    assert result["n"] == episodes
    assert result["lengths"] == expected
    returns = [n * (n + 1) / 2 for n in expected]
    assert result["returns"] == returns
    assert result["mean"] == pytest.approx(np.mean(returns))
    assert result["std"] == pytest.approx(np.std(returns, ddof=1) if episodes > 1 else 0.0)
    assert result["capped"] == 0


@pytest.mark.parametrize("episodes", [1, 5, 7, 130, 300])
def test_exactly_n_episodes_of_a_native_environment(episodes: int) -> None:
    settings = config("CartPole-v1", native_vector_env=True)
    result = evaluate(policy_of(settings), settings, 0, episodes)
    assert len(result["returns"]) == len(result["lengths"]) == result["n"] == episodes
    assert result["returns"] == result["lengths"]
    assert min(result["lengths"]) >= 8


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_no_short_episode_is_favoured(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    lengths = ((50, 1), (1, 2), (3,))
    env = GymVectorEnv("counting", CountingVectorEnv(3, lengths, mode), seed=0)
    replaced_env(monkeypatch, env)
    result = evaluate(policy_of(config()), config(), 0, 8)
    assert result["lengths"] == [50, 1, 3, 1, 2, 3, 50, 1]


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("lstm", [False, True])
def test_the_number_of_environments_changes_no_return(explore: bool, lstm: bool) -> None:
    results = []
    for envs in (1, 2, 5, 16):
        settings = config("CartPole-v1", num_envs_per_worker=envs, evaluation_explore=explore)
        policy = policy_of(settings, model=ModelConfig(use_lstm=lstm, lstm_size=8))
        results.append(evaluate(policy, settings, 4, 11))
    assert len(set(results[0]["returns"])) > 1
    assert all(result == results[0] for result in results)


def test_episodes_are_those_of_single_environments_with_their_seeds() -> None:
    settings = config("CartPole-v1", num_envs_per_worker=3)
    policy = policy_of(settings)
    result = evaluate(policy, settings, 6, 5, Purpose.CONFIRMATION)
    env = gym.make("CartPole-v1")
    returns = []
    for episode in range(5):
        obs, _ = env.reset(seed=seed_for(3, Purpose.CONFIRMATION, 6, episode))
        total, over = 0.0, False
        while not over:
            action, _, _ = policy.compute_single_action(obs)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert result["returns"] == returns


def test_versions_and_purposes_have_their_own_episodes_and_repeat() -> None:
    settings = config("CartPole-v1")
    policy = policy_of(settings)
    keys = [(0, Purpose.EVALUATION), (1, Purpose.EVALUATION), (0, Purpose.CONFIRMATION)]
    first = [evaluate(policy, settings, version, 20, purpose) for version, purpose in keys]
    again = [evaluate(policy, settings, version, 20, purpose) for version, purpose in keys]
    assert first == again
    assert len({tuple(result["returns"]) for result in first}) == 3


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("explore", [False, True])
def test_a_memory_starts_anew_in_every_autoreset_mode(
    monkeypatch: pytest.MonkeyPatch, mode: str, explore: bool
) -> None:
    seen: list[tuple[float, bool]] = []
    settings = config(evaluation_explore=explore)
    policy = policy_of(settings, model=ModelConfig(use_lstm=True, lstm_size=4))
    compute = policy.compute_actions

    def watched(obs: np.ndarray, state: Any = (), **arguments: Any) -> Any:
        seen.append((float(obs[0, 0]), bool(state[0][0].any())))
        return compute(obs, state, **arguments)

    monkeypatch.setattr(policy, "compute_actions", watched)
    env = GymVectorEnv("counting", CountingVectorEnv(1, ((3, 2),), mode), seed=0)
    replaced_env(monkeypatch, env)
    assert evaluate(policy, settings, 0, 4)["lengths"] == [3, 2, 3, 2]
    # Observations count the steps of the episode: 0 is the first, which leaves a memory of zeros.
    assert [has_memory for count, has_memory in seen if count == 0] == [False] * 4
    assert [has_memory for count, has_memory in seen if count == 2].count(True) == 2


@pytest.mark.parametrize("episodes", [1, 3, 7])
def test_endless_episodes_are_cut_and_the_next_ones_played(episodes: int) -> None:
    settings = config(
        env_config={"lengths": [10**9, 2]}, num_envs_per_worker=2, evaluation_max_episode_steps=25
    )
    result = evaluate(policy_of(settings), settings, 0, episodes)
    expected = [[25, 25, 2, 2][k % 4] if episodes > 1 else 25 for k in range(episodes)]
    assert result["lengths"] == expected
    assert result["capped"] == expected.count(25)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_endless_episodes_of_native_environments(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    lengths = ((10**9,), (2, 4))
    env = GymVectorEnv("counting", CountingVectorEnv(2, lengths, mode), seed=0)
    replaced_env(monkeypatch, env)
    settings = config(evaluation_max_episode_steps=9)
    result = evaluate(policy_of(settings), settings, 0, 6)
    # Env 0 cannot be reset alone: its next episode starts when env 1 has played all of its own.
    assert result["lengths"] == [9, 2, 9, 4, 9, 2]
    assert result["capped"] == 3


def test_an_episode_that_ends_at_the_limit_is_not_cut() -> None:
    settings = config(env_config={"lengths": [4]}, evaluation_max_episode_steps=4)
    result = evaluate(policy_of(settings), settings, 0, 3)
    assert result["lengths"] == [4, 4, 4]
    assert result["capped"] == 0


def test_a_failed_episode_is_played_again_from_its_start() -> None:
    failing = seed_for(3, Purpose.EVALUATION, 0, 2)
    settings = config(
        "policies.testing:FailingEnv",
        env_config={"seeds": [failing], "after": 2, "length": 5},
        num_envs_per_worker=2,
    )
    result = evaluate(policy_of(settings), settings, 0, 7)
    assert result["returns"] == [5.0] * 7
    assert result["lengths"] == [5] * 7


def test_an_environment_that_keeps_failing_is_an_error() -> None:
    settings = config("policies.testing:FailingEnv", env_config={"after": 2})
    with pytest.raises(RunError, match="fails in step"):
        evaluate(policy_of(settings), settings, 0, 3)


def test_numbers_that_are_not_finite_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spoiled(CountingVectorEnv):
        def step(self, actions: np.ndarray) -> Any:
            obs, rewards, *others = super().step(actions)
            rewards[1] = np.where(self._count[1] == 4, np.nan, rewards[1])
            return obs, rewards, *others

    env = GymVectorEnv("spoiled", Spoiled(2, ((6,),), "SameStep"), seed=0)
    replaced_env(monkeypatch, env)
    with pytest.raises(RunError, match="'spoiled': rewards is not finite .*episode 1, env 1"):
        evaluate(policy_of(config()), config(), 0, 2)


def test_no_episode_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="at least 1 episode"):
        evaluate(policy_of(config()), config(), 0, 0)


@pytest.mark.parametrize(
    ("native", "episodes", "expected"), [(True, 300, 128), (True, 9, 9), (False, 300, 16)]
)
def test_how_many_environments_play(native: bool, episodes: int, expected: int) -> None:
    settings = config("CartPole-v1", native_vector_env=native)
    env = evaluation_env(settings, 0, episodes, Purpose.EVALUATION)
    env.close()
    assert env.num_envs == expected


def test_the_filter_is_used_and_stays_as_it_is() -> None:
    settings = config("CartPole-v1")
    policy = policy_of(settings, observation_filter="mean_std")
    before = policy.get_weights()
    evaluate(policy, settings, 0, 3)
    after = policy.get_weights()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_no_noise_is_drawn_for_greedy_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []

    def watched(*key: int) -> np.random.Generator:
        drawn.append(key)
        return stream(*key)

    monkeypatch.setattr(evaluation, "stream", watched)
    for explore, episodes in [(False, 0), (True, 5)]:
        settings = config(evaluation_explore=explore, num_envs_per_worker=2)
        evaluate(policy_of(settings), settings, 0, 3)
        assert len(drawn) == episodes
