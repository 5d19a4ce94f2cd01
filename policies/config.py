"""Settings of a run: the fields that every learner shares, and what identifies a run.

A learner's own settings are a subclass of `AlgorithmConfig` beside it. `config_loading` builds one
from a file, `--set` and flags; `config_reference` turns the fields into a page of documentation.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from policies.model_config import ModelConfig

RESUMABLE_KEYS: frozenset[str] = frozenset(
    {
        "stop_return",
        "max_env_steps",
        "max_rounds",
        "max_seconds",
        "keep_versions",
        "rounds_per_job",
        "learner_device",
    }
)
"""Settings that a resumed run may change: none of them changes a weight on a CPU. (`stop_return`
decides which evaluations are confirmed, and so is seen in the manifests.)"""


MAX_DEPTH = 50
"""Levels of lists and mappings that a setting's value may have."""
_MAX_INTEGER_BITS = 10_000  # Python refuses to write integers of more than about 14,000 as text.


def require_json(value: object, path: str, *, depth: int = 0) -> None:
    """Checks that a value survives a trip through JSON unchanged.

    Args:
      value: what to check; lists, tuples and mappings are checked all the way down.
      path: the name of the value, for the message.
      depth: levels of lists and mappings around the value.

    Raises:
      ValueError: naming the path and what JSON cannot hold: other types, keys that are not text,
        numbers that are not finite, more than `MAX_DEPTH` levels.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"{path[:60]}...: nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path}: the key {key!r} is not text; quote it")
            require_json(item, f"{path}.{key}", depth=depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            require_json(item, f"{path}[{index}]", depth=depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path}: {value} is not a finite number")
    elif isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise ValueError(f"{path}: an integer of {value.bit_length()} bits is too large")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(
            f"{path}: got a value of type {type(value).__name__}, "
            "expected text, a number, true, false, null, a list or a mapping"
        )


def _json_mapping(value: dict[str, Any]) -> dict[str, Any]:
    require_json(value, "env_config")
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", value):
        raise ValueError(f"got {value!r}, expected cpu, cuda or cuda:N with the GPU's number N")
    return value


Count = Annotated[int, Field(ge=1)]
Parallel = Annotated[int, Field(ge=1, le=100_000)]
FragmentLength = Annotated[int, Field(ge=1, le=10_000_000)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AlgorithmConfig(BaseModel):
    """Settings that every learner shares; immutable.

    Build one with `config_loading.load_config`, whose errors are one line that names the key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    env: str = Field(
        "CartPole-v1",
        min_length=1,
        description="Environment: a registered Gymnasium id, or an import path `module:Class`.",
    )
    env_config: Annotated[dict[str, Any], AfterValidator(_json_mapping)] = Field(
        default_factory=dict,
        description="Keyword arguments of the environment's constructor (JSON values).",
    )
    seed: NonNegative = Field(
        0,
        description="Root of every random number of the run; the same seed gives the same bits.",
    )

    num_rollout_workers: Parallel = Field(
        1,
        description="Shards that sample in parallel in each round; part of the run's identity, "
        "unlike the runner's own parallelism.",
    )
    num_envs_per_worker: Parallel = Field(
        16, description="Environments that one shard steps together as one vector."
    )
    rollout_fragment_length: FragmentLength = Field(
        64,
        description="Longest fragment: steps that each environment takes before the round may end "
        "(with complete_episodes: at least, then on to the episode's end).",
    )
    train_batch_size: Count | None = Field(
        None,
        description="Rows of one learner update; a round collects whole fragments until it has "
        "as many. null takes the rows of one fragment of each environment.",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = Field(
        "truncate_episodes",
        description="Whether a round cuts running episodes into fragments or plays them out.",
    )
    horizon: Count | None = Field(
        None,
        description="Steps after which an episode is truncated (never terminated); null leaves "
        "it to the environment.",
    )
    observation_filter: Literal["none", "mean_std"] = Field(
        "none",
        description="mean_std subtracts the running mean of the observations and divides by "
        "their standard deviation before the network sees them; logged rows stay raw.",
    )
    clip_rewards: bool | PositiveFinite | None = Field(
        None,
        description="Rewards that the learner sees: true takes their sign, a number c clips "
        "them to [-c, c], null or false leaves them; reported returns stay unclipped.",
    )
    normalize_actions: bool = Field(
        True,
        description="The policy acts in [-1, 1] and its actions are scaled to the bounds of a "
        "bounded continuous action space.",
    )
    squash_actions: bool = Field(
        False,
        description="Samples continuous actions of bounded spaces through tanh, so that they stay "
        "inside, instead of from a Gaussian that is clipped.",
    )
    clip_actions: bool = Field(
        True,
        description="Continuous actions that are not scaled are clipped to the action space's "
        "bounds before the environment gets them.",
    )
    env_isolation: Literal["none", "process"] = Field(
        "none",
        description="process runs each environment in a process of its own, so that one that "
        "hangs or crashes can be replaced; costs time for each step.",
    )
    native_vector_env: bool = Field(
        True,
        description="Uses the environment's own vectorised form where it has one; false steps "
        "single environments, each with a seed of its own.",
    )
    env_timeout_s: Seconds = Field(
        60.0, description="Seconds that one reset or step may take before it counts as hung."
    )
    max_env_restarts: NonNegative = Field(
        3,
        description="Times in a row that a failing environment is made anew before the run fails.",
    )

    gamma: float = Field(0.99, ge=0, le=1, description="Discount of the reward of the next step.")
    model: ModelConfig = Field(
        default_factory=ModelConfig, description="The network of policy and value function."
    )
    actor: Literal["auto", "numpy", "torch"] = Field(
        "auto",
        description="What computes actions while sampling; auto takes numpy for plain "
        "multi-layer networks, where it is faster, and torch for the others.",
    )

    evaluation_interval: NonNegative = Field(
        1, description="Rounds from one evaluation to the next; 0 never evaluates."
    )
    evaluation_episodes: Count = Field(20, description="Episodes of one evaluation, exactly.")
    evaluation_explore: bool = Field(
        False,
        description="Whether evaluation draws actions at random as in training, instead of "
        "taking the most probable one.",
    )
    evaluation_max_episode_steps: Count = Field(
        10000, description="Steps after which an evaluation episode is cut off."
    )
    confirmation_episodes: Count = Field(
        100,
        description="Further episodes with fresh seeds that must reach stop_return as well "
        "before the run stops.",
    )

    stop_return: Finite | None = Field(
        None, description="Mean evaluation return at which the run stops; null has no target."
    )
    max_env_steps: Count | None = Field(
        None,
        description="Environment steps of all shards together after which the run stops; null "
        "has no limit.",
    )
    max_rounds: Count | None = Field(
        None, description="Rounds after which the run stops; null has no limit."
    )
    max_seconds: Seconds | None = Field(
        None,
        description="Seconds of wall-clock time after which this command stops, looked at after "
        "each job (of rounds_per_job rounds); null has no limit.",
    )

    keep_versions: Count = Field(
        20,
        description="Newest versions that are kept, besides the best one and every 100th.",
    )
    rounds_per_job: Count = Field(
        1,
        description="Rounds in one Beam job; more of them pay where starting a job is slow, and "
        "change no result.",
    )
    learner_device: Annotated[str, AfterValidator(_device)] = Field(
        "cpu", description="Where updates run: cpu, cuda or cuda:N."
    )
    learner_threads: Count = Field(
        1,
        description="Threads of the learner's arithmetic; small networks are fastest with 1, and "
        "results repeat to the bit only at the same number.",
    )
    metrics_smoothing_episodes: Count = Field(
        100,
        description="Latest training episodes over which the reported mean return is taken.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stop_return is not None and self.evaluation_interval == 0:
            raise ValueError(
                "stop_return needs evaluations, but evaluation_interval is 0; set it to 1 or more"
            )
        return self


def config_dict(config: AlgorithmConfig | Mapping[str, Any]) -> dict[str, Any]:
    """All settings as a nested dict of JSON values, defaults included; a fresh copy."""
    if isinstance(config, AlgorithmConfig):
        return config.model_dump(mode="json")
    return json.loads(json.dumps(config))


def config_sha256(
    config: AlgorithmConfig | Mapping[str, Any], *, exclude: Collection[str] = ()
) -> str:
    """SHA-256 of the settings as canonical JSON (sorted keys, no spaces, UTF-8), in hex.

    Args:
      config: a config, or what `config_dict` gave for one.
      exclude: top-level keys to leave out, for example `RESUMABLE_KEYS`.
    """
    values = {key: value for key, value in config_dict(config).items() if key not in exclude}
    text = json.dumps(
        values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def diff(
    old: AlgorithmConfig | Mapping[str, Any],
    new: AlgorithmConfig | Mapping[str, Any],
    *,
    exclude: Collection[str] = (),
) -> list[str]:
    """Differing settings as lines `key: old -> new`, sorted by dotted key.

    Args:
      old: a config, or what `config_dict` gave for one.
      new: the config to compare with it.
      exclude: top-level keys to leave out, for example `RESUMABLE_KEYS`.
    """
    before, after = _flat(config_dict(old)), _flat(config_dict(new))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        if key.split(".")[0] in exclude:
            continue
        left, right = before.get(key, "(absent)"), after.get(key, "(absent)")
        if left != right:
            lines.append(f"{key}: {left} -> {right}")
    return lines


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted key -> value as JSON text; an empty mapping is a value of its own."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return flat
