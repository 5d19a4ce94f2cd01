"""Every row of the table of RLlib's names, and the rules that read it."""

from __future__ import annotations

from typing import Any

import pytest

from policies.config import config_dict
from policies.config_fields import config_fields
from policies.config_loading import load_config
from policies.config_renames import RenamedKey, renamed_keys
from policies.errors import ConfigError
from policies.learners.ppo import PPOConfig

ROWS = list(renamed_keys().values())
FIELDS = config_fields(PPOConfig)


def at(values: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def load(key: str, value: Any) -> tuple[PPOConfig, list[str]]:
    notices: list[str] = []
    # A custom network's settings are refused without a custom network.
    custom = "model.custom_network_config"
    also = {"model.custom_network": "m:C"} if renamed_keys()[key].new == custom else {}
    config = load_config(PPOConfig, base={key: value, **also}, notify=notices.append)
    return config, notices


def other_value(key: str) -> Any:
    """A valid value that is not the default, for a setting of ours."""
    special = {
        "env": "Acrobot-v1",
        "evaluation_explore": True,
        "model.activation": "relu",
        "model.custom_network_config": {"a": 1},
        "model.free_log_std": False,
        "model.hidden": [8],
        "model.share_layers": True,
        "model.use_lstm": True,
        "observation_filter": "mean_std",
        "gae_lambda": 0.5,
        "lr": [[0, 0.5], [100, 0.25]],
        "entropy_coeff": [[0, 0.5], [100, 0.25]],
    }
    return special.get(key, 7)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.old)
def test_row_is_complete_and_its_target_exists(row: RenamedKey) -> None:
    assert row.new is None or row.new in FIELDS
    assert row.old not in FIELDS or row.new == row.old
    if row.new is None:
        assert not row.values
    if row.new is None or row.only_values:
        assert row.reason and not row.reason.endswith(".")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.old)
def test_ignored_values_change_nothing_and_are_noticed(row: RenamedKey) -> None:
    for value in row.ignored:
        if value == {} and any(other.startswith(f"{row.old}.") for other in renamed_keys()):
            continue  # an empty section sets nothing
        config, notices = load(row.old, value)
        assert config == PPOConfig()
        assert len(notices) == 1 and row.old in notices[0]


@pytest.mark.parametrize("row", [row for row in ROWS if row.values], ids=lambda row: row.old)
def test_listed_values_become_ours(row: RenamedKey) -> None:
    assert row.new is not None
    for theirs, ours in row.values:
        config, notices = load(row.old, theirs)
        assert at(config_dict(config), row.new) == ours
        assert len(notices) == 1 and row.new in notices[0]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.new and not row.only_values], ids=lambda row: row.old
)
def test_other_values_reach_the_new_key(row: RenamedKey) -> None:
    assert row.new is not None
    value = other_value(row.new)
    config, notices = load(row.old, value)
    assert at(config_dict(config), row.new) == value != at(config_dict(PPOConfig()), row.new)
    assert len(notices) == (row.new != row.old)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.new is None or row.only_values], ids=lambda row: row.old
)
def test_refused_values_say_why_in_one_line(row: RenamedKey) -> None:
    with pytest.raises(ConfigError) as caught:
        load(row.old, "something else")
    message = str(caught.value)
    assert row.old in message and row.reason in message and "something else" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("old", "value", "new", "expected"),
    [
        ("num_workers", 4, "num_rollout_workers", 4),
        ("num_workers", 0, "num_rollout_workers", 1),
        ("num_env_runners", 2, "num_rollout_workers", 2),
        ("sample_batch_size", 10, "rollout_fragment_length", 10),
        ("lambda", 0.9, "gae_lambda", 0.9),
        ("lambda_", 0.9, "gae_lambda", 0.9),
        ("num_sgd_iter", 3, "num_epochs", 3),
        ("sgd_minibatch_size", 32, "minibatch_size", 32),
        ("vf_share_layers", True, "model.share_layers", True),
        ("fcnet_hiddens", [32, 32], "model.hidden", [32, 32]),
        ("model.fcnet_hiddens", [32, 32], "model.hidden", [32, 32]),
        ("model.fcnet_activation", "swish", "model.activation", "silu"),
        ("use_lstm", True, "model.use_lstm", True),
        ("evaluation_duration", 5, "evaluation_episodes", 5),
        ("evaluation_num_episodes", 5, "evaluation_episodes", 5),
        ("evaluation_config.explore", True, "evaluation_explore", True),
        ("observation_filter", "MeanStdFilter", "observation_filter", "mean_std"),
        ("observation_filter", "NoFilter", "observation_filter", "none"),
        ("num_gpus", 1, "learner_device", "cuda"),
        ("stop.training_iteration", 9, "max_rounds", 9),
    ],
)
def test_well_known_names(old: str, value: Any, new: str, expected: Any) -> None:
    config, _ = load(old, value)
    assert at(config_dict(config), new) == expected


def test_true_is_not_one() -> None:
    with pytest.raises(ConfigError, match="num_gpus=true"):
        load("num_gpus", True)


def test_nested_rllib_sections_are_read_key_by_key() -> None:
    config = load_config(
        PPOConfig,
        flags={
            "model": {"fcnet_hiddens": [16], "use_lstm": True},
            "evaluation_config": {"explore": True},
            "exploration_config": {"type": "StochasticSampling"},
            "framework": "torch",
        },
        notify=lambda line: None,
    )
    assert config.model.hidden == [16]
    assert config.model.use_lstm
    assert config.evaluation_explore


def test_unlisted_key_of_a_refused_section_gives_the_sections_reason() -> None:
    with pytest.raises(ConfigError, match="evaluation_config.*set evaluation_explore"):
        load_config(PPOConfig, flags={"evaluation_config": {"gamma": 1.0}})


def test_learner_without_the_setting_says_so() -> None:
    from policies.config import AlgorithmConfig

    with pytest.raises(ConfigError, match="num_sgd_iter=3: RLlib's name for num_epochs, a setting"):
        load_config(AlgorithmConfig, flags={"num_sgd_iter": 3})


def test_old_and_new_name_in_one_source_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers and num_rollout_workers are the same"):
        load_config(
            PPOConfig, flags={"num_workers": 2, "num_rollout_workers": 3}, notify=lambda line: None
        )
