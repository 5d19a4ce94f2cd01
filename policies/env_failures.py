"""Failures of environments: how an exception becomes one line, and how many are forgiven."""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from policies.errors import RunError

_MAX_MESSAGE = 500
_OF_THIS_MACHINE = re.compile(r"(?<![\w./])/(?:[^\s/()'\"]+/)+| at 0x[0-9a-fA-F]+")
_FRAMEWORKS = tuple(f"{os.sep}{package}{os.sep}" for package in ("gymnasium", "numpy", "policies"))


class EnvFailedError(Exception):
    """An environment raised, hung or died; the message is one line. It may be started again."""


class FailureCounts:
    """Counts each environment's failures since its last finished episode.

    Args:
        name: The environment, for messages.
        num_envs: Number of environments.
        max_restarts: Failures of one environment that are forgiven.
    """

    _COUNT, _ERROR = "failures", "first_error"

    def __init__(self, name: str, num_envs: int, max_restarts: int) -> None:
        self._name = name
        self._max_restarts = max_restarts
        self._counts = [0] * num_envs
        self._first_errors = [""] * num_envs

    def add(self, index: int, error: str) -> None:
        """Counts one.

        Raises:
            RunError: It is one too many; the message has the first error.
        """
        self._counts[index] += 1
        self._first_errors[index] = self._first_errors[index] or error
        times, first = self._counts[index], self._first_errors[index]
        if times <= self._max_restarts:
            return
        env = f"environment {self._name!r} (env {index})"
        if times == 1:
            raise RunError(f"{env} failed: {first}")
        raise RunError(
            f"{env} failed {times} times without finishing an episode "
            f"(max_env_restarts={self._max_restarts}); the first error: {first}"
        )

    def forgive(self, indices: Sequence[int]) -> None:
        """Forgets the failures of environments that finished an episode."""
        for index in indices:
            self._counts[index], self._first_errors[index] = 0, ""

    def get_state(self) -> dict[str, np.ndarray]:
        """The counts (int64 [num_envs]) and first errors (text [num_envs]).

        The errors are without folders and addresses: a saved state has the same bits wherever it
        was made.
        """
        errors = np.array([_OF_THIS_MACHINE.sub("", e) for e in self._first_errors], np.str_)
        return {self._COUNT: np.array(self._counts, np.int64), self._ERROR: errors}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes what `get_state` gave; other arrays are ignored.

        Raises:
            KeyError: An array is missing.
            RunError: An array is of another number of environments, or damaged.
        """
        counts, errors = state[self._COUNT], state[self._ERROR]
        shape = (len(self._counts),)
        if counts.shape != shape or errors.shape != shape or counts.dtype.kind != "i":
            raise RunError(f"saved state of environment {self._name!r}: damaged failure counts")
        self._counts = counts.tolist()
        self._first_errors = [str(error) for error in errors]


def describe(error: BaseException, env: object = None) -> str:
    """An exception as `Type: message (file:line)`, with the place in the environment's own code.

    Args:
        error: What was raised.
        env: The environment, or its class, whose source file is looked for in the traceback.
    """
    message = " ".join(str(error).split())[:_MAX_MESSAGE]
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = _place(error, env)
    return f"{text} ({place})" if place else text


def _place(error: BaseException, env: object) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    source = _source_file(env)
    own = [frame for frame in frames if frame.filename == source]
    foreign = [f for f in frames if not any(part in f.filename for part in _FRAMEWORKS)]
    frame = (own or foreign or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _source_file(env: Any) -> str | None:
    if env is None:
        return None
    env = getattr(env, "unwrapped", env)
    try:
        return inspect.getsourcefile(env if callable(env) else type(env))
    except TypeError:
        return None
