"""The four steps of a round as plain functions: collect, learn, evaluate, publish.

A pipeline distributes them; called one after the other in one process they train just the same.
Each is safe to repeat: what a version's files say is all that goes in, files are named by their
content, and whoever finds the next version published adopts it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from policies import snapshots, stages
from policies.batch_kinds import EPISODES, SNAPSHOTS, STEPS, kind, with_kind
from policies.episode_metrics import EpisodeMetrics
from policies.errors import RunError
from policies.evaluation import evaluate
from policies.learners.learner import learner_threads
from policies.manifest import FileRecord, TornManifestError, canonical_json
from policies.random_streams import Purpose
from policies.run_directory import TIMINGS, VersionInfo
from policies.sample_batch import ENV, ENV_STEP, SHARD, SampleBatch, concat
from policies.stopping import reaches
from policies.training_run import TrainingRun

PASS = "pass"
MAX_ELEMENT_BYTES = 8_000_000

_PASS_BATCH = pa.RecordBatch.from_arrays(
    [pa.array([], pa.int32())], schema=pa.schema([("shard", pa.int32())], metadata={"kind": PASS})
)


@dataclass(frozen=True)
class VersionDraft:
    """A version on its way to its manifest; its files are written already.

    Attributes:
        version: The version it will be, or, when `facts` is None, the one that is there: the run
            has stopped, or somebody else published it.
        facts: The manifest so far, without parent.
        seconds: Wall time of the steps, and `evaluated_at` (Unix time); never in the manifest.
        env_error: What an environment raised. It may hold paths and addresses, so it stays out of
            the manifest as well.
    """

    version: int
    facts: dict[str, Any] | None
    seconds: dict[str, float]
    env_error: str | None = None

    def to_json(self) -> bytes:
        """Encodes the draft."""
        facts = self.facts
        if facts is not None:
            facts = facts | {"files": [record.to_json() for record in facts["files"]]}
        return canonical_json(
            {
                "version": self.version,
                "facts": facts,
                "seconds": self.seconds,
                "env_error": self.env_error,
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> VersionDraft:
        """Decodes what `to_json` returned."""
        value = orjson.loads(data)
        facts = value["facts"]
        if facts is not None:
            facts["files"] = [FileRecord.from_json(entry) for entry in facts["files"]]
        return cls(value["version"], facts, value["seconds"], value["env_error"])


# --- collect ------------------------------------------------------------------------------------


def shards_to_collect(run: TrainingRun, path: str) -> list[int]:
    """Shards to sample with the version at `path`: one, to pass on, if the run has stopped."""
    info = _version(run, path)
    if run.stop_reason(info) is not None:
        return [0]
    return list(range(run.config.num_rollout_workers))


def collect(run: TrainingRun, path: str, shard: int) -> list[pa.RecordBatch]:
    """One shard's part of a round: steps, episodes, and the environments' state.

    Returns:
        Record batches told apart by their `kind`; a single one of kind `pass` if the run has
        stopped or the next version is there already.
    """
    info = _version(run, path)
    if run.stop_reason(info) is not None or _published(run, info.version + 1):
        return [_PASS_BATCH]
    stages.enter("collect")
    weights = info.file("weights")
    policy = run.take_policy(info.version, weights)
    runner = run.take_runner(info, shard)
    with learner_threads(run.config.learner_threads):
        rollout = runner.sample(policy, info.version)
    state = runner.get_state()
    run.keep_policy(policy, weights)
    run.keep_runner(runner, snapshots.snapshot_sha256(state))
    return [*in_pieces(with_kind(rollout.steps.record_batch, STEPS)), rollout.episodes, state]


def in_pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Slices of a batch of at most `MAX_ELEMENT_BYTES`, since runners bound a shuffled value."""
    rows = max(1, int(len(batch) * MAX_ELEMENT_BYTES / max(1, batch.nbytes)))
    return [batch.slice(start, rows) for start in range(0, max(1, len(batch)), rows)]


# --- learn --------------------------------------------------------------------------------------


def learn(run: TrainingRun, path: str, batches: Sequence[pa.RecordBatch]) -> VersionDraft:
    """The learner's part of a round: from all shards' batches to the files of the next version.

    Raises:
        RunError: A shard's batches are missing, or the learner failed.
    """
    info = _version(run, path)
    version = info.version + 1
    if _published(run, version):
        return VersionDraft(version, None, {})
    by_kind: dict[str, list[pa.RecordBatch]] = {}
    for batch in batches:
        by_kind.setdefault(kind(batch), []).append(batch)
    if PASS in by_kind:
        return VersionDraft(info.version, None, {})
    stages.enter("learn")
    steps = sorted_steps(by_kind.get(STEPS, []))
    states = _by_shard(by_kind.get(SNAPSHOTS, []))
    episodes = list(_by_shard(by_kind.get(EPISODES, [])).values())
    if len(states) != run.config.num_rollout_workers:
        raise RunError(f"round {version} has the states of {len(states)} shards only: {path}")
    learner_state = run.take_learner(info)
    started = time.perf_counter()
    learner_state, stats = run.learner.update(run.config, learner_state, steps)
    learn_seconds = time.perf_counter() - started
    facts = run.save_learner(version, learner_state)
    facts["rollouts"], record = _save_rollouts(run, version, states)
    facts["files"].append(record)
    facts |= _episode_facts(run, info, episodes, len(steps))
    facts["metrics"] |= {"learner": stats}
    facts["evaluation"] = None
    seconds = {
        "collect": max(float(_metadata(batch)["seconds"]) for batch in episodes),
        "learn": learn_seconds,
    }
    return VersionDraft(version, facts, seconds, _env_error(episodes))


