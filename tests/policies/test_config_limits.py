"""Settings that would take all memory or time are refused in one short line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policies.config import require_json
from policies.config_loading import load_config
from policies.config_renames import shortened, show
from policies.config_yaml import parse_yaml, to_yaml
from policies.errors import ConfigError
from policies.learners.ppo import PPOConfig

BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
)


def refusal(**sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(PPOConfig, **sources)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 500
    return line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "aliases (*name) are not allowed, line 2"),
        ("env_config: &a {b: *a}", "aliases (*name) are not allowed"),
        ("env_config: {<<: {a: 1}}", "merge keys (<<) are not allowed"),
        ("env_config: " + "[" * 100_000, "nested more than 50 levels deep"),
        ("env_config: " + "{a: " * 51 + "1" + "}" * 51, "nested more than 50 levels deep"),
        ("? " + "a." * 100_000 + "b\n: 1", "nested more than 50 levels deep"),
        ("? " + "x" * 100_000 + "\n: 1", "unknown setting xxx"),
    ],
)
def test_files_and_sets_name_themselves(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    line = refusal(file=str(file))
    assert str(file) in line and message in line
    key, _, value = text.partition(": ")
    if key == "env_config":
        line = refusal(sets=[f"{key}={value}"])
        assert line.startswith("--set env_config=") and message in line


def test_fifty_levels_are_allowed() -> None:
    nested: Any = 1
    for _ in range(40):
        nested = [nested]
    config = load_config(PPOConfig, sets=["env_config.a=" + "[" * 40 + "1" + "]" * 40])
    assert config.env_config == {"a": nested}


def test_values_that_contain_themselves_are_refused() -> None:
    circle: dict[str, Any] = {}
    circle["again"] = [circle]
    assert refusal(flags={"env_config": circle}) == "settings: nested more than 50 levels deep"
    with pytest.raises(ValueError, match="nested more than 50"):
        require_json(circle, "env_config")
    assert show(circle) == "a value of type dict"


def test_huge_integers_are_refused() -> None:
    assert "--set" in refusal(sets=["seed=" + "9" * 5000])
    assert "bits is too large" in refusal(sets=["seed=!!int 0x" + "f" * 5000])


def test_config_files_larger_than_a_mebibyte_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(b"#" * (2**20 - 8) + b"\nseed: 3")
    assert load_config(PPOConfig, file=str(file)).seed == 3
    file.write_bytes(b"#" * 2**20 + b"\n")
    assert "larger than 1 MiB" in refusal(file=str(file))
    assert "larger than 1 MiB" in refusal(file="/dev/zero")


def test_an_archive_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.zip"
    file.write_text("no archive")
    url = f"zip://run.yaml::{file}"
    assert refusal(file=url) == f"cannot read the config file {url}: File is not a zip file"


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("num_rollout_workers", 100_000),
        ("num_envs_per_worker", 100_000),
        ("rollout_fragment_length", 10_000_000),
    ],
)
def test_counts_have_an_upper_limit(key: str, limit: int) -> None:
    assert getattr(load_config(PPOConfig, sets=[f"{key}={limit}"]), key) == limit
    line = refusal(sets=[f"{key}={limit + 1}"])
    assert line == f"{key}: got {limit + 1}, expected an integer of at least 1 and at most {limit}"


def test_layers_have_an_upper_limit() -> None:
    line = refusal(sets=["model.hidden=[64,100001]"])
    assert line.startswith("model.hidden: got [64, 100001]") and "at most 100000" in line


def test_long_texts_are_shortened_and_short_ones_are_not() -> None:
    assert shortened("x" * 200) == "x" * 200
    assert shortened("x" * 201) == "x" * 197 + "..."


def test_a_list_that_is_there_twice_is_written_out() -> None:
    once = [1, 2]
    assert parse_yaml(to_yaml({"a": once, "b": once}), "test") == {"a": once, "b": once}
