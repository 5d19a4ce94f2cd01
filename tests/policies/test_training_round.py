"""A round's four steps: the same bits in one process and in many, repeated or late."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from policies import training_round
from policies.batch_kinds import EPISODES, SNAPSHOTS, STEPS, kind
from policies.env_setup import check_env
from policies.errors import RunError
from policies.learners.ppo import PPOConfig
from policies.round_results import read_beside
from policies.run_directory import RunDirectory
from policies.sample_batch import ENV, ENV_STEP, EPS_ID, REWARDS, SHARD, SampleBatch
from policies.spaces import space_to_json
from policies.training_round import (
    PASS,
    VersionDraft,
    collect,
    evaluate_draft,
    in_pieces,
    learn,
    publish,
    shards_to_collect,
    sorted_steps,
)
from policies.training_run import TrainingRun, forget_live_objects

_SMALL: dict[str, Any] = {
    "seed": 5,
    "num_envs_per_worker": 3,
    "rollout_fragment_length": 12,
    "num_epochs": 1,
    "minibatch_size": 16,
    "evaluation_episodes": 2,
    "model": {"hidden": [8]},
}
_DICT_SPACE = space_to_json(
    Dict({"a": Box(-1.0, 1.0, (2,), np.float32), "b": Discrete(3), "c": MultiDiscrete([2, 5])})
)
CASES: dict[str, dict[str, Any]] = {
    "native environments": {},
    "own environments": {"native_vector_env": False},
    "replayed environments": {"env": "Acrobot-v1", "evaluation_max_episode_steps": 30},
    "continuous actions, filter": {
        "env": "Pendulum-v1",
        "observation_filter": "mean_std",
        "num_rollout_workers": 2,
        "evaluation_max_episode_steps": 30,
    },
    "get_state and set_state": {
        "env": "policies.testing:CountingEnv",
        "env_config": {"lengths": [5, 17, 3]},
    },
    "memory": {
        "env": "policies.testing:StatelessCartPole",
        "model": {"hidden": [8], "use_lstm": True, "lstm_size": 4, "max_seq_len": 5},
        "observation_filter": "mean_std",
    },
    "dict observations and actions": {
        "env": "policies.testing:IdentityEnv",
        "env_config": {"space": _DICT_SPACE, "steps": 7},
        "observation_filter": "mean_std",
    },
    "whole episodes": {"batch_mode": "complete_episodes", "num_rollout_workers": 2},
    "train batches, KL penalty": {
        "train_batch_size": 20,
        "kl_coeff": 0.2,
        "num_rollout_workers": 2,
        "evaluation_interval": 2,
    },
}

MakeRun = Callable[..., TrainingRun]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes runs in folders of their own; `settings` come on top of small ones."""

    def make(name: str = "run", env_state: str | None = None, **settings: Any) -> TrainingRun:
        config = PPOConfig(**(_SMALL | settings))
        facts = check_env(config)
        url = RunDirectory.create(tmp_path / name, {}).url
        spaces = facts.observation_space, facts.action_space
        return TrainingRun.of(url, "ppo", config, *spaces, env_state or facts.env_state)

    return make


def _sample(run: TrainingRun, path: str) -> list[pa.RecordBatch]:
    return [batch for shard in shards_to_collect(run, path) for batch in collect(run, path, shard)]


def _train(run: TrainingRun, rounds: int, between: Callable[[], None] = lambda: None) -> list[str]:
    """Rounds one after the other; returns the hashes of all manifests."""
    info = run.publish_initial()
    hashes, path = [info.sha256], info.path
    for _ in range(rounds):
        between()
        batches = _sample(run, path)
        between()
        draft = VersionDraft.from_json(learn(run, path, batches).to_json())
        between()
        draft = evaluate_draft(run, draft)
        between()
        path = publish(run, draft)
        hashes.append(run.directory.read_version(len(hashes)).sha256)
    return hashes


