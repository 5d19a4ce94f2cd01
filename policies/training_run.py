"""A training run as its stages see it: configuration, spaces, and what a version's files become.

The stages of a round get a `TrainingRun` (a few strings) and a version's path; all else comes from
the version's files, or from this process's live objects with the same content hash.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym

from policies.config import RESUMABLE_KEYS, AlgorithmConfig, config_dict, config_sha256
from policies.env_runner import EnvRunner, RunnerSettings
from policies.env_setup import vector_env_for
from policies.errors import RunError
from policies.learners.learner import Learner, LearnerState, learner_named, policy_for
from policies.live_cache import LiveCache
from policies.manifest import FileRecord
from policies.policy import Policy
from policies.random_streams import Purpose, seed_for
from policies.run_directory import RunDirectory, VersionInfo
from policies.spaces import space_from_json, space_to_json
from policies.stopping import stop_reason

POLICY_ID = "default_policy"

_RUNNERS = LiveCache(capacity=1024, on_evict=lambda runner: runner.close())
_POLICIES = LiveCache(capacity=4)
_LEARNERS = LiveCache(capacity=2)


@dataclass(frozen=True)
class TrainingRun:
    """Names a run and how it is trained; small enough to travel with every stage.

    Attributes:
        url: The run directory.
        algo: Name of the learner.
        config_json: The resolved configuration, from the caller and never from the run's files:
            it may name code to import.
        spaces_json: Observation and action space.
        env_state: `kept`, or `reset` where the environment cannot be restored exactly.
    """

    url: str
    algo: str
    config_json: str
    spaces_json: str
    env_state: str = "kept"

    @classmethod
    def of(
        cls,
        url: str,
        algo: str,
        config: AlgorithmConfig,
        observation_space: gym.Space,
        action_space: gym.Space,
        env_state: str = "kept",
    ) -> TrainingRun:
        """Packs the arguments."""
        spaces = [space_to_json(observation_space), space_to_json(action_space)]
        return cls(url, algo, json.dumps(config_dict(config)), json.dumps(spaces), env_state)

    # --- what the strings stand for ---------------------------------------------------------

    @property
    def learner(self) -> Learner:
        """The learner's module."""
        return learner_named(self.algo)

    @property
    def config(self) -> AlgorithmConfig:
        """The parsed configuration."""
        return _config(self.algo, self.config_json)

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return _directory(self.url)

    @property
    def spaces(self) -> tuple[gym.Space, gym.Space]:
        """Observation space and action space."""
        return _spaces(self.spaces_json)

    @property
    def run_id(self) -> str:
        """Names the run in episode ids: a hash of everything that decides its rows."""
        return _run_id(self.algo, self.config_json)

    @property
    def live_key(self) -> str:
        """Tells live objects apart: a folder may be emptied and hold another run then."""
        return _live_key(self.url, self.run_id, self.spaces_json, self.env_state)

    def stop_reason(self, info: VersionInfo) -> str | None:
        """Name of the stop condition that a version meets, or None."""
        manifest = info.manifest
        return stop_reason(
            info.version, int(manifest["env_steps"]), manifest["evaluation"], self.config
        )

    # --- version 0 --------------------------------------------------------------------------

    def publish_initial(self) -> VersionInfo:
        """Makes version 0, the untrained policy, unless it is there."""
        state = self.learner.initial_state(self.config, *self.spaces)
        facts: dict[str, Any] = {
            "env_steps": 0,
            "rollouts": None,
            "recent_returns": [],
            "metrics": {},
        }
        self.directory.publish(0, facts | self.save_learner(0, state))
        return self.directory.read_version(0)

    # --- learner ----------------------------------------------------------------------------

    def save_learner(self, version: int, state: LearnerState) -> dict[str, Any]:
        """Writes a learner's state as the files of `version`: its part of the manifest."""
        weights = self.directory.write_arrays(version, "weights", state.policy.get_weights())
        optimizer = self.directory.write_arrays(version, "optimizer", state.optimizer.to_arrays())
        _LEARNERS.put(state, self.live_key, *self._learner_key(weights, optimizer))
        return {
            "files": [weights, optimizer],
            "policies": {
                POLICY_ID: {
                    "weights": weights.name,
                    "optimizer": optimizer.name,
                    "scalars": state.scalars,
                }
            },
        }

    def take_learner(self, info: VersionInfo) -> LearnerState:
        """The learner's state of a version, to be changed: the live one or a fresh one."""
        weights, optimizer = info.file("weights"), info.file("optimizer")
        state = cast(
            "LearnerState | None",
            _LEARNERS.take(self.live_key, *self._learner_key(weights, optimizer)),
        )
        if state is None:
            state = self.learner.initial_state(self.config, *self.spaces)
            state.load(
                self.directory.read_arrays(info.version, weights),
                self.directory.read_arrays(info.version, optimizer),
                version=info.version,
                env_steps=int(info.manifest["env_steps"]),
                scalars=info.manifest["policies"][POLICY_ID]["scalars"],
            )
        return state

    def _learner_key(self, weights: FileRecord, optimizer: FileRecord) -> tuple[str, str, str]:
        # A resume may move to another device; tensors do not follow by themselves.
        return self.config.learner_device, weights.sha256, optimizer.sha256

    # --- acting -----------------------------------------------------------------------------

    def take_policy(self, version: int, weights: FileRecord) -> Policy:
        """A policy that acts with a weights file; give it back with `keep_policy`."""
        policy = cast("Policy | None", _POLICIES.take(self.live_key, weights.sha256))
        if policy is None:
            # An idle one with other weights saves building a network only to overwrite it.
            policy = _POLICIES.take_any(self.live_key) or policy_for(self.config, *self.spaces)
            policy.set_weights(self.directory.read_arrays(version, weights))
        return policy

    def keep_policy(self, policy: Policy, weights: FileRecord) -> None:
        """Keeps a policy for the next stage of this process that acts with the same weights."""
        _POLICIES.put(policy, self.live_key, weights.sha256)

    # --- environments -----------------------------------------------------------------------

    def take_runner(self, info: VersionInfo, shard: int) -> EnvRunner:
        """The environments of a shard as a version left them."""
        rollouts = info.manifest["rollouts"]
        if rollouts is None:
            return self._new_runner(shard)
        sha256 = rollouts["shards"].get(str(shard))
        if sha256 is None:
            raise RunError(f"{info.path} has no environment state of shard {shard}")
        runner = cast("EnvRunner | None", _RUNNERS.take(self.live_key, sha256))
        if runner is None:
            runner = self._new_runner(shard)
            runner.set_state(self.directory.read_arrow(info.version, info.file("rollout")))
        return runner

    def keep_runner(self, runner: EnvRunner, sha256: str) -> None:
        """Keeps environments for the next round of this process, under their state's hash."""
        if self.env_state == "reset":
            runner.close()
        else:
            _RUNNERS.put(runner, self.live_key, sha256)

    def _new_runner(self, shard: int) -> EnvRunner:
        config = self.config
        env = vector_env_for(
            config,
            config.num_envs_per_worker,
            lambda env, episode: seed_for(config.seed, Purpose.RESET, shard, env, episode),
            seed_for(config.seed, Purpose.RESET, shard),
        )
        settings = RunnerSettings(
            run_id=self.run_id,
            seed=config.seed,
            fragment_steps=round_steps(config),
            batch_mode=config.batch_mode,
            clip_rewards=config.clip_rewards,
            extras=self.learner.EXTRAS,
            cut_at_end=self.env_state == "reset",
        )
        return EnvRunner(env, shard, settings)


