"""Vector environments of gymnasium's, in whichever autoreset mode they have.

The modes differ in when an ended environment is reset (https://farama.org/Vector-Autoreset-Mode);
the transitions that come out are the same:

    NEXT_STEP   the next step resets it and makes no transition: `valid` is False
    SAME_STEP   the step resets it; the last observation is in `infos["final_obs"]`
    DISABLED    it waits for a reset with a mask, which follows here at once
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from policies import env_state, spaces
from policies.env_failures import describe
from policies.env_rows import ObservationRows, copy_struct, from_leaves, leaves
from policies.envs import EnvRef, EnvSource, construction_error, quiet_gymnasium, resolve
from policies.errors import ConfigError, RunError
from policies.finite_rows import first_not_finite
from policies.vector_envs import StepResult
from policies.watchdog import Watchdog

Struct = Any
Array = np.ndarray
Infos = Mapping[str, Any]
GymVector = gym.vector.VectorEnv[Any, Any, Any]

_CHECKED_STEPS = 2
_MAX_SEED = 2**32


class GymVectorEnv:
    """A gymnasium vector environment as a `policies.vector_envs.VectorEnv`.

    It takes one seed. A failure is a RunError: its environments cannot be started again one by one.

    Args:
        name: For messages.
        env: The environment; `metadata["autoreset_mode"]` must be there.
        seed: Of the first reset; later ones are derived from it.
        env_timeout_s: Longest time for a step or reset (see `Watchdog`).

    Raises:
        ConfigError: the autoreset mode is missing, or a space is not supported.
    """

    can_skip = False
    episodes = None

    def __init__(
        self, name: str, env: GymVector, seed: int, env_timeout_s: float | None = None
    ) -> None:
        self.name = name
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        for role, space in (
            ("observation", self.observation_space),
            ("action", self.action_space),
        ):
            spaces.check_supported(space, role)
        self._env = env
        self._seed = seed
        self._finish = {
            AutoresetMode.NEXT_STEP: self._next_step,
            AutoresetMode.SAME_STEP: self._same_step,
            AutoresetMode.DISABLED: self._disabled,
        }[_autoreset_mode(name, env)]
        self.has_state = env_state.has_native_state(env)
        self._watchdog = Watchdog(env_timeout_s)
        self._rows = ObservationRows(name, self.observation_space, self.num_envs)
        # Others may return the same arrays at every step, or other dtypes.
        self._fresh_arrays = env_state.is_known(env)
        self._resets = -1
        self._unchecked = _CHECKED_STEPS
        self._obs: Struct = None
        self._ended = np.zeros(self.num_envs, np.bool_)

    def reset(self, episodes: np.ndarray | None = None) -> Struct:
        """Resets all; the largest of the `episodes` tells which reset this is."""
        self._resets = self._resets + 1 if episodes is None else int(np.max(episodes))
        self._ended = np.zeros(self.num_envs, np.bool_)
        obs, _ = self._call("reset", self._env.reset, seed=self._reset_seed())
        self._obs = self._checked_obs(obs)
        return copy_struct(self.observation_space, self._obs)

    def _reset_seed(self) -> int:
        if self._resets == 0:
            return self._seed
        sequence = np.random.SeedSequence((self._seed % _MAX_SEED, self._resets))
        return int(sequence.generate_state(1)[0])

    def reset_envs(self, mask: np.ndarray) -> Struct:
        """Not offered: most native environments ignore a mask and reset everything."""
        raise ValueError(f"{self.name!r} resets its environments by itself; use reset()")

    def step(self, actions: Struct, active: np.ndarray | None = None) -> StepResult:
        """Makes one step; see `VectorEnv.step`. All environments are stepped."""
        if self._obs is None:
            raise ValueError("step before the first reset")
        if not self._fresh_arrays:
            # An environment may write to its actions, which are the caller's to keep.
            actions = copy_struct(self.action_space, actions)
        self._watchdog.enter(self.name)
        try:
            obs, rewards, terminateds, truncateds, infos = self._env.step(actions)
        except (Exception, SystemExit) as error:
            raise self._failure("step", error) from error
        finally:
            self._watchdog.leave()
        if self._unchecked:
            self._check_step(rewards, terminateds, truncateds)
            obs = self._checked_obs(obs)
        if not self._fresh_arrays:
            obs = copy_struct(self.observation_space, obs)
            terminateds = np.array(terminateds, np.bool_)
            truncateds = np.array(truncateds, np.bool_)
        rewards = np.array(rewards, np.float64)
        ended = terminateds | truncateds
        result = self._finish(obs, rewards, terminateds, truncateds, ended, infos)
        self._obs = result.obs
        return result if active is None else _only(result, active)

    def _next_step(
        self, obs: Struct, rewards: Array, term: Array, trunc: Array, ended: Array, _: Infos
    ) -> StepResult:
        # The last observation is the one that is returned; it is never overwritten.
        rewards[self._ended] = 0.0
        valid, self._ended = ~self._ended, ended
        return StepResult(obs, rewards, term, trunc, valid, obs)

    def _same_step(
        self, obs: Struct, rewards: Array, term: Array, trunc: Array, ended: Array, infos: Infos
    ) -> StepResult:
        final = self._final_obs(obs, ended, infos) if ended.any() else None
        return StepResult(obs, rewards, term, trunc, np.ones(self.num_envs, np.bool_), final)

    def _disabled(
        self, obs: Struct, rewards: Array, term: Array, trunc: Array, ended: Array, _: Infos
    ) -> StepResult:
        final, valid = None, np.ones(self.num_envs, np.bool_)
        if ended.any():
            final, obs = obs, self._masked_reset(obs, ended)
        return StepResult(obs, rewards, term, trunc, valid, final)

    def _final_obs(self, obs: Struct, ended: np.ndarray, infos: Mapping[str, Any]) -> Struct:
        final = infos.get("final_obs")
        if final is None:
            raise RunError(
                f"environment {self.name!r} has autoreset mode SAME_STEP, but episodes ended "
                'without infos["final_obs"]'
            )
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            return copy_struct(self.observation_space, final)
        batch = copy_struct(self.observation_space, obs)
        for row in np.flatnonzero(ended).tolist():
            self._rows.write(batch, row, final[row])
        return batch

    def _masked_reset(self, before: Struct, ended: Array) -> Struct:
        """Resets the ended environments; checks that the others went on."""
        options = {"reset_mask": ended.copy()}
        returned, _ = self._call("reset", self._env.reset, options=options)
        after = copy_struct(self.observation_space, returned)
        pairs = zip(
            leaves(self.observation_space, before),
            leaves(self.observation_space, after),
            strict=True,
        )
        if not all(np.array_equal(old[~ended], new[~ended]) for old, new in pairs):
            raise RunError(
                f"environment {self.name!r} ignores reset_mask: it reset environments whose "
                "episode had not ended, although its autoreset mode is DISABLED"
            )
        return after

    def _call(self, operation: str, function: Any, **arguments: Any) -> Any:
        self._watchdog.enter(self.name)
        try:
            return function(**arguments)
        except (Exception, SystemExit) as error:
            raise self._failure(operation, error) from error
        finally:
            self._watchdog.leave()

    def _failure(self, operation: str, error: BaseException) -> RunError:
        return RunError(
            f"environment {self.name!r} (native, {self.num_envs} environments) failed in "
            f"{operation}: {describe(error, self._env)}"
        )

    def _checked_obs(self, obs: Any) -> Struct:
        """The observations, after a look at shapes, kinds of number and NaN."""
        try:
            found = leaves(self.observation_space, obs)
        except (KeyError, IndexError, TypeError) as error:
            raise RunError(
                f"environment {self.name!r}: obs is not of {self.observation_space}"
            ) from error
        checked = []
        for (path, leaf), array in zip(
            spaces.leaf_spaces(self.observation_space), found, strict=True
        ):
            column = f"environment {self.name!r}: obs{spaces.path_text(path)}"
            expected = (self.num_envs, *(leaf.shape or ()))
            if array.shape != expected:
                raise RunError(f"{column} has shape {array.shape}, expected {expected}")
            try:
                checked.append(spaces.as_leaf_batch(leaf, array, column))
            except ValueError as error:
                raise RunError(str(error)) from error
        batch = from_leaves(self.observation_space, checked)
        bad = first_not_finite({"obs": batch})
        if bad is not None:
            name, index, value = bad
            raise RunError(
                f"environment {self.name!r} (env {index}): {name} is not finite ({value})"
            )
        return batch

    def _check_step(self, *columns: Any) -> None:
        self._unchecked -= 1
        for name, array in zip(("rewards", "terminateds", "truncateds"), columns, strict=True):
            if getattr(array, "shape", None) != (self.num_envs,):
                raise RunError(
                    f"environment {self.name!r}: {name} is not an array of {self.num_envs} values"
                )

    def get_state(self) -> dict[str, np.ndarray]:
        """Named arrays to go on from; see `VectorEnv.get_state`."""
        self._require_state()
        if self._obs is None:
            raise ValueError("get_state before the first reset")
        state = {f"env/{n}": a for n, a in env_state.save_native_state(self._env).items()}
        state["ended"] = self._ended.copy()
        state["resets"] = np.array(self._resets, np.int64)
        for k, leaf in enumerate(leaves(self.observation_space, self._obs)):
            state[f"obs/{k}"] = leaf.copy()
        return state

    def set_state(self, state: Mapping[str, np.ndarray]) -> Struct:
        """Goes on from `get_state`; see `VectorEnv.set_state`."""
        self._require_state()
        try:
            ended = np.array(state["ended"], np.bool_)
            if ended.shape != (self.num_envs,):
                raise RunError(
                    f"saved state of environment {self.name!r} is for {ended.size} environments, "
                    f"not {self.num_envs}"
                )
            self._resets = int(state["resets"])
            self._call("reset", self._env.reset, seed=self._reset_seed())
            count = len(spaces.leaf_spaces(self.observation_space))
            obs = from_leaves(self.observation_space, [state[f"obs/{k}"] for k in range(count)])
            arrays = {n.removeprefix("env/"): a for n, a in state.items() if n.startswith("env/")}
            env_state.load_native_state(self._env, arrays)
        except KeyError as error:
            raise RunError(f"saved state of environment {self.name!r} lacks {error}") from error
        self._obs, self._ended = copy_struct(self.observation_space, obs), ended
        return copy_struct(self.observation_space, self._obs)

    def _require_state(self) -> None:
        if not self.has_state:
            raise ConfigError(
                f"the native vector environment of {self.name!r} has no get_state() and "
                "set_state(); use native=false or env_state=reset"
            )

    def close(self) -> None:
        """Closes the environment, whatever it says to that."""
        self._watchdog.close()
        with contextlib.suppress(Exception, SystemExit):
            self._env.close()


def _autoreset_mode(name: str, env: GymVector) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(
            f'vector environment {name!r} has metadata["autoreset_mode"]={mode!r}; it must be an '
            "AutoresetMode (NEXT_STEP, SAME_STEP or DISABLED), else its transitions are unknown"
        ) from error


def _only(result: StepResult, active: np.ndarray) -> StepResult:
    """The result without the environments that were to be left alone."""
    return result._replace(
        rewards=np.where(active, result.rewards, 0.0),
        terminateds=result.terminateds & active,
        truncateds=result.truncateds & active,
        valid=result.valid & active,
    )


def make_native(
    ref: EnvRef,
    env_config: Mapping[str, Any],
    num_envs: int,
    seed: int,
    horizon: int | None,
    env_timeout_s: float | None,
) -> GymVectorEnv:
    """Builds the vector form that an environment registered; see `make_vector_env`.

    Raises:
        ConfigError: it has none, or it cannot apply the horizon.
        RunError: its constructor failed.
    """
    source = resolve(ref)
    if not source.has_native or source.spec is None:
        raise ConfigError(
            f"environment {source.name!r} has no vector form of its own; use native=false"
        )
    config = dict(env_config)
    if horizon is not None:
        limit = _limit(source, config)
        _require_limit_argument(source)
        config["max_episode_steps"] = horizon if limit is None else min(horizon, limit)
    try:
        with quiet_gymnasium():
            env = gym.make_vec(
                source.spec,
                num_envs=num_envs,
                vectorization_mode="vector_entry_point",
                **config,
            )
    except (Exception, SystemExit) as error:
        raise construction_error(source, config, error) from error
    try:
        return GymVectorEnv(source.name, env, seed, env_timeout_s)
    except ConfigError:
        env.close()
        raise


def _limit(source: EnvSource, config: Mapping[str, Any]) -> int | None:
    assert source.spec is not None
    limit = config.get("max_episode_steps", source.spec.max_episode_steps)
    return None if limit is None else int(limit)


def _require_limit_argument(source: EnvSource) -> None:
    assert source.spec is not None
    entry: Any = source.spec.vector_entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    parameters = inspect.signature(creator).parameters
    if "max_episode_steps" not in parameters:
        raise ConfigError(
            f"the vector form of {source.name!r} takes no max_episode_steps, so horizon cannot be "
            "applied; use native=false"
        )
