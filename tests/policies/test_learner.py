"""The registry of learners, and the state that training carries."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from policies.env_runner import EnvRunner, RunnerSettings
from policies.errors import ConfigError
from policies.filters import MeanStd
from policies.learners import ppo
from policies.learners.learner import (
    learner_named,
    learner_threads,
    merge_observations,
    policy_for,
)
from policies.sample_batch import SampleBatch
from policies.testing import IdentityEnv
from policies.vector_envs import make_vector_env

SPACES = (gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2))


def test_a_learner_is_found_by_name():
    assert learner_named("ppo") is ppo
    assert learner_named("ppo").CONFIG is ppo.PPOConfig


@pytest.mark.parametrize(("name", "hint"), [("PPO", "did you mean 'ppo'"), ("xyz", "known: ppo")])
def test_an_unknown_learner_is_named_with_the_nearest(name, hint):
    with pytest.raises(ConfigError, match=f"unknown algorithm '{name}'.*{hint}"):
        learner_named(name)


def test_a_policy_is_made_as_the_configuration_says():
    config = ppo.PPOConfig(
        seed=3, observation_filter="mean_std", model={"hidden": [8]}, normalize_actions=False
    )
    box = gym.spaces.Box(-2.0, 2.0, (1,))
    policy = policy_for(config, SPACES[0], box)
    assert policy.filter is not None
    assert policy.get_weights()["policy_encoder.layers.0.weight"].shape == (8, 3)
    assert policy.to_env_action(np.array([[0.5]], np.float32)).item() == 0.5
    same, other = (
        policy_for(ppo.PPOConfig(seed=seed, model={"hidden": [8]}), SPACES[0], box).get_weights()
        for seed in (3, 4)
    )
    name = "policy_encoder.layers.0.weight"
    assert np.array_equal(same[name], policy.get_weights()[name])
    assert not np.array_equal(other[name], policy.get_weights()[name])


def test_a_loaded_state_has_everything_that_was_saved():
    saved = ppo.initial_state(ppo.PPOConfig(seed=1), *SPACES)
    saved.policy.network(torch.randn(4, 3))[1].sum().backward()
    saved.optimizer.step(1e-2)
    fresh = ppo.initial_state(ppo.PPOConfig(seed=2), *SPACES)
    scalars = {"kl_coeff": 0.3}
    weights, moments = saved.policy.get_weights(), saved.optimizer.to_arrays()
    fresh.load(weights, moments, version=7, env_steps=70, scalars=scalars)
    scalars["kl_coeff"] = 9.0
    assert (fresh.version, fresh.env_steps, fresh.scalars) == (7, 70, {"kl_coeff": 0.3})
    for mine, theirs in (
        (fresh.policy.get_weights(), weights),
        (fresh.optimizer.to_arrays(), moments),
    ):
        assert list(mine) == list(theirs)
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


def blas_threads():
    blas = ThreadpoolController().select(user_api="blas")
    return [library["num_threads"] for library in blas.info()]


def set_blas(threads):
    """Sets the process's number for good, whatever thread asks; returns the one before."""
    before = max(blas_threads(), default=1)
    blas = ThreadpoolController().select(user_api="blas")
    blas.limit(limits=threads)
    with blas.limit():
        pass
    return before


def all_threads():
    return torch.get_num_threads(), blas_threads()


def test_threads_of_torch_and_numpy_are_put_back_also_after_an_error():
    before = all_threads()
    with pytest.raises(KeyError), learner_threads(3):
        assert all_threads() == (3, [3] * len(before[1]))
        with learner_threads(1):
            assert all_threads() == (1, [1] * len(before[1]))
        assert all_threads() == (3, [3] * len(before[1]))
        raise KeyError
    assert all_threads() == before


def test_the_last_thread_of_a_process_to_leave_puts_the_threads_back():
    contexts = [learner_threads(1), learner_threads(1)]
    before = set_blas(2)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(contexts[0].__enter__).result()
        other.submit(contexts[1].__enter__).result()
        one.submit(contexts[0].__exit__, None, None, None).result()
        assert set(blas_threads()) <= {1}
        other.submit(contexts[1].__exit__, None, None, None).result()
        assert set(blas_threads()) <= {2}
    set_blas(before)


