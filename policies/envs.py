"""From a name to an environment: registered ids, import paths, classes and callables.

Nothing here reads a name from a run or a log: import paths come from the command line or the
caller.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from policies import spaces
from policies.env_failures import describe
from policies.errors import ConfigError, RunError

EnvRef = str | Callable[..., Any]
"""A registered id, an import path, an environment class or a callable that makes one."""

_CONFIG_PARAMETERS = ("config", "env_config")
_BAD_ARGUMENTS = re.compile(r"unexpected keyword argument|required (positional|keyword)|positional")


@dataclass(frozen=True)
class EnvSource:
    """A resolved name.

    Attributes:
        name: For messages.
        spec: The registered spec, or None.
        create: The class or callable, or None for a registered id.
    """

    name: str
    spec: EnvSpec | None = None
    create: Callable[..., Any] | None = None

    @property
    def has_native(self) -> bool:
        """Whether gymnasium has a vector form of it."""
        return self.spec is not None and self.spec.vector_entry_point is not None


def resolve(ref: EnvRef) -> EnvSource:
    """Finds what a name stands for.

    Args:
        ref: A registered id (`CartPole-v1`); `module:ID`, which imports the module that registers
            the id; an import path (`package.module:Class` or `package.module.Class`); or a class
            or callable.

    Raises:
        ConfigError: unknown; the message has the nearest names.
    """
    if not isinstance(ref, str):
        if not callable(ref):
            raise ConfigError(
                f"env={ref!r}: expected a registered id, an import path, a class or a callable"
            )
        return EnvSource(getattr(ref, "__qualname__", repr(ref)), create=ref)
    if ref in gym.registry:
        return EnvSource(ref, spec=gym.registry[ref])
    if ":" in ref:
        module, _, attribute = ref.partition(":")
        return _from_module(ref, module, attribute)
    module, dot, attribute = ref.rpartition(".")
    if dot and module and all(part.isidentifier() for part in ref.split(".")):
        return _from_module(ref, module, attribute)
    raise ConfigError(f"unknown environment {ref!r}; {_nearest(ref, list(gym.registry))}")


def _from_module(ref: str, module: str, attribute: str) -> EnvSource:
    try:
        loaded: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"environment {ref!r}: {error}; is its package installed?") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"environment {ref!r}: importing {module} failed: {describe(error)}"
        ) from error
    if attribute in gym.registry:
        return EnvSource(attribute, spec=gym.registry[attribute])
    found = loaded
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return EnvSource(ref, create=found)
    names = [name for name, value in vars(loaded).items() if callable(value)]
    raise ConfigError(
        f"environment {ref!r}: {module} has no class or callable {attribute!r}; "
        + _nearest(attribute, [*names, *gym.registry])
    )


def _nearest(name: str, known: list[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(by_lower[match] for match in close)}?"
    return "give a registered id (module:ID imports its module first) or an import path"


def make_env(ref: EnvRef, env_config: Mapping[str, Any] | None = None) -> gym.Env[Any, Any]:
    """Builds one environment and checks its spaces.

    The configuration is passed as keyword arguments; a class whose first parameter is called
    `config` or `env_config`, and which cannot take the keys by name, gets the whole dict.

    Raises:
        ConfigError: unknown name, wrong arguments, something not installed, unsupported spaces.
        RunError: the constructor failed.
    """
    source = resolve(ref)
    config = dict(env_config or {})
    try:
        env = construct(source, config)
    except (Exception, SystemExit) as error:
        raise construction_error(source, config, error) from error
    if not isinstance(env, gym.Env):
        raise ConfigError(
            f"environment {source.name!r} is a {type(env).__name__}, not a gymnasium.Env"
        )
    for role, space in (
        ("observation", getattr(env, "observation_space", None)),
        ("action", getattr(env, "action_space", None)),
    ):
        if space is None:
            raise ConfigError(f"environment {source.name!r} defines no {role}_space")
        try:
            spaces.check_supported(space, role)
        except ConfigError as error:
            raise ConfigError(f"environment {source.name!r}: {error}") from error
    return env


def construction_error(
    source: EnvSource, config: Mapping[str, Any], error: BaseException
) -> ConfigError | RunError:
    """The error to raise when a constructor failed with `error`."""
    line = f"environment {source.name!r} cannot be built: {describe(error, source.create)}"
    if isinstance(error, TypeError) and _BAD_ARGUMENTS.search(str(error)):
        return ConfigError(f"{line}; env_config has {', '.join(sorted(config)) or 'no keys'}")
    if isinstance(error, ImportError | gym.error.Error):
        return ConfigError(line)
    return RunError(line)


def construct(source: EnvSource, config: dict[str, Any]) -> Any:
    """What a name makes of its arguments, unchecked; raises whatever its constructor does."""
    if source.spec is not None:
        with quiet_gymnasium():
            # Its checker only warns; our vector environments check every value themselves.
            return gym.make(source.spec, disable_env_checker=True, **config)
    assert source.create is not None
    if _takes_dict(source.create, config):
        return source.create(config)
    return source.create(**config)


def _takes_dict(create: Callable[..., Any], config: dict[str, Any]) -> bool:
    try:
        signature = inspect.signature(create)
    except (TypeError, ValueError):
        return False
    first = next(iter(signature.parameters), None)
    if first not in _CONFIG_PARAMETERS or first in config:
        return False
    try:
        signature.bind(**config)
    except TypeError:
        return True
    return not config


@contextlib.contextmanager
def quiet_gymnasium() -> Iterator[None]:
    """Silences gymnasium's own warnings inside a `with` block (errors are raised as ever).

    It sets gymnasium's log level and not the process's warning filters, which all threads share.
    """
    _QUIET.enter()
    try:
        yield
    finally:
        _QUIET.leave()


class _QuietLogger:
    """Blocks of several threads overlap: the first sets the level, the last one sets it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._level = 0

    def enter(self) -> None:
        with self._lock:
            if not self._blocks:
                self._level, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR
            self._blocks += 1

    def leave(self) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                gym.logger.min_level = self._level


