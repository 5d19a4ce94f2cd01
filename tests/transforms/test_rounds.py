"""Rounds as a pipeline: what the direct calls give, in a small graph that pickles no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import IntervalWindow

from policies.env_setup import check_env
from policies.learners.ppo import PPOConfig
from policies.run_directory import RunDirectory
from policies.training_round import (
    VersionDraft,
    collect,
    evaluate_draft,
    learn,
    publish,
    shards_to_collect,
)
from policies.training_run import TrainingRun, forget_live_objects
from transforms.coders import RecordBatchCoder
from transforms.learner import VersionDraftCoder
from transforms.rounds import TrainRounds

MakeRun = Callable[..., TrainingRun]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes small runs, with version 0, in folders of their own."""

    def make(name: str = "run", **settings: Any) -> TrainingRun:
        small: dict[str, Any] = {
            "num_envs_per_worker": 3,
            "rollout_fragment_length": 12,
            "num_epochs": 1,
            "evaluation_episodes": 2,
            "model": {"hidden": [8]},
        }
        config = PPOConfig(**(small | settings))
        facts = check_env(config)
        url = RunDirectory.create(tmp_path / name, {}).url
        run = TrainingRun.of(
            url, "ppo", config, facts.observation_space, facts.action_space, facts.env_state
        )
        run.publish_initial()
        forget_live_objects()
        return run

    return make


def _direct(run: TrainingRun, rounds: int) -> list[str]:
    path = run.directory.version_path(0)
    for _ in range(rounds):
        shards = shards_to_collect(run, path)
        batches = [batch for shard in shards for batch in collect(run, path, shard)]
        path = publish(run, evaluate_draft(run, learn(run, path, batches)))
    return _hashes(run)


def _hashes(run: TrainingRun) -> list[str]:
    directory = run.directory
    return [directory.read_version(version).sha256 for version in directory.version_numbers()]


def _pipeline(run: TrainingRun, rounds: int, runner: FnApiRunner | None = None) -> list[str]:
    with beam.Pipeline(runner=runner or FnApiRunner()) as pipeline:
        paths = pipeline | TrainRounds(run, rounds)
        assert_that(paths | beam.WindowInto(beam.window.GlobalWindows()), _one)
    return _hashes(run)


def _one(paths: list[str]) -> None:
    assert len(paths) == 1, paths


# --- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_a_pipeline_gives_what_the_direct_calls_give(make_run: MakeRun, shards: int) -> None:
    settings = {"num_rollout_workers": shards, "observation_filter": "mean_std"}
    expected = _direct(make_run("direct", **settings), 3)
    assert _pipeline(make_run("piped", **settings), 3) == expected


def test_bundles_that_run_twice_change_nothing(make_run: MakeRun) -> None:
    settings = {"num_rollout_workers": 2, "observation_filter": "mean_std"}
    expected = _direct(make_run("direct", **settings), 2)
    found = _pipeline(make_run("twice", **settings), 2, FnApiRunner(bundle_repeat=1))
    assert found == expected


def test_the_same_graph_runs_again_from_the_newest_version(make_run: MakeRun) -> None:
    run = make_run()
    for rounds in (2, 4):
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            paths = pipeline | TrainRounds(run, 2)
            last = run.directory.version_path(rounds)
            assert_that(paths | beam.WindowInto(beam.window.GlobalWindows()), equal_to([last]))
    assert len(_hashes(run)) == 5


@pytest.mark.parametrize("shards", [1, 2])
def test_every_round_ends_in_one_path_also_after_the_last(make_run: MakeRun, shards: int) -> None:
    run = make_run(max_rounds=1, num_rollout_workers=shards)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        paths = pipeline | TrainRounds(run, 4)
        last = run.directory.version_path(1)
        assert_that(paths | beam.WindowInto(beam.window.GlobalWindows()), equal_to([last]))
    assert run.directory.version_numbers() == [0, 1]


class _WithWindow(beam.DoFn):
    def process(self, path: str, window: Any = beam.DoFn.WindowParam) -> Iterator[tuple[str, Any]]:
        yield path, window


@pytest.mark.parametrize("max_rounds", [None, 2])
def test_each_round_has_a_window_of_its_own_even_when_it_passes_on(
    make_run: MakeRun, max_rounds: int | None
) -> None:
    run = make_run(max_rounds=max_rounds)
    _direct(run, 1)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        found = pipeline | TrainRounds(run, 2) | beam.ParDo(_WithWindow())
        expected = [(run.directory.version_path(max_rounds or 3), IntervalWindow(3, 4))]
        assert_that(found | beam.WindowInto(beam.window.GlobalWindows()), equal_to(expected))


