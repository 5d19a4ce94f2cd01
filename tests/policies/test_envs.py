"""Names to environments."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest

from policies.envs import from_portable, make_env, portable, quiet_gymnasium, resolve
from policies.errors import ConfigError, RunError
from policies.testing import CountingEnv, FailingEnv


class ConfigDictEnv(CountingEnv):
    """Takes its arguments as one dict."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(lengths=config.get("lengths", [3]))
        self.config = config


class TextEnv(CountingEnv):
    """Has an observation space that is not supported."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: gym.Space[Any] = gym.spaces.Text(5)


@pytest.fixture
def registered() -> Iterator[str]:
    entry: Any = CountingEnv
    gym.register("CountingTest-v0", entry_point=entry, max_episode_steps=2)
    yield "CountingTest-v0"
    del gym.registry["CountingTest-v0"]


def test_a_registered_id_is_made_with_its_time_limit(registered: str) -> None:
    env = make_env(registered, {"lengths": [9]})
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]


@pytest.mark.parametrize(
    "ref", ["policies.testing:CountingEnv", "policies.testing.CountingEnv", CountingEnv]
)
def test_import_paths_and_classes_are_made_with_the_config(ref: Any) -> None:
    env = make_env(ref, {"lengths": [1]})
    env.reset(seed=0)
    assert env.step(0)[2] is True


def test_a_callable_is_called_with_the_config() -> None:
    assert isinstance(make_env(lambda n: CountingEnv([n]), {"n": 2}), CountingEnv)


def test_module_and_id_imports_the_module_first() -> None:
    assert resolve("gymnasium.envs:CartPole-v1").spec is gym.registry["CartPole-v1"]


@pytest.mark.parametrize("config", [{}, {"lengths": [4], "other": 1}])
def test_a_class_with_one_config_parameter_gets_the_dict(config: dict[str, Any]) -> None:
    env = make_env(ConfigDictEnv, config)
    assert isinstance(env, ConfigDictEnv)
    assert env.config == config


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("policies.testing:CountinEnv", "CountingEnv"),
        ("policies.testing.CountinEnv", "CountingEnv"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean.*{expected}"):
        resolve(name)


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no_such_module.*installed"):
        resolve("no_such_module:Env")


def test_a_name_like_nothing_tells_what_is_accepted() -> None:
    with pytest.raises(ConfigError, match="registered id"):
        resolve("zzzzqqqq")


@pytest.mark.parametrize("ref", [3, None])
def test_something_else_than_a_name_or_callable_is_refused(ref: Any) -> None:
    with pytest.raises(ConfigError, match="expected a registered id"):
        resolve(ref)


def test_wrong_arguments_are_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1.*gravitas.*env_config has gravitas"):
        make_env("CartPole-v1", {"gravitas": 9.8})


def test_a_failing_constructor_is_one_line_with_the_place() -> None:
    with pytest.raises(RunError) as caught:
        make_env("policies.testing:FailingEnv", {"where": "constructor"})
    text = str(caught.value)
    assert "\n" not in text
    assert "FailingEnv" in text and "RuntimeError: this environment fails in constructor" in text
    assert "testing.py:" in text


def test_a_dependency_that_is_missing_is_the_users_mistake() -> None:
    def create() -> gym.Env[Any, Any]:
        raise gym.error.DependencyNotInstalled("pip install something")

    with pytest.raises(ConfigError, match="pip install something"):
        make_env(create)


def test_what_is_not_an_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a dict, not a gymnasium.Env"):
        make_env(dict)


def test_an_unsupported_space_names_the_environment() -> None:
    with pytest.raises(ConfigError, match=r"TextEnv.*observation space.*Text"):
        make_env(TextEnv)


def test_gymnasium_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_env("CartPole-v0").close()


def test_a_registration_travels_to_another_process(registered: str) -> None:
    carried = portable(registered)
    spec = gym.registry.pop(registered)
    assert from_portable(carried) == registered
    env = make_env(registered, {"lengths": [9]})
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    gym.registry[registered] = spec


def test_an_importable_class_travels_by_name() -> None:
    assert portable(FailingEnv) == {"ref": "policies.testing:FailingEnv"}


def test_a_local_callable_cannot_travel() -> None:
    with pytest.raises(ConfigError, match="isolation=process"):
        portable(lambda: CountingEnv())


def test_importing_environments_does_not_import_torch_or_beam() -> None:
    code = (
        "import sys, policies.envs, policies.vector_envs, policies.sync_vector_env, "
        "policies.process_vector_env, policies.env_process, policies.gym_vector_env, "
        "policies.testing\n"
        "print([m for m in ('torch', 'apache_beam', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_log_level_is_set_back_when_blocks_of_several_threads_overlap() -> None:
    level = gym.logger.min_level
    first, second = quiet_gymnasium(), quiet_gymnasium()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gym.logger.min_level == gym.logger.ERROR
    second.__exit__(None, None, None)
    assert gym.logger.min_level == level
