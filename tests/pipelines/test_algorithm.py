"""`Algorithm`: training, acting, saving and restoring from Python."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from pipelines.algorithm import Algorithm
from policies.errors import ConfigError, RunError
from policies.testing import CountingEnv, IdentityEnv

SMALL: dict[str, Any] = {
    "seed": 3,
    "num_envs_per_worker": 4,
    "rollout_fragment_length": 16,
    "num_epochs": 1,
    "evaluation_episodes": 2,
    "model": {"hidden": [8]},
}
OBS = [0.0, 0.1, 0.0, -0.1]
PENDULUM_OBS = np.array([1.0, 0.0, 0.1], np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Algorithm]:
    """CartPole after two rounds."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with Algorithm(SMALL, run_dir=str(folder)) as algorithm:
        algorithm.train(2)
        yield algorithm


def weights(algorithm: Algorithm) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in algorithm.get_policy().get_weights().items()}


# --- training -----------------------------------------------------------------------------------


def test_train_makes_rounds_and_returns_the_last(trained: Algorithm) -> None:
    assert [result["version"] for result in trained.results] == [1, 2]
    last = trained.results[-1]
    assert last["env_steps"] == sum(r["env_steps_this_round"] for r in trained.results)
    assert last["evaluation"]["n"] == 2 and last["stop_reason"] is None
    assert {"collect", "learn", "evaluate", "wall"} <= last["seconds"].keys()


def test_before_the_first_episode_ends_there_is_no_mean_return(tmp_path: Path) -> None:
    config = SMALL | {
        "env": "policies.testing:CountingEnv",
        "env_config": {"lengths": [40]},
        "evaluation_interval": 0,
    }
    with Algorithm(config, run_dir=str(tmp_path / "run")) as algorithm:
        first, third = algorithm.train(), algorithm.train(2)
    assert first["episode_return_mean"] is None and first["episodes_in_window"] == 0
    assert third["episode_return_mean"] == 40 * 41 / 2 and third["episodes_in_window"] == 4


