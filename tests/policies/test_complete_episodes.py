"""Sampling whole episodes."""

from __future__ import annotations

import numpy as np
import pytest

from policies import env_runner
from policies.env_runner import EnvRunner, RunnerSettings
from policies.errors import RunError
from policies.gym_vector_env import GymVectorEnv, make_native
from policies.policy import Policy
from policies.sample_batch import SampleBatch
from policies.sync_vector_env import SyncVectorEnv
from policies.testing import CountingEnv, CountingVectorEnv, FailingEnv
from policies.vector_envs import VectorEnv

LENGTHS = ((2, 3), (7,), (30, 1))


def runner_of(env: VectorEnv, steps: int, shard: int = 0) -> EnvRunner:
    return EnvRunner(env, shard, RunnerSettings("run", 1, steps, "complete_episodes"))


def policy_for(env: VectorEnv) -> Policy:
    return Policy(env.observation_space, env.action_space, seed=2)


def native(mode: str) -> GymVectorEnv:
    return GymVectorEnv("counting", CountingVectorEnv(3, LENGTHS, mode), seed=0)


def sync_counting() -> SyncVectorEnv:
    lengths = iter(LENGTHS)
    return SyncVectorEnv(
        lambda: CountingEnv(next(lengths)), {}, 3, reset_seed=lambda env, episode: episode
    )


def check_whole(steps: SampleBatch, version: int) -> None:
    """Every fragment is an episode from its first step to its end, all of one version."""
    offsets = steps.fragment_offsets()
    ends = steps["terminateds"] | steps["truncateds"]
    assert not steps["t"][offsets[:-1]].any()
    assert ends[offsets[1:] - 1].all()
    assert ends.sum() == len(offsets) - 1
    assert len(np.unique(steps["eps_id"])) == len(offsets) - 1
    assert set(steps["weights_version"]) == {version}


@pytest.mark.parametrize("make", [*("NextStep", "SameStep", "Disabled"), "sync"])
@pytest.mark.parametrize("steps", [1, 8, 31])
def test_each_environment_plays_whole_episodes_until_it_has_enough_rows(
    make: str, steps: int
) -> None:
    env = sync_counting() if make == "sync" else native(make)
    runner, policy = runner_of(env, steps), policy_for(env)
    for version in range(3):
        rollout = runner.sample(policy, version)
        check_whole(rollout.steps, version)
        assert len(rollout.steps) >= 3 * steps
        assert rollout.episodes.num_rows == len(rollout.steps.fragment_offsets()) - 1
        assert sum(rollout.episodes.column("length").to_pylist()) == len(rollout.steps)
        envs = rollout.steps["env"]
        for index in range(3):
            rows = np.flatnonzero(envs == index)
            assert len(rows) >= steps
            # Without its last episode it did not have enough.
            assert rows[-1] - rollout.steps["t"][rows[-1]] - rows[0] < steps


def test_all_modes_give_the_same_rows_in_every_first_round() -> None:
    batches = []
    for mode in ("NextStep", "SameStep", "Disabled"):
        env = native(mode)
        batches.append(runner_of(env, 20).sample(policy_for(env), 0).steps)
    for other in batches[1:]:
        for name in batches[0].names:
            assert np.array_equal(batches[0][name], other[name]), name


def test_a_native_environment_that_cannot_wait() -> None:
    env = make_native("CartPole-v1", {}, 5, seed=3, horizon=None, env_timeout_s=None)
    runner, policy = runner_of(env, 25), policy_for(env)
    for version in range(3):
        steps = runner.sample(policy, version).steps
        check_whole(steps, version)
        assert len(steps) >= 125
        goes_on = steps["t"][1:] > 0
        assert np.array_equal(steps["obs"][1:][goes_on], steps["new_obs"][:-1][goes_on])


def test_lost_rows_do_not_count() -> None:
    # Environment 0 fails in its first episode of every round, after 2 of 5 steps.
    env = SyncVectorEnv(
        FailingEnv,
        {"seeds": [0], "after": 2, "length": 5},
        2,
        reset_seed=lambda env, episode: env if episode == 0 else 100 + episode,
    )
    rollout = runner_of(env, 6).sample(policy_for(env), 0)
    check_whole(rollout.steps, 0)
    assert rollout.steps["env"].tolist() == [0] * 10 + [1] * 10
    assert rollout.steps["env_step"][:10].tolist() == list(range(2, 12))
    assert rollout.episodes.schema.metadata[b"env_restarts"] == b"1"


def test_episodes_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_runner, "MAX_EPISODE_STEPS", 50)
    env = SyncVectorEnv(
        lambda: CountingEnv((10**9,)), {}, 1, reset_seed=lambda env, episode: episode
    )
    with pytest.raises(RunError, match="longer than 50 steps; set horizon"):
        runner_of(env, 4).sample(policy_for(env), 0)
