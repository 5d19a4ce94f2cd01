"""The factory of vector environments."""

from __future__ import annotations

from typing import Any

import pytest

from policies.errors import ConfigError
from policies.gym_vector_env import GymVectorEnv
from policies.process_vector_env import ProcessVectorEnv
from policies.sync_vector_env import SyncVectorEnv
from policies.vector_envs import make_vector_env


@pytest.mark.parametrize(
    ("arguments", "cls"),
    [
        ({}, SyncVectorEnv),
        ({"isolation": "process"}, ProcessVectorEnv),
        ({"native": True}, GymVectorEnv),
    ],
)
def test_options_choose_the_kind(arguments: dict[str, Any], cls: type) -> None:
    env = make_vector_env("CartPole-v1", {}, 2, reset_seed=lambda i, k: k, **arguments)
    assert type(env) is cls
    assert (env.name, env.num_envs) == ("CartPole-v1", 2)
    assert env.reset().shape == (2, 4)
    env.close()
    env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs=0"),
        ({"horizon": 0}, "horizon=0"),
        ({"isolation": "thread"}, "isolation='thread': use none or process"),
        ({"isolation": "process", "native": True}, "native=false or isolation=none"),
        ({"name": "CartPole-v7"}, "CartPole-v1"),
    ],
)
def test_wrong_options_are_the_users_mistake(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"name": "CartPole-v1", "env_config": {}, "num_envs": 2, **arguments}
    with pytest.raises(ConfigError, match=message):
        make_vector_env(reset_seed=lambda i, k: k, **given)
