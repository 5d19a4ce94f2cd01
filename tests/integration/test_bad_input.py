"""Mistakes and failing environments: an exit code, one line that names the thing, nothing lost."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.training_command import main
from policies.run_directory import RunDirectory
from policies.training_run import forget_live_objects

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

TINY = (
    "--seed=3",
    "--num_envs_per_worker=4",
    "--rollout_fragment_length=16",
    "--set=num_epochs=1",
    "--evaluation_interval=0",
    "--quiet",
)

USERS_MODULE = '''
import sys
import time

import gymnasium as gym
import numpy as np


class Trouble(gym.Env):
    """Ends episodes after 5 steps; from its step `after` on it does what `how` says."""

    def __init__(self, how="nothing", after=30):
        self.observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.how, self.left, self.t = how, after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t, self.left = self.t + 1, self.left - 1
        obs, reward = np.full(2, self.t, np.float32), 1.0
        if self.left < 0:
            if self.how == "raise":
                raise RuntimeError("no [brackets]\\nand a second line")
            if self.how == "hang":
                time.sleep(60)
            if self.how == "exit":
                sys.exit(3)
            if self.how == "nan reward":
                reward = float("nan")
            if self.how == "nan obs":
                obs[1] = np.nan
            if self.how == "print":
                print("a word from the environment")
        return obs, reward, self.t == 5, False, {}


class Texts(gym.Env):
    observation_space = gym.spaces.Text(5)
    action_space = gym.spaces.Discrete(2)


class NestedTexts(Texts):
    observation_space = gym.spaces.Dict(a=gym.spaces.Tuple([gym.spaces.Text(5)]))
'''


@pytest.fixture(autouse=True)
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with modules, which is the current one."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "users_envs.py").write_text(USERS_MODULE)
    (folder / "broken_module.py").write_text("raise ValueError('not\\ntoday')\n")
    (folder / "notes.yaml").write_text("just text\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")  # As with `python -m`.
    yield folder
    for name in ("users_envs", "broken_module"):
        sys.modules.pop(name, None)
    forget_live_objects()


def line_of(capfd: pytest.CaptureFixture[str], words: list[str], code: int) -> str:
    """What the command said on its way to this exit code: one line."""
    capfd.readouterr()
    assert main([*TINY, *words]) == code
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1, captured
    assert "Traceback" not in captured.err
    assert captured.err.startswith("error: " if code == 2 else "failed: ")
    return captured.err


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["--env=CartPole-v2"], r"'CartPole-v2'; did you mean CartPole-v1 or "),
        (["--env=cartpol-v1"], r"did you mean CartPole-v1"),
        (["--env=users_envs:Troubl"], r"users_envs has no .*'Troubl'; did you mean Trouble"),
        (["--env=no_such_module:Env"], r"No module named 'no_such_module'"),
        (["--env=broken_module:Env"], r"ValueError: not today \(.*broken_module.py:1\)"),
        (["--env=users_envs:Texts"], r"observation.* Text spaces are not supported"),
        (["--env=users_envs:NestedTexts"], r"observation.*a.*0.*Text"),
        (["--env=users_envs:Trouble", '--env_config={"hwo": 1}'], r"'hwo'.*env_config has hwo"),
        (["--max_round=3"], r"--max_round; did you mean --max_rounds"),
        (["--num_sgd_iter=3"], r"RLlib's name; write --set num_epochs=3"),
        (["--set=model.hiden=[1]"], r"model.hiden; did you mean model.hidden"),
        (["--set=callbacks=x"], r'callbacks="x": RLlib\'s setting, not accepted here'),
        (["--set=gamma=2"], r"gamma: got 2, expected a number of at least 0 and at most 1"),
        (["--set=gamma=high"], r'gamma: got "high", expected a number'),
        (["--set=batch_mode=all"], r"batch_mode: got \"all\".*complete_episodes"),
        (["--max_rounds=three"], r'max_rounds: got "three", expected an integer'),
        (["--max_rounds=2.5"], r"max_rounds: got 2.5, expected an integer"),
        (["--max_rounds=0"], r"max_rounds: got 0, expected an integer of at least 1"),
        (["--stop_return=nan"], r"stop_return: nan is not a finite number"),
        (["--train_batch_size=0"], r"train_batch_size: got 0, expected an integer"),
        (["--max_rounds=1", "--set=max_rounds=2"], r"max_rounds is given twice"),
        (["--config=missing.yaml"], r"missing.yaml: .*No such file"),
        (["--config=notes.yaml"], r"notes.yaml: expected a mapping"),
        (["--config=."], r"cannot read the config file \.: .*directory"),
        (["--algo=pp"], r"'pp'; did you mean 'ppo'"),
        (["--learner_device=gpu"], r"learner_device: got 'gpu', expected cpu, cuda or cuda:N"),
        (["--set=model.custom_network=nowhere:Net"], r"custom_network.*nowhere"),
        (["--run_dir="], r"path of a run is empty"),
        (["--run_dir=users_envs.py"], r"users_envs.py.*Not a directory"),
        (["--run_dir=/proc/run"], r"/proc/run.*can be written"),
        (["--run_dir=ftpx://a/b"], r"ftpx.*gs:// or s3://"),
        (["--run_dir=."], r"user is not empty and holds no run .*choose another folder"),
    ],
)
def test_a_mistake_ends_with_code_2_and_a_line_that_names_it(
    words: list[str], pattern: str, capfd: pytest.CaptureFixture[str], users_folder: Path
) -> None:
    before = sorted(users_folder.iterdir())
    line = line_of(capfd, [*words, "--max_seconds=1"], 2)
    assert re.search(pattern, line), line
    left = {path for path in users_folder.iterdir() if path.name not in ("runs", "__pycache__")}
    assert left == set(before) and not list(users_folder.glob("runs/*"))


@pytest.mark.parametrize(
    ("how", "pattern"),
    [
        ("nan reward", r"'users_envs:Trouble' \(env \d\).*rewards is .*nan.* at step \d"),
        ("nan obs", r"'users_envs:Trouble' \(env \d\).*obs is not finite"),
    ],
)
def test_numbers_that_are_none_end_the_run_and_the_last_version_stays(
    how: str, pattern: str, capfd: pytest.CaptureFixture[str], users_folder: Path
) -> None:
    config = json.dumps({"how": how, "after": 120})
    words = ["--env=users_envs:Trouble", f"--env_config={config}", "--run_dir=run"]
    # The steps at the start that check the environment do not count: it is another instance.
    line = line_of(capfd, [*words, "--max_rounds=50"], 1)
    assert re.search(pattern, line), line
    kept = re.search(
        r"\(version (\d+) is kept: go on with --run_dir=\S+ --resume --allow_import=users_envs\)",
        line,
    )
    newest = RunDirectory("run").newest_version()
    assert kept and newest and int(kept[1]) == newest.version == 7
    assert not (users_folder / "run" / "run.lock").exists()
    assert main([*TINY, *words, "--resume", f"--max_rounds={newest.version}"]) == 0


def test_a_loss_that_is_not_finite_ends_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    line = line_of(capfd, ["--set=lr=1e30", "--run_dir=run", "--max_rounds=9"], 1)
    assert "not finite" in line and "loss" in line and "is kept" in line


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_an_environment_that_keeps_failing_ends_the_run_with_its_first_error(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = json.dumps({"how": how, "after": 2})
    words = ["--env=users_envs:Trouble", f"--env_config={config}", "--run_dir=run"]
    line = line_of(capfd, [*words, "--max_rounds=5"], 1)
    expected = "no [brackets] and a second line" if how == "raise" else "SystemExit: 3"
    assert "failed 4 times" in line and expected in line and "users_envs.py:" in line


def test_an_environment_that_fails_now_and_then_is_counted_and_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = json.dumps({"how": "raise", "after": 110})
    words = [*TINY[:-1], "--env=users_envs:Trouble", f"--env_config={config}", "--run_dir=run"]
    assert main([*words, "--max_rounds=8"]) == 0
    shown = capfd.readouterr().err
    assert shown.count("environment restarted: ") == 1 and "no [brackets]" in shown
    assert "env restarts" in shown
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("env_restarts", 0) for row in rows) == 4


def test_an_environment_that_hangs_in_a_process_of_its_own_is_replaced_and_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = json.dumps({"how": "hang", "after": 110})
    words = ["--env=users_envs:Trouble", f"--env_config={config}", "--run_dir=run"]
    words += ["--env_isolation=process", "--set=env_timeout_s=1", "--num_envs_per_worker=1"]
    words += ["--rollout_fragment_length=30", "--evaluation_interval=0", "--max_rounds=4"]
    assert main(words) == 0
    shown = capfd.readouterr().err
    assert "restarted: env 0: step took longer than 1 s; its process was killed" in shown
    assert re.search(r"env restarts +1\n", shown) and "Traceback" not in shown


def test_an_environment_that_hangs_in_this_process_ends_it_with_its_stack(
    commands: Commands, tmp_path: Path
) -> None:
    words = ("--env=policies.testing:HangingEnv", "--set=env_timeout_s=0.5", "--max_rounds=6")
    for where, config in (("step", {"after": 70, "length": 999}), ("reset", {"where": "reset"})):
        flags = (*words, f"--env_config={json.dumps(config)}", "--evaluation_interval=0")
        said = commands.run(tmp_path / where, *flags, code=1)
        assert "HangingEnv' (env 0) has been in one step or reset for more than 0.5 s" in said
        assert f'"{where}"' in said and "time.sleep" in said and "env_timeout_s" in said


def test_what_an_environment_prints_stays_out_of_the_way(
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = json.dumps({"how": "print", "after": 90})
    words = ["--env=users_envs:Trouble", f"--env_config={config}", "--run_dir=run"]
    assert main([*TINY, *words, "--max_rounds=6"]) == 0
    captured = capfd.readouterr()
    assert set(captured.out.splitlines()) == {"a word from the environment"}
    assert captured.err == ""


# --- run directories ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CartPole run of two rounds."""
    run_dir = tmp_path_factory.mktemp("two_rounds") / "run"
    assert main([*TINY, f"--run_dir={run_dir}", "--max_rounds=2"]) == 0
    return run_dir


