"""One environment in a process of its own: `python -m policies.env_process FD`.

Started by `policies.process_vector_env`. FD is a connected socket (`policies.env_wire`). The
process ends when the other side does, even in the middle of a step.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from policies import spaces
from policies.env_failures import EnvFailedError
from policies.env_rows import ObservationRows, from_leaves, leaves, single_actions
from policies.env_wire import Wire, WireClosedError
from policies.envs import from_portable, make_env
from policies.errors import ConfigError, RunError
from policies.sync_vector_env import LocalEnv
from policies.watchdog import Watchdog

Reply = tuple[dict[str, Any], dict[str, np.ndarray]]


def main(argv: list[str]) -> int:
    """Serves one environment until the other side hangs up."""
    # Ctrl-C goes to every process of a terminal; this one ends with the other side.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wire = Wire(socket.socket(fileno=int(argv[0])))
    threading.Thread(target=_end_with, args=(wire,), daemon=True).start()
    # One warning a process would be one warning an environment; the caller's process warns.
    warnings.filterwarnings("ignore", module=r"gymnasium\b")
    try:
        hello, _ = wire.receive()
        served = _Served(hello, wire)
        while served.answer():
            pass
    except WireClosedError:
        pass
    return 0


def _end_with(wire: Wire) -> None:
    """Ends the process at once when the other side is gone: a step may never return."""
    wire.wait_for_hang_up()
    os._exit(0)


class _Served:
    def __init__(self, hello: Mapping[str, Any], wire: Wire) -> None:
        self._wire = wire
        index = int(hello["index"])
        try:
            ref = from_portable(hello["env"])
            create = partial(make_env, ref, hello["env_config"])
            self._env = LocalEnv(create, ref, index, Watchdog(None))
        except (ConfigError, RunError) as error:
            kind = "config_error" if isinstance(error, ConfigError) else "run_error"
            wire.send({kind: str(error)})
            raise WireClosedError from error
        self._obs_space = self._env.env.observation_space
        self._action_space = self._env.env.action_space
        self._rows = ObservationRows(ref, self._obs_space, 1, index)
        wire.send(
            {
                "observation_space": spaces.space_to_json(self._obs_space),
                "action_space": spaces.space_to_json(self._action_space),
                "own_state": self._env.own_state,
            }
        )

    def answer(self) -> bool:
        """Takes one request and replies to it; False when asked to close."""
        request, arrays = self._wire.receive()
        if request["operation"] == "close":
            self._env.close()
            return False
        try:
            body, result = self._run(request, arrays)
        except EnvFailedError as failure:
            body, result = {"failed": str(failure)}, {}
        except RunError as error:
            body, result = {"run_error": str(error)}, {}
        self._wire.send({"id": request["id"], **body}, result)
        return True

    def _run(self, request: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Reply:
        operation = request["operation"]
        arguments: tuple[Any, ...] = (request["seed"],) if "seed" in request else ()
        if operation == "load":
            arguments += (arrays,)
        elif operation in ("step", "replay"):
            batch = from_leaves(self._action_space, [arrays[str(k)] for k in range(len(arrays))])
            actions = single_actions(self._action_space, batch)
            arguments += (actions,) if operation == "replay" else (actions[0],)
        if operation == "replay":
            return {}, self._leaves(self._replay(request["id"], *arguments))
        result = self._call(operation, *arguments)
        if operation == "step":
            obs, *outcome = result
            return {"outcome": outcome}, self._leaves(obs)
        if operation == "reset":
            return {}, self._leaves(result)
        return {}, result or {}

    def _replay(self, request_id: int, reset_seed: int, actions: Sequence[Any]) -> Any:
        """Reports every step: the timeout of the other side is that of one step."""
        obs = self._call("reset", reset_seed)
        for done, action in enumerate(actions):
            self._wire.send({"id": request_id, "replayed": done})
            obs = self._call("step", action)[0]
        return obs

    def _call(self, operation: str, *arguments: Any) -> Any:
        self._env.submit(operation, *arguments)
        return self._env.result()

    def _leaves(self, obs: Any) -> dict[str, np.ndarray]:
        batch = self._rows.empty()
        self._rows.write(batch, 0, obs)
        found = leaves(self._obs_space, batch)
        return {str(k): leaf[0] for k, leaf in enumerate(found)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
