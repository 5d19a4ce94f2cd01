"""Sampling goes on from saved state to the bit; only seed, shard and version decide the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from policies import snapshots
from policies.env_runner import EnvRunner, Rollout, RunnerSettings
from policies.errors import RunError
from policies.gym_vector_env import GymVectorEnv, make_native
from policies.model_config import ModelConfig
from policies.policy import Policy
from policies.random_streams import Purpose, seed_for
from policies.sync_vector_env import SyncVectorEnv
from policies.testing import CountingVectorEnv, IdentityEnv, StatelessCartPole
from policies.vector_envs import VectorEnv, make_vector_env

NESTED = Dict(
    {
        "state_0": Box(-1.0, 1.0, (2,), np.float32),
        "pair/x": Tuple((Discrete(3), Box(0.0, 1.0, (1,), np.float32))),
    }
)


class Nested(IdentityEnv):
    """Observations of `NESTED`, actions of a Discrete."""

    def __init__(self) -> None:
        super().__init__(NESTED, steps=7)
        self.action_space = Discrete(2)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(self._obs)
        return obs, float(action), terminated, truncated, info


def reset_seed(env: int, episode: int) -> int:
    return seed_for(0, Purpose.RESET, 0, env, episode)


def native_cartpole() -> VectorEnv:
    return make_native("CartPole-v1", {}, 4, seed=11, horizon=None, env_timeout_s=None)


def sync_pendulum() -> VectorEnv:
    return SyncVectorEnv("Pendulum-v1", {}, 2, reset_seed=reset_seed, horizon=30)


def process_cartpole() -> VectorEnv:
    return make_vector_env("CartPole-v1", {}, 2, reset_seed=reset_seed, isolation="process")


def stateless() -> VectorEnv:
    return SyncVectorEnv(StatelessCartPole, {}, 3, reset_seed=reset_seed)


def nested() -> VectorEnv:
    return SyncVectorEnv(Nested, {}, 2, reset_seed=reset_seed)


def counting() -> VectorEnv:
    return GymVectorEnv("counting", CountingVectorEnv(3, ((2, 3), (5,))), seed=0)


CASES = {
    "native CartPole": (native_cartpole, False),
    "sync Pendulum": (sync_pendulum, False),
    "process CartPole": (process_cartpole, False),
    "LSTM": (stateless, True),
    "LSTM, NEXT_STEP": (counting, True),
    "Dict": (nested, False),
    "Dict, LSTM": (nested, True),
}


def policy_for(env: VectorEnv, lstm: bool) -> Policy:
    model = ModelConfig(use_lstm=lstm, lstm_size=8)
    return Policy(env.observation_space, env.action_space, model, seed=1)


def runner_of(env: VectorEnv, mode: str = "truncate_episodes", shard: int = 0) -> EnvRunner:
    return EnvRunner(env, shard, RunnerSettings("run", 4, 17, mode))


def same(first: Rollout, second: Rollout) -> None:
    """Asserts equal rows, to the bit."""
    assert first.steps.record_batch.equals(second.steps.record_batch, check_metadata=True)
    assert first.episodes.equals(second.episodes)


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        *((case, "truncate_episodes") for case in CASES),
        *((case, "complete_episodes") for case in CASES if "process" not in case),
    ],
)
def test_a_fresh_runner_goes_on_from_saved_state_to_the_bit(case: str, mode: str) -> None:
    make, lstm = CASES[case]
    runner = runner_of(make(), mode)
    policy = policy_for(runner.env, lstm)
    runner.sample(policy, 0)
    runner.sample(policy, 1)
    saved = runner.get_state()
    restored = runner_of(make(), mode)
    restored.set_state(saved)
    assert snapshots.snapshot_sha256(restored.get_state()) == snapshots.snapshot_sha256(saved)
    for version in (2, 3):
        same(runner.sample(policy, version), restored.sample(policy, version))
    assert runner.get_state().equals(restored.get_state())
    runner.close()
    restored.close()


def test_state_is_found_among_that_of_other_shards() -> None:
    runners = [runner_of(native_cartpole(), shard=shard) for shard in (0, 1)]
    policy = policy_for(runners[0].env, False)
    for runner in runners:
        runner.sample(policy, 0)
    table = pa.Table.from_batches([runner.get_state() for runner in runners])
    restored = runner_of(native_cartpole(), shard=1)
    restored.set_state(table)
    same(restored.sample(policy, 1), runners[1].sample(policy, 1))


@pytest.mark.parametrize("make", [native_cartpole, sync_pendulum, nested])
def test_the_same_round_gives_the_same_rows_whatever_ran_before(
    make: Callable[[], VectorEnv],
) -> None:
    policy = policy_for(make(), False)
    expected = {shard: runner_of(make(), shard=shard).sample(policy, 3) for shard in (0, 1, 2)}
    np.random.seed(99)
    for shard in (2, 0, 1):
        np.random.random(5)
        other = policy_for(make(), False)
        same(runner_of(make(), shard=shard).sample(other, 3), expected[shard])


def test_shards_and_versions_act_with_different_noise() -> None:
    policy = policy_for(native_cartpole(), False)
    actions = [
        runner_of(native_cartpole(), shard=shard).sample(policy, version).steps["actions"].tolist()
        for shard, version in [(0, 0), (1, 0), (0, 1)]
    ]
    assert actions[0] != actions[1] != actions[2] != actions[0]


def test_recurrent_state_starts_anew_with_every_episode_and_is_carried_in_between() -> None:
    for make in (stateless, counting):
        runner = runner_of(make())
        policy = policy_for(runner.env, True)
        carried: dict[int, list[np.ndarray]] = {}
        for version in range(3):
            for row in runner.sample(policy, version).steps.to_rows():
                states = [row["state_in_0"], row["state_in_1"]]
                if row["t"] == 0:
                    assert not any(state.any() for state in states)
                else:
                    for found, expected in zip(states, carried[row["env"]], strict=True):
                        np.testing.assert_allclose(found, expected, atol=1e-6)
                batch = tuple(state[None] for state in states)
                _, after, _ = policy.compute_actions(row["obs"][None], batch, explore=False)
                carried[row["env"]] = [state[0] for state in after]


def test_a_policy_with_memory_acts_alike_in_all_autoreset_modes() -> None:
    rows = []
    for mode in ("NextStep", "SameStep", "Disabled"):
        env = GymVectorEnv("counting", CountingVectorEnv(2, ((3,), (4, 1)), mode), seed=0)
        steps = runner_of(env).sample(policy_for(env, True), 0).steps
        rows.append([row for row in steps.to_rows() if row["env_step"] < 10])
    assert len(rows[0]) == 20
    for other in rows[1:]:
        for row, expected in zip(other, rows[0], strict=True):
            for name in ("t", "actions", "action_logp", "state_in_0", "state_in_1"):
                assert np.array_equal(row[name], expected[name]), name


def test_state_of_other_environments_is_refused() -> None:
    runner = runner_of(native_cartpole())
    policy = policy_for(runner.env, False)
    runner.sample(policy, 0)
    saved = runner.get_state()
    other = runner_of(make_native("CartPole-v1", {}, 5, seed=1, horizon=None, env_timeout_s=None))
    with pytest.raises(RunError, match="for 5 environments"):
        other.set_state(saved)
    with pytest.raises(RunError, match="saved state of shard 2 lacks 'episode'"):
        runner_of(native_cartpole(), shard=2).set_state(saved)
    restored = runner_of(native_cartpole())
    restored.set_state(saved)
    with pytest.raises(RunError, match="recurrent state"):
        restored.sample(policy_for(runner.env, True), 1)


def test_environments_that_cannot_be_saved_keep_their_counters() -> None:
    class Unsaved(CountingVectorEnv):
        get_state = None

    def make() -> EnvRunner:
        env = GymVectorEnv("unsaved", Unsaved(2, ((3,),), "SameStep"), seed=0)
        assert not env.has_state
        return EnvRunner(env, 0, RunnerSettings("run", 4, 5, cut_at_end=True))

    runner = make()
    policy = policy_for(runner.env, False)
    first = runner.sample(policy, 0).steps
    restored = make()
    restored.set_state(runner.get_state())
    second = restored.sample(policy, 1).steps
    assert second["env_step"].tolist() == [5, 6, 7, 8, 9] * 2
    assert not set(first["eps_id"]) & set(second["eps_id"])


def test_fresh_environments_of_the_next_round_start_episodes_with_seeds_of_their_own() -> None:
    seeds: list[tuple[int, int]] = []

    def make() -> EnvRunner:
        env = make_vector_env(
            "Pendulum-v1", {}, 2, reset_seed=lambda env, episode: seeds.append((env, episode)) or 1
        )
        return EnvRunner(env, 0, RunnerSettings("run", 4, 5, cut_at_end=True))

    runner = make()
    policy = policy_for(runner.env, False)
    runner.sample(policy, 0)
    restored = make()
    restored.set_state(runner.get_state())
    restored.sample(policy, 1)
    assert sorted(set(seeds)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