def _env_error(batches: Sequence[pa.RecordBatch]) -> str | None:
    """What the first environment that failed raised, by shard."""
    errors = [_metadata(batch)["first_error"] for batch in batches]
    return next((error for error in errors if error), None)


def sorted_steps(batches: Sequence[pa.RecordBatch]) -> SampleBatch:
    """All rows of a round by (shard, env, env_step), whatever order they arrived in.

    A row that arrives twice, as it may where a runner repeats a stage, counts once.
    """
    pieces = sorted((SampleBatch(batch) for batch in batches), key=_first_key)
    steps = concat(pieces)
    keys = steps[SHARD], steps[ENV], steps[ENV_STEP]
    order = np.lexsort(keys[::-1])
    new = np.ones(len(steps), np.bool_)
    new[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    if new.all() and np.array_equal(order, np.arange(len(steps))):
        return steps
    return steps.take(order[new])


def _first_key(steps: SampleBatch) -> tuple[int, ...]:
    if not len(steps):
        return (-1,)
    return tuple(int(steps[name][0]) for name in (SHARD, ENV, ENV_STEP))


def _save_rollouts(
    run: TrainingRun, version: int, states: dict[int, pa.RecordBatch]
) -> tuple[dict[str, Any], FileRecord]:
    table = pa.Table.from_batches(list(states.values())).combine_chunks()
    record = run.directory.write_arrow(version, "rollout", table)
    hashes = {str(shard): snapshots.snapshot_sha256(batch) for shard, batch in states.items()}
    return {"file": record.name, "shards": hashes}, record


def _episode_facts(
    run: TrainingRun, info: VersionInfo, batches: list[pa.RecordBatch], rows: int
) -> dict[str, Any]:
    """Counters and episode statistics of the round, and the returns of the latest episodes.

    `batches` has one a shard, in shard order: like rows, a batch that arrived twice counts once.
    """
    metrics = EpisodeMetrics()
    for batch in batches:
        metrics = metrics.add_batch(batch)
    table = pa.Table.from_batches([batch.replace_schema_metadata(None) for batch in batches])
    table = table.sort_by([("env_step", "ascending"), ("shard", "ascending"), ("env", "ascending")])
    returns = table.column("episode_return").to_pylist()
    window = run.config.metrics_smoothing_episodes
    recent = [*info.manifest["recent_returns"], *returns][-window:]
    restarts = sum(int(_metadata(batch)["env_restarts"]) for batch in batches)
    steps = sum(int(_metadata(batch)["env_steps"]) for batch in batches)
    result: dict[str, Any] = {"episodes": metrics.result(), "env_steps": steps, "rows": rows}
    result["env_restarts"] = restarts
    return {
        "env_steps": int(info.manifest["env_steps"]) + steps,
        "recent_returns": recent,
        "metrics": result,
    }


# --- evaluate -----------------------------------------------------------------------------------


def evaluate_draft(run: TrainingRun, draft: VersionDraft) -> VersionDraft:
    """Evaluates the new weights every `evaluation_interval` rounds.

    A mean at the target is confirmed with more episodes and other seeds, since the best of many
    short evaluations overstates a policy.
    """
    config = run.config
    interval = config.evaluation_interval
    if draft.facts is None or not interval or draft.version % interval:
        return draft
    stages.enter("evaluate")
    started = time.perf_counter()
    weights = _record(draft.facts, "weights")
    policy = run.take_policy(draft.version, weights)
    with learner_threads(config.learner_threads):
        result = evaluate(policy, config, draft.version, config.evaluation_episodes)
        evaluated_at = time.time()
        if reaches(result, config.stop_return):
            result["confirmation"] = evaluate(
                policy, config, draft.version, config.confirmation_episodes, Purpose.CONFIRMATION
            )
    run.keep_policy(policy, weights)
    seconds = {"evaluate": time.perf_counter() - started, "evaluated_at": evaluated_at}
    return replace(
        draft, facts=draft.facts | {"evaluation": result}, seconds=draft.seconds | seconds
    )


# --- publish ------------------------------------------------------------------------------------


def publish(run: TrainingRun, draft: VersionDraft) -> str:
    """Commits the draft, or adopts the version that is there: the path to go on from."""
    path = run.directory.version_path(draft.version)
    if draft.facts is None:
        return path
    stages.enter("publish")
    started = time.perf_counter()
    _, adopted = run.directory.publish(draft.version, draft.facts)
    if not adopted:
        beside: dict[str, Any] = draft.seconds | {"publish": time.perf_counter() - started}
        if draft.env_error is not None:
            beside["env_error"] = draft.env_error
        run.directory.write_json(f"versions/{draft.version:08d}/{TIMINGS}", beside)
    return path


# --- parts --------------------------------------------------------------------------------------


def _version(run: TrainingRun, path: str) -> VersionInfo:
    directory, version = run.directory.of_version(path)
    if directory.url != run.directory.url:
        raise RunError(f"{path} is not a version of {run.url}")
    return run.directory.read_version(version)


def _published(run: TrainingRun, version: int) -> bool:
    try:
        return run.directory.find_version(version) is not None
    except TornManifestError:
        return False  # still being written: whoever publishes waits for it


def _by_shard(batches: Sequence[pa.RecordBatch]) -> dict[int, pa.RecordBatch]:
    """Batches by shard, in shard order."""
    shards = {
        int(_metadata(batch).get("shard") or batch.column("shard")[0].as_py()): batch
        for batch in batches
    }
    return dict(sorted(shards.items()))


def _metadata(batch: pa.RecordBatch) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in (batch.schema.metadata or {}).items()}


def _record(facts: dict[str, Any], stem: str) -> FileRecord:
    return next(record for record in facts["files"] if record.stem == stem)
