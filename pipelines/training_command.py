"""What `pipelines.train` does: parse, train job after job, report, and end with the right code."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.algorithm import Algorithm
from pipelines.interrupts import EXIT_INTERRUPTED, ending_on_signals
from pipelines.options import CommandLine, parse, print_help
from pipelines.report.progress import printable
from pipelines.report.tensorboard import write_events
from pipelines.report.terminal import TrainingView, make_view
from pipelines.stage_errors import StageError
from pipelines.training_result import write_result
from policies.config import AlgorithmConfig, config_dict
from policies.config_loading import config_yaml, load_config
from policies.envs import resolve
from policies.errors import ConfigError, RunError
from policies.learners.learner import learner_named
from policies.round_results import process_started
from policies.run_directory import RunDirectory
from policies.stages import on_stage
from policies.stopping import MAX_SECONDS
from policies.stored_run import imported_modules, read_stored_run, refuse_changes

DEFAULT_MAX_ENV_STEPS = 1_000_000
EXIT_FAILED, EXIT_WRONG = 1, 2
ERROR_FILE = "error.txt"
_STOPS = ("stop_return", "max_env_steps", "max_rounds", "max_seconds")
_EVENTS_EVERY_S = 15.0
_ROUNDS_A_FILE = 500
_LONGEST_LINE = 2_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Errors are one line on standard error."""
    try:
        run(argv)
        sys.stdout.flush()
        return 0
    except ConfigError as error:
        _say("error", error)
        return EXIT_WRONG
    except RunError as error:
        _say("failed", error)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of --print_config has seen enough; what is left must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (Exception, SystemExit, GeneratorExit) as error:
        _say("failed", _unexpected(error, None))
        return EXIT_FAILED


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
    # Of a process that exists for this command, the time that its imports took counts.
    started = process_started() if argv is None else time.time()
    command = parse(sys.argv[1:] if argv is None else argv)
    if command is None:
        print_help()
        return {}
    if not command.runner.in_process:
        logging.basicConfig(level=logging.WARNING, force=True)
    flags = command.flags
    if flags.resume and flags.run_dir is None:
        raise ConfigError("--resume needs the run to go on with: --run_dir=FOLDER")
    directory = None if flags.run_dir is None else RunDirectory(flags.run_dir)
    stored = directory if flags.resume and directory is not None and directory.exists() else None
    config = _config(command)
    settings = config.model_dump(mode="json", exclude_unset=True)
    if stored is None:
        settings = with_default_stops(settings, config)
    if flags.print_config:
        print(config_yaml(_resolved(command, settings, stored)), end="")
        return {}
    if directory is not None:
        return _train(command, directory, settings, started)
    with _free_folder(config.env) as folder:
        return _train(command, RunDirectory(folder), settings, started)


def with_default_stops(settings: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, Any]:
    """Adds stop conditions where none is given: the environment's own target, and a limit.

    Args:
        settings: What the user set; a condition set to null stays so.
        config: The same as a config.
    """
    if any(getattr(config, name) is not None for name in _STOPS):
        return dict(settings)
    spec = resolve(config.env).spec
    defaults: dict[str, Any] = {"max_env_steps": DEFAULT_MAX_ENV_STEPS}
    if spec is not None and spec.reward_threshold is not None and config.evaluation_interval:
        defaults["stop_return"] = float(spec.reward_threshold)
    return {**defaults, **settings}


def _train(
    command: CommandLine, directory: RunDirectory, settings: Mapping[str, Any], started: float
) -> dict[str, Any]:
    flags = command.flags
    with make_view(flags.quiet) as view:
        try:
            algorithm = Algorithm(
                settings,
                algo=command.algo,
                run_dir=directory.url,
                resume=flags.resume,
                runner=command.runner.name,
                pipeline_flags=command.beam_flags,
                allow_import=flags.allow_import or (),
                notify=view.notice,
                started=started,
            )
            with algorithm:
                return _run(algorithm, view, started)
        except (ConfigError, RunError):
            raise
        except Exception as error:
            raise _unexpected(error, directory) from error


def _run(algorithm: Algorithm, view: TrainingView, started: float) -> dict[str, Any]:
    events = _Events(algorithm)

    def tidy() -> None:
        algorithm.cancel()
        events.write()
        algorithm.close()

    with ending_on_signals(view.close, tidy, lambda: _farewell(algorithm)):
        events.first = algorithm.start().version
        view.start(*_opening(algorithm))
        stop_listening = on_stage(view.stage)
        reason = algorithm.stop_reason()
        try:
            while reason is None:
                algorithm.train(algorithm.config.rounds_per_job)
                for result in algorithm.results:
                    view.round(result)
                events.add(algorithm.results)
                reason = algorithm.stop_reason() or _out_of_time(algorithm.config, started)
        except RunError as error:
            raise _with_way_on(error, algorithm) from error
        finally:
            stop_listening()
            events.write()
        algorithm.prune()
        result = write_result(algorithm, reason, started)
        view.finish(result | {"allow_import": _modules(algorithm)})
    return result


