"""Steps vector environments with a policy and yields sample batches.

One `EnvRunner` serves one shard. Between rounds everything it needs to go on is data: the
environments' states, the observation to act on, recurrent state, and the counters that name
episodes. The same shard, version and weights therefore give the same rows wherever and however
often the round is sampled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from policies import snapshots
from policies.batch_kinds import EPISODES, FILTER_DELTAS, SNAPSHOTS
from policies.episode_metrics import EPISODE_SCHEMA
from policies.errors import RunError
from policies.filters import MeanStd
from policies.policy import Policy
from policies.random_streams import Purpose, episode_id, stream
from policies.rollout_buffer import RolloutBuffer, struct_columns, struct_from_columns
from policies.sample_batch import (
    ACTION_LOGP,
    ACTIONS,
    AGENT_ID,
    ENV,
    ENV_STEP,
    EPS_ID,
    NEW_OBS,
    OBS,
    POLICY_ID,
    REWARDS,
    SHARD,
    TERMINATEDS,
    TRUNCATEDS,
    WEIGHTS_VERSION,
    SampleBatch,
    T,
    state_in,
)
from policies.vector_envs import StepResult, VectorEnv

MAX_EPISODE_STEPS = 1_000_000


@dataclass(frozen=True)
class RunnerSettings:
    """What an `EnvRunner` takes from the configuration.

    Attributes:
        run_id: Names the run in episode ids.
        seed: The run's seed.
        fragment_steps: Vector steps a `sample()` makes in `truncate_episodes` mode; times the
            number of environments, the least number of rows in `complete_episodes` mode.
        batch_mode: `truncate_episodes` or `complete_episodes`.
        clip_rewards: None: as they are; True: their sign; a number: clipped to +- that number.
        extras: Action outputs to record beside `action_logp`: `action_dist_inputs`, `vf_preds`.
        observation_filter: Whether to gather statistics of the observations.
        cut_at_end: Truncate every running episode at the end of `sample()`, for environments whose
            state cannot be carried to the next round.
        first_env_step: The environments' counts of transitions to start from.
    """

    run_id: str
    seed: int
    fragment_steps: int
    batch_mode: str = "truncate_episodes"
    clip_rewards: bool | float | None = None
    extras: tuple[str, ...] = (ACTION_LOGP,)
    observation_filter: bool = False
    cut_at_end: bool = False
    first_env_step: int = 0


@dataclass(frozen=True)
class Rollout:
    """What one shard gives to a round.

    Attributes:
        steps: The transitions, ordered by (env, env_step).
        episodes: One row for each episode that ended, kind `episodes`; the metadata holds the
            counters `env_steps`, `env_restarts` and `seconds`.
        filter_delta: Statistics of the rows' observations, or None.
    """

    steps: SampleBatch
    episodes: pa.RecordBatch
    filter_delta: pa.RecordBatch | None


@dataclass
class _Ended:
    """Episodes that ended during one `sample()`."""

    rows: list[tuple[int, int, int, int, float, bool]] = field(default_factory=list)
    restarts: int = 0
    first_error: str = ""


class EnvRunner:
    """Samples one shard.

    Args:
        env: The shard's environments.
        shard: Its number.
        settings: See `RunnerSettings`.

    In `truncate_episodes` mode a `sample()` makes `fragment_steps` vector steps and returns at
    most `fragment_steps * num_envs` rows, exactly that many unless the environment resets in
    steps of its own (NEXT_STEP autoreset) or a sub-environment failed. In `complete_episodes`
    mode it starts fresh episodes, returns at least that many rows and never cuts an episode; all
    rows come from the policy it was given.

    Example:
        >>> runner = EnvRunner(env, 0, RunnerSettings("run", seed=0, fragment_steps=64))
        >>> rollout = runner.sample(policy, version=0)
        >>> rollout.steps["obs"].shape
        (1024, 4)
    """

    def __init__(self, env: VectorEnv, shard: int, settings: RunnerSettings) -> None:
        self.env = env
        self.shard = shard
        self.settings = settings
        count = env.num_envs
        self._obs: object = None
        self._state: tuple[np.ndarray, ...] = ()
        self._episode = np.zeros(count, np.int64)
        self._eps_id = np.zeros(count, np.int64)
        self._t = np.zeros(count, np.int64)
        self._return = np.zeros(count, np.float64)
        self._env_step = np.full(count, settings.first_env_step, np.int64)

    # --- sampling ---------------------------------------------------------------------------

    def sample(self, policy: Policy, version: int) -> Rollout:
        """Collects the rows of one round with the policy of `version`.

        Raises:
            RunError: An environment kept failing, or gave a reward or observation that is not
                finite.
        """
        started = time.perf_counter()
        complete = self.settings.batch_mode == "complete_episodes"
        if self._obs is None or complete:
            self._start_all(policy, version)
        buffer = RolloutBuffer(self.env.num_envs, self.settings.fragment_steps)
        ended = _Ended()
        if complete:
            self._run_complete(policy, version, buffer, ended)
        else:
            self._run_steps(policy, version, buffer, ended)
        if self.settings.cut_at_end:
            buffer.mark_last(TRUNCATEDS, self._t > 0)
        steps = self._steps(buffer, policy, version)
        episodes = self._episodes(ended, len(steps), time.perf_counter() - started)
        return Rollout(steps, episodes, self._filter_delta(steps, policy))

    def _run_steps(
        self, policy: Policy, version: int, buffer: RolloutBuffer, ended: _Ended
    ) -> None:
        noise = _Noise(self.settings.seed, version, self.shard, self.env.num_envs, policy, buffer)
        for _ in range(self.settings.fragment_steps):
            self._step(policy, version, buffer, noise, ended, None)

    def _run_complete(
        self, policy: Policy, version: int, buffer: RolloutBuffer, ended: _Ended
    ) -> None:
        """Starts episodes until the target is covered, and runs every one of them to its end."""
        noise = _Noise(self.settings.seed, version, self.shard, self.env.num_envs, policy, buffer)
        target = self.settings.fragment_steps * self.env.num_envs
        active = np.ones(self.env.num_envs, np.bool_)
        while active.any():
            before = len(ended.rows) + ended.restarts
            self._step(policy, version, buffer, noise, ended, active)
            if len(ended.rows) + ended.restarts != before:
                finished = sum(row[3] for row in ended.rows)
                for index in np.flatnonzero(active & (self._t == 0)):
                    running = int(self._t[active].sum())
                    active[index] = finished + running < target
            if int(self._t.max()) > MAX_EPISODE_STEPS:
                raise RunError(
                    f"an episode is longer than {MAX_EPISODE_STEPS:,} steps; "
                    "set horizon, or use batch_mode=truncate_episodes"
                )

    def _step(
        self,
        policy: Policy,
        version: int,
        buffer: RolloutBuffer,
        noise: _Noise,
        ended: _Ended,
        active: np.ndarray | None,
    ) -> None:
        obs, state = self._obs, self._state
        actions, next_state, extras = policy.compute_actions(
            obs, state, explore=True, noise=noise.next(), extras=self.settings.extras
        )
        result = self.env.step(policy.to_env_action(actions), active)
        valid = result.valid
        all_valid = bool(valid.all())
        row = {
            **struct_columns(OBS, obs),
            **struct_columns(ACTIONS, actions),
            **struct_columns(NEW_OBS, result.obs),
            REWARDS: result.rewards,
            TERMINATEDS: result.terminateds,
            TRUNCATEDS: result.truncateds,
            EPS_ID: self._eps_id,
            T: self._t,
            ENV_STEP: self._env_step,
            **extras,
        }
        for index, array in enumerate(state):
            row[state_in(index)] = array
        buffer.append(row, None if all_valid else valid)
        self._obs = result.obs
        if all_valid:
            self._t += 1
            self._env_step += 1
            self._return += result.rewards
            noise.advance(None)
        else:
            self._t += valid
            self._env_step += valid
            self._return += np.where(valid, result.rewards, 0.0)
            noise.advance(valid)
            next_state = _keep(state, next_state, valid)
        self._state = next_state
        done = (result.terminateds | result.truncateds) & valid
        if done.any():
            self._finish(done, result, policy, version, buffer, ended)
        for index, error in result.failed:
            self._drop(index, error, policy, version, buffer, ended)
        for _, error in result.reset_failed:
            ended.restarts += 1
            ended.first_error = ended.first_error or error

    def _finish(
        self,
        done: np.ndarray,
        result: StepResult,
        policy: Policy,
        version: int,
        buffer: RolloutBuffer,
        ended: _Ended,
    ) -> None:
        if result.final_obs is not None:
            for name, leaf in struct_columns(NEW_OBS, result.final_obs).items():
                buffer.overwrite(name, done, leaf)
        for index in np.flatnonzero(done).tolist():
            ended.rows.append(
                (
                    index,
                    int(self._eps_id[index]),
                    int(self._env_step[index]) - 1,
                    int(self._t[index]),
                    float(self._return[index]),
                    bool(result.terminateds[index]),
                )
            )
            self._begin(index, policy, version)

    def _drop(
        self,
        index: int,
        error: str,
        policy: Policy,
        version: int,
        buffer: RolloutBuffer,
        ended: _Ended,
    ) -> None:
        """Forgets the unfinished episode of a sub-environment that was restarted."""
        since = max(0, buffer.steps - int(self._t[index]) - 1)
        buffer.discard(index, since)
        ended.restarts += 1
        ended.first_error = ended.first_error or error
        self._begin(index, policy, version)

    # --- episodes ---------------------------------------------------------------------------

    def _start_all(self, policy: Policy, version: int) -> None:
        self._obs = self.env.reset()
        self._state = policy.initial_state(self.env.num_envs)
        for index in range(self.env.num_envs):
            self._begin(index, policy, version)

    def _begin(self, index: int, policy: Policy, version: int) -> None:
        self._eps_id[index] = episode_id(
            self.settings.run_id, version, self.shard, index, int(self._episode[index])
        )
        self._episode[index] += 1
        self._t[index] = 0
        self._return[index] = 0.0
        if self._state:
            self._state = tuple(array.copy() for array in self._state)
            for array, initial in zip(self._state, policy.initial_state(1), strict=True):
                array[index] = initial[0]

    # --- results ----------------------------------------------------------------------------

    def _steps(self, buffer: RolloutBuffer, policy: Policy, version: int) -> SampleBatch:
        columns = buffer.columns()
        size = len(columns[REWARDS])
        self._check_finite(columns, buffer)
        struct = {OBS: self._obs, NEW_OBS: self._obs}
        known: dict[str, object] = {
            EPS_ID: columns.pop(EPS_ID),
            SHARD: np.full(size, self.shard, np.int32),
            ENV: buffer.env_index(),
            ENV_STEP: columns.pop(ENV_STEP),
            AGENT_ID: "agent_0",
            POLICY_ID: "default_policy",
            T: columns.pop(T).astype(np.int32),
            REWARDS: clip_rewards(columns.pop(REWARDS), self.settings.clip_rewards),
            TERMINATEDS: columns.pop(TERMINATEDS),
            TRUNCATEDS: columns.pop(TRUNCATEDS),
            WEIGHTS_VERSION: np.full(size, version, np.int64),
        }
        for name, like in struct.items():
            known[name] = struct_from_columns(name, like, columns)
        known[ACTIONS] = struct_from_columns(ACTIONS, policy.zero_actions, columns)
        leaves = {ACTIONS, *struct}
        for name, array in columns.items():
            if name.split("\x1f")[0] not in leaves:
                known[name] = array.astype(np.float64) if name == ACTION_LOGP else array
        return SampleBatch.from_columns(
            known,
            observation_space=self.env.observation_space,
            action_space=self.env.action_space,
            metadata={"actions_in": "policy"},
        )

    def _check_finite(self, columns: dict[str, np.ndarray], buffer: RolloutBuffer) -> None:
        for name, array in columns.items():
            if array.dtype.kind != "f":
                continue
            finite = np.isfinite(array)
            if finite.all():
                continue
            row = int(np.flatnonzero(~finite.reshape(len(array), -1).all(axis=1))[0])
            raise RunError(
                f"{name.split(chr(0x1F))[0]} is not finite (NaN or infinite): shard {self.shard}, "
                f"env {int(buffer.env_index()[row])}, step {int(columns[T][row])} of its episode"
            )

    def _episodes(self, ended: _Ended, env_steps: int, seconds: float) -> pa.RecordBatch:
        columns = list(zip(*ended.rows, strict=True)) or [()] * 6
        metadata = {
            "kind": EPISODES,
            "shard": str(self.shard),
            "env_steps": str(env_steps),
            "env_restarts": str(ended.restarts),
            "first_error": ended.first_error,
            "seconds": repr(seconds),
        }
        arrays = [[self.shard] * len(ended.rows), *columns]
        return pa.RecordBatch.from_arrays(
            [pa.array(a, f.type) for a, f in zip(arrays, EPISODE_SCHEMA, strict=True)],
            schema=EPISODE_SCHEMA.with_metadata(metadata),
        )

    def _filter_delta(self, steps: SampleBatch, policy: Policy) -> pa.RecordBatch | None:
        if not self.settings.observation_filter:
            return None
        delta = MeanStd.from_batch(self.env.observation_space, steps[OBS])
        return snapshots.arrays_to_batch(self.shard, delta.to_arrays(), FILTER_DELTAS)

    # --- state ------------------------------------------------------------------------------

    def get_state(self) -> pa.RecordBatch:
        """Everything needed to go on from here, as named arrays."""
        arrays = {f"env/{name}": value for name, value in self.env.get_state().items()}
        for name, leaf in struct_columns("obs", self._obs).items():
            arrays[f"runner/{name}"] = leaf
        for index, array in enumerate(self._state):
            arrays[f"runner/state_{index}"] = array
        for name in ("episode", "eps_id", "t", "return", "env_step"):
            arrays[f"runner/{name}"] = getattr(self, f"_{name}")
        return snapshots.arrays_to_batch(self.shard, arrays, SNAPSHOTS)

    def set_state(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Continues where `get_state` was called, to the bit.

        Raises:
            RunError: The state is damaged or of another number of environments.
        """
        arrays = snapshots.batch_to_arrays(batch, self.shard)
        try:
            like = self.env.observation_space.sample()
            leaves = {
                name.removeprefix("runner/"): value
                for name, value in arrays.items()
                if name.startswith("runner/")
            }
            self._obs = struct_from_columns("obs", like, leaves)
            self._state = tuple(
                leaves[f"state_{index}"] for index in range(sum("state_" in n for n in leaves))
            )
            for name in ("episode", "eps_id", "t", "return", "env_step"):
                if leaves[name].shape != (self.env.num_envs,):
                    raise RunError(
                        f"saved state of shard {self.shard} is for {len(leaves[name])} "
                        f"environments, not {self.env.num_envs}"
                    )
                setattr(self, f"_{name}", leaves[name])
        except KeyError as error:
            raise RunError(f"saved state of shard {self.shard} lacks {error}") from error
        self.env.set_state(
            {n.removeprefix("env/"): a for n, a in arrays.items() if n.startswith("env/")}
        )

    def close(self) -> None:
        """Closes the environments."""
        self.env.close()


