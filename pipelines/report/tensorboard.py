"""TensorBoard events of a run, derived from the results of its rounds.

Each command writes one file, named by the version it began at, so that TensorBoard reads the files
of a resumed run in order. Every file opens with a mark that makes TensorBoard drop what earlier
files hold from that step on: rounds that were taken back and made again are drawn once.
"""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from policies.file_store import FileStore

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

FOLDER = "tensorboard"

_PREFIX = "events.out.tfevents."
_SUFFIX = ".beamrl"
_MAX_FILE_BYTES = 2 * 2**30
_RECORD_HEAD = struct.Struct("<QI")
_RECORD_TAIL = 4


def write_events(
    run_url: str, rounds: Iterable[Mapping[str, Any]], *, from_version: int
) -> str | None:
    """Writes the scalars of a command's rounds into `<run>/tensorboard/`.

    A call with the same `from_version` and more rounds brings the file up to date: it is appended
    to where the store can, so that an open TensorBoard follows, and replaced atomically elsewhere.

    The step of an event is the number of env steps. Its wall time counts the seconds spent in
    rounds, from the moment the run's first file began, and a resumed run goes on where the last
    file ended: a pause between two commands does not stretch the curves.

    Args:
        run_url: the run directory, a path or any fsspec URL.
        rounds: results of rounds; those of versions below `from_version` are left out.
        from_version: the version at which the command began. Files of commands that began later
            are removed, since this one's rounds replace theirs.

    Returns:
        The URL of the file, or None when there are no rounds (and then no file).

    Raises:
        RunError: the store cannot be read or written.
    """
    by_version = {r["version"]: r for r in rounds if r["version"] >= from_version}
    if not by_version:
        return None
    results = [by_version[version] for version in sorted(by_version)]
    store = FileStore(run_url)
    name = _file_name(from_version)
    earlier = []
    for other in _event_files(store):
        if other < name:
            earlier.append(other)
        elif other > name:
            store.remove(f"{FOLDER}/{other}")
    path = f"{FOLDER}/{name}"
    present = store.read(path, _MAX_FILE_BYTES) or b""
    origin = _origin(store, present, earlier, results)
    _update(store, path, present, _encode(_events(results, origin)))
    return store.url_of(path)


def scalars(result: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a round by tag; absent ones are left out.

    Groups: `rollout/` (returns, lengths, the version), `evaluation/`, `learner/` and `time/`
    (seconds a stage, and steps a second).
    """
    keys = ("version", "episode_return_mean", "round_return_mean", "round_length_mean")
    tags: dict[str, Any] = {f"rollout/{key}": result[key] for key in keys}
    tags["rollout/episodes"] = result["episodes_this_round"]
    tags["rollout/env_restarts"] = result["env_restarts"]
    evaluation = result["evaluation"] or {}
    for key in ("mean", "std", "n", "capped"):
        tags[f"evaluation/{key}"] = evaluation.get(key)
    tags["evaluation/confirmation/mean"] = (evaluation.get("confirmation") or {}).get("mean")
    tags |= {f"learner/{key}": value for key, value in result["learner"].items()}
    seconds = result["seconds"]
    tags |= {f"time/{stage}_seconds": value for stage, value in seconds.items()}
    if _wall(result) > 0:
        tags["time/steps_per_second"] = result["env_steps_this_round"] / _wall(result)
    return {tag: float(value) for tag, value in tags.items() if isinstance(value, Real)}


def _events(results: list[Mapping[str, Any]], origin: float) -> Iterator[Event]:
    # Beam has loaded protobuf by then; torch.utils.tensorboard would take seconds more.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog, SourceMetadata
    from tensorboard.compat.proto.summary_pb2 import Summary

    yield Event(
        wall_time=origin,
        file_version="brain.Event:2",
        source_metadata=SourceMetadata(writer="pipelines.report.tensorboard"),
    )
    yield Event(
        wall_time=origin,
        step=results[0]["env_steps"],
        session_log=SessionLog(status=SessionLog.START),
    )
    wall_time = origin
    for result in results:
        wall_time += _wall(result)
        values = [
            Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(result).items()
        ]
        yield Event(wall_time=wall_time, step=result["env_steps"], summary=Summary(value=values))


def _encode(events: Iterable[Event]) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = io.BytesIO()
    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())
    return file.getvalue()


def _update(store: FileStore, path: str, present: bytes, content: bytes) -> None:
    # What a kill left half-written is a beginning of the content too.
    if content.startswith(present):
        if content == present:
            return
        store.make_folder(FOLDER)
        if store.append(path, content[len(present) :]):
            return
    store.replace(path, content, durable=False)


def _origin(
    store: FileStore, present: bytes, earlier: list[str], results: list[Mapping[str, Any]]
) -> float:
    """The wall time at which a file begins, in seconds since 1970."""
    for event in _decode(present):
        return event.wall_time
    for name in reversed(earlier):
        events = _decode(store.read(f"{FOLDER}/{name}", _MAX_FILE_BYTES))
        # Rounds that were taken back are no part of the curve.
        times = [event.wall_time for event in events if event.step < results[0]["env_steps"]]
        if times:
            return max(times)
    return time.time() - sum(map(_wall, results))


def _decode(data: bytes | None) -> Iterator[Event]:
    """Yields the whole events of a file; a torn one ends it."""
    from tensorboard.compat.proto.event_pb2 import Event

    start, view = 0, memoryview(data or b"")
    while start + _RECORD_HEAD.size <= len(view):
        length, _ = _RECORD_HEAD.unpack_from(view, start)
        start += _RECORD_HEAD.size
        if start + length + _RECORD_TAIL > len(view):
            return
        yield Event.FromString(bytes(view[start : start + length]))
        start += length + _RECORD_TAIL


def _wall(result: Mapping[str, Any]) -> float:
    seconds = result["seconds"]
    return float(seconds["wall"] if "wall" in seconds else sum(seconds.values()))


def _event_files(store: FileStore) -> list[str]:
    return [
        name for name in store.names(FOLDER) if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
    ]


def _file_name(from_version: int) -> str:
    return f"{_PREFIX}{from_version:010d}{_SUFFIX}"