@pytest.fixture
def copy(two_rounds: Path, tmp_path: Path) -> Path:
    """A copy of `two_rounds` to be damaged; nothing of it is in memory."""
    forget_live_objects()
    return Path(shutil.copytree(two_rounds, tmp_path / "copy"))


def test_a_used_folder_without_resume_is_refused(
    two_rounds: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = line_of(capfd, [f"--run_dir={two_rounds}"], 2)
    assert "holds a run already" in line and "--resume" in line


def test_a_resume_with_other_settings_lists_them(
    two_rounds: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = line_of(capfd, [f"--run_dir={two_rounds}", "--resume", "--set=gamma=0.1"], 2)
    assert re.search(r"gamma: [\d.]+ -> 0.1", line) and "max_rounds" in line


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
@pytest.mark.parametrize("stem", ["weights", "optimizer", "rollout"])
def test_a_damaged_file_is_named_with_the_newest_good_version(
    copy: Path, stem: str, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (file,) = copy.glob(f"versions/00000002/{stem}-*")
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    else:
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    words = [f"--run_dir={copy}", "--resume", "--max_rounds=3"]
    line = line_of(capfd, words, 1)
    assert file.name in line and "newest good version is 1" in line
    assert "version 2 is kept" not in line
    shutil.rmtree(copy / "versions" / "00000002")
    assert main([*TINY, *words]) == 0  # From version 1, as the line says.


def test_a_damaged_config_is_named(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [f"--run_dir={copy}", "--resume"]
    config = json.loads((copy / "config.json").read_text())
    for content, part in (
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        (json.dumps(config | {"schema_version": 99}), "schema_version 99"),
        (json.dumps({"schema_version": 1}), "damaged"),
    ):
        (copy / "config.json").write_text(content)
        line = line_of(capfd, words, 1)
        assert "config.json" in line and part in line
    (copy / "config.json").unlink()
    assert "holds no run" in line_of(capfd, words, 2)


def test_a_manifest_of_an_unknown_schema_is_named(
    copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = copy / "versions" / "00000002" / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"schema_version": 99}))
    line = line_of(capfd, [f"--run_dir={copy}", "--resume", "--max_rounds=3"], 1)
    assert str(path) in line and "newest good version is 1" in line


@pytest.mark.parametrize("setting", ["env", "model.custom_network"])
def test_code_that_a_run_names_is_not_imported_unless_allowed(
    copy: Path, setting: str, capfd: pytest.CaptureFixture[str], users_folder: Path
) -> None:
    (users_folder / "evil.py").write_text("open('imported', 'w').close()\n")
    stored = json.loads((copy / "config.json").read_text())
    if setting == "env":
        stored["config"]["env"] = "evil:Env"
    else:
        stored["config"]["model"]["custom_network"] = "evil:Net"
    (copy / "config.json").write_text(json.dumps(stored))
    words = [f"--run_dir={copy}", "--resume", "--max_rounds=3"]
    line = line_of(capfd, words, 2)
    assert f"{setting}=evil:" in line and "--allow_import=evil" in line
    assert main([*TINY, *words, "--print_config"]) == 0
    assert not (users_folder / "imported").exists()
    capfd.readouterr()
    assert main([*TINY, *words, "--allow_import=evil"]) in (1, 2)
    assert (users_folder / "imported").exists()
    sys.modules.pop("evil", None)
