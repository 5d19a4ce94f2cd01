"""What a round and a run report: derived from manifests, with the timings beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from policies.errors import RunError
from policies.run_directory import METRICS, TIMINGS, VERSIONS, RunDirectory, VersionInfo
from policies.stopping import reaches

_MAX_LOG_BYTES = 2 * 2**30


def round_result(
    info: VersionInfo, seconds: Mapping[str, float], env_error: str | None = None
) -> dict[str, Any]:
    """One round's result: counters, episode statistics, evaluation, learner's statistics.

    Args:
        info: The version that the round made.
        seconds: Its timings.
        env_error: What an environment raised in it.
    """
    manifest = info.manifest
    metrics = manifest["metrics"]
    episodes = metrics.get("episodes", {})
    recent = manifest.get("recent_returns", [])
    return {
        "version": info.version,
        "env_steps": manifest["env_steps"],
        "env_steps_this_round": metrics.get("env_steps", 0),
        "episodes_this_round": episodes.get("episodes", 0),
        "episode_return_mean": sum(recent) / len(recent) if recent else None,
        "episodes_in_window": len(recent),
        "round_return_mean": episodes.get("return_mean"),
        "round_length_mean": episodes.get("length_mean"),
        "env_restarts": metrics.get("env_restarts", 0),
        "env_error": env_error,
        "evaluation": manifest["evaluation"],
        "learner": metrics.get("learner", {}),
        "seconds": dict(seconds),
        "stop_reason": None,
    }


@dataclass(frozen=True)
class Beside:
    """What lies beside a version's manifest, since it differs from machine to machine.

    Attributes:
        seconds: Timings; empty where the writer was killed before it wrote them.
        env_error: What an environment raised in the round, or None.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    env_error: str | None = None


def read_beside(directory: RunDirectory, version: int) -> Beside:
    """Reads what lies beside a version's manifest; empty if it is missing or damaged."""
    try:
        values = directory.read_json(f"{VERSIONS}/{version:08d}/{TIMINGS}")
    except RunError:
        return Beside()
    error = values.get("env_error")
    seconds = {name: float(x) for name, x in values.items() if type(x) in (int, float)}
    return Beside(seconds, error if isinstance(error, str) else None)


@dataclass
class RunSummary:
    """Best version and first time at the target, over all rounds of a run.

    Attributes:
        target: The return target, or None.
        best_version: The version with the highest mean evaluation; the latest of equals.
        best_mean: Its mean.
        first_reached: Steps and seconds at the first evaluation at the target, or None.
        evaluation: The latest evaluation.
    """

    target: float | None
    best_version: int | None = None
    best_mean: float | None = None
    first_reached: dict[str, float | None] | None = None
    evaluation: dict[str, Any] | None = field(default=None)

    def add(
        self,
        version: int,
        env_steps: int,
        evaluation: Mapping[str, Any] | None,
        seconds: float | None,
    ) -> bool:
        """Takes in a round's evaluation; returns whether it is a new best."""
        if evaluation is None or evaluation.get("mean") is None:
            return False
        self.evaluation = dict(evaluation)
        if self.first_reached is None and reaches(evaluation, self.target):
            self.first_reached = {"env_steps": env_steps, "seconds": seconds}
        mean = evaluation["mean"]
        if self.best_mean is not None and mean < self.best_mean:
            return False
        better = self.best_mean is None or mean > self.best_mean
        self.best_version, self.best_mean = version, mean
        return better

    @classmethod
    def of_log(cls, directory: RunDirectory, target: float | None) -> RunSummary:
        """The summary of the rounds in `metrics.jsonl`, whose versions may be gone."""
        summary = cls(target)
        log = directory.store.read(METRICS, _MAX_LOG_BYTES) or b""
        for line in log.splitlines():
            try:
                row = orjson.loads(line)
                summary.add(int(row["version"]), int(row["env_steps"]), _evaluation(row), None)
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
                continue
        return summary


def _evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluation in a line of the log, where nested keys are joined by a slash."""
    evaluation: dict[str, Any] = {}
    for key, value in row.items():
        first, *rest = key.split("/")
        if first != "evaluation":
            continue
        if len(rest) == 1:
            evaluation[rest[0]] = value
        else:
            evaluation.setdefault(rest[0], {})[rest[1]] = value
    return evaluation


def process_started() -> float:
    """Unix time at which this process started."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
            return time.time() - float(uptime.read().split()[0]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _IMPORTED


_IMPORTED = time.time()
