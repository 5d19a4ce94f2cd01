"""Saves and restores environments as named arrays: data only, exact to the bit.

A single environment is saved by the first way that applies:

1. its own `get_state()` (a dict of arrays or numbers) and `set_state(state)`, with its `np_random`
   generator and its time limit beside them;
2. the seed of its episode's reset and the actions since, which are replayed.

A vector environment of gymnasium's is saved by its own `get_state` and `set_state`, or by the names
of its arrays if it is a known one.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from policies.errors import RunError

_TRANSPARENT_WRAPPERS = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
_BIT_GENERATORS = {
    cls.__name__: cls
    for cls in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}
_GENERATOR = "np_random"
_ELAPSED = "elapsed_steps"
_OWN = "own/"

NATIVE_ARRAYS = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": (
        "state",
        "steps",
        "prev_done",
        "low",
        "high",
    ),
}
"""Known native vector environments: what they are made of, beside their generator."""


def generator_to_array(generator: np.random.Generator) -> np.ndarray:
    """A generator's state as the bytes of canonical JSON: uint8 [k]."""
    state = generator.bit_generator.state
    text = json.dumps(state, sort_keys=True, default=lambda value: value.tolist())
    return np.frombuffer(text.encode(), np.uint8).copy()


def generator_from_array(array: np.ndarray) -> np.random.Generator:
    """The generator that `generator_to_array` described.

    Raises:
        RunError: the array does not describe one of numpy's generators.
    """
    try:
        state = json.loads(np.asarray(array, np.uint8).tobytes())
        # The seed is replaced at once; giving one avoids a read of the system's entropy.
        bit_generator = _BIT_GENERATORS[state["bit_generator"]](0)
        bit_generator.state = state
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"saved state: damaged generator: {error}") from error
    return np.random.Generator(bit_generator)


def has_own_state(env: gym.Env[Any, Any]) -> bool:
    """Whether way 1 applies: get_state and set_state below wrappers that are known to be stateless.

    A wrapper that may keep state of its own (frame stacking, say) rules it out, unless that wrapper
    itself defines the two methods.
    """
    return _stateful_layer(env) is not None


def _stateful_layer(env: Any) -> Any:
    while True:
        if _defines_state(env):
            return env
        if type(env) not in _TRANSPARENT_WRAPPERS:
            return None
        env = env.env


def _defines_state(env: Any) -> bool:
    cls = type(env)
    if not callable(getattr(cls, "get_state", None)) or not callable(
        getattr(cls, "set_state", None)
    ):
        return False
    try:
        inspect.signature(env.get_state).bind()
        inspect.signature(env.set_state).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def save_own_state(env: gym.Env[Any, Any]) -> dict[str, np.ndarray]:
    """The state of an environment for which `has_own_state` holds.

    Raises:
        RunError: its `get_state` returns something else than a dict of arrays or numbers.
    """
    arrays = _named_arrays(env, _stateful_layer(env).get_state())
    generator = vars(env.unwrapped).get("_np_random")
    if generator is not None:
        arrays[_GENERATOR] = generator_to_array(generator)
    limit = _time_limit(env)
    if limit is not None:
        arrays[_ELAPSED] = np.array(limit._elapsed_steps or 0, np.int64)
    return arrays


def load_own_state(
    env: gym.Env[Any, Any], reset_seed: int, arrays: Mapping[str, np.ndarray]
) -> None:
    """Restores what `save_own_state` gave.

    Args:
        env: A fresh or used instance; it is reset first, as wrappers demand.
        reset_seed: Seed of that reset.
        arrays: The state.
    """
    env.reset(seed=reset_seed)
    own = {n.removeprefix(_OWN): a for n, a in arrays.items() if n.startswith(_OWN)}
    # An item of a 0-dimensional array is a numpy scalar, which acts as the number that was saved.
    _stateful_layer(env).set_state({name: array.copy()[()] for name, array in own.items()})
    if _GENERATOR in arrays:
        env.unwrapped.np_random = generator_from_array(arrays[_GENERATOR])
    limit: Any = _time_limit(env)
    if limit is not None:
        limit._elapsed_steps = int(arrays[_ELAPSED])


def _named_arrays(env: Any, state: object) -> dict[str, np.ndarray]:
    name = type(getattr(env, "unwrapped", env)).__name__
    if not isinstance(state, Mapping):
        raise RunError(
            f"{name}.get_state() returned a {type(state).__name__}; "
            "it must return a dict of arrays or numbers"
        )
    arrays = {}
    for key, value in state.items():
        array = np.array(value)
        if array.dtype.kind not in "biufSU":
            raise RunError(
                f"{name}.get_state()[{key!r}] is a {type(value).__name__}, not an array or a number"
            )
        arrays[f"{_OWN}{key}"] = array
    return arrays


def _time_limit(env: Any) -> TimeLimit | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            return env
        env = env.env
    return None


def has_native_state(env: gym.vector.VectorEnv[Any, Any, Any]) -> bool:
    """Whether a vector environment of gymnasium's can be saved."""
    return _defines_state(env) or _native_names(env) is not None


def is_known(env: object) -> bool:
    """Whether `NATIVE_ARRAYS` has the environment; these return fresh arrays of the right dtype."""
    return _native_names(env) is not None


def _native_names(env: object) -> tuple[str, ...] | None:
    # The exact class: a subclass or a wrapper may hold more than these names.
    cls = type(env)
    return NATIVE_ARRAYS.get(f"{cls.__module__}:{cls.__qualname__}")


def save_native_state(env: Any) -> dict[str, np.ndarray]:
    """The state of a vector environment for which `has_native_state` holds."""
    names = None if _defines_state(env) else _native_names(env)
    if names is None:
        arrays = _named_arrays(env, env.get_state())
    else:
        arrays = {f"{_OWN}{name}": np.array(getattr(env, name)) for name in names}
    if env._np_random is not None:
        arrays[_GENERATOR] = generator_to_array(env._np_random)
    return arrays


def load_native_state(env: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores what `save_native_state` gave, on an environment that has been reset."""
    own = {n.removeprefix(_OWN): a.copy()[()] for n, a in arrays.items() if n.startswith(_OWN)}
    names = None if _defines_state(env) else _native_names(env)
    if names is None:
        env.set_state(own)
    else:
        for name in names:
            setattr(env, name, own[name])
    if _GENERATOR in arrays:
        env.np_random = generator_from_array(arrays[_GENERATOR])
