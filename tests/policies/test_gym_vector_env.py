"""Gymnasium's vector environments in all autoreset modes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from policies.errors import ConfigError, RunError
from policies.gym_vector_env import GymVectorEnv
from policies.testing import CountingEnv, CountingVectorEnv, IdentityEnv
from policies.vector_envs import VectorEnv, make_vector_env

LENGTHS = ((3, 1), (2,), (5, 1, 1))
MODES = list(AutoresetMode)

Row = tuple[float, float, float, bool, bool]


def transitions(env: VectorEnv, steps: int) -> list[list[Row]]:
    """The first (obs, reward, new obs, terminated, truncated) of each environment."""
    rows: list[list[Row]] = [[] for _ in range(env.num_envs)]
    obs = env.reset()
    for _ in range(steps):
        result = env.step(np.zeros(env.num_envs, np.int64))
        ended = result.terminateds | result.truncateds
        for i in np.flatnonzero(result.valid):
            new_obs = result.final_obs if ended[i] else result.obs
            rows[i].append(
                (
                    float(obs[i, 0]),
                    float(result.rewards[i]),
                    float(new_obs[i, 0]),
                    bool(result.terminateds[i]),
                    bool(result.truncateds[i]),
                )
            )
        assert not (ended & ~result.valid).any()
        assert (result.rewards[~result.valid] == 0.0).all()
        obs = result.obs
    return [row[:12] for row in rows]


def expected(truncate: bool) -> list[list[Row]]:
    rows = []
    for lengths in LENGTHS:
        row: list[Row] = []
        for episode in range(12):
            length = lengths[episode % len(lengths)]
            for k in range(length):
                end = k + 1 == length
                row.append((k, k + 1, k + 1, end and not truncate, end and truncate))
        rows.append(row[:12])
    return rows


def counting(mode: AutoresetMode | str, truncate: bool = False, **arguments: Any) -> GymVectorEnv:
    env = CountingVectorEnv(3, LENGTHS, mode, truncate, **arguments)
    return GymVectorEnv("Counting", env, seed=0)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_all_modes_give_the_same_transitions(mode: AutoresetMode, truncate: bool) -> None:
    assert transitions(counting(mode, truncate), 30) == expected(truncate)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_own_vector_env_gives_them_too(mode: AutoresetMode, truncate: bool) -> None:
    env = SyncVectorEnv(
        [partial(CountingEnv, row, truncate) for row in LENGTHS], autoreset_mode=mode
    )
    assert transitions(GymVectorEnv("Counting", env, seed=0), 30) == expected(truncate)


@pytest.mark.parametrize("truncate", [False, True])
def test_and_so_does_our_own(truncate: bool) -> None:
    refs = iter(LENGTHS)
    env = make_vector_env(
        lambda: CountingEnv(next(refs), truncate), {}, 3, reset_seed=lambda i, k: k
    )
    assert transitions(env, 30) == expected(truncate)


@pytest.mark.parametrize("mode", MODES)
def test_nested_observations_keep_their_true_last_values(mode: AutoresetMode) -> None:
    space = gym.spaces.Dict(
        {"a": gym.spaces.Discrete(50), "b": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,))])}
    )
    env = GymVectorEnv(
        "Identity",
        SyncVectorEnv([partial(IdentityEnv, space, steps=2)] * 2, autoreset_mode=mode),
        seed=1,
    )
    env.reset()
    plain = [IdentityEnv(space, steps=2) for _ in range(2)]
    for i, single in enumerate(plain):
        single.reset(seed=1 + i)
    action = gym.vector.utils.batch_space(space, 2).sample()
    for step in range(2):
        result = env.step(action)
        truth = [single.step(space.sample())[0] for single in plain]
        obs = result.final_obs if step == 1 else result.obs
        assert obs["a"].tolist() == [int(t["a"]) for t in truth]
        np.testing.assert_array_equal(obs["b"][0], np.stack([t["b"][0] for t in truth]))
    assert result.truncateds.all()


def test_a_missing_mode_is_an_error() -> None:
    env = CountingVectorEnv(1)
    env.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode"):
        GymVectorEnv("Counting", env, seed=0)


def test_a_mode_given_as_text_is_read() -> None:
    mode = AutoresetMode.SAME_STEP
    env = SyncVectorEnv([partial(CountingEnv, row) for row in LENGTHS], autoreset_mode=mode)
    env.metadata = {"autoreset_mode": mode.value}
    assert transitions(GymVectorEnv("Counting", env, seed=0), 30) == expected(False)


def test_an_environment_that_ignores_the_mask_is_found_out() -> None:
    env = counting(AutoresetMode.DISABLED, honour_mask=False)
    env.reset()
    with pytest.raises(RunError, match="ignores reset_mask"):
        for _ in range(5):
            env.step(np.zeros(3, np.int64))


def test_same_step_without_final_obs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = CountingVectorEnv(3, LENGTHS, AutoresetMode.SAME_STEP)
    step = inner.step
    monkeypatch.setattr(inner, "step", lambda actions: (*step(actions)[:4], {}))
    env = GymVectorEnv("Counting", inner, seed=0)
    env.reset()
    with pytest.raises(RunError, match="final_obs"):
        for _ in range(5):
            env.step(np.zeros(3, np.int64))


def test_a_wrong_shape_is_found_at_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = CountingVectorEnv(3, LENGTHS)
    step = inner.step
    monkeypatch.setattr(inner, "step", lambda actions: (step(actions)[0][:2], *step(actions)[1:]))
    env = GymVectorEnv("Counting", inner, seed=0)
    env.reset()
    with pytest.raises(RunError, match=r"'Counting': obs has shape \(2, 1\), expected \(3, 1\)"):
        env.step(np.zeros(3, np.int64))


def test_rewards_of_a_wrong_shape_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = CountingVectorEnv(3, LENGTHS)
    step = inner.step
    monkeypatch.setattr(inner, "step", lambda a: (step(a)[0], 1.0, *step(a)[2:]))
    env = GymVectorEnv("Counting", inner, seed=0)
    env.reset()
    with pytest.raises(RunError, match="rewards is not an array of 3"):
        env.step(np.zeros(3, np.int64))


def test_results_survive_an_environment_that_reuses_its_arrays() -> None:
    class Reusing(CountingVectorEnv):
        """Returns the same arrays at every step."""

        def step(self, actions: np.ndarray) -> Any:
            new = super().step(actions)
            if not hasattr(self, "arrays"):
                self.arrays = new
            for old, array in zip(self.arrays[:4], new[:4], strict=True):
                old[...] = array
            return self.arrays

    env = GymVectorEnv("Counting", Reusing(3, LENGTHS), seed=0)
    assert transitions(env, 30) == expected(False)
    first = env.step(np.zeros(3, np.int64))
    before = [np.array(array) for array in first[:5]]
    env.step(np.zeros(3, np.int64))
    for old, now in zip(before, first[:5], strict=True):
        np.testing.assert_array_equal(old, now)


def test_a_failure_is_a_run_error_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    env = counting(AutoresetMode.DISABLED)
    env.reset()
    env._env.step(np.zeros(3, np.int64))
    env._env.step(np.zeros(3, np.int64))
    with pytest.raises(RunError, match=r"failed in step: AssertionError: .*testing.py:\d+"):
        env.step(np.zeros(3, np.int64))


def test_environments_to_be_left_alone_make_no_transition() -> None:
    env = counting(AutoresetMode.NEXT_STEP)
    env.reset()
    result = env.step(np.zeros(3, np.int64), np.array([True, False, True]))
    assert result.valid.tolist() == [True, False, True]
    assert result.rewards.tolist() == [1.0, 0.0, 1.0]
    assert not env.can_skip
    with pytest.raises(ValueError, match="resets its environments by itself"):
        env.reset_envs(np.ones(3, np.bool_))


# --- native CartPole ------------------------------------------------------------------------


def native(seed: int = 0, num_envs: int = 5, **arguments: Any) -> VectorEnv:
    return make_vector_env(
        "CartPole-v1",
        {},
        num_envs,
        reset_seed=lambda i, k: 0,
        shard_seed=seed,
        native=True,
        **arguments,
    )


def test_native_cart_pole_is_gymnasiums() -> None:
    env, bare = native(3), gym.make_vec("CartPole-v1", num_envs=5)
    np.testing.assert_array_equal(env.reset(), bare.reset(seed=3)[0])
    rng = np.random.default_rng(0)
    ended = np.zeros(5, np.bool_)
    for _ in range(200):
        actions = rng.integers(2, size=5)
        result, (obs, rewards, terms, truncs, _) = env.step(actions), bare.step(actions)
        np.testing.assert_array_equal(result.obs, obs)
        np.testing.assert_array_equal(result.rewards, rewards)
        np.testing.assert_array_equal(result.terminateds, terms)
        np.testing.assert_array_equal(result.valid, ~ended)
        ended = terms | truncs
    assert result.rewards.dtype == np.float64


def test_horizon_truncates_native_cart_pole() -> None:
    env = native(0, horizon=4)
    env.reset()
    results = [env.step(np.arange(5) % 2) for _ in range(5)]
    assert [bool(r.truncateds.all()) for r in results] == [False, False, False, True, False]
    assert not any(r.terminateds.any() for r in results)
    assert not results[4].valid.any()


def test_a_horizon_beyond_the_environments_limit_changes_nothing() -> None:
    env = native(0, horizon=10_000)
    assert isinstance(env, GymVectorEnv)
    inner: Any = env._env
    assert inner.max_episode_steps == 500


def test_resets_have_seeds_of_their_own_that_repeat() -> None:
    env, again = native(7), native(7)
    first, second = env.reset(), env.reset()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(again.reset(np.full(5, 1)), second)


def test_an_environment_without_a_vector_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="Acrobot-v1.*native=false"):
        make_vector_env("Acrobot-v1", {}, 2, reset_seed=lambda i, k: 0, native=True)


@pytest.fixture
def registered() -> Iterator[str]:
    entry: Any = CountingVectorEnv
    gym.register("CountingVec-v0", vector_entry_point=entry)
    yield "CountingVec-v0"
    del gym.registry["CountingVec-v0"]


def test_a_registered_vector_env_gets_its_config(registered: str) -> None:
    env = make_vector_env(registered, {"lengths": [[2]]}, 2, reset_seed=lambda i, k: 0, native=True)
    env.reset()
    assert not env.step(np.zeros(2, np.int64)).terminateds.any()
    assert env.step(np.zeros(2, np.int64)).terminateds.all()


def test_a_horizon_that_cannot_be_applied_is_an_error(registered: str) -> None:
    with pytest.raises(ConfigError, match="horizon cannot be applied"):
        make_vector_env(registered, {}, 2, reset_seed=lambda i, k: 0, native=True, horizon=5)
