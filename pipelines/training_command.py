"""What `pipelines.train` does: parse, train job after job, report, and end with the right code."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import gymnasium as gym

from pipelines.algorithm import Algorithm
from pipelines.options import CommandLine, parse, print_help
from pipelines.report.tensorboard import write_events
from pipelines.report.terminal import TrainingView, make_view
from policies.config import AlgorithmConfig, config_sha256
from policies.config_loading import config_yaml, load_config
from policies.errors import ConfigError, RunError
from policies.learners.learner import learner_named
from policies.round_results import process_started
from policies.run_directory import RESULT, VERSIONS, RunDirectory
from policies.stages import on_stage
from policies.stopping import MAX_SECONDS

DEFAULT_MAX_ENV_STEPS = 1_000_000
DEFAULT_ALGO = "ppo"
EXIT_FAILED, EXIT_WRONG, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Errors are one line on standard error."""
    try:
        run(argv)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_WRONG
    except RunError as error:
        print(f"failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def run(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains as the command line says.

    Args:
        argv: Flags; default: those of this process.

    Returns:
        What `result.json` holds (empty after `--help` and `--print_config`).

    Raises:
        ConfigError: The command line or the configuration is wrong.
        RunError: The run failed; its last good version stays.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if "--help" in words or "-h" in words:
        print_help()
        return {}
    command = parse(words)
    if not command.runner.in_process:
        logging.basicConfig(level=logging.WARNING, force=True)
    directory = RunDirectory(command.flags.run_dir or _free_folder(command))
    going_on = command.flags.resume and directory.exists()
    settings = _given_settings(command)
    if not going_on:
        settings = with_default_stops(settings, _config(command, settings))
    if command.flags.print_config:
        print(config_yaml(_resolved(directory, command, settings, going_on)), end="")
        return {}
    if not going_on:
        _refuse_used_folder(directory, command.flags.resume)
    with make_view(command.flags.quiet) as view:
        return _train(command, directory, settings, view)


def with_default_stops(settings: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, Any]:
    """Adds stop conditions where none is given: the environment's own target, and a limit."""
    stops = (config.stop_return, config.max_env_steps, config.max_rounds, config.max_seconds)
    if any(stop is not None for stop in stops):
        return dict(settings)
    spec = gym.registry.get(config.env)
    target = None if spec is None or not config.evaluation_interval else spec.reward_threshold
    added: dict[str, Any] = {"max_env_steps": DEFAULT_MAX_ENV_STEPS}
    if target is not None:
        added["stop_return"] = float(target)
    return {**settings, **added}


def _train(
    command: CommandLine, directory: RunDirectory, settings: Mapping[str, Any], view: TrainingView
) -> dict[str, Any]:
    flags = command.flags
    algorithm = Algorithm(
        settings,
        algo=(flags.algo or DEFAULT_ALGO).lower(),
        run_dir=directory.url,
        resume=flags.resume,
        runner=command.runner.name,
        pipeline_flags=command.beam_flags,
        allow_import=flags.allow_import or (),
        notify=view.notice,
    )
    with algorithm, _ending_on_signals(algorithm, view):
        started = algorithm.start().version
        stop_listening = on_stage(view.stage)
        view.start(*_opening(algorithm))
        reason = algorithm.stop_reason()
        try:
            while reason is None:
                shown = len(algorithm.results)
                algorithm.train(algorithm.config.rounds_per_job)
                for result in algorithm.results[shown:]:
                    view.round(result)
                reason = algorithm.stop_reason() or _out_of_time(algorithm.config)
        except RunError as error:
            raise _with_way_on(error, algorithm) from error
        finally:
            stop_listening()
            with contextlib.suppress(RunError):  # it must not hide what went wrong before
                write_events(directory.url, algorithm.results, from_version=started)
        algorithm.prune()
        result = _write_result(algorithm, reason)
        view.finish(result)
    return result


def _opening(
    algorithm: Algorithm,
) -> tuple[str, dict[str, str], dict[str, float | None], tuple[int, float] | None]:
    """Title, facts, limits, and the best evaluation so far, for the view."""
    config, summary = algorithm.config, algorithm.summary
    envs = f"{config.num_rollout_workers} x {config.num_envs_per_worker}"
    facts = {
        "run": algorithm.run_dir,
        "seed": str(config.seed),
        "environments": f"{envs}, {config.rollout_fragment_length} steps a round",
        "start": f"round {algorithm.newest.version}",
    }
    limits = {
        name: getattr(config, name)
        for name in ("stop_return", "max_env_steps", "max_rounds", "max_seconds")
    }
    best = None
    if summary.best_version is not None and summary.best_mean is not None:
        best = summary.best_version, summary.best_mean
    return f"{algorithm.algo.upper()} on {config.env}", facts, limits, best


def _write_result(algorithm: Algorithm, reason: str) -> dict[str, Any]:
    newest, summary = algorithm.newest, algorithm.summary
    result = {
        "stop_reason": reason,
        "env_steps": newest.manifest["env_steps"],
        "rounds": newest.version,
        "wall_seconds": time.time() - process_started(),
        "best_version": summary.best_version,
        "first_reached": summary.first_reached,
        "evaluation": _evaluation(algorithm),
        "config_sha256": config_sha256(algorithm.config),
        "run_dir": algorithm.run_dir,
    }
    previous = _previous_result(algorithm)
    reached, before = summary.first_reached, previous.get("first_reached")
    if reached and before and reached["env_steps"] == before["env_steps"]:
        # Only the command that made the round knows how long it took.
        result["first_reached"] = before
    if not algorithm.results and previous.keys() == result.keys():
        result["wall_seconds"] = previous["wall_seconds"]
    if result != previous:
        algorithm.run.directory.write_json(RESULT, result)
    return result


def _evaluation(algorithm: Algorithm) -> dict[str, Any] | None:
    """The evaluation that decided: the newest version's, or the latest one before it."""
    evaluation = algorithm.newest.manifest["evaluation"] or algorithm.summary.evaluation
    if evaluation is None:
        return None
    decided = evaluation.get("confirmation") or evaluation
    return {key: decided[key] for key in ("mean", "std", "n", "lengths") if key in decided}


def _previous_result(algorithm: Algorithm) -> dict[str, Any]:
    try:
        return algorithm.run.directory.read_json(RESULT)
    except RunError:
        return {}


def _out_of_time(config: AlgorithmConfig) -> str | None:
    limit = config.max_seconds
    return MAX_SECONDS if limit is not None and time.time() - process_started() >= limit else None


def _with_way_on(error: RunError, algorithm: Algorithm) -> RunError:
    directory = algorithm.run.directory
    try:
        newest = directory.newest_version()
    except RunError:
        return error
    if newest is None or directory.newest_good_version() != newest.version:
        return error  # It says what is damaged, and the way back.
    return RunError(
        f"{error} (version {newest.version} is kept: go on with --run_dir={directory.url} --resume)"
    )


@contextlib.contextmanager
def _ending_on_signals(algorithm: Algorithm, view: TrainingView) -> Iterator[None]:
    """Ends at once on Ctrl-C or SIGTERM: what is published stays, the rest is sampled again."""

    def end(number: int, frame: FrameType | None) -> None:
        view.close()
        algorithm.close()
        newest = algorithm.run.directory.newest_version()
        print(
            f"interrupted after round {newest.version if newest else 0}; go on with "
            f"--run_dir={algorithm.run_dir} --resume",
            file=sys.stderr,
            flush=True,
        )
        # Not an exception: it would have to find its way through the runner's threads.
        os._exit(EXIT_INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets the main thread alone handle signals.
        return
    before = {name: signal.signal(name, end) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


# --- settings -----------------------------------------------------------------------------------


def _given_settings(command: CommandLine) -> dict[str, Any]:
    """Only what the user set, from the file, `--set` and flags."""
    return _config(command, {}).model_dump(mode="json", exclude_unset=True)


def _config(command: CommandLine, settings: Mapping[str, Any]) -> AlgorithmConfig:
    config_class = learner_named((command.flags.algo or DEFAULT_ALGO).lower()).CONFIG
    if settings:
        return load_config(config_class, flags=settings)
    return load_config(
        config_class,
        file=command.flags.config,
        sets=command.flags.set or (),
        flags=command.settings(),
    )


def _resolved(
    directory: RunDirectory, command: CommandLine, settings: Mapping[str, Any], going_on: bool
) -> AlgorithmConfig:
    if going_on:
        from policies.stored_run import read_stored_run

        settings = {**read_stored_run(directory).settings, **settings}
    return _config(command, settings)


def _free_folder(command: CommandLine) -> str:
    env = (command.flags.env or "CartPole-v1").replace("/", "-").replace(":", "-")
    for number in range(1, 1_000_000):
        folder = os.path.join("runs", f"{env}-{number}")
        if not os.path.exists(folder):
            return folder
    raise ConfigError("runs/ is full; choose a folder with --run_dir")


def _refuse_used_folder(directory: RunDirectory, resume: bool) -> None:
    if directory.exists():
        raise ConfigError(
            f"{directory.url} holds a run already; add --resume to go on with it, or choose another "
            "--run_dir"
        )
    others = [name for name in directory.store.names("") if not name.startswith(".")]
    # A driver that was killed before it had written config.json leaves just this.
    if others and (others != [VERSIONS] or directory.version_numbers()):
        raise ConfigError(
            f"{directory.url} is not empty and holds no run ({others[0]}, ...); "
            "choose another --run_dir"
        )
