"""Environments as a configuration asks for them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from policies.config import AlgorithmConfig
from policies.env_setup import check_env, uses_native_env, vector_env_for
from policies.errors import ConfigError, RunError
from policies.gym_vector_env import GymVectorEnv
from policies.process_vector_env import ProcessVectorEnv
from policies.sync_vector_env import SyncVectorEnv


def config(env: str = "CartPole-v1", **values: Any) -> AlgorithmConfig:
    return AlgorithmConfig(env=env, **values)


@pytest.mark.parametrize(
    ("values", "native"),
    [
        ({}, True),
        ({"native_vector_env": False}, False),
        ({"horizon": 10}, False),
        ({"env_isolation": "process"}, False),
        ({"env": "Pendulum-v1"}, False),
    ],
)
def test_the_native_form_is_used_where_nothing_stands_against_it(
    values: dict[str, Any], native: bool
) -> None:
    assert uses_native_env(config(**values)) is native


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, GymVectorEnv),
        ({"native_vector_env": False}, SyncVectorEnv),
        ({"env_isolation": "process"}, ProcessVectorEnv),
    ],
)
def test_environments_are_built_as_configured(values: dict[str, Any], kind: type) -> None:
    env = vector_env_for(config(**values), 2, lambda env, episode: 10 * env + episode, 5)
    try:
        assert type(env) is kind
        assert env.num_envs == 2
        assert env.reset().shape == (2, 4)
    finally:
        env.close()


def test_seeds_reach_the_environments() -> None:
    env = vector_env_for(
        config(native_vector_env=False), 2, lambda env, episode: 10 * env + episode, 5
    )
    expected = [gym.make("CartPole-v1").reset(seed=seed)[0] for seed in (0, 10)]
    assert np.array_equal(env.reset(), np.stack(expected))


class Hidden(gym.Env):
    """Episodes get easier with each one that was played, which no reset undoes."""

    def __init__(self) -> None:
        self.observation_space = Box(0, np.inf, (1,), np.float32)
        self.action_space = Discrete(2)
        self._episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episodes += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.full(1, self._episodes, np.float32), 1.0, False, False, {}


class Forgetful(Hidden):
    """Saves nothing."""

    def get_state(self) -> dict[str, int]:
        return {"nothing": 0}

    def set_state(self, state: Any) -> None:
        pass


class Careful(Hidden):
    """Saves what it needs."""

    def get_state(self) -> dict[str, int]:
        return {"episodes": self._episodes}

    def set_state(self, state: Any) -> None:
        self._episodes = int(state["episodes"])


class Global(Hidden):
    """Draws from the global generator."""

    def step(self, action: int) -> Any:
        return np.random.random(1).astype(np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"native_vector_env": False},
        {"env": "Pendulum-v1"},
        {"env": "Acrobot-v1", "horizon": 20},
        {"env_isolation": "process"},
        {"env": "policies.testing:CountingEnv", "env_config": {"lengths": [3, 50]}},
    ],
)
def test_environments_that_are_restored_exactly_are_kept(values: dict[str, Any]) -> None:
    facts = check_env(config(**values))
    assert facts.env_state == "kept"
    assert facts.warnings == ()


def test_spaces_are_those_of_one_environment() -> None:
    facts = check_env(config("Pendulum-v1"))
    assert facts.observation_space == gym.make("Pendulum-v1").observation_space
    assert facts.action_space == gym.make("Pendulum-v1").action_space


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Hidden, "could not be restored"),
        (Global, "could not be restored"),
        (Forgetful, "went on differently"),
    ],
)
def test_others_are_reset_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, cls: type, reason: str
) -> None:
    name = f"policies.testing:{cls.__name__}"
    monkeypatch.setattr(f"policies.testing.{cls.__name__}", cls, raising=False)
    facts = check_env(config(name))
    assert facts.env_state == "reset"
    assert len(facts.warnings) == 1
    assert reason in facts.warnings[0]
    assert name in facts.warnings[0]
    assert "\n" not in facts.warnings[0]


def test_own_state_keeps_what_a_replay_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.testing.Careful", Careful, raising=False)
    assert check_env(config("policies.testing:Careful")).env_state == "kept"


@pytest.mark.parametrize("where", ["constructor", "reset", "step"])
def test_an_environment_that_fails_is_an_error(where: str) -> None:
    settings = config("policies.testing:FailingEnv", env_config={"where": where})
    with pytest.raises((ConfigError, RunError), match=f"fails in {where}"):
        check_env(settings)


def test_an_unknown_environment_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="CartPole"):
        check_env(config("CartPole-v123"))
