"""Sampling: the rows of a round, whatever the environment's way to reset."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from policies.batch_kinds import EPISODES, kind
from policies.env_runner import EnvRunner, Rollout, RunnerSettings, clip_rewards
from policies.gym_vector_env import GymVectorEnv
from policies.policy import Policy
from policies.random_streams import Purpose, episode_ids, stream
from policies.sync_vector_env import SyncVectorEnv
from policies.testing import CountingEnv, CountingVectorEnv
from policies.vector_envs import VectorEnv

MODES = ("NextStep", "SameStep", "Disabled")
LENGTHS = ((2, 3), (3, 1, 4), (5,))


def settings(steps: int, **changes: Any) -> RunnerSettings:
    return RunnerSettings(**{"run_id": "run", "seed": 5, "fragment_steps": steps, **changes})


def policy_for(env: VectorEnv, **arguments: Any) -> Policy:
    return Policy(env.observation_space, env.action_space, seed=3, **arguments)


def counting(mode: str, truncate: bool = False) -> GymVectorEnv:
    env = CountingVectorEnv(3, LENGTHS, mode, truncate)
    return GymVectorEnv("counting", env, seed=0)


def sync(creator: Any, count: int, **arguments: Any) -> SyncVectorEnv:
    def seed(env: int, episode: int) -> int:
        return 1000 * env + episode

    return SyncVectorEnv(creator, {}, count, reset_seed=seed, **arguments)


def of_env(rollout: Rollout, env: int) -> dict[str, np.ndarray]:
    steps = rollout.steps
    rows = steps["env"] == env
    return {name: steps[name][rows] for name in steps.names if name != "env"}


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_a_round_has_exactly_steps_times_envs_rows(mode: str) -> None:
    env = counting(mode)
    runner = EnvRunner(env, 0, settings(11))
    for version in range(3):
        assert len(runner.sample(policy_for(env), version).steps) == 33


def test_the_reset_steps_of_next_step_are_no_rows() -> None:
    env = counting("NextStep")
    rollout = EnvRunner(env, 0, settings(11)).sample(policy_for(env), 0)
    # Each end is followed by a reset step: 2+1+3+1+2+1+1, 3+1+1+1+4+1 and 5+1+5 steps.
    assert [len(of_env(rollout, i)["t"]) for i in range(3)] == [8, 8, 10]


def test_rows_of_counting_environments() -> None:
    env = sync(lambda: CountingEnv((2, 3)), 2)
    rollout = EnvRunner(env, 4, settings(6)).sample(policy_for(env), 9)
    steps = rollout.steps
    t = [0, 1, 0, 1, 2, 0]
    ends = [False, True, False, False, True, False]
    assert steps["env"].tolist() == [0] * 6 + [1] * 6
    assert steps["t"].tolist() == t * 2
    assert steps["obs"][:, 0].tolist() == t * 2
    assert steps["new_obs"][:, 0].tolist() == [x + 1 for x in t] * 2
    assert steps["rewards"].tolist() == [x + 1 for x in t] * 2
    assert steps["terminateds"].tolist() == ends * 2
    assert not steps["truncateds"].any()
    assert steps["env_step"].tolist() == list(range(6)) * 2
    assert set(steps["shard"]) == {4}
    assert set(steps["weights_version"]) == {9}
    ids = episode_ids("run", 9, 4, steps["env"], np.array([0, 0, 1, 1, 1, 2] * 2))
    assert steps["eps_id"].tolist() == ids.tolist()


@pytest.mark.parametrize("truncate", [False, True])
def test_all_autoreset_modes_give_the_same_transitions(truncate: bool) -> None:
    rollouts = []
    for mode in MODES:
        env = counting(mode, truncate)
        rollouts.append(EnvRunner(env, 0, settings(40)).sample(policy_for(env), 0))
    assert len(np.unique(rollouts[0].steps["actions"])) == 2
    for env_index in range(3):
        first = of_env(rollouts[0], env_index)
        count = len(first["t"])
        assert count >= 20
        for other in rollouts[1:]:
            columns = of_env(other, env_index)
            for name, values in first.items():
                assert np.array_equal(values, columns[name][:count]), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("truncate", [False, True])
def test_new_obs_is_never_the_observation_after_a_reset(mode: str, truncate: bool) -> None:
    env = counting(mode, truncate)
    runner = EnvRunner(env, 0, settings(7))
    for version in range(5):
        steps = runner.sample(policy_for(env), version).steps
        assert np.array_equal(steps["new_obs"], steps["obs"] + 1)
        assert np.array_equal(steps["obs"][:, 0], steps["t"])


@pytest.mark.parametrize("mode", MODES)
def test_an_end_is_terminated_or_truncated_and_a_cut_is_neither(mode: str) -> None:
    for truncate in (False, True):
        env = counting(mode, truncate)
        steps = EnvRunner(env, 0, settings(4)).sample(policy_for(env), 0).steps
        ended = np.array([row["t"] + 1 == _length(row) for row in steps.to_rows()])
        assert np.array_equal(steps["truncateds" if truncate else "terminateds"], ended)
        assert not steps["terminateds" if truncate else "truncateds"].any()
        # The last row of env 2 (episodes of 5 steps) is a cut after 4.
        assert not ended[-1]


def _length(row: dict[str, Any]) -> int:
    """The length of the row's episode in `LENGTHS`, by when it began."""
    lengths, start = LENGTHS[row["env"]], row["env_step"] - row["t"]
    k = 0
    while start:
        start -= lengths[k % len(lengths)]
        k += 1
    return lengths[k % len(lengths)]


