"""Whole commands learn what is published for them. Slow: minutes each."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.training_command import run

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved_within_60_000_steps(tmp_path: Path, seed: int) -> None:
    result = run([f"--run_dir={tmp_path}/run", f"--seed={seed}", "--quiet"])
    assert result["stop_reason"] == "stop_return"
    assert result["first_reached"]["env_steps"] <= 60_000
    assert result["evaluation"]["n"] == 100
    assert result["evaluation"]["mean"] >= 475


@pytest.mark.parametrize(
    ("name", "target", "steps"),
    [
        ("acrobot", -100.0, 300_000),
        ("pendulum", -250.0, 300_000),
        ("stateless_cartpole_lstm", 350.0, 500_000),
    ],
)
def test_target_is_met_within_its_steps(
    tmp_path: Path, name: str, target: float, steps: int
) -> None:
    flags = [f"--config={CONFIGS}/{name}.yaml", f"--stop_return={target}", "--quiet"]
    result = run([*flags, f"--max_env_steps={steps}", f"--run_dir={tmp_path}/run"])
    assert result["stop_reason"] == "stop_return"
    assert result["evaluation"]["n"] == 100
    assert result["evaluation"]["mean"] >= target