def test_taking_the_threads_costs_no_time():
    def seconds():
        started = time.process_time()
        for _ in range(20):
            with learner_threads(1):
                pass
        return (time.process_time() - started) / 20

    assert min(seconds() for _ in range(5)) < 1e-3


@pytest.mark.parametrize("outside", [1, 2])
def test_weights_do_not_depend_on_the_threads_outside(outside, weights_with_one_thread):
    with threadpool_limits(outside, user_api="blas"):
        assert trained_weights() == weights_with_one_thread


@pytest.fixture(scope="module")
def weights_with_one_thread():
    with threadpool_limits(1, user_api="blas"):
        return trained_weights()


def trained_weights():
    """Of two rounds in which numpy multiplies matrices large enough for several threads."""
    space = gym.spaces.Box(-1.0, 1.0, (8,))
    config = ppo.PPOConfig(
        model={"hidden": [256, 256]}, num_epochs=1, learner_threads=1, minibatch_size=256
    )
    env = make_vector_env(
        IdentityEnv, {"space": space}, 64, reset_seed=lambda env, episode: 64 * episode + env
    )
    runner = EnvRunner(env, 0, RunnerSettings("test", seed=0, fragment_steps=8))
    state = ppo.initial_state(config, space, space)
    for version in range(2):
        with learner_threads(config.learner_threads):
            steps = runner.sample(state.policy, version).steps
        state, _ = ppo.update(config, state, steps)
    return {name: array.tobytes() for name, array in state.policy.get_weights().items()}


def filtered(**values):
    config = ppo.PPOConfig(observation_filter="mean_std", num_epochs=1, **values)
    return config, ppo.initial_state(config, *SPACES)


def rows_of(obs, shard=None):
    n = len(obs)
    columns = {
        "eps_id": np.arange(n),
        "t": np.zeros(n, np.int32),
        "obs": obs,
        "new_obs": obs,
        "actions": np.arange(n) % 2,
        "rewards": np.ones(n),
        "terminateds": np.ones(n, bool),
        "truncateds": np.zeros(n, bool),
        "action_logp": np.full(n, np.log(0.5)),
    }
    if shard is not None:
        columns["shard"] = shard
    return SampleBatch.from_columns(columns)


def observations(n, seed=0):
    return np.random.default_rng(seed).normal(5.0, 3.0, (n, 3)).astype(np.float32)


def test_an_update_adds_its_rows_to_the_filter():
    config, state = filtered()
    obs = observations(90)
    for part in np.split(obs, 3):
        state, _ = ppo.update(config, state, rows_of(part))
    merged = state.policy.filter
    assert merged is not None and merged.count == 90
    np.testing.assert_allclose(merged.mean, obs.mean(0), rtol=1e-6)
    np.testing.assert_allclose(merged.std, obs.std(0, ddof=1), rtol=1e-6)


def test_the_weights_of_a_round_see_the_filter_that_acted():
    config, state = filtered(lr=0.0)
    state.policy.filter = MeanStd.from_batch(SPACES[0], observations(20, seed=1))
    batch = rows_of(observations(40))
    values = state.policy.value(batch["obs"])
    data = ppo.postprocess(config, state.policy, batch)
    np.testing.assert_allclose(data.values, values, atol=1e-5)
    state, stats = ppo.update(config, state, batch)
    assert stats["kl"] == 0.0
    assert not np.allclose(state.policy.value(batch["obs"]), values)


def test_shards_are_merged_one_by_one_in_their_order():
    _, state = filtered()
    obs, shard = observations(60), np.repeat(np.array([0, 2, 5], np.int32), [10, 30, 20])
    merge_observations(state, rows_of(obs, shard))
    expected = MeanStd.zero(SPACES[0])
    for part in (obs[:10], obs[10:40], obs[40:]):
        expected = MeanStd.merge(expected, MeanStd.from_batch(SPACES[0], part))
    merged = state.policy.filter
    assert merged is not None and merged.count == 60
    assert merged.mean.tobytes() == expected.mean.tobytes()
    assert merged.m2.tobytes() == expected.m2.tobytes()


def test_without_a_filter_there_is_nothing_to_merge():
    state = ppo.initial_state(ppo.PPOConfig(), *SPACES)
    merge_observations(state, rows_of(observations(4)))
    assert state.policy.filter is None
