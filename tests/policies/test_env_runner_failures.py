"""Sampling environments that fail, or return numbers that are not finite."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from policies import snapshots
from policies.env_runner import EnvRunner, RunnerSettings
from policies.errors import RunError
from policies.gym_vector_env import GymVectorEnv
from policies.model_config import ModelConfig
from policies.policy import Policy
from policies.sync_vector_env import SyncVectorEnv
from policies.testing import CountingVectorEnv, FailingEnv
from policies.vector_envs import VectorEnv


def runner_of(env: VectorEnv, steps: int, shard: int = 0) -> EnvRunner:
    return EnvRunner(env, shard, RunnerSettings("run", 1, steps))


def policy_for(env: VectorEnv) -> Policy:
    return Policy(env.observation_space, env.action_space, seed=2)


def failing(where: str = "step", episodes: tuple[int, ...] = (1,)) -> SyncVectorEnv:
    """Two environments of 5 steps; env 1 fails in some of its episodes, after 2 steps."""
    return SyncVectorEnv(
        FailingEnv,
        {"where": where, "seeds": [100 + n for n in episodes], "after": 2, "length": 5},
        2,
        reset_seed=lambda env, episode: 100 * env + episode,
    )


def test_a_failure_drops_the_unfinished_episode_and_nothing_else() -> None:
    env = failing()
    rollout = runner_of(env, 12).sample(policy_for(env), 0)
    steps = rollout.steps
    # Env 1: 5 steps; 2 that are dropped, the failure; a new episode of 4 steps so far.
    assert steps["env"].tolist() == [0] * 12 + [1] * 9
    assert steps["t"][12:].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert steps["env_step"][12:].tolist() == [0, 1, 2, 3, 4, 7, 8, 9, 10]
    assert steps["terminateds"][12:].tolist() == [False] * 4 + [True] + [False] * 4
    assert np.array_equal(steps["obs"][:, 0], steps["t"])
    assert np.array_equal(steps["new_obs"], steps["obs"] + 1)
    assert len(np.unique(steps["eps_id"])) == 5
    assert rollout.episodes.column("env").to_pylist() == [0, 1, 0]
    assert rollout.episodes.column("episode_return").to_pylist() == [5.0, 5.0, 5.0]
    metadata = rollout.episodes.schema.metadata
    assert metadata[b"env_restarts"] == b"1"
    assert metadata[b"env_steps"] == b"21"
    assert metadata[b"first_error"].startswith(b"env 1: ")
    assert b"this environment fails in step" in metadata[b"first_error"]


def test_only_this_rounds_part_of_the_episode_is_dropped() -> None:
    env = failing()
    runner, policy = runner_of(env, 6), policy_for(env)
    first, second = runner.sample(policy, 0).steps, runner.sample(policy, 1).steps
    assert len(first) == 12
    assert first["t"][6:].tolist() == [0, 1, 2, 3, 4, 0]
    # One row of the episode lies in the first round; of the second, its row and the failure go.
    assert second["t"][6:].tolist() == [0, 1, 2, 3]
    assert first["eps_id"][-1] not in second["eps_id"]


def test_the_return_of_a_new_episode_starts_at_zero() -> None:
    env = failing()
    runner, policy = runner_of(env, 6), policy_for(env)
    runner.sample(policy, 0)
    second = runner.sample(policy, 1).episodes.to_pylist()
    third = runner.sample(policy, 2).episodes.to_pylist()
    assert [row for row in second if row["env"] == 1] == []
    assert [row["episode_return"] for row in third if row["env"] == 1] == [5.0, 5.0]
    assert [row["length"] for row in third if row["env"] == 1] == [5, 5]


def test_a_failing_reset_loses_no_row() -> None:
    env = failing("reset")
    rollout = runner_of(env, 12).sample(policy_for(env), 0)
    assert len(rollout.steps) == 24
    assert rollout.steps["t"][12:].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert rollout.episodes.schema.metadata[b"env_restarts"] == b"1"
    assert b"fails in reset" in rollout.episodes.schema.metadata[b"first_error"]


def test_an_environment_that_keeps_failing_names_the_shard() -> None:
    env = failing(episodes=tuple(range(20)))
    with pytest.raises(RunError, match=r"shard 7, vector step \d+: .*env 1.*fails in step"):
        runner_of(env, 100, shard=7).sample(policy_for(env), 0)


def test_a_round_of_failures_gives_an_empty_batch() -> None:
    env = SyncVectorEnv(
        FailingEnv, {"after": 0}, 1, reset_seed=lambda env, episode: episode, max_restarts=9
    )
    rollout = runner_of(env, 3).sample(policy_for(env), 0)
    assert len(rollout.steps) == 0
    assert rollout.steps["obs"].shape == (0, 1)
    assert rollout.episodes.num_rows == 0


def test_a_round_of_failures_that_is_cut_at_its_end_gives_one_too() -> None:
    env = SyncVectorEnv(
        FailingEnv, {"after": 0}, 1, reset_seed=lambda env, episode: episode, max_restarts=9
    )
    runner = EnvRunner(env, 0, RunnerSettings("run", 1, 3, cut_at_end=True))
    assert len(runner.sample(policy_for(env), 0).steps) == 0


def test_a_failing_first_reset_is_counted() -> None:
    env = failing("reset", episodes=(0, 1))
    rollout = runner_of(env, 3).sample(policy_for(env), 0)
    assert len(rollout.steps) == 6
    assert rollout.episodes.schema.metadata[b"env_restarts"] == b"2"
    assert b"env 1: RuntimeError" in rollout.episodes.schema.metadata[b"first_error"]


def test_no_seed_is_played_again_after_failed_resets() -> None:
    seeds: list[tuple[int, int]] = []

    def make() -> EnvRunner:
        def reset_seed(env: int, episode: int) -> int:
            seeds.append((env, episode))
            return 100 * env + episode

        # The first reset and the one after the next episode fail.
        config = {"where": "reset", "seeds": [0, 2], "length": 2}
        env = SyncVectorEnv(FailingEnv, config, 1, reset_seed=reset_seed)
        return EnvRunner(env, 0, RunnerSettings("run", 1, 3, cut_at_end=True))

    runner = make()
    policy = policy_for(runner.env)
    first = runner.sample(policy, 0).steps
    restored = make()
    restored.set_state(runner.get_state())
    second = restored.sample(policy, 0).steps
    assert seeds == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    assert not set(first["eps_id"].tolist()) & set(second["eps_id"].tolist())


class Closed(CountingVectorEnv):
    """Counts its ends, and cannot be saved when told so."""

    closes = 0

    def close(self, **arguments: Any) -> None:
        Closed.closes += 1
        raise OSError("closing fails as well")

    def get_state(self) -> Any:
        raise RunError("cannot be saved")


@pytest.mark.parametrize("call", ["sample", "get_state", "set_state"])
def test_a_runner_that_raised_has_closed_its_environments(call: str) -> None:
    Closed.closes = 0
    runner = runner_of(GymVectorEnv("closed", Closed(2, ((4,),), "SameStep"), seed=0), 3)
    policy = policy_for(runner.env)
    runner.sample(policy, 0)
    assert Closed.closes == 0
    lstm = Policy(policy.observation_space, policy.action_space, ModelConfig(use_lstm=True))
    with pytest.raises(RunError, match="recurrent state|cannot be saved|saved state"):
        if call == "sample":
            runner.sample(lstm, 1)
        elif call == "get_state":
            runner.get_state()
        else:
            runner.set_state(snapshots.arrays_to_batch(0, {}))
    assert Closed.closes == 1


class Spoiled(CountingVectorEnv):
    """Writes a value into the rewards or observations of env 2 in its step 5."""

    def __init__(self, column: str, value: float) -> None:
        super().__init__(3, ((4,),), "SameStep")
        self._column, self._value = column, value
        self._steps = 0

    def step(self, actions: np.ndarray) -> Any:
        obs, rewards, *others = super().step(actions)
        self._steps += 1
        if self._steps == 6:
            target = obs if self._column == "obs" else rewards
            target[2] = self._value
        return obs, rewards, *others


@pytest.mark.parametrize(("column", "named"), [("rewards", "rewards"), ("obs", "new_obs")])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_named(column: str, named: str, value: float) -> None:
    env = GymVectorEnv("spoiled", Spoiled(column, value), seed=0)
    message = f"'spoiled': {named} is not finite .*: shard 3, env 2, step 1 of its episode"
    with pytest.raises(RunError, match=message):
        runner_of(env, 9, shard=3).sample(policy_for(env), 0)


class NestedNan(gym.Env):
    """An observation whose part turns NaN in step 3."""

    def __init__(self) -> None:
        part = Box(-1, 1, (2,), np.float32)
        self.observation_space = Dict({"a": part, "b": part})
        self.action_space = Discrete(2)
        self._t = 0

    def _obs(self) -> dict[str, np.ndarray]:
        bad = np.float32(np.nan if self._t == 3 else 0.0)
        return {"a": np.zeros(2, np.float32), "b": np.array([0.0, bad], np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        self._t += 1
        return self._obs(), 1.0, False, False, {}


def test_the_part_of_a_nested_observation_is_named() -> None:
    env = SyncVectorEnv(NestedNan, {}, 2, reset_seed=lambda env, episode: episode)
    with pytest.raises(RunError, match=r"shard 5, vector step 2: .*env 0.*obs\[\"b\"\]"):
        runner_of(env, 5, shard=5).sample(policy_for(env), 0)
