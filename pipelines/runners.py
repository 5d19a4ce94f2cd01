"""Runners: which one a name means, which flags they own, how a job runs and how it fails.

`--runner=DirectRunner` is Beam's in-process FnApiRunner, pinned: Beam's own DirectRunner picks
another runner by what it can download.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from policies import errors
from policies.errors import ConfigError, RunError


@dataclass(frozen=True)
class RunnerInfo:
    """A runner that a command accepts.

    Attributes:
        name: What `--runner` says.
        in_process: Whether its stages run in this process unless told otherwise.
        flags: Flags that its job server describes and Beam's own options do not list.
    """

    name: str
    in_process: bool = False
    flags: tuple[str, ...] = ()


_FLINK_FLAGS = (
    "--checkpointing_interval --checkpointing_mode --max_bundle_size --max_bundle_time_mills "
    "--state_backend --parallelism --max_parallelism --execution_retry_delay "
    "--number_of_execution_retries --externalized_checkpoints_enabled "
    "--retain_externalized_checkpoints_on_cancellation --savepoint_path "
    "--allow_non_restored_state --finish_bundle_before_checkpointing "
    "--shutdown_sources_after_idle_ms --object_reuse --auto_balance_write_files_sharding_enabled"
).split()

RUNNERS = {
    info.name: info
    for info in (
        RunnerInfo("DirectRunner", in_process=True),
        RunnerInfo("PrismRunner"),
        RunnerInfo("FlinkRunner", flags=tuple(_FLINK_FLAGS)),
        RunnerInfo("PortableRunner", flags=tuple(_FLINK_FLAGS)),
        RunnerInfo("SparkRunner"),
        RunnerInfo("DataflowRunner"),
    )
}


def runner_named(name: str) -> RunnerInfo:
    """The runner a user means.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    if name in RUNNERS:
        return RUNNERS[name]
    near = difflib.get_close_matches(name, RUNNERS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(RUNNERS)}"
    raise ConfigError(f"unknown runner {name!r}; {hint}")


def add_runner_flags(parser: argparse.ArgumentParser, runner: RunnerInfo) -> None:
    """Adds every flag of Beam's own options, and the runner's, to a parser."""
    seen: set[type] = set()
    pending = list(PipelineOptions.__subclasses__())
    while pending:
        options = pending.pop()
        pending.extend(options.__subclasses__())
        if options in seen or not options.__module__.startswith("apache_beam."):
            continue
        seen.add(options)
        if "_add_argparse_args" in options.__dict__:
            options._add_argparse_args(_Tolerant(parser))
    known = parser._option_string_actions
    for flag in runner.flags:
        if flag not in known:
            parser.add_argument(flag, nargs="?", const="true")


class _Tolerant:
    """Adds arguments to a parser and skips those it has: options classes overlap."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def add_argument(self, *names: str, **settings: object) -> None:
        free = [name for name in names if name not in self._parser._option_string_actions]
        if free:
            self._parser.add_argument(*free, **settings)  # type: ignore[arg-type]

    def add_mutually_exclusive_group(self, **_: object) -> _Tolerant:
        return self


class Job:
    """A pipeline that can run many times; its graph is built and translated once.

    Args:
        build: Applies the transforms to a pipeline.
        runner: Name of the runner.
        flags: Beam's and the runner's flags.

    Example:
        >>> job = Job(lambda p: p | TrainRounds(run, rounds=1), "DirectRunner", [])
        >>> job.run()
    """

    def __init__(
        self, build: Callable[[beam.Pipeline], object], runner: str, flags: Sequence[str]
    ) -> None:
        info = runner_named(runner)
        self._options = PipelineOptions(list(flags))
        self._direct = _RepeatingRunner() if info.in_process else None
        if self._direct is None:
            self._options.view_as(StandardOptions).runner = runner
        self._pipeline = beam.Pipeline(runner=self._direct, options=self._options)
        build(self._pipeline)

    def run(self) -> None:
        """Runs the job to its end.

        Raises:
            ConfigError, RunError: What a stage raised, with its message and without the traceback
                of the runner.
        """
        try:
            result = self._direct.run_again() if self._direct else None
            result = result or self._pipeline.run()
            state = result.wait_until_finish()
        except (ConfigError, RunError):
            raise
        except Exception as error:
            raise failure(error) from error
        if state is not None and state != PipelineState.DONE:
            raise RunError(f"the job ended as {state}")


class _RepeatingRunner(FnApiRunner):
    """The in-process runner; keeps the translated pipeline for the next run of the same job."""

    def __init__(self) -> None:
        super().__init__()
        self._proto: beam_runner_api_pb2.Pipeline | None = None
        self._run_options: PipelineOptions | None = None

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> object:
        self._proto, self._run_options = pipeline_proto, options
        return super().run_via_runner_api(pipeline_proto, options)

    def run_again(self) -> object | None:
        """Runs what ran before; None if nothing did."""
        if self._proto is None or self._run_options is None:
            return None
        return super().run_via_runner_api(self._proto, self._run_options)


_STAGE_ERROR = re.compile(
    rf"{re.escape(errors.__name__)}\.(ConfigError|RunError): (.*?)(?: \[while running|\n\n|\Z)",
    re.S,
)


def failure(error: Exception) -> ConfigError | RunError:
    """What a failed job tells its user, found in the text that the runner made of a stage's error.

    Runners pass errors on as text with tracebacks; ours are one line and name their class.
    """
    text = str(error)
    found = _STAGE_ERROR.findall(text)
    if found:
        kind, message = found[-1]
        line = " ".join(message.split())
        return ConfigError(line) if kind == "ConfigError" else RunError(line)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return RunError(f"the job failed: {last}")
