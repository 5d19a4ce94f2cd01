"""When a run ends: a pure function of a version's facts and the present stop conditions.

Nothing else decides, so the number of rounds in a job changes nothing, and a resumed run may raise
a limit. Only `max_seconds` is the driver's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.config import AlgorithmConfig

STOP_RETURN = "stop_return"
MAX_ENV_STEPS = "max_env_steps"
MAX_ROUNDS = "max_rounds"
MAX_SECONDS = "max_seconds"


def stop_reason(
    version: int, env_steps: int, evaluation: Mapping[str, Any] | None, config: AlgorithmConfig
) -> str | None:
    """Name of the stop condition that a version meets, or None.

    Args:
        version: The version, which is the number of rounds so far.
        env_steps: Environment steps sampled so far.
        evaluation: `{"mean": ..., "confirmation": {"mean": ...}}` of this version, or None. A
            return target needs both means, since the best of many short evaluations is too high.
        config: Holds the stop conditions.
    """
    first = evaluation or {}
    second = first.get("confirmation") or {}
    if reaches(first, config.stop_return) and reaches(second, config.stop_return):
        return STOP_RETURN
    if config.max_env_steps is not None and env_steps >= config.max_env_steps:
        return MAX_ENV_STEPS
    if config.max_rounds is not None and version >= config.max_rounds:
        return MAX_ROUNDS
    return None


def reaches(evaluation: Mapping[str, Any], target: float | None) -> bool:
    """Whether an evaluation's mean return is at the target (never, without a target)."""
    mean = evaluation.get("mean")
    return target is not None and mean is not None and mean >= target
