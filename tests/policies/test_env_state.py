"""Saved and restored environments go on as if they had never stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from policies.env_state import generator_from_array, generator_to_array, has_own_state
from policies.envs import make_env
from policies.errors import ConfigError, RunError
from policies.gym_vector_env import GymVectorEnv
from policies.testing import CountingEnv, CountingVectorEnv, IdentityEnv, StatelessCartPole
from policies.vector_envs import VectorEnv, make_vector_env


class OwnStateEnv(gym.Env[np.ndarray, int]):
    """A random walk that lasts over episodes and saves itself, but for its generator."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(2)
        self._place = np.zeros(2)
        self._visits = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._place.copy(), {}

    def step(self, action: int) -> Any:
        self._visits += 1
        self._place = self._place + self.np_random.normal(size=2) * (1 + action)
        ended = bool(self.np_random.random() < 0.1)
        return self._place.copy(), float(self._visits), ended, False, {}

    def get_state(self) -> dict[str, Any]:
        return {"place": self._place, "visits": self._visits}

    def set_state(self, state: dict[str, Any]) -> None:
        self._place, self._visits = state["place"], int(state["visits"])


class ClockEnv(CountingEnv):
    """Depends on how often any instance was reset, like an environment with hidden state."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        ClockEnv.resets += 1
        return np.full(1, ClockEnv.resets, np.float32), {}

    get_state = set_state = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    entry: Any = OwnStateEnv
    vector_entry: Any = CountingVectorEnv
    gym.register("OwnState-v0", entry_point=entry, max_episode_steps=9)
    gym.register("CountingVec-v0", vector_entry_point=vector_entry)
    yield
    del gym.registry["OwnState-v0"], gym.registry["CountingVec-v0"]


def make(ref: Any, config: dict[str, Any], **arguments: Any) -> VectorEnv:
    arguments = {"num_envs": 3, "reset_seed": lambda i, k: 1000 * i + k, **arguments}
    return make_vector_env(ref, config, **arguments)


CASES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    ("CartPole-v1", {}, {"native": True, "shard_seed": 5}),
    ("CartPole-v1", {}, {"native": True, "shard_seed": 5, "horizon": 13}),
    ("CartPole-v1", {}, {}),
    ("Pendulum-v1", {}, {"horizon": 30}),
    ("Acrobot-v1", {}, {"horizon": 37}),
    ("OwnState-v0", {}, {}),
    (StatelessCartPole, {}, {}),
    (IdentityEnv, {"space": gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,))})}, {}),
    (CountingEnv, {"lengths": [3, 1, 4]}, {}),
    *(
        ("CountingVec-v0", {"lengths": [[3, 1], [2]], "mode": mode.value}, {"native": True})
        for mode in AutoresetMode
    ),
]


@pytest.mark.parametrize(("ref", "config", "arguments"), CASES)
@pytest.mark.parametrize("steps", [0, 1, 50])
def test_a_fresh_instance_goes_on_to_the_bit(
    ref: Any, config: dict[str, Any], arguments: dict[str, Any], steps: int
) -> None:
    _check_going_on(ref, config, arguments, steps)


@pytest.mark.parametrize(
    ("ref", "config"),
    [("CartPole-v1", {}), ("policies.testing:CountingEnv", {"lengths": [3, 1, 4]})],
)
def test_a_fresh_instance_in_other_processes_does_too(ref: str, config: dict[str, Any]) -> None:
    _check_going_on(ref, config, {"isolation": "process", "num_envs": 2}, 50)


def _check_going_on(
    ref: Any, config: dict[str, Any], arguments: dict[str, Any], steps: int
) -> None:
    whole, fresh = make(ref, config, **arguments), make(ref, config, **arguments)
    assert whole.has_state
    actions = gym.vector.utils.batch_space(whole.action_space, whole.num_envs)
    actions.seed(0)
    obs = whole.reset()
    for _ in range(steps):
        obs = whole.step(actions.sample()).obs
    state = whole.get_state()
    assert all(array.dtype.kind in "biufU" for array in state.values())
    assert_equal(fresh.set_state(state), obs)
    assert_equal(fresh.get_state(), state)
    ends = 0
    for _ in range(60):
        action = actions.sample()
        ours, theirs = fresh.step(action), whole.step(action)
        assert_equal(ours, theirs)
        ends += int((ours.terminateds | ours.truncateds).sum())
    assert ends > 0
    assert_equal(fresh.get_state(), whole.get_state())
    whole.close()
    fresh.close()


def assert_equal(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        ours, theirs = tuple(ours.values()), tuple(theirs.values())
    if isinstance(ours, tuple):
        for a, b in zip(ours, theirs, strict=True):
            assert_equal(a, b)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert ours == theirs


def test_state_is_not_changed_by_going_on() -> None:
    env = make("OwnState-v0", {})
    env.reset()
    state = env.get_state()
    before = {name: array.copy() for name, array in state.items()}
    for _ in range(20):
        env.step(np.zeros(3, np.int64))
    assert_equal(state, before)
    fresh = make("OwnState-v0", {})
    fresh.set_state(state)
    fresh.step(np.zeros(3, np.int64))
    assert_equal(state, before)


def test_a_used_instance_can_be_set_back() -> None:
    env = make("CartPole-v1", {})
    env.reset()
    state = env.get_state()
    first = [env.step(np.ones(3, np.int64)) for _ in range(25)]
    env.set_state(state)
    for result in first:
        assert_equal(env.step(np.ones(3, np.int64)), result)


@pytest.mark.parametrize(
    "bit_generator",
    [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64],
)
def test_generators_go_on_from_their_arrays(bit_generator: Any) -> None:
    generator = np.random.Generator(bit_generator(3))
    generator.integers(5, dtype=np.uint32)
    generator.normal(size=3)
    again = generator_from_array(generator_to_array(generator))
    assert again.random(700).tolist() == generator.random(700).tolist()
    assert again.integers(9, dtype=np.uint32) == generator.integers(9, dtype=np.uint32)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"bit_generator": "os"}', b'{"bit_generator": "PCG64"}', b"[1]"]
)
def test_a_damaged_generator_is_an_error(text: bytes) -> None:
    with pytest.raises(RunError, match="damaged generator"):
        generator_from_array(np.frombuffer(text, np.uint8))


@pytest.mark.parametrize("native", [True, False])
def test_state_of_other_environments_is_refused(native: bool) -> None:
    env = make("CartPole-v1", {}, native=native)
    env.reset()
    state = env.get_state()
    other = make_vector_env("CartPole-v1", {}, 2, reset_seed=lambda i, k: k, native=native)
    with pytest.raises(RunError, match="is for 3 environments, not 2"):
        other.set_state(state)
    del state["obs/0"]
    with pytest.raises(RunError, match="lacks 'obs/0'"):
        env.set_state(state)


def test_a_replay_that_comes_out_differently_is_an_error() -> None:
    env = make(ClockEnv, {})
    env.reset()
    state = env.get_state()
    with pytest.raises(RunError, match=r"\(env 0\) is not deterministic.*env_state=reset"):
        make(ClockEnv, {}).set_state(state)


def test_lost_actions_are_noticed() -> None:
    env = make("CartPole-v1", {})
    env.reset()
    env.step(np.zeros(3, np.int64))
    state = {**env.get_state(), "actions/0": np.zeros(1, np.int64)}
    with pytest.raises(RunError, match="lost actions"):
        env.set_state(state)


def test_own_state_that_is_not_data_is_an_error() -> None:
    class BadState(CountingEnv):
        def get_state(self) -> Any:
            return {"x": object()}

    env = make(BadState, {})
    env.reset()
    with pytest.raises(RunError, match=r"get_state\(\)\['x'\] is a object, not an array"):
        env.get_state()


def test_an_unknown_native_environment_says_that_it_has_no_state() -> None:
    inner = SyncVectorEnv([lambda: CountingEnv()])
    env = GymVectorEnv("Counting", inner, seed=0)
    assert not env.has_state
    env.reset()
    with pytest.raises(ConfigError, match="native=false or env_state=reset"):
        env.get_state()


def test_own_state_counts_only_below_wrappers_without_state() -> None:
    env = make_env("OwnState-v0")
    assert has_own_state(env)
    assert not has_own_state(gym.wrappers.FrameStackObservation(env, 2))
    assert not has_own_state(make_env("CartPole-v1"))
