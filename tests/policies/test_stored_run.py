"""`config.json`: what it holds, and what of a stranger's is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from policies.errors import ConfigError, RunError
from policies.file_store import FileStore
from policies.learners.ppo import PPOConfig
from policies.run_directory import RunDirectory
from policies.stored_run import (
    copy_version,
    imported_names,
    read_stored_run,
    refuse_changes,
    require_allowed,
    stored_run,
)

OBS = Dict({"x": Box(-np.inf, 1.5, (2,), np.float32), "k": Discrete(3, start=1)})
ACTIONS = Discrete(2)
CONFIG = PPOConfig(seed=7, lr=0.001, model={"hidden": [8]}, env_config={"a": [1, {"b": None}]})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    stored = stored_run("ppo", CONFIG, OBS, ACTIONS, "kept")
    return RunDirectory.create(tmp_path / "run", stored)


def test_a_run_is_read_as_it_was_stored(run: RunDirectory) -> None:
    stored = read_stored_run(run)
    assert stored.config() == CONFIG
    assert (stored.algo, stored.env_state) == ("ppo", "kept")
    assert (stored.observation_space, stored.action_space) == (OBS, ACTIONS)
    packages = run.config()["packages"]
    assert packages["numpy"] == np.__version__


def _edit(run: RunDirectory, **changes: Any) -> None:
    run.replace_config({k: v for k, v in (run.config() | changes).items() if v != "absent"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "schema_version 2, this program reads 1"),
        ({"schema_version": "absent"}, "schema_version None"),
        ({"env_state": "elsewhere"}, "is damaged: ValueError"),
        ({"env_state": "absent"}, "is damaged: KeyError"),
        ({"config": [1]}, "is damaged: ValueError"),
        ({"spaces": {"observation": {"type": "Secret"}, "action": {}}}, "is damaged"),
        ({"spaces": {"observation": {}}}, "is damaged"),
        ({"spaces": None}, "is damaged: TypeError"),
    ],
)
def test_a_damaged_config_names_its_file(
    run: RunDirectory, changes: dict[str, Any], message: str
) -> None:
    _edit(run, **changes)
    with pytest.raises(RunError) as caught:
        read_stored_run(run)
    assert str(caught.value).startswith(f"{run.url}/config.json ")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_config_that_is_not_json_names_its_file(run: RunDirectory) -> None:
    run.store.replace("config.json", b'{"algo": "ppo", ')
    with pytest.raises(RunError, match=r"config\.json is not JSON"):
        read_stored_run(run)


def test_settings_of_another_program_are_named(run: RunDirectory) -> None:
    _edit(run, config=run.config()["config"] | {"lrr": 1})
    with pytest.raises(ConfigError, match="lrr"):
        read_stored_run(run).config()


def test_an_unknown_algorithm_is_named(run: RunDirectory) -> None:
    _edit(run, algo="os.system")
    with pytest.raises(ConfigError, match="unknown algorithm 'os.system'"):
        read_stored_run(run).config()


# --- code from data -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"env": "CartPole-v1"}, {}),
        ({"env": "package.module:Env"}, {"env": "package.module:Env"}),
        ({"env": "package.module.Env"}, {"env": "package.module.Env"}),
        ({"model": {"custom_network": "m:Net"}}, {"model.custom_network": "m:Net"}),
        ({"model": {"custom_network": None}}, {}),
        ({"env": 3, "model": 4}, {}),
    ],
)
def test_names_of_code_are_found(settings: dict[str, Any], names: dict[str, str]) -> None:
    assert imported_names(settings) == names


@pytest.mark.parametrize("allowed", [["evil.envs"], ["evil"], ["other", "evil.envs"]])
def test_allowed_modules_and_packages_may_be_imported(allowed: list[str]) -> None:
    require_allowed({"env": "evil.envs:Env"}, {}, allowed, "/run")


@pytest.mark.parametrize("allowed", [[], ["evi"], ["evil.env"], ["evil.envs.deeper"]])
def test_other_modules_may_not(allowed: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        require_allowed({"env": "evil.envs:Env"}, {}, allowed, "/run")
    assert "env=evil.envs:Env" in str(caught.value)
    assert "--allow_import=evil.envs" in str(caught.value)


def test_a_name_that_the_caller_gives_needs_no_permission() -> None:
    stored = {"env": "mine:Env", "model": {"custom_network": "net:Net"}}
    require_allowed(stored, stored, [], "/run")
    with pytest.raises(ConfigError, match="model.custom_network=net:Net"):
        require_allowed(stored, {"env": "mine:Env"}, [], "/run")


# --- resuming and copying -----------------------------------------------------------------------


def test_a_resume_may_change_limits_and_the_rounds_of_a_job() -> None:
    changed = {"max_rounds": 9, "stop_return": 5.0, "max_env_steps": 10, "max_seconds": 3.0}
    changed |= {"rounds_per_job": 4, "keep_versions": 3, "learner_device": "cuda"}
    refuse_changes(CONFIG, CONFIG.model_copy(update=changed), "/run")


def test_a_resume_that_changes_more_lists_it_all() -> None:
    model = CONFIG.model.model_copy(update={"hidden": [16]})
    changed = CONFIG.model_copy(update={"gamma": 0.5, "max_rounds": 9, "model": model})
    with pytest.raises(ConfigError) as caught:
        refuse_changes(CONFIG, changed, "/run")
    message = str(caught.value)
    assert "gamma: 0.99 -> 0.5" in message and "model.hidden: [8] -> [16]" in message
    assert "max_rounds:" not in message
    assert "max_rounds" in message.partition("only")[2]


def test_a_copied_version_is_a_run_of_its_own(run: RunDirectory, tmp_path: Path) -> None:
    for version in range(2):
        weights = run.write_arrays(version, "weights", {"a": np.full(3, version, np.float32)})
        run.publish(version, {"files": [weights]})
    info = run.read_version(1)
    copy = copy_version(run, info, str(tmp_path / "copy"))
    found = copy.newest_version()
    assert found is not None and found.sha256 == info.sha256
    assert copy.read_arrays(1, found.file("weights"))["a"].tolist() == [1.0, 1.0, 1.0]
    assert json.loads((tmp_path / "copy/config.json").read_bytes()) == run.config()
    with pytest.raises(ConfigError, match="holds a run already"):
        copy_version(run, info, str(tmp_path / "copy"))


def test_a_damaged_version_is_not_copied(run: RunDirectory, tmp_path: Path) -> None:
    weights = run.write_arrays(0, "weights", {"a": np.zeros(3, np.float32)})
    run.publish(0, {"files": [weights]})
    (tmp_path / "run/versions/00000000" / weights.name).write_bytes(b"")
    with pytest.raises(RunError, match=weights.name):
        copy_version(run, run.read_version(0), str(tmp_path / "copy"))
    assert RunDirectory(tmp_path / "copy").newest_version() is None


def test_a_copy_that_was_cut_short_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RunDirectory.create(f"{tmp_path}/run", {"algo": "ppo"})
    record = source.write_arrays(0, "weights", {"w": np.ones(3, np.float32)})
    source.publish(0, {"files": [record]})
    info = source.read_version(0)
    create = FileStore.create

    def killed(self: FileStore, name: str, *args: Any, **options: Any) -> bool:
        if name.endswith("manifest.json"):
            raise KeyboardInterrupt
        return create(self, name, *args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FileStore, "create", killed)
        copy_version(source, info, f"{tmp_path}/copy")
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory.open(f"{tmp_path}/copy")
    copied = copy_version(source, info, f"{tmp_path}/copy")
    assert copied.read_version(0).sha256 == info.sha256
    with pytest.raises(ConfigError, match="holds a run already"):
        copy_version(source, info, f"{tmp_path}/copy")
