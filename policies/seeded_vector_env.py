"""Vector environments of our own: single environments, each episode with a seed of its own.

All rules are here (seeds, ends, restarts, state); where the environments run is up to their
handles, so an environment gives the same transitions in this process and in one of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from policies import spaces
from policies.action_log import ActionLog
from policies.env_failures import EnvFailedError, FailureCounts
from policies.env_rows import ObservationRows, from_leaves, leaves, single_actions
from policies.errors import RunError
from policies.finite_rows import first_not_finite
from policies.vector_envs import ResetSeed, StepResult

_log = logging.getLogger(__name__)

Struct = Any
Failures = list[tuple[int, str]]


class EnvHandle(Protocol):
    """One environment, wherever it runs.

    Operations and their arguments: `step` (action) -> (obs, reward, terminated, truncated);
    `reset` (seed) -> obs; `save` () -> arrays; `load` (reset seed, arrays) -> None; `replay`
    (reset seed, list of actions) -> obs.

    Attributes:
        own_state: Whether `save` and `load` work; else the environment is replayed.
    """

    own_state: bool

    def submit(self, operation: str, *arguments: Any) -> None:
        """Starts an operation; it may run until `result` is called."""
        ...

    def result(self) -> Any:
        """Waits for the submitted operation.

        Raises:
            EnvFailedError: the environment raised, hung or died.
            RunError: it broke its contract.
        """
        ...

    def restart(self) -> None:
        """Replaces the environment by a new one; raises EnvFailedError if it cannot be built."""
        ...

    def close(self) -> None:
        """Releases the environment; may be called twice."""
        ...


class SeededVectorEnv:
    """n environments behind handles; see `policies.vector_envs.VectorEnv`.

    Args:
        name: Of the environment, for messages.
        handles: The environments.
        observation_space: Of one environment.
        action_space: Of one environment.
        reset_seed: Seed of each (environment, episode).
        horizon: Episodes are truncated after so many steps; None leaves them to the environment.
        max_restarts: Failures of one environment, since its last finished episode, that are
            answered with a restart. One more is a RunError with the first of them.
    """

    can_skip = True
    has_state = True

    def __init__(
        self,
        name: str,
        handles: Sequence[EnvHandle],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        reset_seed: ResetSeed,
        horizon: int | None,
        max_restarts: int,
    ) -> None:
        self.name = name
        self.num_envs = len(handles)
        self.observation_space = observation_space
        self.action_space = action_space
        self._handles = handles
        self._reset_seed = reset_seed
        self._horizon = horizon
        self._rows = ObservationRows(name, observation_space, self.num_envs)
        self._all = range(self.num_envs)
        self._obs: Struct = None
        self._episode = np.full(self.num_envs, -1, np.int64)
        self._seed = np.zeros(self.num_envs, np.int64)
        self._t = np.zeros(self.num_envs, np.int64)
        self._failures = FailureCounts(name, self.num_envs, max_restarts)
        # Failed resets that no step has reported yet.
        self._reset_failed: Failures = []
        own_state = handles[0].own_state
        self._replayed = None if own_state else ActionLog(action_space, self.num_envs)

    @property
    def episodes(self) -> np.ndarray:
        """Number of the present episode of each environment: int64 [n]; -1 before the first."""
        return self._episode.copy()

    def reset(self, episodes: np.ndarray | None = None) -> Struct:
        """Starts an episode everywhere; see `VectorEnv.reset`."""
        self._episode = self._episode + 1 if episodes is None else np.array(episodes, np.int64)
        self._obs = self._rows.empty()
        self._begin(self._all, self._obs)
        return self._rows.copy(self._obs)

    def reset_envs(self, mask: np.ndarray) -> Struct:
        """Starts the next episode where `mask` is True; see `VectorEnv.reset_envs`."""
        self._require_reset("reset_envs")
        chosen = np.flatnonzero(mask).tolist()
        self._episode[chosen] += 1
        self._begin(chosen, self._obs)
        return self._rows.copy(self._obs)

    def step(self, actions: Struct, active: np.ndarray | None = None) -> StepResult:
        """Makes one step; see `VectorEnv.step`."""
        self._require_reset("step")
        indices = self._all if active is None else np.flatnonzero(active).tolist()
        for index, action in zip(
            self._all, single_actions(self.action_space, actions), strict=True
        ):
            if active is None or active[index]:
                self._handles[index].submit("step", action)
        obs = self._rows.empty() if active is None else self._rows.copy(self._obs)
        result = StepResult(
            obs=obs,
            rewards=np.zeros(self.num_envs),
            terminateds=np.zeros(self.num_envs, np.bool_),
            truncateds=np.zeros(self.num_envs, np.bool_),
            valid=np.zeros(self.num_envs, np.bool_),
        )
        failed = self._collect(indices, result)
        self._count_step(actions, result)
        for index, error in failed:
            self._restart(index, error, obs)
        ended = np.flatnonzero(result.terminateds | result.truncateds).tolist()
        final_obs = None
        if ended:
            final_obs = self._rows.copy(obs)
            self._failures.forgive(ended)
            self._episode[ended] += 1
            self._begin(ended, obs)
        self._obs = self._rows.copy(obs)
        reset_failed, self._reset_failed = self._reset_failed, []
        return result._replace(final_obs=final_obs, failed=failed, reset_failed=reset_failed)

    def _collect(self, indices: Sequence[int], result: StepResult) -> Failures:
        """Fills the result with what the environments return; returns those that failed."""
        failed = []
        for index in indices:
            try:
                obs, reward, terminated, truncated = self._handles[index].result()
            except EnvFailedError as failure:
                failed.append((index, str(failure)))
                continue
            self._rows.write(result.obs, index, obs)
            result.rewards[index] = reward
            result.terminateds[index] = terminated
            result.truncateds[index] = truncated
            result.valid[index] = True
        return failed

    def _count_step(self, actions: Struct, result: StepResult) -> None:
        """Applies the horizon, checks the numbers and remembers the actions for a replay."""
        valid = result.valid
        self._t += valid
        if self._horizon is not None:
            result.truncateds[valid & (self._t >= self._horizon)] = True
        self._require_finite({"obs": result.obs, "rewards": result.rewards}, valid)
        if self._replayed is not None:
            # A second copy, since the environment may have changed the action it was given.
            self._replayed.append(actions, valid)

    def _require_finite(self, columns: Mapping[str, Struct], rows: np.ndarray) -> None:
        found = first_not_finite(columns, rows=rows)
        if found is not None:
            column, index, value = found
            raise RunError(
                f"environment {self.name!r} (env {index}): {column} is not finite ({value}) "
                f"at step {self._t[index]} of its episode"
            )

    def _begin(self, indices: Sequence[int], obs: Struct) -> None:
        """Resets environments to their present episode; notes those that failed."""
        for index in indices:
            self._submit_reset(index)
        failures = []
        for index in indices:
            try:
                self._rows.write(obs, index, self._handles[index].result())
            except EnvFailedError as failure:
                failures.append((index, str(failure)))
        for index, error in failures:
            _log.warning("environment %r (env %d) failed in reset: %s", self.name, index, error)
            self._reset_failed.append((index, error))
            self._restart(index, error, obs)
        begun = np.zeros(self.num_envs, np.bool_)
        begun[indices] = True
        self._require_finite({"obs": obs}, begun)

    def _submit_reset(self, index: int) -> None:
        seed = int(self._reset_seed(index, int(self._episode[index])))
        self._seed[index], self._t[index] = seed, 0
        if self._replayed is not None:
            self._replayed.begin(index)
        self._handles[index].submit("reset", seed)

    def _restart(self, index: int, error: str, obs: Struct) -> None:
        """Replaces a failed environment and starts its next episode, if it may fail once more."""
        while True:
            self._failures.add(index, error)
            self._episode[index] += 1
            try:
                self._handles[index].restart()
                self._submit_reset(index)
                self._rows.write(obs, index, self._handles[index].result())
                break
            except EnvFailedError as failure:
                error = str(failure)
                self._reset_failed.append((index, error))
        self._require_finite({"obs": obs}, np.arange(self.num_envs) == index)

    def _require_reset(self, call: str) -> None:
        if self._obs is None:
            raise ValueError(f"{call} before the first reset")

    def get_state(self) -> dict[str, np.ndarray]:
        """Named arrays to go on from; see `VectorEnv.get_state`."""
        self._require_reset("get_state")
        state = {"episode": self._episode.copy(), "seed": self._seed.copy(), "t": self._t.copy()}
        for k, leaf in enumerate(leaves(self.observation_space, self._obs)):
            state[f"obs/{k}"] = leaf.copy()
        state |= self._failures.get_state()
        if self._replayed is not None:
            self._require_replayable(self._replayed)
            actions = self._replayed.to_arrays()
            return state | {f"actions/{name}": array for name, array in actions.items()}
        for index, handle in enumerate(self._handles):
            handle.submit("save")
            arrays = self._result(index, "get_state()")
            state.update({f"envs/{index}/{name}": array for name, array in arrays.items()})
        return state

    def _require_replayable(self, log: ActionLog) -> None:
        index = log.too_long()
        if index is not None:
            raise RunError(
                f"environment {self.name!r} (env {index}): its episode has run for "
                f"{self._t[index]:,} steps and has to be replayed to be restored, which is limited "
                f"to {log.limit:,}; set horizon, or give the environment get_state() and "
                "set_state()"
            )

    def set_state(self, state: Mapping[str, np.ndarray]) -> Struct:
        """Goes on from `get_state`; see `VectorEnv.set_state`."""
        try:
            self._load_counters(state)
            if self._replayed is not None:
                self._submit_replays(self._replayed, state)
            else:
                self._submit_loads(state)
        except KeyError as error:
            raise RunError(f"saved state of environment {self.name!r} lacks {error}") from error
        for index in self._all:
            obs = self._result(index, "restoring its state")
            if self._replayed is not None:
                self._require_same(index, obs)
        return self._rows.copy(self._obs)

    def _load_counters(self, state: Mapping[str, np.ndarray]) -> None:
        for name in ("episode", "seed", "t"):
            array = np.array(state[name], np.int64)
            if array.shape != (self.num_envs,):
                raise RunError(
                    f"saved state of environment {self.name!r} is for {array.size} environments, "
                    f"not {self.num_envs}"
                )
            setattr(self, f"_{name}", array)
        count = len(spaces.leaf_spaces(self.observation_space))
        obs = from_leaves(self.observation_space, [state[f"obs/{k}"] for k in range(count)])
        self._obs = self._rows.copy(obs)
        self._failures.set_state(state)
        self._reset_failed = []

    def _submit_replays(self, log: ActionLog, state: Mapping[str, np.ndarray]) -> None:
        try:
            actions = log.load(_under("actions/", state), self._t)
        except ValueError as error:
            raise RunError(f"saved state of environment {self.name!r}: {error}") from error
        for index, handle in enumerate(self._handles):
            handle.submit("replay", int(self._seed[index]), actions[index])

    def _submit_loads(self, state: Mapping[str, np.ndarray]) -> None:
        for index, handle in enumerate(self._handles):
            arrays = _under(f"envs/{index}/", state)
            if not arrays:
                raise KeyError(f"envs/{index}/*")
            handle.submit("load", int(self._seed[index]), arrays)

    def _result(self, index: int, action: str) -> Any:
        try:
            return self._handles[index].result()
        except EnvFailedError as failure:
            raise RunError(
                f"environment {self.name!r} (env {index}): {action} failed: {failure}"
            ) from failure

    def _require_same(self, index: int, obs: Any) -> None:
        """Compares the end of a replay with the observation that was saved."""
        replayed = self._rows.copy(self._obs)
        self._rows.write(replayed, index, obs)
        pairs = zip(
            leaves(self.observation_space, replayed),
            leaves(self.observation_space, self._obs),
            strict=True,
        )
        if not all(np.array_equal(new[index], old[index]) for new, old in pairs):
            raise RunError(
                f"environment {self.name!r} (env {index}) is not deterministic: episode "
                f"{self._episode[index]} replayed from its seed came out differently; give it "
                "get_state() and set_state(), or use env_state=reset"
            )

    def close(self) -> None:
        """Releases the environments."""
        for handle in self._handles:
            handle.close()


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
