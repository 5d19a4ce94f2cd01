"""docs/config.md is made from the fields."""

from __future__ import annotations

from pathlib import Path

from policies.config_reference import config_reference
from policies.learners.ppo import PPOConfig


def test_page_of_settings_is_what_the_fields_say() -> None:
    page = Path(__file__).parents[2] / "docs" / "config.md"
    assert page.read_text("utf-8") == config_reference(PPOConfig), "write it anew with make docs"