def test_an_error_of_a_stage_fails_the_job(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    next((tmp_path / "run/versions/00000000").glob("weights-*")).unlink()
    with pytest.raises(Exception, match="weights-.* is missing"):
        _pipeline(run, 1)


# --- the graph ----------------------------------------------------------------------------------


def _proto(run: TrainingRun, rounds: int) -> beam_runner_api_pb2.Pipeline:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | TrainRounds(run, rounds, {"max_active_bundles_per_worker": "1"})
    return pipeline.to_runner_api(use_fake_coders=False)


def _coders(proto: beam_runner_api_pb2.Pipeline) -> dict[str, coders.Coder]:
    """Coders of our own collections; those inside Beam's Reshuffle are its own affair."""
    context = PipelineContext(proto.components)
    return {
        collection.unique_name: context.coders.get_by_id(collection.coder_id)
        for collection in proto.components.pcollections.values()
        if "SpreadShards" not in collection.unique_name
    }


def _parts(coder: coders.Coder) -> Iterator[coders.Coder]:
    yield coder
    for part in coder._get_component_coders():
        yield from _parts(part)


def test_every_collection_has_a_coder_of_its_type_and_none_pickles(make_run: MakeRun) -> None:
    found = _coders(_proto(make_run(num_rollout_workers=2), 1))
    by_stage = {name.split(".")[0].rpartition("/")[2]: coder for name, coder in found.items()}
    text = coders.StrUtf8Coder()
    assert {name: repr(coder) for name, coder in by_stage.items()} == {
        "Start": repr(coders.BytesCoder()),
        "RoundWindows": repr(coders.BytesCoder()),
        "NewestVersion": repr(text),
        "IssueTickets": repr(coders.TupleCoder([text, coders.VarIntCoder()])),
        "Sample": repr(coders.TupleCoder([text, RecordBatchCoder()])),
        "GroupRound": repr(coders.TupleCoder([text, coders.IterableCoder(RecordBatchCoder())])),
        "Learn": repr(VersionDraftCoder()),
        "Evaluate": repr(VersionDraftCoder()),
        "Publish": repr(text),
    }
    ours = (RecordBatchCoder, VersionDraftCoder)
    for coder in found.values():
        for part in _parts(coder):
            assert isinstance(part, ours) or type(part).__module__ == "apache_beam.coders.coders"
            assert not isinstance(part, coders.FastPrimitivesCoder | coders.PickleCoder), coder


def test_tickets_are_not_pickled_in_the_shuffle_between_shards(make_run: MakeRun) -> None:
    proto = _proto(make_run(num_rollout_workers=2), 1)
    context = PipelineContext(proto.components)
    shuffled = [
        context.coders.get_by_id(collection.coder_id)
        for collection in proto.components.pcollections.values()
        if "SpreadShards" in collection.unique_name
    ]
    assert shuffled
    for coder in shuffled:
        parts = [type(part).__name__ for part in _parts(coder)]
        assert "FastPrimitivesCoder" not in parts and "StrUtf8Coder" in parts


def test_a_job_of_ten_rounds_is_a_small_graph_without_weights(make_run: MakeRun) -> None:
    large = make_run("large", model={"hidden": [512, 512]})
    assert _proto(large, 10).ByteSize() < 1_000_000
    small, large_round = (_proto(run, 1).ByteSize() for run in (make_run("small"), large))
    assert abs(large_round - small) < 1_000


def test_the_graph_is_the_same_whatever_the_run_has_done(make_run: MakeRun) -> None:
    run = make_run()
    before = _proto(run, 1).ByteSize()
    _direct(run, 1)
    assert _proto(run, 1).ByteSize() == before


def test_the_stages_that_learn_share_one_environment_with_hints(make_run: MakeRun) -> None:
    proto = _proto(make_run(), 1)
    environments = proto.components.environments
    hinted = {
        transform.unique_name
        for transform in proto.components.transforms.values()
        if transform.environment_id and environments[transform.environment_id].resource_hints
    }
    leaves = {name.rpartition("/")[2] for name in hinted}
    assert {"Learn", "Evaluate", "Publish"} <= leaves
    assert not leaves & {"Sample", "IssueTickets", "NewestVersion", "RoundWindows"}
    # With different ones a runner would not fuse them.
    assert (
        len(
            {
                t.environment_id
                for t in proto.components.transforms.values()
                if t.unique_name in hinted
            }
        )
        == 1
    )


def test_a_draft_is_encoded_as_text_that_repeats(make_run: MakeRun) -> None:
    draft = VersionDraft(3, None, {"collect": 0.5})
    coder = VersionDraftCoder()
    assert coder.is_deterministic()
    assert coder.decode(coder.encode(draft)) == draft
    assert coder.encode(coder.decode(coder.encode(draft))) == coder.encode(draft)
