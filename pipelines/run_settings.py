"""What a caller's settings become before anything runs: names, a checked config, refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipelines.runners import runner_named
from policies import caller_envs
from policies.config import AlgorithmConfig
from policies.config_loading import load_config
from policies.errors import ConfigError
from policies.learners.learner import learner_named
from policies.run_directory import CONFIG, VERSIONS, RunDirectory
from policies.stored_run import create_run
from policies.training_run import TrainingRun

DEFAULT_ALGO = "ppo"


def require_device(config: AlgorithmConfig, runner: str) -> None:
    """Checks that the learner's device is there, if the learner is to run on this machine.

    Raises:
        ConfigError: It is not.
    """
    device = config.learner_device
    if device == "cpu" or not runner_named(runner).in_process:
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= count:
        raise ConfigError(
            f"learner_device={device}: this machine has {count or 'no'} usable CUDA devices; "
            "use learner_device=cpu"
        )


def new_run(
    directory: RunDirectory,
    config: AlgorithmConfig,
    algo: str,
    runner: str,
    notify: Callable[[str], None],
) -> TrainingRun:
    """Starts a run where nothing is in its way.

    Raises:
        ConfigError: The settings, the environment, the device or the folder are wrong.
    """
    require_device(config, runner)
    refuse_used_folder(directory)
    return create_run(directory, config, algo, notify)


def refuse_used_folder(directory: RunDirectory) -> None:
    """Checks that a new run would not mix with what a folder holds.

    Raises:
        ConfigError: It would.
    """
    if directory.exists():
        raise ConfigError(
            f"{directory.url} holds a run already: resume it (--resume, in Python resume=True), "
            "or choose another folder"
        )
    others = [name for name in directory.store.names("") if not name.startswith(".")]
    # A driver that was killed before it had written config.json leaves just this.
    if others and (others != [VERSIONS] or directory.version_numbers()):
        raise ConfigError(
            f"{directory.url} is not empty and holds no run (no {CONFIG}, but {others[0]}); "
            "choose another folder"
        )


def with_env_name(
    config: AlgorithmConfig | Mapping[str, Any] | None, in_memory: bool
) -> AlgorithmConfig | Mapping[str, Any] | None:
    """The settings with a name in the place of an environment's class.

    Raises:
        ConfigError: It is no class, or the runner's processes could not find it.
    """
    if isinstance(config, Mapping) and "env" in config:
        config = {**config, "env": caller_envs.name_of(config["env"])}
    env = str(given_settings(config).get("env"))
    if env.startswith(f"{caller_envs.NAMESPACE}/") and not in_memory:
        raise ConfigError(
            f"env={env} is known to this process only; with workers in other processes, give a "
            "class or function at the top of a module that they can import"
        )
    return config


def checked(config: AlgorithmConfig | Mapping[str, Any] | None, algo: str) -> AlgorithmConfig:
    """The config of a new run.

    Raises:
        ConfigError: The algorithm, a key or a value is wrong.
    """
    config_class = learner_named(algo).CONFIG
    if isinstance(config, AlgorithmConfig):
        if not isinstance(config, config_class):
            raise ConfigError(f"algo={algo} takes a {config_class.__name__}, got {type(config)}")
        return config
    return load_config(config_class, flags=config or {})


def given_settings(config: AlgorithmConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """Only the settings that the caller gave."""
    if isinstance(config, AlgorithmConfig):
        return config.model_dump(mode="json", exclude_unset=True)
    return dict(config or {})


def learner_hints(config: AlgorithmConfig) -> dict[str, str]:
    """Beam resource hints of the learner stage: one learner call at a time, and a GPU if wanted."""
    hints = {"max_active_bundles_per_worker": "1"}
    if config.learner_device != "cpu":
        hints["accelerator"] = "type:nvidia-l4;count:1;install-nvidia-driver"
    return hints
