"""How an exception out of an environment becomes one line."""

from __future__ import annotations

import inspect
import os
import traceback
from typing import Any

_MAX_MESSAGE = 500
_FRAMEWORKS = tuple(f"{os.sep}{package}{os.sep}" for package in ("gymnasium", "numpy", "policies"))


class EnvFailedError(Exception):
    """An environment raised, hung or died; the message is one line. It may be started again."""


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
