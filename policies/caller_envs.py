"""Environments that a caller hands over as classes or callables: the names a configuration has.

A configuration is data, so it holds a name. What another process can import is named by its import
path. The rest (classes of a notebook, of a function, lambdas) is registered with gymnasium under
`caller/NAME-v0`, a name that means something in this process only: a run of it is sampled here, and
resumed by a caller who hands the class over again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from policies.envs import EnvSource, construct
from policies.errors import ConfigError

NAMESPACE = "caller"


def name_of(env: object) -> str:
    """The name for `env` in a configuration; registers what cannot be imported.

    Args:
        env: A name, which is returned, or a class or callable that makes an environment from
            `env_config` as keyword arguments. A later one of the same name replaces the earlier.

    Raises:
        ConfigError: It is neither, or an instance of an environment.
    """
    if isinstance(env, str):
        return env
    if isinstance(env, gym.Env):
        raise ConfigError(
            f"env: got an environment ({type(env).__name__}), of which there can be only one; give "
            "its class or a function that makes it"
        )
    if not callable(env):
        raise ConfigError(
            f"env: got {env!r}, expected a registered id, an import path, a class or a callable"
        )
    return _import_path(env) or _registered(env)


def _import_path(env: Callable[..., Any]) -> str | None:
    module, path = getattr(env, "__module__", None), getattr(env, "__qualname__", None)
    if not module or not path or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module}:{path}" if found is env else None


def _registered(env: Callable[..., Any]) -> str:
    name = getattr(env, "__name__", type(env).__name__)
    env_id = f"{NAMESPACE}/{re.sub(r'[^A-Za-z0-9_]+', '_', name).strip('_') or 'env'}-v0"
    # Not `gym.register`, which warns when a notebook's cell runs again.
    gym.registry[env_id] = EnvSpec(env_id, entry_point=_from_config(env))
    return env_id


def _from_config(env: Callable[..., Any]) -> Callable[..., Any]:
    source = EnvSource(getattr(env, "__name__", type(env).__name__), create=env)
    return lambda **env_config: construct(source, env_config)