# --- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_live_objects_and_files_give_the_same_bits(make_run: MakeRun, case: str) -> None:
    forget_live_objects()
    live = _train(make_run("live", **CASES[case]), 4)
    # As if each step ran in a process of its own.
    read = _train(make_run("read", **CASES[case]), 4, between=forget_live_objects)
    assert len(set(live)) == 5
    assert read == live


def test_environments_that_start_anew_each_round_give_the_same_bits(make_run: MakeRun) -> None:
    settings = {"env": "Acrobot-v1", "evaluation_max_episode_steps": 30}
    live = _train(make_run("live", "reset", **settings), 3)
    read = _train(make_run("read", "reset", **settings), 3, between=forget_live_objects)
    assert read == live
    kept = _train(make_run("kept", "kept", **settings), 3)
    assert kept[2] != live[2]


def test_threads_of_the_process_change_nothing(make_run: MakeRun) -> None:
    one = _train(make_run("one", **CASES["memory"]), 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        two = _train(make_run("two", **CASES["memory"]), 2, between=forget_live_objects)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert two == one


def test_two_runs_at_the_same_place_share_no_live_objects(
    make_run: MakeRun, tmp_path: Path
) -> None:
    forget_live_objects()
    first = make_run("same")
    _train(first, 2)
    (tmp_path / "same").rename(tmp_path / "away")
    # The same states of the environments, so the same hashes, but other rewards.
    second = _train(make_run("same", clip_rewards=0.25, model={"hidden": [4]}), 2)
    forget_live_objects()
    (tmp_path / "same").rename(tmp_path / "second")
    assert _train(make_run("same", clip_rewards=0.25, model={"hidden": [4]}), 2) == second


def test_the_order_of_shards_and_batches_changes_nothing(make_run: MakeRun) -> None:
    run = make_run(num_rollout_workers=3, observation_filter="mean_std")
    path = run.publish_initial().path
    batches = _sample(run, path)
    expected = learn(run, path, batches)
    random.Random(0).shuffle(batches)
    assert learn(run, path, batches).facts == expected.facts


def test_a_round_sampled_again_has_the_same_rows(make_run: MakeRun) -> None:
    run = make_run()
    path = run.publish_initial().path
    _train(run, 1)
    path = run.directory.version_path(1)
    once = [batch.to_pylist() for batch in collect(run, path, 0)]
    assert [batch.to_pylist() for batch in collect(run, path, 0)] == once


def test_learning_again_writes_the_same_files(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    path = run.publish_initial().path
    batches = _sample(run, path)
    first = learn(run, path, batches)
    files = sorted(p.name for p in (tmp_path / "run/versions/00000001").iterdir())
    assert learn(run, path, batches).facts == first.facts
    assert sorted(p.name for p in (tmp_path / "run/versions/00000001").iterdir()) == files


# --- what a round holds -------------------------------------------------------------------------


def test_each_shard_gives_each_kind_once(make_run: MakeRun) -> None:
    run = make_run(num_rollout_workers=2, observation_filter="mean_std")
    path = run.publish_initial().path
    assert shards_to_collect(run, path) == [0, 1]
    kinds = [[kind(batch) for batch in collect(run, path, shard)] for shard in (0, 1)]
    assert kinds == [[STEPS, EPISODES, SNAPSHOTS]] * 2


def test_steps_are_sorted_by_shard_environment_and_step(make_run: MakeRun) -> None:
    run = make_run(num_rollout_workers=2)
    path = run.publish_initial().path
    whole = [SampleBatch(b) for b in _sample(run, path) if kind(b) == STEPS]
    rng = np.random.default_rng(0)
    mixed = [batch.take(rng.permutation(len(batch))).record_batch for batch in whole[::-1]]
    steps = sorted_steps(mixed)
    keys = list(zip(steps[SHARD], steps[ENV], steps[ENV_STEP], strict=True))
    assert keys == sorted(keys) and len(set(keys)) == len(keys) == sum(map(len, whole))
    assert steps[EPS_ID].tolist() == np.concatenate([batch[EPS_ID] for batch in whole]).tolist()


def test_the_manifest_counts_steps_and_episodes(make_run: MakeRun) -> None:
    run = make_run(
        env="policies.testing:CountingEnv",
        env_config={"lengths": [5]},
        metrics_smoothing_episodes=4,
    )
    path = run.publish_initial().path
    batches = _sample(run, path)
    rows = SampleBatch(next(b for b in batches if kind(b) == STEPS))
    facts = learn(run, path, batches).facts
    assert facts is not None
    # Three environments make twelve steps each, and an episode of five steps returns 1 + ... + 5.
    assert facts["env_steps"] == facts["metrics"]["env_steps"] == facts["metrics"]["rows"] == 36
    assert facts["metrics"]["episodes"]["episodes"] == 6
    assert facts["metrics"]["episodes"]["return_mean"] == 15.0
    assert facts["metrics"]["episodes"]["length_max"] == 5
    assert facts["recent_returns"] == [15.0] * 4
    assert rows[REWARDS].sum() == 3 * (15 + 15 + 1 + 2)
    assert facts["metrics"]["env_restarts"] == 0 and "env_error" not in facts["metrics"]
    assert "seconds" not in json.dumps(facts["metrics"])


def test_restarts_of_environments_are_counted_with_the_error(make_run: MakeRun) -> None:
    run = make_run(
        env="policies.testing:FailingEnv",
        env_config={"seeds": [_first_seed(make_run)], "after": 2, "length": 6},
    )
    path = run.publish_initial().path
    draft = learn(run, path, _sample(run, path))
    assert draft.facts is not None and draft.facts["metrics"]["env_restarts"] == 1
    # Its text holds a path of this machine, which must not decide the manifest's hash.
    assert "this environment fails in step" in str(draft.env_error)
    assert "this environment fails in step" not in json.dumps(draft.facts["metrics"])
    publish(run, draft)
    beside = read_beside(run.directory, draft.version)
    assert beside.env_error == draft.env_error and set(beside.seconds) >= {"collect", "learn"}


def _first_seed(make_run: MakeRun) -> int:
    """The seed of the first episode of environment 0 of shard 0."""
    from policies.random_streams import Purpose, seed_for

    return seed_for(_SMALL["seed"], Purpose.RESET, 0, 0, 0)


def test_evaluations_come_at_their_interval(make_run: MakeRun) -> None:
    run = make_run(evaluation_interval=2)
    _train(run, 4)
    found = [run.directory.read_manifest(v)["evaluation"] is not None for v in range(5)]
    assert found == [False, False, True, False, True]


def test_a_mean_at_the_target_is_confirmed_with_other_episodes(make_run: MakeRun) -> None:
    run = make_run(stop_return=1.0, confirmation_episodes=3)
    _train(run, 1)
    evaluation = run.directory.read_manifest(1)["evaluation"]
    assert evaluation["n"] == 2 and evaluation["confirmation"]["n"] == 3
    assert evaluation["confirmation"]["returns"][:2] != evaluation["returns"]
    assert run.stop_reason(run.directory.read_version(1)) == "stop_return"


def test_a_mean_below_the_target_is_not_confirmed(make_run: MakeRun) -> None:
    run = make_run(stop_return=1e9)
    _train(run, 1)
    assert "confirmation" not in run.directory.read_manifest(1)["evaluation"]


# --- stopped, published, broken -----------------------------------------------------------------


def test_a_stopped_run_passes_its_path_through(make_run: MakeRun) -> None:
    run = make_run(max_rounds=1, num_rollout_workers=2)
    _train(run, 1)
    path = run.directory.version_path(1)
    assert shards_to_collect(run, path) == [0]
    batches = collect(run, path, 0)
    assert [kind(batch) for batch in batches] == [PASS]
    draft = learn(run, path, batches)
    assert draft == VersionDraft(1, None, {})
    assert evaluate_draft(run, draft) is draft
    assert publish(run, draft) == path
    assert run.directory.version_numbers() == [0, 1]


def test_a_published_version_is_adopted_by_every_step(make_run: MakeRun) -> None:
    run = make_run()
    path = run.publish_initial().path
    batches = _sample(run, path)
    late = evaluate_draft(run, learn(run, path, batches))
    _train(run, 1)
    published = run.directory.read_version(1).sha256
    assert [kind(batch) for batch in collect(run, path, 0)] == [PASS]
    assert learn(run, path, batches) == VersionDraft(1, None, {})
    assert publish(run, late) == run.directory.version_path(1)
    assert run.directory.read_version(1).sha256 == published


def test_only_the_publisher_writes_the_timings(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    path = run.publish_initial().path
    draft = learn(run, path, _sample(run, path))
    publish(run, draft)
    timings = tmp_path / "run/versions/00000001/timings.json"
    assert {"collect", "learn", "publish"} <= json.loads(timings.read_bytes()).keys()
    timings.unlink()
    publish(run, draft)
    assert not timings.exists()


def test_a_missing_shard_is_an_error(make_run: MakeRun) -> None:
    run = make_run(num_rollout_workers=2)
    path = run.publish_initial().path
    with pytest.raises(RunError, match="round 1 has the states of 1 shards only"):
        learn(run, path, collect(run, path, 0))


def test_the_path_of_another_run_is_refused(make_run: MakeRun) -> None:
    run, other = make_run("run"), make_run("other")
    with pytest.raises(RunError, match="is not a version of"):
        collect(run, other.publish_initial().path, 0)


def test_a_failed_update_leaves_no_changed_learner_behind(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    path = run.publish_initial().path
    batches = _sample(run, path)
    other = make_run("other")
    expected = learn(other, other.publish_initial().path, batches)

    def fail(*args: object) -> None:
        raise RunError("killed in the middle")

    with monkeypatch.context() as patch:
        # After the update has changed the live learner in place.
        patch.setattr(training_round, "_save_rollouts", fail)
        with pytest.raises(RunError, match="in the middle"):
            learn(run, path, batches)
    draft = learn(run, path, batches)
    assert draft.facts is not None and expected.facts is not None
    assert draft.facts["files"] == expected.facts["files"]


def test_a_draft_survives_its_encoding(make_run: MakeRun) -> None:
    run = make_run()
    path = run.publish_initial().path
    draft = evaluate_draft(run, learn(run, path, _sample(run, path)))
    assert VersionDraft.from_json(draft.to_json()) == draft
    assert draft.to_json() == VersionDraft.from_json(draft.to_json()).to_json()
    nothing = VersionDraft(7, None, {})
    assert VersionDraft.from_json(nothing.to_json()) == nothing


def test_a_round_of_images_travels_in_pieces_that_runners_accept() -> None:
    rows = 100
    columns = {
        EPS_ID: np.zeros(rows, np.int64),
        SHARD: np.zeros(rows, np.int32),
        ENV: np.zeros(rows, np.int32),
        ENV_STEP: np.arange(rows),
        "obs": np.zeros((rows, 400, 1000), np.uint8),
    }
    whole = SampleBatch.from_columns(columns)
    pieces = in_pieces(whole.record_batch)
    assert max(piece.nbytes for piece in pieces) <= 8_000_000 < whole.record_batch.nbytes
    assert [len(piece) for piece in pieces] == [19] * 5 + [5]
    joined = sorted_steps(pieces[::-1])
    assert joined[ENV_STEP].tolist() == list(range(rows))


def test_rows_that_arrive_twice_count_once() -> None:
    columns = {
        SHARD: np.array([0, 0, 1], np.int32),
        ENV: np.array([0, 1, 0], np.int32),
        ENV_STEP: np.array([7, 7, 7]),
    }
    batch = SampleBatch.from_columns(columns).record_batch
    steps = sorted_steps([batch, batch.slice(1), batch.slice(0, 1)])
    assert list(zip(steps[SHARD], steps[ENV], strict=True)) == [(0, 0), (0, 1), (1, 0)]


def test_a_shard_that_arrives_twice_counts_once(make_run: MakeRun) -> None:
    run = make_run(num_rollout_workers=2)
    path = run.publish_initial().path
    batches = _sample(run, path)
    once = learn(run, path, batches).facts
    twice = learn(run, path, [*batches, *batches[: len(batches) // 2]]).facts
    assert once is not None and twice == once
