"""`pipelines.train` from its command line to what it prints and leaves, in this process."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.training_command import main, run, with_default_stops
from policies.config_yaml import parse_yaml
from policies.learners.ppo import PPOConfig
from policies.run_directory import RunDirectory

TINY = (
    "--seed=3",
    "--num_envs_per_worker=4",
    "--rollout_fragment_length=16",
    "--set=num_epochs=1",
    "--evaluation_episodes=2",
)
IDENTITY = ("--env=policies.testing:IdentityEnv", "--set=confirmation_episodes=3")


def result_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_bytes())


def printed_config(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--print_config"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return parse_yaml(captured.out, "stdout")


# --- settings -----------------------------------------------------------------------------------


def test_flags_set_file_and_defaults_come_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("lr: 1e-4\nseed: 1\nmodel: {hidden: [16]}\nenv_config: {a: 1}\n")
    words = ("--env=CartPole-v1", f"--config={file}", "--set=gamma=0.5", "--seed=2")
    config = printed_config(capsys, *words, '--env_config={"b": 2}')
    assert (config["lr"], config["seed"], config["gamma"]) == (1e-4, 2, 0.5)
    assert config["model"]["hidden"] == [16] and config["env_config"] == {"a": 1, "b": 2}
    assert config["minibatch_size"] == PPOConfig().minibatch_size


def test_the_printed_settings_can_be_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--set=model.use_lstm=true", "--set=lr=[[0,1e-3],[1e5,0]]", "--max_env_steps=none")
    assert main([*words, "--print_config"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "run.yaml").write_text(text)
    assert main([f"--config={tmp_path / 'run.yaml'}", "--print_config"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("words", "stops"),
    [
        ([], {"stop_return": 475.0, "max_env_steps": 1_000_000}),
        (["--stop_return=none"], {"stop_return": None, "max_env_steps": 1_000_000}),
        (["--max_env_steps=none"], {"stop_return": 475.0, "max_env_steps": None}),
        (["--stop_return=none", "--max_env_steps=none"], {}),
        (["--max_rounds=3"], {"max_rounds": 3}),
        (["--max_seconds=3"], {"max_seconds": 3}),
        (["--stop_return=9"], {"stop_return": 9}),
        (["--max_env_steps=9"], {"max_env_steps": 9}),
        (["--evaluation_interval=0"], {"max_env_steps": 1_000_000}),
        (["--env=policies.testing:IdentityEnv"], {"max_env_steps": 1_000_000}),
        (["--env=gymnasium:Acrobot-v1"], {"stop_return": -100.0, "max_env_steps": 1_000_000}),
    ],
)
def test_without_stop_conditions_there_are_a_target_and_a_limit(
    words: list[str], stops: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = printed_config(capsys, *words)
    names = ("stop_return", "max_env_steps", "max_rounds", "max_seconds")
    assert {name: config[name] for name in names} == dict.fromkeys(names) | stops


def test_default_stops_leave_the_settings_as_they_were() -> None:
    given = {"env": "CartPole-v1"}
    added = with_default_stops(given, PPOConfig(env="CartPole-v1"))
    assert given == {"env": "CartPole-v1"} and added["max_env_steps"] == 1_000_000


def test_rllibs_names_are_translated_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set=num_sgd_iter=3", "--print_config"]) == 0
    captured = capsys.readouterr()
    assert "num_epochs: 3\n" in captured.out
    assert captured.err == "num_sgd_iter=3 is RLlib's; taken as num_epochs=3\n"


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of two rounds that reached its target, and what `run` returned."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    words = (*TINY, *IDENTITY, f"--run_dir={run_dir}", "--stop_return=0", "--quiet")
    return run_dir, run([*words, "--evaluation_interval=2"])


def test_the_result_tells_how_the_run_came_out(finished: tuple[Path, dict[str, Any]]) -> None:
    run_dir, returned = finished
    result = result_of(run_dir)
    assert result == returned
    assert result["stop_reason"] == "stop_return"
    assert (result["rounds"], result["env_steps"], result["best_version"]) == (2, 128, 2)
    assert 0 < result["first_reached"]["seconds"] < result["wall_seconds"] < 60
    assert result["first_reached"]["env_steps"] == 128
    evaluation = result["evaluation"]
    assert evaluation.keys() == {"mean", "std", "n", "lengths"}
    assert evaluation["n"] == 3 and evaluation["lengths"] == [20, 20, 20]
    assert len(result["config_sha256"]) == 64
    assert result["run_dir"] == str(run_dir)
    assert not (run_dir / "run.lock").exists() and list((run_dir / "tensorboard").iterdir())


def test_a_finished_run_ends_at_once_and_keeps_its_result(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished[0], run_dir)
    words = (f"--run_dir={run_dir}", "--resume", "--allow_import=policies.testing")
    assert main([*words]) == 0
    after = result_of(run_dir)
    assert after == finished[1] | {"run_dir": str(run_dir)}
    assert "return 0 reached" in capsys.readouterr().err
    (run_dir / "result.json").unlink()
    assert main([*words]) == 0  # The time to the target was with the result.
    assert result_of(run_dir)["first_reached"] == {"env_steps": 128, "seconds": None}


def test_a_raised_limit_adds_to_the_result(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished[0], run_dir)
    words = (f"--run_dir={run_dir}", "--resume", "--allow_import=policies.testing", "--quiet")
    assert main([*words, "--stop_return=none", "--max_rounds=3"]) == 0
    after = result_of(run_dir)
    assert (after["rounds"], after["stop_reason"]) == (3, "max_rounds")
    assert after["wall_seconds"] > finished[1]["wall_seconds"]
    assert after["evaluation"] == finished[1]["evaluation"]  # Round 3 had none.


def test_print_config_of_a_resumed_run_shows_the_runs_settings(
    finished: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"--run_dir={finished[0]}", "--resume", "--max_rounds=7")
    config = printed_config(capsys, *words)
    assert (config["seed"], config["max_rounds"]) == (3, 7)
    assert config["env"] == "policies.testing:IdentityEnv"
    assert main([*words, "--seed=4", "--print_config"]) == 2
    assert "seed: 3 -> 4" in capsys.readouterr().err


def test_progress_is_lines_and_the_summary_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "a run"
    assert main([*TINY, *IDENTITY, f"--run_dir={run_dir}/", "--max_rounds=1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "PPO on policies.testing:IdentityEnv" in captured.err
    assert "0 episodes finished" in captured.err  # Its episodes have 20 steps, the round 16.
    assert f"--run_dir='{run_dir}' --resume" in captured.err
    assert "\x1b" not in captured.err


def test_quiet_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, f"--run_dir={tmp_path / 'run'}", "--max_rounds=1", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["with space", "ünï-文", "trailing/", "memory"])
def test_run_directories_of_any_name(name: str, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run" if name == "memory" else f"{tmp_path}/{name}"
    words = [*TINY, *IDENTITY, f"--run_dir={url}", "--evaluation_interval=0", "--quiet"]
    assert main([*words, "--max_rounds=1"]) == 0
    newest = RunDirectory(url).newest_version()
    assert newest is not None and newest.version == 1
    assert main([*words, "--max_rounds=2", "--resume"]) == 0


def test_without_a_run_dir_each_run_gets_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, *IDENTITY, "--evaluation_interval=0", "--max_rounds=1", "--quiet"]
    assert main([*words, "--print_config"]) == 0
    assert main(["--env=CartPole-v9", "--quiet"]) == 2
    assert not list(tmp_path.glob("runs/*"))
    assert main(words) == 0 and main(words) == 0
    names = sorted(path.name for path in tmp_path.glob("runs/*"))
    assert names == ["policies.testing-IdentityEnv-1", "policies.testing-IdentityEnv-2"]
    assert main(["--resume"]) == 2
    assert "--run_dir" in capsys.readouterr().err


def test_max_seconds_stops_after_a_job(tmp_path: Path) -> None:
    started = time.monotonic()
    run_dir = tmp_path / "run"
    words = [*TINY, *IDENTITY, f"--run_dir={run_dir}", "--max_seconds=0.5", "--quiet"]
    assert main(words) == 0
    assert result_of(run_dir)["stop_reason"] == "max_seconds"
    assert 0.5 < time.monotonic() - started < 30


def test_signal_handlers_are_as_before(finished: tuple[Path, dict[str, Any]]) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    assert main([f"--run_dir={finished[0]}", "--resume", "--quiet"]) == 2
    assert main([f"--run_dir={finished[0]}", "--resume", *IDENTITY[:1], "--quiet"]) == 0
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_error_nobody_foresaw_is_a_line_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"

    def broken(*args: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("policies.learners.ppo.update", broken)
    words = [*TINY, *IDENTITY, f"--run_dir={run_dir}", "--max_rounds=1", "--quiet"]
    assert main(words) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "KeyError" in line and "surprise" in line
    assert f"traceback is in {run_dir}/error.txt" in line and "version 0 is kept" in line
    assert "in broken" in (run_dir / "error.txt").read_text()
    monkeypatch.setattr("pipelines.training_command.parse", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main([]) == 1
    line = capsys.readouterr().err
    assert line.startswith("failed: internal error: KeyError: 'surprise'; the traceback is in ")
    assert "in broken" in Path(line.split()[-1]).read_text()


def test_a_long_run_fills_several_event_files_that_read_as_one_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr("pipelines.training_command._ROUNDS_A_FILE", 2)
    run_dir = tmp_path / "run"
    words = [*TINY, *IDENTITY, f"--run_dir={run_dir}", "--evaluation_interval=0", "--quiet"]
    run([*words, "--max_rounds=5"])
    assert len(list((run_dir / "tensorboard").iterdir())) == 3
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("rollout/version")] == [1, 2, 3, 4, 5]
