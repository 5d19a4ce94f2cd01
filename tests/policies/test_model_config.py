"""The settings of a network: defaults and what is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from policies.model_config import ModelConfig


def test_defaults_are_two_separate_tanh_layers():
    model = ModelConfig()
    assert (model.hidden, model.activation, model.share_layers) == ([64, 64], "tanh", False)
    assert (model.use_lstm, model.custom_network, model.free_log_std) == (False, None, True)


def test_every_setting_says_what_it_does():
    assert all(field.description for field in ModelConfig.model_fields.values())


def test_json_round_trip():
    model = ModelConfig(hidden=[8], custom_network="a.b:C.D", custom_network_config={"x": 1})
    assert ModelConfig.model_validate_json(model.model_dump_json()) == model


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": [0]}, "greater than or equal to 1"),
        ({"activation": "gelu"}, "'tanh', 'relu' or 'silu'"),
        ({"hiden": [4]}, "Extra inputs"),
        ({"custom_network": "a.b.C"}, 'import path "module:Class"'),
        ({"custom_network": "os:system()"}, "import path"),
        ({"custom_network": "a:B", "use_lstm": True}, "initial_state"),
        ({"custom_network_config": {"x": 1}}, "custom_network is not"),
        ({"initial_log_std": float("nan")}, "or equal to 20"),
        ({"initial_log_std": -21.0}, "or equal to -20"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**settings)
