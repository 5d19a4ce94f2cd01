"""A run as its stages see it: strings that travel, versions, and live objects."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.env_setup import check_env
from policies.errors import ConfigError, RunError
from policies.learners.ppo import PPOConfig
from policies.policy import Policy
from policies.run_directory import RunDirectory
from policies.training_round import collect, learn, publish
from policies.training_run import TrainingRun, forget_live_objects, round_steps

MakeRun = Callable[..., TrainingRun]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes runs at one place or at several."""

    def make(name: str = "run", env_state: str = "kept", **settings: Any) -> TrainingRun:
        small: dict[str, Any] = {
            "num_envs_per_worker": 2,
            "rollout_fragment_length": 6,
            "num_epochs": 1,
            "model": {"hidden": [8]},
        }
        config = PPOConfig(**(small | settings))
        facts = check_env(config)
        directory = RunDirectory(tmp_path / name)
        if not directory.exists():
            RunDirectory.create(directory.url, {})
        spaces = facts.observation_space, facts.action_space
        return TrainingRun.of(directory.url, "ppo", config, *spaces, env_state)

    forget_live_objects()
    return make


def _round(run: TrainingRun, version: int) -> None:
    path = run.directory.version_path(version)
    shards = range(run.config.num_rollout_workers)
    batches = [batch for shard in shards for batch in collect(run, path, shard)]
    publish(run, learn(run, path, batches))


def test_a_run_is_a_few_strings_that_travel(make_run: MakeRun) -> None:
    run = make_run()
    assert all(isinstance(value, str) for value in dataclasses.astuple(run))
    assert len(pickle.dumps(run)) < 5000
    assert pickle.loads(pickle.dumps(run)) == run
    assert isinstance(run.config, PPOConfig) and run.config.num_envs_per_worker == 2
    observation, action = run.spaces
    assert observation.shape == (4,) and action.n == 2
    assert run.directory.url == run.url


def test_the_id_of_a_run_tells_what_decides_its_rows(make_run: MakeRun) -> None:
    first = make_run()
    assert make_run("elsewhere").run_id == first.run_id
    assert make_run(max_rounds=3, rounds_per_job=7).run_id == first.run_id
    assert make_run(seed=1).run_id != first.run_id


def test_live_objects_are_told_apart_by_place_and_settings(make_run: MakeRun) -> None:
    runs = [make_run(), make_run("elsewhere"), make_run(seed=1), make_run(env_state="reset")]
    assert len({run.live_key for run in runs}) == 4
    assert make_run(max_rounds=3).live_key == runs[0].live_key


def test_version_0_is_made_once(make_run: MakeRun) -> None:
    run = make_run()
    info = run.publish_initial()
    assert info.version == 0 and info.manifest["parent"] is None
    assert info.manifest["env_steps"] == 0 and info.manifest["rollouts"] is None
    assert {record.stem for record in info.files} == {"weights", "optimizer"}
    forget_live_objects()
    assert run.publish_initial().sha256 == info.sha256
    other = make_run("other", seed=1).publish_initial()
    assert other.file("weights").sha256 != info.file("weights").sha256


def test_a_learner_is_read_back_as_it_was_saved(make_run: MakeRun) -> None:
    run = make_run(observation_filter="mean_std", kl_coeff=0.25)
    run.publish_initial()
    _round(run, 0)
    info = run.directory.read_version(1)
    live = run.take_learner(info)
    forget_live_objects()
    read = run.take_learner(info)
    assert read is not live
    assert (read.version, read.env_steps, read.scalars) == (1, 12, live.scalars)
    assert (read.version, read.env_steps) == (live.version, live.env_steps)
    for ours, theirs in (
        (read.policy.get_weights(), live.policy.get_weights()),
        (read.optimizer.to_arrays(), live.optimizer.to_arrays()),
    ):
        assert list(ours) == list(theirs) == sorted(ours)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_learner_that_was_taken_is_not_given_twice(make_run: MakeRun) -> None:
    run = make_run()
    info = run.publish_initial()
    assert run.take_learner(info) is not run.take_learner(info)


def test_a_policy_is_kept_for_its_weights_and_reused_for_others(make_run: MakeRun) -> None:
    run = make_run()
    info = run.publish_initial()
    _round(run, 0)
    newer = run.directory.read_version(1)
    forget_live_objects()
    policy = run.take_policy(0, info.file("weights"))
    run.keep_policy(policy, info.file("weights"))
    assert run.take_policy(0, info.file("weights")) is policy
    run.keep_policy(policy, info.file("weights"))
    assert run.take_policy(1, newer.file("weights")) is policy
    expected = run.directory.read_arrays(1, newer.file("weights"))
    found = policy.get_weights()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_environments_are_kept_for_their_state_only(make_run: MakeRun) -> None:
    run = make_run(num_rollout_workers=2)
    info = run.publish_initial()
    # Version 0 has no state: every look at it gives fresh environments.
    assert run.take_runner(info, 0) is not run.take_runner(info, 0)
    _round(run, 0)
    info = run.directory.read_version(1)
    live = run.take_runner(info, 1)
    read = run.take_runner(info, 1)
    assert live is not read
    assert live.get_state().to_pylist() == read.get_state().to_pylist()


def test_environments_that_start_anew_are_never_kept(make_run: MakeRun) -> None:
    run = make_run(env_state="reset")
    run.publish_initial()
    _round(run, 0)
    info = run.directory.read_version(1)
    policy: Policy = run.take_policy(1, info.file("weights"))
    first, second = run.take_runner(info, 0), run.take_runner(info, 0)
    assert first is not second
    rows = first.sample(policy, 1).steps.to_rows()
    assert second.sample(policy, 1).steps.to_rows()[0]["eps_id"] == rows[0]["eps_id"]
    assert rows[-1]["truncateds"] or rows[-1]["terminateds"]


def test_the_state_of_a_shard_that_is_not_there_is_an_error(make_run: MakeRun) -> None:
    run = make_run()
    run.publish_initial()
    _round(run, 0)
    with pytest.raises(RunError, match="00000001 has no environment state of shard 1"):
        run.take_runner(run.directory.read_version(1), 1)


def test_weights_of_another_network_are_refused(make_run: MakeRun) -> None:
    info = make_run().publish_initial()
    other = make_run(model={"hidden": [16]})
    with pytest.raises(ConfigError, match="do not fit the policy"):
        other.take_policy(0, info.file("weights"))


@pytest.mark.parametrize(("batch", "steps"), [(None, 6), (1, 6), (12, 6), (13, 12), (30, 18)])
def test_a_round_is_whole_fragments_that_fill_a_train_batch(batch: int | None, steps: int) -> None:
    config = PPOConfig(
        num_envs_per_worker=2,
        rollout_fragment_length=6,
        train_batch_size=batch,
        batch_mode="complete_episodes",
    )
    assert round_steps(config) == steps


def test_a_version_stops_the_run_by_its_own_facts(make_run: MakeRun) -> None:
    run = make_run(max_env_steps=12)
    assert run.stop_reason(run.publish_initial()) is None
    _round(run, 0)
    info = run.directory.read_version(1)
    assert run.stop_reason(info) == "max_env_steps"
    assert make_run(max_env_steps=13).stop_reason(info) is None
    assert make_run(max_rounds=1).stop_reason(info) == "max_rounds"
