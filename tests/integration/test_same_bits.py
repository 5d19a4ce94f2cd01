"""One seed, the same bits: whatever the process, the rounds in a job and the runner's workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Bits, Commands

TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


def test_a_second_run_has_the_same_bits(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    done = commands.real(tmp_path / "run", "--max_rounds=5")
    assert (done.returncode, done.stderr) == (0, "")
    bits.require_same(tmp_path / "run", five_rounds)


def test_another_seed_has_other_bits(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    commands.run(tmp_path / "run", "--max_rounds=1", "--seed=4")
    assert bits.weights(tmp_path / "run")[0] != bits.weights(five_rounds)[0]
    assert bits.weights(tmp_path / "run")[1] != bits.weights(five_rounds)[1]


@pytest.mark.parametrize("rounds", [3, 10])
def test_the_rounds_in_a_job_change_nothing(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path, rounds: int
) -> None:
    # Five rounds: the run stops inside its second job of three, and inside its first of ten.
    commands.run(tmp_path / "run", "--max_rounds=5", f"--rounds_per_job={rounds}")
    assert sorted(bits.manifests(tmp_path / "run")) == list(range(6))
    bits.require_same(tmp_path / "run", five_rounds)


def test_a_limit_of_steps_stops_inside_a_job(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    # A round has at most 64 steps, so this is met in the third.
    commands.run(tmp_path / "run", "--max_env_steps=130", "--rounds_per_job=4")
    found = bits.manifests(tmp_path / "run")
    assert found == {v: h for v, h in bits.manifests(five_rounds).items() if v <= 3}


def test_a_return_target_stops_inside_a_job(
    commands: Commands, bits: type[Bits], five_rounds: Path, tmp_path: Path
) -> None:
    flags = ("--stop_return=5", "--set=confirmation_episodes=3", "--rounds_per_job=3")
    commands.run(tmp_path / "run", *flags)
    found = bits.weights(tmp_path / "run")
    assert found == {v: h for v, h in bits.weights(five_rounds).items() if v <= 1}


def test_worker_processes_change_nothing(
    commands: Commands, bits: type[Bits], tmp_path: Path
) -> None:
    flags = ("--num_rollout_workers=2", "--max_rounds=2")
    spread = commands.start(tmp_path / "spread", *flags, "--rounds_per_job=2", *TWO_PROCESSES)
    commands.run(tmp_path / "one", *flags)
    assert spread.wait() == 0, spread.output
    bits.require_same(tmp_path / "spread", tmp_path / "one")


def test_a_network_with_memory_and_a_filter_goes_on_to_the_same_bits(
    commands: Commands, bits: type[Bits], tmp_path: Path
) -> None:
    flags = (
        "--env=policies.testing:StatelessCartPole",
        "--num_rollout_workers=2",
        "--set=model.use_lstm=true",
        "--set=model.lstm_size=8",
        "--set=observation_filter=mean_std",
    )
    commands.run(tmp_path / "whole", *flags, "--max_rounds=4", "--rounds_per_job=4")
    commands.run(tmp_path / "parts", *flags, "--max_rounds=2")
    commands.run(tmp_path / "parts", *flags, "--max_rounds=4", "--resume")
    bits.require_same(tmp_path / "parts", tmp_path / "whole")