def test_a_run_that_has_stopped_does_nothing_more_and_says_why(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with Algorithm(SMALL | {"max_rounds": 1}, run_dir=url) as algorithm:
        assert algorithm.train(5)["stop_reason"] == "max_rounds"
        assert algorithm.train()["version"] == 1
    with Algorithm(run_dir=url, resume=True) as algorithm:
        result = algorithm.train()
        assert (result["version"], result["stop_reason"]) == (1, "max_rounds")
        assert algorithm.results == []


def test_more_rounds_than_a_job_takes_are_several_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.algorithm.MAX_ROUNDS_PER_JOB", 2)
    with Algorithm(SMALL, run_dir=str(tmp_path / "run")) as algorithm:
        assert algorithm.train(3)["version"] == 3


def test_nonsense_is_refused(trained: Algorithm, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rounds=0"):
        trained.train(0)
    with pytest.raises(ConfigError, match="at least 1"):
        trained.evaluate(0)
    with pytest.raises(ConfigError, match="holds a run already"):
        Algorithm(SMALL, run_dir=trained.run_dir)
    with pytest.raises(ConfigError, match="did you mean lr"):
        Algorithm({"lrr": 1}, run_dir=str(tmp_path / "a"))
    with pytest.raises(ConfigError, match="of algo=ppo, not of dqn"):
        Algorithm(run_dir=trained.run_dir, resume=True, algo="dqn")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and holds no run.*notes.txt"):
        Algorithm(SMALL, run_dir=str(tmp_path / "used"))
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learner_device=cuda:1.*no usable CUDA"):
        Algorithm({"learner_device": "cuda:1"}, run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_second_driver_is_refused_and_acting_needs_no_lock(trained: Algorithm) -> None:
    other = Algorithm.restore(trained.run_dir)
    assert other.compute_single_action(OBS) in (0, 1)
    with pytest.raises(ConfigError, match="held by another object of this process: close"):
        other.train()


def test_two_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    alone = Algorithm(SMALL | {"seed": 4}, run_dir=str(tmp_path / "alone"))
    alone.train(2)
    one = Algorithm(SMALL | {"seed": 4}, run_dir=str(tmp_path / "one"))
    two = Algorithm(SMALL | {"seed": 5}, run_dir=str(tmp_path / "two"))
    for _ in range(2):
        one.train()
        two.train()
    assert weights(one) == weights(alone) != weights(two)
    for algorithm in (alone, one, two):
        algorithm.close()


def test_the_callers_process_is_left_as_it_was(tmp_path: Path) -> None:
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    threads = torch.get_num_threads()
    generator = torch.get_rng_state()
    with Algorithm(SMALL, run_dir=str(tmp_path / "run")) as algorithm:
        algorithm.train()
        assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), generator)
    assert not (tmp_path / "run" / "run.lock").exists()


# --- acting -------------------------------------------------------------------------------------


def test_actions_agree_with_the_policys_and_come_as_the_environment_takes_them(
    trained: Algorithm,
) -> None:
    action = trained.compute_single_action(OBS)
    batch, _, _ = trained.get_policy().compute_actions(np.array([OBS], np.float32), explore=False)
    assert action == batch[0]
    assert gym.spaces.Discrete(2).contains(action)


def test_full_fetch_adds_state_and_extras(trained: Algorithm) -> None:
    action, state, extras = trained.compute_single_action(OBS, explore=True, full_fetch=True)
    assert state == () and action in (0, 1)
    assert np.log(0.0001) < extras["action_logp"] <= 0


def test_many_observations_at_once_act_as_one_by_one(trained: Algorithm) -> None:
    rng = np.random.default_rng(0)
    observations = {f"agent {i}": rng.normal(size=4).astype(np.float32) for i in range(8)}
    actions = trained.compute_actions(observations)
    assert actions == {key: trained.compute_single_action(o) for key, o in observations.items()}
    same, states, extras = trained.compute_actions(observations, full_fetch=True)
    assert same == actions and set(states.values()) == {()}
    assert all(-5 < extras[key]["action_logp"] <= 0 for key in observations)
    assert trained.compute_actions({}) == {}


def test_an_unknown_policy_is_a_key_error_that_names_it(trained: Algorithm) -> None:
    for call in (
        lambda: trained.get_policy("other"),
        lambda: trained.compute_single_action(OBS, policy_id="other"),
        lambda: trained.compute_actions({"a": OBS}, policy_id="other"),
    ):
        with pytest.raises(KeyError, match="'other'.*default_policy"):
            call()


def test_an_observation_of_another_shape_is_refused(trained: Algorithm) -> None:
    with pytest.raises(ValueError, match="shape|4"):
        trained.compute_single_action([0.0, 0.1])


@pytest.mark.parametrize("explore", [False, True])
def test_unsquash_and_clip_are_resolved_each_by_itself(tmp_path: Path, explore: bool) -> None:
    """Pendulum's bounds are +-2; the policy's raw action is made 5 by its output bias."""
    base = SMALL | {"env": "Pendulum-v1", "evaluation_interval": 0}

    def algorithm(**settings: Any) -> Algorithm:
        made = Algorithm(
            base | settings, run_dir=str(tmp_path / str(len(list(tmp_path.iterdir()))))
        )
        policy = made.get_policy()
        changed = policy.get_weights()
        for name, array in changed.items():
            if array.shape == (1,) and "log_std" not in name and "value" not in name:
                changed[name] = np.full_like(array, 5.0)
            elif "log_std" in name:
                changed[name] = np.full_like(array, -20.0)
            elif "value" not in name:
                changed[name] = np.zeros_like(array)
        policy.set_weights(changed)
        return made

    def act(made: Algorithm, **options: bool) -> float:
        single = made.compute_single_action(PENDULUM_OBS, explore=explore, **options)
        plural = {f"{key}s": value for key, value in options.items()}
        many = made.compute_actions({"x": PENDULUM_OBS}, explore=explore, **plural)
        assert many["x"] == pytest.approx(single, abs=1e-4)
        return float(single[0])

    neither = algorithm(normalize_actions=False, clip_actions=False)
    assert act(neither) == pytest.approx(5, abs=1e-3)
    assert act(neither, clip_action=True) == 2
    assert act(neither, unsquash_action=True) == 2  # 10, and never beyond the bounds
    only_clip = algorithm(normalize_actions=False, clip_actions=True)
    assert act(only_clip) == 2
    assert act(only_clip, clip_action=False) == pytest.approx(5, abs=1e-3)
    both = algorithm(normalize_actions=True, clip_actions=True)
    assert act(both) == 2
    assert act(both, unsquash_action=False) == 2
    assert act(both, unsquash_action=False, clip_action=False) == pytest.approx(5, abs=1e-3)
    for made in (neither, only_clip, both):
        made.close()


def test_a_policy_with_memory_returns_its_state_and_goes_on_from_it(tmp_path: Path) -> None:
    config = SMALL | {"model": {"hidden": [8], "use_lstm": True, "lstm_size": 4}}
    with Algorithm(config, run_dir=str(tmp_path / "run")) as algorithm:
        action, state, _ = algorithm.compute_single_action(OBS)
        assert action in (0, 1) and [array.shape for array in state] == [(4,), (4,)]
        _, later, _ = algorithm.compute_single_action(OBS, state)
        assert not np.array_equal(later[0], state[0])
        actions, states, _ = algorithm.compute_actions({"new": OBS, "old": OBS}, {"old": state})
        assert actions.keys() == {"new", "old"}
        np.testing.assert_allclose(states["new"][0], state[0], rtol=1e-5)
        np.testing.assert_allclose(states["old"][0], later[0], rtol=1e-5)


def test_evaluate_repeats_the_rounds_own_evaluation(trained: Algorithm) -> None:
    assert trained.evaluate() == trained.results[-1]["evaluation"]
    assert trained.evaluate(5)["n"] == 5


# --- saving -------------------------------------------------------------------------------------


def test_a_saved_policy_acts_as_before_and_is_a_run_of_its_own(
    trained: Algorithm, tmp_path: Path
) -> None:
    url = trained.save(str(tmp_path / "saved"))
    restored = Algorithm.restore(url)
    assert weights(restored) == weights(trained)
    one = trained.compute_single_action(OBS, explore=True, full_fetch=True)
    assert restored.compute_single_action(OBS, full_fetch=True)[0] in (0, 1)
    observations = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    options = {"explore": False, "extras": ("action_dist_inputs",)}
    mine = trained.get_policy().compute_actions(observations, **options)[2]
    theirs = restored.get_policy().compute_actions(observations, **options)[2]
    np.testing.assert_array_equal(mine["action_dist_inputs"], theirs["action_dist_inputs"])
    assert one[0] in (0, 1)
    with pytest.raises(ConfigError, match="holds a run already"):
        trained.save(url)


def test_training_on_after_a_restore_equals_never_stopping(tmp_path: Path) -> None:
    with Algorithm(SMALL, run_dir=str(tmp_path / "whole")) as whole:
        whole.train(4)
    with Algorithm(SMALL, run_dir=str(tmp_path / "first")) as first:
        first.train(2)
        url = first.save(str(tmp_path / "copy"))
    with Algorithm.restore(url) as second:
        second.train(2)
        assert weights(second) == weights(whole)
        assert second.results[-1]["env_steps"] == whole.results[-1]["env_steps"]
        assert second.evaluate() == whole.evaluate()


def test_restore_wants_a_run_and_refuses_other_settings(trained: Algorithm, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        Algorithm.restore(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="seed: 3 -> 4"):
        Algorithm.restore(trained.run_dir, config={"seed": 4})
    assert Algorithm.restore(trained.run_dir, config={"max_rounds": 9}).config.max_rounds == 9


# --- environments of the caller -----------------------------------------------------------------


def test_a_class_that_can_be_imported_is_stored_by_its_import_path(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with Algorithm(SMALL | {"env": IdentityEnv}, run_dir=url) as algorithm:
        assert algorithm.config.env == "policies.testing:IdentityEnv"
        algorithm.train()
    with pytest.raises(ConfigError, match="--allow_import=policies.testing"):
        Algorithm.restore(url)
    for options in ({"allow_import": ["policies.testing"]}, {"config": {"env": IdentityEnv}}):
        assert Algorithm.restore(url, **options).newest.version == 1


def test_a_class_of_a_function_is_registered_and_has_to_be_given_again(tmp_path: Path) -> None:
    class Inner(CountingEnv):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(lengths=[config["length"]])

    url = str(tmp_path / "run")
    config = SMALL | {"env": Inner, "env_config": {"length": 5}}
    try:
        with Algorithm(config, run_dir=url) as algorithm:
            assert algorithm.config.env == "caller/Inner-v0"
            assert algorithm.train()["episode_return_mean"] == 15
        with Algorithm.restore(url, config={"env": Inner}) as algorithm:
            assert algorithm.train()["version"] == 2
        processes = ("--direct_running_mode=multi_processing",)
        with pytest.raises(ConfigError, match="caller/Inner-v0 is known to this process only"):
            Algorithm(config, run_dir=str(tmp_path / "b"), pipeline_flags=processes)
        with pytest.raises(ConfigError, match="cannot be found by another process"):
            Algorithm(config | {"env_isolation": "process"}, run_dir=str(tmp_path / "c"))
    finally:
        gym.registry.pop("caller/Inner-v0", None)
    with pytest.raises((ConfigError, RunError), match="caller/Inner-v0"):
        Algorithm.restore(url).train()


def test_a_function_makes_environments_too(tmp_path: Path) -> None:
    config = SMALL | {"env": lambda: CountingEnv([2]), "evaluation_interval": 0}
    try:
        with Algorithm(config, run_dir=str(tmp_path / "run")) as algorithm:
            assert algorithm.config.env == "caller/lambda-v0"
            assert algorithm.train()["episode_return_mean"] == 3
    finally:
        gym.registry.pop("caller/lambda-v0", None)


@pytest.mark.parametrize("env", [CountingEnv(), 3, None])
def test_what_makes_no_environment_is_refused(env: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^env: got"):
        Algorithm({"env": env}, run_dir=str(tmp_path / "run"))


def test_results_are_those_of_the_last_call(tmp_path: Path) -> None:
    with Algorithm(SMALL, run_dir=str(tmp_path / "run")) as algorithm:
        algorithm.train(2)
        algorithm.train()
        assert [result["version"] for result in algorithm.results] == [3]
        assert algorithm.rounds_made == 3


def test_closing_ends_the_processes_of_isolated_environments(tmp_path: Path) -> None:
    def children() -> set[str]:
        found = subprocess.run(
            ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True
        ).stdout.splitlines()
        return {line for line in found if "policies.env_process" in line}

    config = {**SMALL, "env_isolation": "process", "native_vector_env": False}
    with Algorithm(config, run_dir=str(tmp_path / "run")) as algorithm:
        algorithm.train()
        assert children()
    assert not children()


def test_a_stored_run_without_a_version_does_not_act(tmp_path: Path) -> None:
    with Algorithm(SMALL, run_dir=str(tmp_path / "run")):
        pass
    restored = Algorithm.restore(str(tmp_path / "run"))
    with pytest.raises(RunError, match="has no version yet"):
        restored.get_policy()


def test_a_resume_takes_rllibs_names_and_dotted_keys(trained: Algorithm) -> None:
    same = Algorithm.restore(trained.run_dir, config={"model.hidden": [8], "num_sgd_iter": 1})
    assert same.config == trained.config
