"""The command line: values, mistakes, and what belongs to the runner."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.options import SETTING_FLAGS, CommandLine, parse, print_help
from policies.errors import ConfigError
from policies.learners.ppo import PPOConfig


def parsed(*words: str) -> CommandLine:
    command = parse(words)
    assert command is not None
    return command


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(words)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--seed=7"], "seed", 7),
        (["--seed", "7"], "seed", 7),
        (["--max_env_steps=1_000_000"], "max_env_steps", 1_000_000),
        (["--max_env_steps=1e6"], "max_env_steps", 1e6),
        (["--max_env_steps=none"], "max_env_steps", None),
        (["--stop_return=None"], "stop_return", None),
        (["--stop_return=null"], "stop_return", None),
        (["--stop_return=-100.5"], "stop_return", -100.5),
        (["--stop_return", "-1e3"], "stop_return", -1000.0),
        (["--stop_return", "-.5"], "stop_return", -0.5),
        (["--env=module:Class"], "env", "module:Class"),
        (["--env_isolation=none"], "env_isolation", "none"),
        (['--env_config={"size": 3}'], "env_config", {"size": 3}),
    ],
)
def test_values_of_flags(words: list[str], key: str, value: Any) -> None:
    assert parsed(*words).settings() == {key: value}


def test_without_flags_nothing_is_set_and_the_runner_is_in_process() -> None:
    command = parsed()
    assert command.settings() == {} and command.algo is None
    assert command.runner.name == "DirectRunner" and command.beam_flags == ()


def test_every_setting_with_a_flag_is_a_setting() -> None:
    names = [name for section in SETTING_FLAGS.values() for name in section]
    assert set(names) <= PPOConfig.model_fields.keys() and len(names) == len(set(names))


def test_flags_of_the_runner_are_passed_on_in_their_order() -> None:
    command = parsed(
        "--runner=FlinkRunner", "--seed=1", "--parallelism=2", "--flink_master", "host:1"
    )
    assert command.runner.name == "FlinkRunner"
    assert command.beam_flags == ("--parallelism=2", "--flink_master", "host:1")


def test_after_two_dashes_everything_is_the_runners() -> None:
    command = parsed("--seed=1", "--", "--made_up=1", "--seed=2")
    assert command.settings() == {"seed": 1}
    assert command.beam_flags == ("--made_up=1", "--seed=2")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--max_round=3"], ["--max_round", "did you mean --max_rounds?"]),
        (["--max-rounds=3"], ["--max-rounds", "write --max_rounds=3"]),
        (["--lr=0.1"], ["--lr", "--set lr=0.1"]),
        (["--model.hidden=[8]"], ["--set model.hidden=[8]"]),
        (["--gama=0.9"], ["did you mean --set gamma="]),
        (["--num_workers=3"], ["RLlib", "--num_rollout_workers=3"]),
        (["--num_workers", "3"], ["RLlib", "--num_rollout_workers=3"]),
        (["--num_sgd_iter=3"], ["RLlib", "--set num_epochs=3"]),
        (["--callbacks=x"], ["--callbacks", "RLlib"]),
        (["--framework=torch"], ["RLlib", "leave it out"]),
        (["--direct_num_worker=2"], ["did you mean --direct_num_workers?"]),
        (["--qwertyuiop=2"], ["unknown flag --qwertyuiop", "--set"]),
        (["CartPole-v1"], ["unexpected argument 'CartPole-v1'", "--name=value"]),
        (["--seed=1", "--seed=2"], ["--seed", "twice", "1", "2"]),
        (["--seed"], ["--seed", "expected one argument"]),
        (["--resume=true"], ["--resume", "takes no value"]),
        (["--runner=FlinkRuner"], ["did you mean FlinkRunner?"]),
        (["--direct_running_mode=fast"], ["--direct_running_mode", "multi_processing"]),
        (["--direct_num_workers=2"], ["--direct_running_mode=multi_processing"]),
        (["--savepoint_path=x"], ["unknown flag --savepoint_path"]),
    ],
)
def test_mistakes_are_named_with_the_way_out(words: list[str], parts: list[str]) -> None:
    line = refusal(*words)
    assert all(part in line for part in parts), line


@pytest.mark.parametrize("text", ["{bad", "[1]", "3"])
def test_env_config_must_be_a_json_object(text: str) -> None:
    with pytest.raises(ConfigError, match="env_config=.*single quotes"):
        parsed(f"--env_config={text}").settings()


def test_the_same_value_twice_is_no_mistake() -> None:
    assert parsed("--seed=1", "--seed=1").settings() == {"seed": 1}


def test_num_workers_is_dataflows_own_flag() -> None:
    assert parsed("--runner=DataflowRunner", "--num_workers=3").beam_flags == ("--num_workers=3",)


def test_runner_names_may_be_in_any_case() -> None:
    assert parsed("--runner=prismrunner").runner.name == "PrismRunner"


def test_help_lists_our_flags_and_only_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--seed=1", "-h"]) is None and parse(["--help"]) is None
    print_help()
    text = capsys.readouterr().out
    for section in SETTING_FLAGS.values():
        assert all(f"  --{name} " in text for name in section)
    for name in ("algo", "config", "set", "run_dir", "allow_import", "resume", "quiet", "runner"):
        assert f"  --{name}" in text
    assert "direct_num_workers" not in text and "staging" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "value", ['{"a": ' + "9" * 5000 + "}", '{"a": ' * 100_000, "[" * 60 + "]" * 60]
)
def test_an_extreme_env_config_is_a_short_error(value: str) -> None:
    with pytest.raises(ConfigError, match="^--env_config=") as caught:
        parsed(f"--env_config={value}").settings()
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_an_empty_algo_is_unknown() -> None:
    assert "unknown algorithm ''" in refusal("--algo=")