def round_steps(config: AlgorithmConfig) -> int:
    """Steps that each environment takes in a round.

    Whole fragments, as many as it takes to fill one train batch.
    """
    per_fragment = (
        config.num_rollout_workers * config.num_envs_per_worker * config.rollout_fragment_length
    )
    fragments = -(-(config.train_batch_size or 1) // per_fragment)
    return config.rollout_fragment_length * fragments


def forget_live_objects(run: TrainingRun | None = None) -> None:
    """Closes and drops this process's live objects of a run, or of all; files remain."""
    for cache in (_RUNNERS, _POLICIES, _LEARNERS):
        cache.clear(None if run is None else run.live_key)


@functools.lru_cache(maxsize=16)
def _config(algo: str, config_json: str) -> AlgorithmConfig:
    return learner_named(algo).CONFIG.model_validate_json(config_json)


@functools.lru_cache(maxsize=16)
def _run_id(algo: str, config_json: str) -> str:
    return f"{algo}-{config_sha256(_config(algo, config_json), exclude=RESUMABLE_KEYS)}"


@functools.lru_cache(maxsize=16)
def _live_key(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.lru_cache(maxsize=16)
def _directory(url: str) -> RunDirectory:
    return RunDirectory(url)


@functools.lru_cache(maxsize=16)
def _spaces(spaces_json: str) -> tuple[gym.Space, gym.Space]:
    observation, action = json.loads(spaces_json)
    return space_from_json(observation), space_from_json(action)
