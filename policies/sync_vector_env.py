"""Environments in this process, stepped one after the other."""

from __future__ import annotations

import contextlib
import functools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from policies import env_state
from policies.env_failures import EnvFailedError, describe
from policies.envs import EnvRef, make_env, resolve
from policies.errors import ConfigError, RunError
from policies.seeded_vector_env import SeededVectorEnv
from policies.vector_envs import ResetSeed
from policies.watchdog import CallWatch, Watchdog


class LocalEnv:
    """An environment in this process, as an `EnvHandle`.

    Args:
        create: Builds the environment.
        name: For messages.
        index: For messages.
        watch: Told about every call.
    """

    def __init__(
        self, create: Callable[[], gym.Env[Any, Any]], name: str, index: int, watch: CallWatch
    ) -> None:
        self._create = create
        self._label = f"{name!r} (env {index})"
        self._watch = watch
        self._submitted: tuple[str, tuple[Any, ...]] = ("", ())
        watch.enter(self._label)
        try:
            self.env = create()
        finally:
            watch.leave()
        self.own_state = env_state.has_own_state(self.env)
        self._step = self.env.step

    def submit(self, operation: str, *arguments: Any) -> None:
        """Notes the operation; it runs in `result`."""
        self._submitted = (operation, arguments)

    def result(self) -> Any:
        """Runs the submitted operation; see `EnvHandle.result`."""
        operation, arguments = self._submitted
        if operation == "replay":
            return self._replay(*arguments)
        watch = self._watch
        watch.enter(self._label)
        try:
            if operation == "step":
                returned: Any = self._step(arguments[0])
            else:
                return self._run(operation, arguments)
        except RunError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            raise EnvFailedError(describe(error, self.env)) from error
        finally:
            watch.leave()
        if type(returned) is not tuple or len(returned) != 5:
            raise RunError(
                f"environment {self._label}: step() must return "
                "(obs, reward, terminated, truncated, info)"
            )
        obs, reward, terminated, truncated, _ = returned
        try:
            if isinstance(reward, str | bytes):
                raise TypeError("text is no reward")
            return obs, float(reward), _flag(terminated), _flag(truncated)
        except (TypeError, ValueError, OverflowError) as error:
            raise RunError(
                f"environment {self._label}: rewards, terminateds and truncateds must be single "
                f"values, but step() returned {reprlib.repr(reward)}, {reprlib.repr(terminated)}, "
                f"{reprlib.repr(truncated)}"
            ) from error

    def _replay(self, reset_seed: int, actions: Sequence[Any]) -> Any:
        """Each reset and step is a call of its own, with a timeout of its own."""
        self.submit("reset", reset_seed)
        obs = self.result()
        for action in actions:
            self.submit("step", action)
            obs = self.result()[0]
        return obs

    def _run(self, operation: str, arguments: Sequence[Any]) -> Any:
        if operation == "reset":
            returned = self.env.reset(seed=arguments[0])
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise RunError(f"environment {self._label}: reset() must return (obs, info)")
            return returned[0]
        if operation == "save":
            return env_state.save_own_state(self.env)
        if operation == "load":
            return env_state.load_own_state(self.env, *arguments)
        raise ValueError(f"unknown operation {operation!r}")

    def restart(self) -> None:
        """Closes the environment, whatever it says to that, and builds a new one."""
        self.close()
        self._watch.enter(self._label)
        try:
            self.env = self._create()
        except (ConfigError, RunError) as error:
            raise EnvFailedError(str(error)) from error
        finally:
            self._watch.leave()
        self._step = self.env.step

    def close(self) -> None:
        """Closes the environment."""
        self._watch.enter(self._label)
        try:
            with contextlib.suppress(Exception, SystemExit):
                self.env.close()
        finally:
            self._watch.leave()


def _flag(value: Any) -> bool:
    """A bool, of whatever numeric type: `None` or the text "False" would be taken for a meaning."""
    if value is True or value is False:
        return value
    if np.ndim(value) == 0 and value in (0, 1):
        return bool(value)
    raise TypeError("not a bool")


class SyncVectorEnv(SeededVectorEnv):
    """n environments in this process; see `SeededVectorEnv` and `make_vector_env`.

    A step or reset that exceeds `env_timeout_s` ends the process (see `Watchdog`).

    Example:
        >>> env = SyncVectorEnv("CartPole-v1", {}, 2, reset_seed=lambda env, episode: episode)
        >>> env.reset().shape
        (2, 4)
    """

    def __init__(
        self,
        ref: EnvRef,
        env_config: Mapping[str, Any],
        num_envs: int,
        *,
        reset_seed: ResetSeed,
        horizon: int | None = None,
        env_timeout_s: float | None = None,
        max_restarts: int = 3,
    ) -> None:
        name = resolve(ref).name
        self._watchdog = Watchdog(env_timeout_s)
        handles: list[LocalEnv] = []
        try:
            for index in range(num_envs):
                create = functools.partial(make_env, ref, env_config)
                handles.append(LocalEnv(create, name, index, self._watchdog))
        except BaseException:
            for handle in handles:
                handle.close()
            self._watchdog.close()
            raise
        super().__init__(
            name,
            handles,
            handles[0].env.observation_space,
            handles[0].env.action_space,
            reset_seed=reset_seed,
            horizon=horizon,
            max_restarts=max_restarts,
        )

    def close(self) -> None:
        """Closes the environments."""
        super().close()
        self._watchdog.close()
