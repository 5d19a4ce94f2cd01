"""The shared settings: bounds, consistency, identity and differences."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
from pydantic import ValidationError

from policies.config import (
    RESUMABLE_KEYS,
    AlgorithmConfig,
    config_dict,
    config_sha256,
    diff,
    require_json,
)
from policies.config_fields import config_fields
from policies.learners.ppo import PPOConfig
from policies.model_config import ModelConfig


@pytest.mark.parametrize("config_class", [AlgorithmConfig, PPOConfig])
def test_default_config_is_valid_and_warns_of_nothing(config_class: type[AlgorithmConfig]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = config_class()
    assert config.env == "CartPole-v1"
    assert config.model == ModelConfig()


@pytest.mark.parametrize("config_class", [AlgorithmConfig, PPOConfig])
def test_every_setting_has_one_sentence_of_description(
    config_class: type[AlgorithmConfig],
) -> None:
    for field in config_fields(config_class).values():
        assert re.fullmatch(r"\S.*[.]", field.description), field.key


def test_config_cannot_be_changed_and_configs_share_no_state() -> None:
    one, other = AlgorithmConfig(), AlgorithmConfig()
    with pytest.raises(ValidationError, match="frozen"):
        one.seed = 1
    assert one.env_config is not other.env_config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_rollout_workers", 0),
        ("num_envs_per_worker", 0),
        ("rollout_fragment_length", 0),
        ("train_batch_size", 0),
        ("horizon", 0),
        ("seed", -1),
        ("gamma", 1.01),
        ("gamma", -0.01),
        ("clip_rewards", -1.0),
        ("env_timeout_s", 0.0),
        ("env_timeout_s", float("inf")),
        ("max_env_restarts", -1),
        ("evaluation_interval", -1),
        ("evaluation_episodes", 0),
        ("stop_return", float("nan")),
        ("max_seconds", 0.0),
        ("keep_versions", 0),
        ("rounds_per_job", 0),
        ("learner_device", "gpu"),
        ("learner_threads", 0),
        ("batch_mode", "complete"),
        ("env", ""),
        ("no_such_setting", 1),
    ],
)
def test_values_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        AlgorithmConfig(**{key: value})


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:12"])
def test_learner_devices(device: str) -> None:
    assert AlgorithmConfig(learner_device=device).learner_device == device


def test_return_target_without_evaluation_is_refused() -> None:
    with pytest.raises(ValidationError, match="stop_return needs evaluations"):
        AlgorithmConfig(stop_return=475.0, evaluation_interval=0)


def test_sha256_is_that_of_the_canonical_json() -> None:
    config = {"b": [1, 2.5], "a": {"d": None, "c": "é"}}
    # printf '{"a":{"c":"é","d":null},"b":[1,2.5]}' | sha256sum
    expected = "3463e99910516ff2b33f4223a60fbff8ee1e614cac4b5acea0450008c0392ba6"
    assert config_sha256(config) == expected


def test_sha256_ignores_the_order_of_keys_and_the_excluded_ones() -> None:
    one = AlgorithmConfig(env_config={"a": 1, "b": 2}, max_rounds=5)
    other = AlgorithmConfig(env_config={"b": 2, "a": 1}, max_rounds=9)
    assert config_sha256(one) != config_sha256(other)
    assert config_sha256(one, exclude=RESUMABLE_KEYS) == config_sha256(
        other, exclude=RESUMABLE_KEYS
    )
    assert config_sha256(one) == config_sha256(config_dict(one))


def test_diff_names_each_differing_setting() -> None:
    old = AlgorithmConfig(env_config={"a": 1}, max_rounds=5)
    new = AlgorithmConfig(
        env_config={"a": 2, "b": "x"}, max_rounds=9, seed=3, model=ModelConfig(hidden=[8])
    )
    assert diff(old, old) == []
    assert diff(old, new, exclude=RESUMABLE_KEYS) == [
        "env_config.a: 1 -> 2",
        'env_config.b: (absent) -> "x"',
        "model.hidden: [64, 64] -> [8]",
        "seed: 0 -> 3",
    ]
    assert "max_rounds: 5 -> 9" in diff(config_dict(old), new)


def test_resumable_keys_are_settings() -> None:
    assert AlgorithmConfig.model_fields.keys() >= RESUMABLE_KEYS


def test_config_dict_is_a_copy() -> None:
    config = AlgorithmConfig(env_config={"a": {"b": 1}})
    before = copy.deepcopy(config)
    config_dict(config)["env_config"]["a"]["b"] = 2
    assert config == before
    values = {"a": {"b": 1}}
    config_dict(values)["a"]["b"] = 2
    assert values == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"x\.a\[1\]: got a value of type object"),
        ({1: 2}, "x: the key 1 is not text"),
        ([float("inf")], r"x\[0\]: inf is not a finite number"),
    ],
)
def test_require_json_names_what_json_cannot_hold(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_json(value, "x")
