"""Environments in processes of their own: a hung or crashed one is killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from policies import spaces
from policies.env_failures import EnvFailedError
from policies.env_rows import from_leaves, leaves
from policies.env_wire import Message, Wire, WireClosedError, WireError, WireTimeoutError
from policies.envs import EnvRef, portable, resolve
from policies.errors import ConfigError, RunError
from policies.seeded_vector_env import SeededVectorEnv
from policies.vector_envs import ResetSeed

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 2.0


class RemoteEnv:
    """An environment in a child process, as an `EnvHandle`.

    The process is started by the constructor; `connect` waits for it, so that many start at once.

    Args:
        name: For messages.
        env: A `portable` reference.
        env_config: Arguments of the environment; JSON data.
        index: For messages.
        timeout_s: Longest time for a step or reset; None waits for ever.
    """

    def __init__(
        self,
        name: str,
        env: Mapping[str, Any],
        env_config: Mapping[str, Any],
        index: int,
        timeout_s: float | None,
    ) -> None:
        self._hello = {"env": dict(env), "env_config": dict(env_config), "index": index}
        self._label = f"{name!r} (env {index})"
        self._timeout_s = timeout_s
        self._id = 0
        self._operation = ""
        self._deadline: float | None = None
        self.own_state = False
        self.observation_space: gym.Space[Any]
        self.action_space: gym.Space[Any]
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "policies.env_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                # An environment that prints must not write into a command's output.
                stdout=2,
                pass_fds=[theirs.fileno()],
                env=_child_environment(),
            )
        self._wire = Wire(ours)
        with contextlib.suppress(WireClosedError):
            self._wire.send(self._hello)

    def connect(self) -> None:
        """Waits until the environment is built.

        Raises:
            ConfigError: the name, arguments or spaces are wrong.
            RunError: the constructor failed.
            EnvFailedError: the process died or did not answer.
        """
        start_timeout = max(self._timeout_s or 0.0, _START_TIMEOUT_S)
        body, _ = self._receive("starting", start_timeout)
        if "config_error" in body:
            raise ConfigError(body["config_error"])
        if "run_error" in body:
            raise RunError(body["run_error"])
        self.own_state = bool(body["own_state"])
        self.observation_space = spaces.space_from_json(body["observation_space"])
        self.action_space = spaces.space_from_json(body["action_space"])

    def submit(self, operation: str, *arguments: Any) -> None:
        """Sends the operation."""
        self._id += 1
        self._operation = operation
        body: dict[str, Any] = {"id": self._id, "operation": operation}
        arrays: dict[str, np.ndarray] = {}
        timeout_s = self._timeout_s
        if operation != "step" and arguments:
            body["seed"] = arguments[0]
        if operation == "step":
            arrays = self._action_leaves([arguments[0]])
        elif operation == "replay":
            arrays = self._action_leaves(arguments[1])
        elif operation == "load":
            arrays = arguments[1]
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # A process that is gone or does not read is reported by `result`.
        with contextlib.suppress(WireClosedError, WireTimeoutError):
            self._wire.send(body, arrays, timeout_s)

    def _action_leaves(self, actions: list[Any]) -> dict[str, np.ndarray]:
        batch = spaces.stack(self.action_space, actions)
        return {str(k): leaf for k, leaf in enumerate(leaves(self.action_space, batch))}

    def result(self) -> Any:
        """Waits for the reply; see `EnvHandle.result`."""
        timeout_s = None
        if self._deadline is not None:
            timeout_s = max(0.0, self._deadline - time.monotonic())
        body, arrays = self._receive(self._operation, timeout_s)
        while "replayed" in body:
            body, arrays = self._receive("a step of the replay", self._timeout_s)
        if body.get("id") != self._id:
            raise RunError(f"environment {self._label}: its process answered out of turn")
        if "failed" in body:
            raise EnvFailedError(body["failed"])
        if "run_error" in body:
            raise RunError(body["run_error"])
        if self._operation == "save":
            return arrays
        if self._operation == "load":
            return None
        obs = from_leaves(self.observation_space, [arrays[str(k)] for k in range(len(arrays))])
        return (obs, *body["outcome"]) if self._operation == "step" else obs

    def _receive(self, operation: str, timeout_s: float | None) -> Message:
        try:
            return self._wire.receive(timeout_s)
        except WireTimeoutError as error:
            self._kill()
            limit = self._timeout_s if operation != "starting" else timeout_s
            raise EnvFailedError(
                f"{operation} took longer than {limit:g} s; its process was killed"
            ) from error
        except (WireClosedError, WireError) as error:
            self._kill()
            raise EnvFailedError(
                f"its process ended in {operation} ({_exit_text(self._process.returncode)})"
            ) from error

    def restart(self) -> None:
        """Kills the process and starts another; see `EnvHandle.restart`."""
        self._kill()
        self._start()
        try:
            self.connect()
        except (ConfigError, RunError) as error:
            raise EnvFailedError(str(error)) from error

    def _kill(self) -> None:
        self._wire.close()
        # A process that is ending by itself gets a moment, so that its exit code can be told.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)
        self._process.kill()
        self._process.wait()

    def ask_to_close(self) -> None:
        """Lets the environment close itself; `close` waits for that."""
        with contextlib.suppress(WireClosedError, WireTimeoutError):
            self._wire.send({"operation": "close"}, timeout_s=_END_TIMEOUT_S)

    def close(self) -> None:
        """Ends the process, by force if it does not end by itself; may be called twice."""
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._wire.close()


def _child_environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # Many processes with a thread for each core would stand in each other's way.
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _exit_text(returncode: int) -> str:
    return f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"


class ProcessVectorEnv(SeededVectorEnv):
    """n environments in a process each; see `SeededVectorEnv` and `make_vector_env`.

    The transitions are those of `SyncVectorEnv`. A step or reset that takes longer than
    `env_timeout_s` is answered with a kill and a restart, as is a process that dies.

    Example:
        >>> env = ProcessVectorEnv("CartPole-v1", {}, 2, reset_seed=lambda env, episode: episode)
        >>> env.reset().shape
        (2, 4)
        >>> env.close()
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
        name, env = resolve(ref).name, portable(ref)
        try:
            json.dumps(dict(env_config))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"env_config of {name!r} must be JSON data with isolation=process: {error}"
            ) from error
        handles: list[RemoteEnv] = []
        try:
            for index in range(num_envs):
                handles.append(RemoteEnv(name, env, env_config, index, env_timeout_s))
            for handle in handles:
                handle.connect()
        except BaseException as error:
            _close_all(handles)
            if isinstance(error, EnvFailedError):
                raise RunError(f"environment {name!r} cannot be built: {error}") from error
            raise
        self._processes = handles
        super().__init__(
            name,
            handles,
            handles[0].observation_space,
            handles[0].action_space,
            reset_seed=reset_seed,
            horizon=horizon,
            max_restarts=max_restarts,
        )

    def close(self) -> None:
        """Closes the environments and ends their processes."""
        _close_all(self._processes)


def _close_all(handles: list[RemoteEnv]) -> None:
    """All at once first, so that they close side by side."""
    for handle in handles:
        handle.ask_to_close()
    for handle in handles:
        handle.close()