class _Noise:
    """Uniform numbers for actions: one stream per environment, advanced by real transitions.

    A reset step of the vector environment uses no number, so all autoreset modes act alike.
    """

    def __init__(
        self,
        seed: int,
        version: int,
        shard: int,
        num_envs: int,
        policy: Policy,
        buffer: RolloutBuffer,
    ) -> None:
        self._streams = [
            stream(seed, Purpose.ACTION_NOISE, version, shard, env) for env in range(num_envs)
        ]
        self._size = policy.noise_size
        self._envs = np.arange(num_envs)
        self._aligned = True
        self._count = np.zeros(num_envs, np.int64)
        self._step = 0
        self._block = self._draw(buffer.capacity)

    def _draw(self, steps: int) -> np.ndarray:
        block = np.empty((steps, len(self._streams), self._size))
        for env, generator in enumerate(self._streams):
            block[:, env] = generator.random((steps, self._size))
        return block

    def next(self) -> np.ndarray:
        """Numbers for the next transition of each environment: [num_envs, noise_size]."""
        if self._step >= len(self._block):
            self._block = np.concatenate([self._block, self._draw(len(self._block))])
        if self._aligned:
            return self._block[self._step]
        return self._block[self._count, self._envs]

    def advance(self, valid: np.ndarray | None) -> None:
        """Moves on where a transition was made (everywhere for None)."""
        if valid is not None and self._aligned:
            self._aligned = False
            self._count[:] = self._step
        self._step += 1
        if not self._aligned:
            self._count += 1 if valid is None else valid


def _keep(
    old: tuple[np.ndarray, ...], new: tuple[np.ndarray, ...], valid: np.ndarray
) -> tuple[np.ndarray, ...]:
    return tuple(
        np.where(valid.reshape(-1, *[1] * (b.ndim - 1)), b, a)
        for a, b in zip(old, new, strict=True)
    )


def clip_rewards(rewards: np.ndarray, clip: bool | float | None) -> np.ndarray:
    """Rewards as the learner sees them: as they are, their sign, or within +- a bound."""
    if clip is None or clip is False:
        return rewards
    if clip is True:
        return np.sign(rewards)
    return np.clip(rewards, -clip, clip)
