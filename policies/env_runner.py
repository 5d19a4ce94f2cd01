"""Steps vector environments with a policy and yields sample batches.

One `EnvRunner` serves one shard. Between rounds everything it needs to go on is data: the
environments' states, recurrent state, and the counters that name episodes. The same shard, version
and weights therefore give the same rows wherever and however often the round is sampled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from policies import snapshots
from policies.action_noise import ActionNoise
from policies.episode_counters import ClosedEpisodes, EpisodeCounters, RowLabels
from policies.episode_ends import EpisodeEnds
from policies.errors import RunError
from policies.finite_rows import first_not_finite
from policies.policy import Policy
from policies.recurrent_state import State, choose_rows
from policies.rollout_buffer import RecordedStep, RolloutBuffer
from policies.sample_batch import (
    ACTION_LOGP,
    AGENT_ID,
    DEFAULT_AGENT,
    DEFAULT_POLICY,
    ENV,
    ENV_STEP,
    EPS_ID,
    POLICY_ID,
    REWARDS,
    SHARD,
    TRUNCATEDS,
    WEIGHTS_VERSION,
    SampleBatch,
    T,
)
from policies.vector_envs import StepResult, VectorEnv

MAX_EPISODE_STEPS = 1_000_000
"""Longest episode that `complete_episodes` waits for."""


@dataclass(frozen=True)
class RunnerSettings:
    """What an `EnvRunner` takes from the configuration.

    Attributes:
        run_id: Names the run in episode ids.
        seed: The run's seed.
        fragment_steps: Vector steps that a `sample()` makes in `truncate_episodes` mode; the rows
            that each environment gives at least in `complete_episodes` mode.
        batch_mode: `truncate_episodes` or `complete_episodes`.
        clip_rewards: None or False: as they are; True: their sign; a number: clipped to +- that.
        extras: Action outputs to record: `action_logp`, `action_dist_inputs`, `vf_preds`.
        cut_at_end: Start fresh episodes with every `sample()` and truncate the running ones at its
            end, for environments whose state cannot be carried to the next round.
    """

    run_id: str
    seed: int
    fragment_steps: int
    batch_mode: str = "truncate_episodes"
    clip_rewards: bool | float | None = None
    extras: tuple[str, ...] = (ACTION_LOGP,)
    cut_at_end: bool = False


@dataclass(frozen=True)
class Rollout:
    """What one shard gives to a round.

    Attributes:
        steps: The transitions, ordered by (env, env_step).
        episodes: One row for each episode that the environment or its horizon ended (not those that
            `cut_at_end` cut), kind `episodes`; the metadata holds `shard`, `env_steps` (rows of
            `steps`), `env_restarts`, `first_error` and `seconds`.
    """

    steps: SampleBatch
    episodes: pa.RecordBatch


@dataclass
class _Round:
    """A `sample()` in progress."""

    policy: Policy
    version: int
    noise: ActionNoise
    buffer: RolloutBuffer
    ends: EpisodeEnds = field(default_factory=EpisodeEnds)
    errors: list[str] = field(default_factory=list)


class EnvRunner:
    """Samples one shard.

    Args:
        env: The shard's environments.
        shard: Its number.
        settings: See `RunnerSettings`.

    In `truncate_episodes` mode a `sample()` makes `fragment_steps` vector steps and returns at
    most `fragment_steps * num_envs` rows, exactly that many unless the environment resets in
    steps of its own (NEXT_STEP autoreset) or a sub-environment failed. In `complete_episodes`
    mode every environment plays fresh episodes, from start to end, until it has given
    `fragment_steps` rows: at least `fragment_steps * num_envs` rows, no episode cut, all of the
    policy that was given.

    A runner whose `sample`, `get_state` or `set_state` raised has closed its environments and
    cannot be used any more.

    Example:
        >>> env = make_vector_env("CartPole-v1", {}, 16, reset_seed=lambda env, episode: episode)
        >>> runner = EnvRunner(env, 0, RunnerSettings("run", seed=0, fragment_steps=64))
        >>> policy = Policy(env.observation_space, env.action_space)
        >>> runner.sample(policy, version=0).steps["obs"].shape
        (1024, 4)
    """

    def __init__(self, env: VectorEnv, shard: int, settings: RunnerSettings) -> None:
        if settings.batch_mode not in ("truncate_episodes", "complete_episodes"):
            raise ValueError(f"unknown batch_mode {settings.batch_mode!r}")
        self.env = env
        self.shard = shard
        self.settings = settings
        self._complete = settings.batch_mode == "complete_episodes"
        self._counters = EpisodeCounters(settings.run_id, shard, env.num_envs)
        self._obs: Any = None
        self._state: State = ()
        self._return = np.zeros(env.num_envs)

    def sample(self, policy: Policy, version: int) -> Rollout:
        """Collects the rows of one round with the policy of `version`.

        Raises:
            RunError: An environment kept failing, or gave a reward or observation that is not
                finite.
        """
        with self._closed_on_error():
            return self._sample(policy, version)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self.env.close()
            raise

    def _sample(self, policy: Policy, version: int) -> Rollout:
        started = time.perf_counter()
        settings, env = self.settings, self.env
        noise = ActionNoise(
            settings.seed,
            version,
            self.shard,
            env.num_envs,
            policy.noise_size,
            settings.fragment_steps,
        )
        current = _Round(policy, version, noise, RolloutBuffer(env.num_envs))
        try:
            if self._obs is None or self._complete or settings.cut_at_end:
                self._start_all(policy, version)
            self._check_state(policy)
            if self._complete:
                self._run_complete(current)
            else:
                for _ in range(settings.fragment_steps):
                    self._step(current, None)
        except RunError as error:
            step = len(current.buffer)
            raise RunError(f"shard {self.shard}, vector step {step}: {error}") from error
        return self._rollout(current, started)

    def _start_all(self, policy: Policy, version: int) -> None:
        # Environments that are made anew each round go on counting where the last ones ended, so
        # that each episode has a seed of its own.
        self._obs = self.env.reset(self._counters.episode if self.settings.cut_at_end else None)
        self._state = policy.initial_state(self.env.num_envs)
        self._return = np.zeros(self.env.num_envs)
        # A reset that fails goes on to the next episode's seed, so numbers may have been skipped.
        if self.env.episodes is not None:
            self._counters.skip_to(self.env.episodes)
        self._counters.begin_all(version)

    def _run_complete(self, current: _Round) -> None:
        """Lets each environment play whole episodes until they have enough rows."""
        running = np.zeros(self.env.num_envs, np.int64)
        finished = np.zeros(self.env.num_envs, np.int64)
        active = np.ones(self.env.num_envs, np.bool_)
        while active.any():
            result = self._step(current, active)
            running += result.valid
            for index, _ in result.failed:
                running[index] = 0
            ended = result.terminateds | result.truncateds
            finished[ended] += running[ended]
            running[ended] = 0
            active &= (running > 0) | (finished < self.settings.fragment_steps)
            if running.max() > MAX_EPISODE_STEPS:
                raise RunError(
                    f"an episode is longer than {MAX_EPISODE_STEPS:,} steps; "
                    "set horizon, or use batch_mode=truncate_episodes"
                )

    def _step(self, current: _Round, active: np.ndarray | None) -> StepResult:
        obs, state, policy = self._obs, self._state, current.policy
        actions, next_state, extras = policy.compute_actions(
            obs, state, explore=True, noise=current.noise.next(), extras=self.settings.extras
        )
        result = self.env.step(policy.to_env_action(actions), active)
        current.buffer.append(RecordedStep(obs, state, actions, extras, result))
        current.noise.advance(result.valid)
        self._obs = result.obs
        self._return += result.rewards
        if state:
            self._state = choose_rows(result.valid, next_state, state)
        ended = result.terminateds | result.truncateds
        if ended.any():
            envs = np.flatnonzero(ended)
            current.ends.add(
                len(current.buffer) - 1, envs, self._return[envs], result.terminateds[envs]
            )
            self._begin(policy, envs)
        if result.failed or result.reset_failed:
            self._note_failures(current, result)
        return result

    def _begin(self, policy: Policy, envs: np.ndarray | list[int]) -> None:
        """Starts episodes in some environments, which are reset already."""
        self._return[envs] = 0.0
        if self._state:
            begun = np.zeros(self.env.num_envs, np.bool_)
            begun[envs] = True
            initial = policy.initial_state(self.env.num_envs)
            self._state = choose_rows(begun, initial, self._state)

    def _note_failures(self, current: _Round, result: StepResult) -> None:
        for index, _ in result.failed:
            current.ends.lose(len(current.buffer) - 1, index)
        self._begin(current.policy, [index for index, _ in result.failed])
        failures = (*result.failed, *result.reset_failed)
        current.errors.extend(f"env {index}: {error}" for index, error in failures)

    def _check_state(self, policy: Policy) -> None:
        expected = [array.shape for array in policy.initial_state(self.env.num_envs)]
        found = [array.shape for array in self._state]
        if found != expected:
            raise RunError(f"the saved recurrent state has shapes {found}, the policy {expected}")

    def _rollout(self, current: _Round, started: float) -> Rollout:
        labels, closed = self._counters.label(
            current.version, current.buffer.made(), current.ends.closings()
        )
        if self.env.episodes is not None:
            self._counters.skip_to(self.env.episodes + 1)
        steps = self._steps(current, labels)
        episodes = self._episodes(current, closed, len(steps), started)
        return Rollout(steps, episodes)

    def _steps(self, current: _Round, labels: RowLabels) -> SampleBatch:
        columns = current.buffer.columns(labels.row, current.ends.steps)
        self._check_finite(columns, labels)
        if self.settings.cut_at_end:
            last = np.flatnonzero(np.diff(labels.env, append=-1))
            running = self._counters.t[labels.env[last]] > 0
            columns[TRUNCATEDS][last[running]] = True
        columns[REWARDS] = clip_rewards(columns[REWARDS], self.settings.clip_rewards)
        size = len(labels.env)
        names: dict[str, Any] = {
            EPS_ID: labels.eps_id,
            SHARD: np.full(size, self.shard, np.int32),
            ENV: labels.env,
            ENV_STEP: labels.env_step,
            AGENT_ID: DEFAULT_AGENT,
            POLICY_ID: DEFAULT_POLICY,
            T: labels.t,
            WEIGHTS_VERSION: np.full(size, current.version, np.int64),
        }
        return SampleBatch.from_columns(
            names | columns,
            observation_space=self.env.observation_space,
            action_space=self.env.action_space,
            metadata={"actions_in": "policy"},
        )

    def _check_finite(self, columns: dict[str, Any], labels: RowLabels) -> None:
        found = first_not_finite(columns, labels.row // self.env.num_envs)
        if found is not None:
            column, row, value = found
            raise RunError(
                f"environment {self.env.name!r}: {column} is not finite ({value}): shard "
                f"{self.shard}, env {labels.env[row]}, step {labels.t[row]} of its episode"
            )

    def _episodes(
        self, current: _Round, closed: ClosedEpisodes, rows: int, started: float
    ) -> pa.RecordBatch:
        metadata = {
            "shard": str(self.shard),
            "env_steps": str(rows),
            "env_restarts": str(len(current.errors)),
            "first_error": current.errors[0] if current.errors else "",
            "seconds": repr(time.perf_counter() - started),
        }
        return current.ends.record_batch(self.shard, closed, metadata)

    def get_state(self) -> pa.RecordBatch:
        """Everything needed to go on from here, as named arrays of kind `snapshots`.

        With `cut_at_end` only the counters, since the next round starts fresh episodes.

        Raises:
            RunError: An environment cannot be saved.
        """
        with self._closed_on_error():
            return self._get_state()

    def _get_state(self) -> pa.RecordBatch:
        arrays = {f"runner/{name}": x for name, x in self._counters.get_state().items()}
        if not self.settings.cut_at_end:
            arrays["runner/return"] = self._return
            arrays |= {f"state/{index}": array for index, array in enumerate(self._state)}
            arrays |= {f"env/{name}": array for name, array in self.env.get_state().items()}
        return snapshots.arrays_to_batch(self.shard, arrays)

    def set_state(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Continues where `get_state` was called, to the bit.

        Raises:
            RunError: The state is damaged or of another number of environments.
        """
        with self._closed_on_error():
            self._set_state(batch)

    def _set_state(self, batch: pa.RecordBatch | pa.Table) -> None:
        arrays = snapshots.batch_to_arrays(batch, self.shard)
        try:
            self._counters.set_state(_under("runner/", arrays))
            if self.settings.cut_at_end:
                return
            self._return = np.array(arrays["runner/return"], np.float64)
            states = _under("state/", arrays)
            self._state = tuple(states[str(index)] for index in range(len(states)))
        except KeyError as error:
            raise RunError(f"saved state of shard {self.shard} lacks {error}") from error
        self._obs = self.env.set_state(_under("env/", arrays))

    def close(self) -> None:
        """Closes the environments."""
        self.env.close()


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def clip_rewards(rewards: np.ndarray, clip: bool | float | None) -> np.ndarray:
    """Rewards as the learner sees them: as they are, their sign, or within +- a bound."""
    if clip is None or clip is False:
        return rewards
    if clip is True:
        return np.sign(rewards)
    return np.clip(rewards, -clip, clip)