class _Events:
    """Brings the TensorBoard events up to date, never in the way of what they report on."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.first = 0
        self._algorithm = algorithm
        self._rounds: list[dict[str, Any]] = []
        self._written, self._writing = time.monotonic(), False

    def add(self, results: Sequence[dict[str, Any]]) -> None:
        """Takes in rounds, and writes if the last time is some seconds ago.

        After `_ROUNDS_A_FILE` rounds a new file begins, so that neither memory nor the cost of a
        write grows with the run.
        """
        self._rounds.extend(results)
        if len(self._rounds) >= _ROUNDS_A_FILE:
            self.write()
            self.first, self._rounds = self._rounds[-1]["version"] + 1, []
        elif time.monotonic() - self._written > _EVENTS_EVERY_S:
            self.write()

    def write(self) -> None:
        """Writes, unless the run is another driver's by now."""
        if self._writing:  # A signal has come in the middle of it.
            return
        self._writing = True
        with contextlib.suppress(RunError):
            self._algorithm.require_lock()
            write_events(self._algorithm.run_dir, self._rounds, from_version=self.first)
        self._written, self._writing = time.monotonic(), False


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
    limits = {name: getattr(config, name) for name in _STOPS}
    best = None
    if summary.best_version is not None and summary.best_mean is not None:
        best = summary.best_version, summary.best_mean
    return f"{algorithm.algo.upper()} on {config.env}", facts, limits, best


def _out_of_time(config: AlgorithmConfig, started: float) -> str | None:
    limit = config.max_seconds
    return MAX_SECONDS if limit is not None and time.time() - started >= limit else None


# --- how it ends --------------------------------------------------------------------------------


def _way_on(algorithm: Algorithm) -> str:
    allowed = "".join(f" --allow_import={module}" for module in _modules(algorithm))
    return f"go on with --run_dir={shlex.quote(algorithm.run_dir)} --resume{allowed}"


def _modules(algorithm: Algorithm) -> list[str]:
    return imported_modules(config_dict(algorithm.config))


def _farewell(algorithm: Algorithm) -> str:
    directory = algorithm.run.directory
    newest = directory.newest_version()
    return f"interrupted after round {newest.version if newest else 0}; {_way_on(algorithm)}"


def _with_way_on(error: RunError, algorithm: Algorithm) -> RunError:
    """The error with what can be done; one that nobody foresaw also with its traceback's file."""
    directory = algorithm.run.directory
    if isinstance(error, StageError):
        error = _unexpected(error, directory)
    try:
        newest = directory.newest_version()
    except RunError:
        return error
    if newest is None or directory.newest_good_version() != newest.version:
        return error  # It says what is damaged, and the way back.
    return RunError(f"{error} (version {newest.version} is kept: {_way_on(algorithm)})")


def _unexpected(error: BaseException, directory: RunDirectory | None) -> RunError:
    """One line for an error that has none, and its traceback in a file."""
    text = "".join(traceback.format_exception(error))
    line = str(error)
    if not isinstance(error, StageError):
        line = f"internal error: {' '.join(f'{type(error).__name__}: {error}'.split())}"
    try:
        if directory is not None and directory.exists():
            directory.store.replace(ERROR_FILE, text.encode())
            return RunError(f"{line}; the traceback is in {directory.store.url_of(ERROR_FILE)}")
        with tempfile.NamedTemporaryFile(
            "w", prefix="beamrl-error-", suffix=".txt", delete=False
        ) as file:
            file.write(text)
        return RunError(f"{line}; the traceback is in {file.name}")
    except (OSError, RunError):
        return RunError(line)


def _say(kind: str, error: Exception) -> None:
    text = printable(str(error))
    if len(text) > _LONGEST_LINE:
        text = f"{text[:_LONGEST_LINE]}..."
    with contextlib.suppress(OSError, ValueError):
        print(f"{kind}: {text}", file=sys.stderr, flush=True)


# --- settings -----------------------------------------------------------------------------------


def _config(command: CommandLine) -> AlgorithmConfig:
    """What the user set, from the file, `--set` and flags."""
    return load_config(
        command.config_class,
        file=command.flags.config,
        sets=command.flags.set or (),
        flags=command.settings(),
    )


def _resolved(
    command: CommandLine, settings: Mapping[str, Any], stored: RunDirectory | None
) -> AlgorithmConfig:
    """All settings, of a resumed run with its own beneath."""
    if stored is None:
        return load_config(command.config_class, flags=settings)
    before = read_stored_run(stored)
    config = load_config(learner_named(before.algo).CONFIG, base=before.settings, flags=settings)
    refuse_changes(before.config(), config, stored.url)
    return config


@contextlib.contextmanager
def _free_folder(env: str) -> Iterator[str]:
    """A new folder below runs/, which goes again if nothing comes into it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", env)
    for number in range(1, 1_000_000):
        folder = os.path.join("runs", f"{name}-{number}")
        try:
            os.makedirs(folder)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"cannot make {folder}: {error.strerror}; choose a folder with --run_dir"
            ) from error
    else:
        raise ConfigError("runs/ is full; choose a folder with --run_dir")
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
