"""From file, --set and flags to a config: precedence, merging, types, and errors of one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from policies.config import AlgorithmConfig, config_dict, diff
from policies.config_fields import config_fields
from policies.config_loading import config_yaml, load_config
from policies.config_reference import config_reference
from policies.config_renames import renamed_keys
from policies.config_yaml import parse_yaml, to_yaml
from policies.errors import ConfigError
from policies.learners.ppo import PPOConfig
from policies.model_config import ModelConfig


class SmallConfig(AlgorithmConfig):
    """A learner whose defaults differ from those of the nested classes."""

    env_config: dict[str, Any] = Field({"a": 1, "deep": {"b": 2}}, description="Deep.")
    model: ModelConfig = Field(ModelConfig(hidden=[8], lstm_size=5), description="Small.")
    rate: float = Field(0.1, gt=0, description="A rate.")


def error_of(*sets: str, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(PPOConfig, sets=sets, flags=flags, notify=lambda line: None)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_nothing_given_is_the_default_without_a_notice() -> None:
    notices: list[str] = []
    for config_class in (AlgorithmConfig, PPOConfig, SmallConfig):
        assert load_config(config_class, notify=notices.append) == config_class()
        defaults = config_dict(config_class())
        assert load_config(config_class, base=defaults, notify=notices.append) == config_class()
    assert notices == []


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 1\ngamma: 0.5\nhorizon: 10\nmax_rounds: 4\n")
    config = load_config(
        PPOConfig,
        base={"seed": 9, "env": "Acrobot-v1", "horizon": 3, "grad_clip": None},
        file=str(file),
        sets=["gamma=0.6", "gamma=0.7", "horizon=null"],
        flags={"max_rounds": 5, "target_kl": None},
    )
    assert (config.seed, config.gamma, config.max_rounds) == (1, 0.7, 5)
    assert (config.env, config.horizon, config.max_seconds) == ("Acrobot-v1", None, None)
    assert config.grad_clip is None


def test_null_is_a_value_in_every_source() -> None:
    for key in ("base", "flags"):
        given: dict[str, Any] = {key: {"grad_clip": None}}
        assert load_config(PPOConfig, **given).grad_clip is None
    assert load_config(PPOConfig, sets=["grad_clip=null"]).grad_clip is None
    assert PPOConfig().grad_clip is not None


def test_config_knows_which_settings_were_given() -> None:
    config = load_config(PPOConfig, sets=["model.hidden=[8]", "env_config.a=1"], flags={"seed": 0})
    assert config.model_dump(exclude_unset=True) == {
        "model": {"hidden": [8]},
        "env_config": {"a": 1},
        "seed": 0,
    }


def test_nested_settings_merge_over_the_classes_own_defaults() -> None:
    config = load_config(
        SmallConfig,
        flags={"env_config": {"deep": {"c": 3}}, "model": {"use_lstm": True}},
        sets=["env_config.deep.d=[1, 2.0]", "model.activation=relu"],
    )
    assert config.env_config == {"a": 1, "deep": {"b": 2, "c": 3, "d": [1, 2.0]}}
    assert isinstance(config.env_config["deep"]["d"][1], float)
    assert config.model == ModelConfig(hidden=[8], lstm_size=5, use_lstm=True, activation="relu")


def test_no_input_is_mutated_or_shared() -> None:
    base = {"env_config": {"list": [1]}, "model": {"fcnet_hiddens": [4]}, "num_workers": 2}
    flags = {"env_config": {"more": {"x": [2]}}, "model.hidden": [5]}
    sets = ["env_config.more.y=3"]
    before = copy.deepcopy((base, flags, sets))
    config = load_config(PPOConfig, base=base, flags=flags, sets=sets, notify=lambda line: None)
    config.env_config["more"]["x"].append(9)
    config.env_config["list"].append(9)
    config.model.hidden.append(9)
    assert (base, flags, sets) == before
    assert PPOConfig().model.hidden == ModelConfig().hidden == [64, 64]


def test_a_null_section_sets_nothing() -> None:
    assert load_config(SmallConfig, sets=["model=null"]) == SmallConfig()
    assert error_of("model=3") == "model: got 3, expected a mapping of settings"


def test_values_are_yaml() -> None:
    config = load_config(
        PPOConfig,
        sets=[
            "model.hidden=[32,16]",
            "lr=1e-4",
            "max_env_steps=1e6",
            "clip_rewards=1",
            "max_rounds=1_000",
            "env_config={a: 'x=y', b: [1, 2]}",
        ],
    )
    assert config.model.hidden == [32, 16]
    assert config.lr == 1e-4
    assert config.max_env_steps == 1_000_000 and isinstance(config.max_env_steps, int)
    assert config.max_rounds == 1000
    assert config.clip_rewards == 1.0 and config.clip_rewards is not True
    assert config.env_config == {"a": "x=y", "b": [1, 2]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gamma=2", "gamma: got 2, expected a number of at least 0 and at most 1"),
        ("gamma=true", "gamma: got true, expected a number of at least 0 and at most 1"),
        ("gamma='0.9'", 'gamma: got "0.9", expected a number of at least 0 and at most 1'),
        ("seed=1.5", "seed: got 1.5, expected an integer of at least 0"),
        ("seed=true", "seed: got true, expected an integer of at least 0"),
        ("horizon=x", 'horizon: got "x", expected an integer of at least 1 or null'),
        ("env=3", "env: got 3, expected text"),
        ("normalize_actions=yes", 'normalize_actions: got "yes", expected true or false'),
        ("native_vector_env=1", "native_vector_env: got 1, expected true or false"),
        (
            "clip_rewards=-1",
            "clip_rewards: got -1, expected true or false or a number above 0 or null",
        ),
        (
            "batch_mode=whole",
            'batch_mode: got "whole", expected one of truncate_episodes, complete_episodes',
        ),
        (
            "model.hidden=[a]",
            'model.hidden: got ["a"], expected a list of integers of at least 1 and at most 100000',
        ),
        (
            "model={hidden: 3}",
            "model.hidden: got 3, expected a list of integers of at least 1 and at most 100000",
        ),
        (
            "learner_device=gpu",
            "learner_device: got 'gpu', expected cpu, cuda or cuda:N with the GPU's number N",
        ),
        (
            "grad_clip=0",
            "grad_clip: got 0, expected a number above 0 or null",
        ),
        ("env_config=3", "env_config: got 3, expected a mapping"),
        ("env_config={1: 2}", "env_config: the key 1 is not text; quote it"),
        ("env_config.x=.inf", "env_config.x: inf is not a finite number"),
    ],
)
def test_wrong_value_names_key_value_and_what_was_expected(setting: str, message: str) -> None:
    assert error_of(setting) == message


def test_several_wrong_values_are_all_named() -> None:
    message = error_of("gamma=2", "seed=-1")
    assert "gamma: got 2" in message and "seed: got -1" in message


@pytest.mark.parametrize(
    ("setting", "suggestion"),
    [
        ("gama=1", "gamma"),
        ("hidden=[2]", "model.hidden"),
        ("model.hiden=[2]", "model.hidden"),
        ("model.gamma=1", "gamma"),
        ("num_worker=1", "num_rollout_workers"),
        ("sample_batch_siz=1", "rollout_fragment_length"),
        ("gamma.x=1", "gamma"),
        ("minibatchsize=1", "minibatch_size"),
    ],
)
def test_unknown_setting_suggests_the_nearest(setting: str, suggestion: str) -> None:
    message = error_of(setting)
    assert f"unknown setting {setting.split('=')[0]}; did you mean" in message
    assert suggestion in message


def test_unknown_setting_without_a_near_one() -> None:
    assert error_of("qqqq=1") == ("--set: unknown setting qqqq; --print_config lists all of them")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed", "--set seed: expected key=value, for example model.hidden=[64,64]"),
        ("=1", "--set =1: expected key=value, for example model.hidden=[64,64]"),
        ("horizon=", "--set horizon=: no value; write horizon=null or horizon=''"),
        ("seed=[1", "--set seed=[1: not valid YAML: expected ',' or ']'"),
        ("env_config={a: 1, a: 2}", "the key a is there twice"),
    ],
)
def test_malformed_set(setting: str, message: str) -> None:
    assert message in error_of(setting)


def test_flag_and_set_may_agree_but_not_contradict() -> None:
    assert load_config(PPOConfig, sets=["seed=3"], flags={"seed": 3}).seed == 3
    assert error_of("seed=1", seed=2) == ("seed is given twice: as a flag (2) and with --set (1)")


def test_objects_of_python_are_refused() -> None:
    message = error_of(env_config={"f": object()})
    assert message.startswith("env_config.f: got a value of type object")


def test_checks_across_settings_are_one_line() -> None:
    message = error_of("stop_return=10", "evaluation_interval=0")
    assert message.startswith("stop_return needs evaluations")
    message = error_of("model.use_lstm=true", "model.custom_network=m:C")
    assert message.startswith("model: use_lstm has no effect on a custom_network")


def test_bad_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    cases = {
        "list.yaml": "- 1\n",
        "torn.yaml": "seed: 1\n  gamma: [\n",
        "key.yaml": "1: 2\n",
        "twice.yaml": "seed: 1\nseed: 2\n",
        "type.yaml": "seed: !!python/name:os.x 1\n",
    }
    for name, text in cases.items():
        (tmp_path / name).write_text(text)
    for path in [missing, *(tmp_path / name for name in cases)]:
        with pytest.raises(ConfigError) as caught:
            load_config(PPOConfig, file=str(path))
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_empty_file_and_json_file(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_config(PPOConfig, file=str(tmp_path / "empty.yaml")) == PPOConfig()
    config = load_config(PPOConfig, sets=["lr=3e-05", "env_config.a=null"])
    (tmp_path / "config.json").write_text(json.dumps(config_dict(config)))
    assert load_config(PPOConfig, file=str(tmp_path / "config.json")) == config


def test_printed_config_reads_back_unchanged(tmp_path: Path) -> None:
    config = load_config(
        PPOConfig,
        flags={"env_config": {"t": ["yes", "1e5", "1:30", "2024-01-01", "null", "~", "", "0x1"]}},
        sets=["lr=1e-05", "model.hidden=[]"],
    )
    (tmp_path / "run.yaml").write_text(config_yaml(config))
    assert diff(load_config(PPOConfig, file=str(tmp_path / "run.yaml")), config) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.5E3", 1500.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("010", 10.0),
        ("yes", "yes"),
        ("off", "off"),
        ("True", True),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("-3", -3),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_yaml_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "test")
    assert parsed == value and type(parsed) is type(value)
    assert parse_yaml(to_yaml(value), "test") == value


def test_reference_page_has_every_setting_and_every_old_name() -> None:
    page = config_reference(PPOConfig)
    for field in config_fields(PPOConfig).values():
        assert page.count(f"| `{field.key}` | {field.expected} | `{field.default}` |") == 1
    for old in renamed_keys():
        assert f"| `{old}` |" in page
    assert (
        "| `model.hidden` | a list of integers of at least 1 and at most 100000 | `[64, 64]` |"
        in page
    )
    assert "`[8]`" in config_reference(SmallConfig)
    for line in page.splitlines():
        assert not line.startswith("|") or line.endswith("|")
