"""`config.json` of a run: what it is, and what of it may be believed.

A run directory may come from a stranger. Its settings are data, but a name of code to import takes
effect only when the command line or the caller allows its module.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from policies.config import RESUMABLE_KEYS, AlgorithmConfig, config_dict, diff
from policies.config_loading import load_config
from policies.env_setup import check_env
from policies.errors import ConfigError, RunError
from policies.learners.learner import learner_named, policy_for
from policies.manifest import canonical_json
from policies.run_directory import CONFIG, MANIFEST, VERSIONS, RunDirectory, VersionInfo
from policies.spaces import space_from_json, space_to_json
from policies.training_run import TrainingRun
from policies.version_files import read_verified

SCHEMA_VERSION = 1
_PACKAGES = ("apache-beam", "torch", "gymnasium", "pyarrow", "numpy")
_ENV_STATES = ("kept", "reset")


@dataclass(frozen=True)
class StoredRun:
    """What `config.json` says.

    Attributes:
        algo: Name of the learner.
        settings: The resolved settings, unchecked.
        observation_space: Of one environment.
        action_space: Of one environment.
        env_state: `kept` or `reset`; see `TrainingRun`.
    """

    algo: str
    settings: dict[str, Any]
    observation_space: gym.Space
    action_space: gym.Space
    env_state: str

    def config(self) -> AlgorithmConfig:
        """The settings, checked.

        Raises:
            ConfigError: They do not fit this program's learner.
        """
        return load_config(learner_named(self.algo).CONFIG, flags=self.settings)


def stored_run(
    algo: str,
    config: AlgorithmConfig,
    observation_space: gym.Space,
    action_space: gym.Space,
    env_state: str,
) -> dict[str, Any]:
    """The object that `config.json` holds."""
    return {
        "schema_version": SCHEMA_VERSION,
        "algo": algo,
        "config": config_dict(config),
        "spaces": {
            "observation": space_to_json(observation_space),
            "action": space_to_json(action_space),
        },
        "env_state": env_state,
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def create_run(
    directory: RunDirectory, config: AlgorithmConfig, algo: str, notify: Callable[[str], None]
) -> TrainingRun:
    """Starts a run: looks at its environment and writes its `config.json`.

    Args:
        directory: Where.
        config: Its settings.
        algo: Name of the learner.
        notify: Gets what there is to know about the environment, a line each.

    Raises:
        ConfigError: The settings or the environment are wrong, or there is a run already.
    """
    facts = check_env(config)
    spaces = facts.observation_space, facts.action_space
    for line in facts.warnings:
        notify(line)
    policy_for(config, *spaces)
    RunDirectory.create(directory.url, stored_run(algo, config, *spaces, facts.env_state))
    return TrainingRun.of(directory.url, algo, config, *spaces, facts.env_state)


def open_run(
    directory: RunDirectory, given: Mapping[str, Any], allowed: Collection[str]
) -> tuple[AlgorithmConfig, TrainingRun]:
    """The run that a directory holds.

    Args:
        directory: Of the run.
        given: Settings from the command line or the caller.
        allowed: Modules from `--allow_import`.

    Returns:
        Its settings with the given ones on top, and the run with these.

    Raises:
        ConfigError: The given settings change more than a resume may, or code is not allowed.
        RunError: The run's `config.json` is damaged.
    """
    stored = read_stored_run(directory)
    require_allowed(stored.settings, given, allowed, directory.url)
    before = stored.config()
    after = load_config(type(before), base=config_dict(before), flags=given)
    refuse_changes(before, after, directory.url)
    spaces = stored.observation_space, stored.action_space
    return after, TrainingRun.of(directory.url, stored.algo, after, *spaces, stored.env_state)


def read_stored_run(directory: RunDirectory) -> StoredRun:
    """Reads and checks `config.json`.

    Raises:
        RunError: It is damaged, or of another program's version.
    """
    value = directory.config()
    url = f"{directory.url}/{CONFIG}"
    if value.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            f"{url} has schema_version {value.get('schema_version')!r}, this program reads "
            f"{SCHEMA_VERSION}"
        )
    try:
        if not isinstance(value["config"], dict) or value["env_state"] not in _ENV_STATES:
            raise ValueError("config or env_state is malformed")
        return StoredRun(
            algo=str(value["algo"]),
            settings=value["config"],
            observation_space=space_from_json(value["spaces"]["observation"]),
            action_space=space_from_json(value["spaces"]["action"]),
            env_state=value["env_state"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{url} is damaged: {type(error).__name__}: {error}") from error


def copy_version(source: RunDirectory, info: VersionInfo, url: str) -> RunDirectory:
    """Makes a run directory of its own from one version.

    Raises:
        ConfigError: `url` holds a run already.
        RunError: A file is missing or damaged.
    """
    target = RunDirectory(url)
    if target.exists():
        raise ConfigError(f"{target.url} holds a run already: choose another folder")
    folder = f"{VERSIONS}/{info.version:08d}"
    names = [f"{folder}/{record.name}" for record in info.files]
    for name, record in zip(names, info.files, strict=True):
        target.store.replace(name, read_verified(info.path, record))
    target.store.create(f"{folder}/{MANIFEST}", canonical_json(info.manifest), after=names)
    # Last: a folder without it is no run, so a copy that was cut short is never taken for one.
    return RunDirectory.create(url, source.config())


def imported_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings that name code to import: setting to name."""
    names = {}
    env = settings.get("env")
    if isinstance(env, str) and (":" in env or ("." in env and env not in gym.registry)):
        names["env"] = env
    model = settings.get("model")
    network = model.get("custom_network") if isinstance(model, Mapping) else None
    if network is not None:
        names["model.custom_network"] = str(network)
    return names


def require_allowed(
    stored: Mapping[str, Any], given: Mapping[str, Any], allowed: Collection[str], url: str
) -> None:
    """Refuses stored names of code unless they are allowed, or given anew by the caller.

    Args:
        stored: The run's settings.
        given: Settings from the command line or the caller.
        allowed: Modules from `--allow_import`; a package allows its modules.
        url: The run, for the message.

    Raises:
        ConfigError: A name is not allowed.
    """
    ours = imported_names(given)
    for setting, name in imported_names(stored).items():
        module = _module_of(name)
        is_allowed = any(module == m or module.startswith(f"{m}.") for m in allowed)
        if ours.get(setting) != name and not is_allowed:
            raise ConfigError(
                f"{url} names code to import, {setting}={name}; "
                f"if you trust it, pass --allow_import={module} "
                f'(in Python: allow_import=["{module}"])'
            )


def imported_modules(settings: Mapping[str, Any]) -> list[str]:
    """Modules that a resume has to allow, sorted."""
    return sorted({_module_of(name) for name in imported_names(settings).values()})


def _module_of(name: str) -> str:
    return name.partition(":")[0] if ":" in name else name.rpartition(".")[0]


def refuse_changes(stored: AlgorithmConfig, new: AlgorithmConfig, url: str) -> None:
    """Refuses a resume that changes more than stop conditions, device and rounds per job.

    Raises:
        ConfigError: Lists the differences.
    """
    lines = diff(stored, new, exclude=RESUMABLE_KEYS)
    if lines:
        raise ConfigError(
            f"{url} cannot go on with other settings ({'; '.join(lines)}); only "
            f"{', '.join(sorted(RESUMABLE_KEYS))} may change: start a new run directory instead"
        )
