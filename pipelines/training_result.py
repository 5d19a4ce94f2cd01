"""`result.json`: how a run came out, over all the commands that trained it."""

from __future__ import annotations

import time
from typing import Any

from pipelines.algorithm import Algorithm
from policies.config import config_sha256
from policies.errors import RunError
from policies.run_directory import RESULT


def write_result(algorithm: Algorithm, reason: str, started: float) -> dict[str, Any]:
    """Writes and returns the result of a run that has stopped.

    Args:
        algorithm: The run.
        reason: Name of the stop condition.
        started: Unix time at which the command began.

    Keys: `stop_reason`; `env_steps` and `rounds` of the whole run; `wall_seconds` of this command
    and those before it that ended by themselves, imports included (a command without a round adds
    nothing); `best_version`; `first_reached`, the `env_steps` and `seconds` at the first evaluation
    at the target, or null; `evaluation`, the one that decided: `mean`, `std`, `n`, `lengths`;
    `config_sha256`; `run_dir`.
    """
    newest, summary = algorithm.newest, algorithm.summary
    previous = _previous(algorithm)
    spent = float(previous.get("wall_seconds", 0.0))
    result = {
        "stop_reason": reason,
        "env_steps": newest.manifest["env_steps"],
        "rounds": newest.version,
        "wall_seconds": spent,
        "best_version": summary.best_version,
        "first_reached": _first_reached(algorithm, previous, spent),
        "evaluation": _evaluation(algorithm),
        "config_sha256": config_sha256(algorithm.config),
        "run_dir": algorithm.run_dir,
    }
    if algorithm.rounds_made or not previous:
        result["wall_seconds"] = spent + time.time() - started
    if result != previous:
        algorithm.run.directory.write_json(RESULT, result)
    return result


def _first_reached(
    algorithm: Algorithm, previous: dict[str, Any], spent: float
) -> dict[str, float | None] | None:
    reached, before = algorithm.summary.first_reached, previous.get("first_reached")
    if reached is None:
        return None
    if isinstance(before, dict) and before.get("env_steps") == reached["env_steps"]:
        return before  # Only the command that made the round knows how long it took.
    seconds = reached["seconds"]
    return reached | {"seconds": None if seconds is None else spent + seconds}


def _evaluation(algorithm: Algorithm) -> dict[str, Any] | None:
    """The evaluation that decided: the newest version's, or the latest one before it."""
    evaluation = algorithm.newest.manifest["evaluation"] or algorithm.summary.evaluation
    if evaluation is None:
        return None
    decided = evaluation.get("confirmation") or evaluation
    return {key: decided[key] for key in ("mean", "std", "n", "lengths") if key in decided}


def _previous(algorithm: Algorithm) -> dict[str, Any]:
    """The last result, or nothing where it is missing, damaged or another run's."""
    try:
        previous = algorithm.run.directory.read_json(RESULT)
    except RunError:
        return {}
    times = previous.get("wall_seconds")
    return previous if isinstance(times, int | float) and not isinstance(times, bool) else {}