_QUIET = _QuietLogger()


def portable(ref: EnvRef) -> dict[str, Any]:
    """A reference that another process can resolve, as JSON data; see `from_portable`.

    Raises:
        ConfigError: the class or callable cannot be imported by name.
    """
    source = resolve(ref)
    if source.spec is not None:
        return {"ref": source.spec.id, "spec": _spec_json(source.spec)}
    if isinstance(ref, str):
        return {"ref": ref}
    return {"ref": _import_path(ref, source.name)}


def from_portable(obj: Mapping[str, Any]) -> str:
    """The name in a `portable` reference; registers its id where this process lacks it."""
    text = obj.get("spec")
    if text and obj["ref"] not in gym.registry:
        spec = EnvSpec.from_json(text)
        gym.registry[spec.id] = spec
    return str(obj["ref"])


def _spec_json(spec: EnvSpec) -> str | None:
    if spec.entry_point is None:
        return None
    plain = copy.copy(spec)
    plain.vector_entry_point = None
    if not isinstance(spec.entry_point, str):
        plain.entry_point = _import_path(spec.entry_point, spec.id)
    try:
        return plain.to_json()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"environment {spec.id!r}: isolation=process needs a registration that is plain data: "
            f"{describe(error)}"
        ) from error


def _import_path(create: Callable[..., Any], name: str) -> str:
    module = getattr(create, "__module__", None)
    path = getattr(create, "__qualname__", "<lambda>")
    if module in (None, "__main__") or "<" in path:
        raise ConfigError(
            f"environment {name!r} cannot be found by another process: with isolation=process, "
            "give a registered id or a class at the top of an importable module"
        )
    return f"{module}:{path}"