def test_a_horizon_truncates() -> None:
    env = sync(lambda: CountingEnv((4, 2)), 1, horizon=3)
    steps = EnvRunner(env, 0, settings(5)).sample(policy_for(env), 0).steps
    assert steps["truncateds"].tolist() == [False, False, True, False, False]
    assert steps["terminateds"].tolist() == [False, False, False, False, True]


def test_cut_at_end_truncates_running_episodes_and_starts_fresh_ones() -> None:
    env = sync(lambda: CountingEnv((3, 10)), 2)
    runner = EnvRunner(env, 0, settings(5, cut_at_end=True))
    first = runner.sample(policy_for(env), 0)
    assert first.steps["truncateds"].tolist() == [False, False, False, False, True] * 2
    assert first.steps["terminateds"].tolist() == [False, False, True, False, False] * 2
    assert first.episodes.column("length").to_pylist() == [3, 3]
    second = runner.sample(policy_for(env), 1)
    assert second.steps["t"].tolist() == [0, 1, 2, 0, 1] * 2
    assert second.steps["env_step"].tolist() == [5, 6, 7, 8, 9] * 2


def test_cut_at_end_leaves_an_episode_that_just_ended() -> None:
    env = sync(lambda: CountingEnv((3,)), 1)
    steps = EnvRunner(env, 0, settings(6, cut_at_end=True)).sample(policy_for(env), 0).steps
    assert not steps["truncateds"].any()
    assert steps["terminateds"].tolist() == [False, False, True] * 2


def test_the_rows_equal_a_slow_loop_over_single_environments() -> None:
    count, steps = 3, 60
    env = sync("CartPole-v1", count)
    policy = policy_for(env)
    rows = EnvRunner(env, 2, settings(steps)).sample(policy, 7).steps.to_rows()
    noise = stream(5, Purpose.ACTION_NOISE, 7, 2).random((steps, count, 1))

    envs = [gym.make("CartPole-v1") for _ in range(count)]
    episodes = [0] * count
    observations = [env.reset(seed=1000 * i)[0] for i, env in enumerate(envs)]
    expected: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for step in range(steps):
        batch = np.stack(observations)
        actions, _, extras = policy.compute_actions(batch, noise=noise[step])
        for i, single in enumerate(envs):
            new, reward, terminated, truncated, _ = single.step(actions[i])
            expected[i].append(
                {
                    "obs": batch[i],
                    "actions": actions[i],
                    "action_logp": extras["action_logp"][i],
                    "new_obs": new,
                    "rewards": reward,
                    "terminateds": terminated,
                    "truncateds": truncated,
                }
            )
            if terminated or truncated:
                episodes[i] += 1
                new, _ = single.reset(seed=1000 * i + episodes[i])
            observations[i] = new
    assert min(episodes) > 0
    flat = [row for rows_of_env in expected for row in rows_of_env]
    assert len(rows) == len(flat)
    for row, reference in zip(rows, flat, strict=True):
        for name, value in reference.items():
            assert np.array_equal(row[name], value), name


def test_episode_ids_are_unique_and_an_episode_keeps_its_id_over_rounds() -> None:
    seen: dict[int, tuple[int, int, int]] = {}
    for shard in (0, 1):
        env = counting("NextStep")
        runner = EnvRunner(env, shard, settings(4))
        for version in range(6):
            for row in runner.sample(policy_for(env), version).steps.to_rows():
                episode = (shard, row["env"], row["env_step"] - row["t"])
                assert seen.setdefault(row["eps_id"], episode) == episode
    assert len(seen) == len(set(seen.values()))


def test_env_steps_go_on_from_round_to_round() -> None:
    env = counting("NextStep")
    runner = EnvRunner(env, 0, settings(5))
    policy = policy_for(env)
    rollouts = [runner.sample(policy, version) for version in range(4)]
    for index in range(3):
        found = np.concatenate([of_env(rollout, index)["env_step"] for rollout in rollouts])
        assert found.tolist() == list(range(len(found)))


def test_episode_batches_count_lengths_and_returns_over_rounds() -> None:
    env = counting("SameStep")
    runner = EnvRunner(env, 1, settings(3))
    policy = policy_for(env)
    episodes = []
    for version in range(4):
        batch = runner.sample(policy, version).episodes
        assert kind(batch) == EPISODES
        metadata = batch.schema.metadata
        assert metadata[b"env_steps"] == b"9"
        assert metadata[b"env_restarts"] == b"0"
        episodes += batch.to_pylist()
    for env_index, lengths in enumerate([[2, 3, 2, 3, 2], [3, 1, 4, 3, 1], [5, 5]]):
        found = [row for row in episodes if row["env"] == env_index]
        assert [row["length"] for row in found] == lengths
        assert [row["episode_return"] for row in found] == [n * (n + 1) / 2 for n in lengths]
        assert [row["env_step"] for row in found] == (np.cumsum(lengths) - 1).tolist()
        assert all(row["terminated"] and row["shard"] == 1 for row in found)


def test_a_round_without_ends_has_an_empty_episode_batch() -> None:
    env = sync(lambda: CountingEnv((50,)), 2)
    rollout = EnvRunner(env, 0, settings(4)).sample(policy_for(env), 0)
    assert rollout.episodes.num_rows == 0
    assert kind(rollout.episodes) == EPISODES


def test_rewards_are_clipped_in_the_rows_and_not_in_the_returns() -> None:
    env = sync(lambda: CountingEnv((3,)), 1)
    rollout = EnvRunner(env, 0, settings(3, clip_rewards=2.0)).sample(policy_for(env), 0)
    assert rollout.steps["rewards"].tolist() == [1.0, 2.0, 2.0]
    assert rollout.episodes.column("episode_return").to_pylist() == [6.0]


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (None, [-3.0, 0.0, 0.5]),
        (False, [-3.0, 0.0, 0.5]),
        (True, [-1.0, 0.0, 1.0]),
        (0.25, [-0.25, 0.0, 0.25]),
    ],
)
def test_clip_rewards(clip: Any, expected: list[float]) -> None:
    assert clip_rewards(np.array([-3.0, 0.0, 0.5]), clip).tolist() == expected


def test_extras_are_recorded_where_asked_for() -> None:
    env = sync("CartPole-v1", 2)
    extras = ("action_logp", "action_dist_inputs", "vf_preds")
    policy = policy_for(env)
    steps = EnvRunner(env, 0, settings(9, extras=extras)).sample(policy, 0).steps
    np.testing.assert_allclose(steps["vf_preds"], policy.value(steps["obs"]), atol=1e-6)
    logp = policy.distribution.log_prob(steps["action_dist_inputs"], steps["actions"])
    np.testing.assert_allclose(steps["action_logp"], logp, rtol=1e-6)
    np.testing.assert_allclose(steps["action_logp"], policy.log_prob(steps), rtol=1e-5)


def test_actions_are_stored_as_sampled_and_sent_unsquashed() -> None:
    sent = []

    class Recorder(gym.Wrapper):
        def step(self, action: Any) -> Any:
            sent.append(np.array(action))
            return super().step(action)

    env = sync(lambda: Recorder(gym.make("Pendulum-v1")), 1)
    policy = policy_for(env)
    stored = EnvRunner(env, 0, settings(30)).sample(policy, 0).steps["actions"]
    assert np.abs(stored).max() > 1.0
    np.testing.assert_allclose(np.stack(sent), np.clip(2.0 * stored, -2.0, 2.0), rtol=1e-6)
