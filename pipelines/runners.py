"""Runners: which one a name means, which flags they own, how a job runs and how it fails.

`--runner=DirectRunner` is Beam's in-process FnApiRunner, pinned: Beam's own DirectRunner picks
another runner by what it can download.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import RunnerResult
from apache_beam.runners.runner import PipelineState

from pipelines.stage_errors import failure
from policies.errors import ConfigError, RunError
from transforms import local_worker


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
    "--checkpointing_interval",
    "--checkpointing_mode",
    "--max_bundle_size",
    "--max_bundle_time_mills",
    "--state_backend",
    "--parallelism",
    "--max_parallelism",
    "--execution_retry_delay",
    "--number_of_execution_retries",
    "--externalized_checkpoints_enabled",
    "--retain_externalized_checkpoints_on_cancellation",
    "--savepoint_path",
    "--allow_non_restored_state",
    "--finish_bundle_before_checkpointing",
    "--shutdown_sources_after_idle_ms",
    "--object_reuse",
    "--auto_balance_write_files_sharding_enabled",
)

RUNNERS = {
    info.name: info
    for info in (
        RunnerInfo("DirectRunner", in_process=True),
        RunnerInfo("PrismRunner"),
        RunnerInfo("FlinkRunner", flags=_FLINK_FLAGS),
        RunnerInfo("PortableRunner", flags=_FLINK_FLAGS),
        RunnerInfo("SparkRunner"),
        RunnerInfo("DataflowRunner"),
    )
}


def runner_named(name: str) -> RunnerInfo:
    """The runner a user means; upper and lower case are the same, as in Beam.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    by_lower = {known.lower(): info for known, info in RUNNERS.items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]].name}?" if near else f"known: {', '.join(RUNNERS)}"
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
            options._add_argparse_args(cast(Any, _Tolerant(parser)))
    known = parser._option_string_actions
    for flag in runner.flags:
        if flag not in known:
            parser.add_argument(flag, nargs="?", const="true")


class _Tolerant:
    """Adds arguments to a parser and skips those it has: options classes overlap."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def add_argument(self, *names: str, **settings: Any) -> None:
        free = [name for name in names if name not in self._parser._option_string_actions]
        if free:
            self._parser.add_argument(*free, **settings)

    def add_mutually_exclusive_group(self, **_: object) -> _Tolerant:
        return self


def pipeline_options(runner: RunnerInfo, flags: Sequence[str]) -> PipelineOptions:
    """Beam's options of a job.

    Raises:
        ConfigError: They would not do what they say.
    """
    options = PipelineOptions(list(flags))
    if not runner.in_process:
        options.view_as(StandardOptions).runner = runner.name
        return options
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode == "in_memory" and direct.direct_num_workers != 1:
        raise ConfigError(
            f"--direct_num_workers={direct.direct_num_workers} has no effect in memory; add "
            "--direct_running_mode=multi_processing, or multi_threading"
        )
    return options


def runs_in_memory(runner: RunnerInfo, flags: Sequence[str]) -> bool:
    """Whether stages run in this very process; raises as `pipeline_options`."""
    direct = pipeline_options(runner, flags).view_as(DirectOptions)
    return runner.in_process and direct.direct_running_mode != "multi_processing"


class Job:
    """A pipeline that can run many times; its graph is built and translated once.

    Args:
        build: Applies the transforms to a pipeline.
        runner: Name of the runner.
        flags: Beam's and the runner's flags.

    Raises:
        ConfigError: The runner or its flags are wrong.

    Example:
        >>> job = Job(lambda p: p | TrainRounds(run, rounds=1), "DirectRunner", [])
        >>> job.run()
    """

    def __init__(
        self, build: Callable[[beam.Pipeline], object], runner: str, flags: Sequence[str]
    ) -> None:
        info = runner_named(runner)
        options = pipeline_options(info, flags)
        self._direct = _RepeatingRunner() if info.in_process else None
        self._mode = options.view_as(DirectOptions).direct_running_mode
        self._result: Any = None
        self._pipeline = beam.Pipeline(runner=self._direct, options=options)
        build(self._pipeline)

    def run(self) -> None:
        """Runs the job to its end.

        Raises:
            ConfigError, RunError: What a stage raised, with its message and without the traceback
                of the runner.
            StageError: A stage raised something else, or the runner failed.
        """
        try:
            with self._quiet():
                self._result = self._direct.run_again() if self._direct else None
                self._result = self._result or self._pipeline.run()
                state = self._result.wait_until_finish()
        except Exception as error:
            raise failure(error) from error
        finally:
            self._result = None
        if state is not None and state != PipelineState.DONE:
            raise RunError(f"the job ended as {state}")

    def cancel(self) -> None:
        """Asks a runner elsewhere to end the running job; from another thread than `run`."""
        result = self._result
        if self._direct is None and result is not None:
            result.cancel()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keeps what an in-process runner says about a failed stage, which `run` raises, unsaid."""
        if self._direct is None:
            yield
            return
        logger = logging.getLogger("apache_beam.runners")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            if self._mode != "in_memory":
                threading.excepthook = local_worker.ignore_lost_channels
            if self._mode != "multi_threading":
                yield
                return
            stderr = sys.stderr
            sys.stderr = local_worker.WithoutTracebacks(stderr)
            yield
            # Not after a failure: threads of a failed job print for seconds after it.
            sys.stderr = stderr
        finally:
            logger.setLevel(level)


class _RepeatingRunner(FnApiRunner):
    """The in-process runner; keeps the translated pipeline for the next run of the same job."""

    def __init__(self) -> None:
        super().__init__()
        self._proto: beam_runner_api_pb2.Pipeline | None = None
        self._run_options: PipelineOptions | None = None

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> RunnerResult:
        local_worker.use_local_workers(pipeline_proto)
        self._proto, self._run_options = pipeline_proto, options
        return super().run_via_runner_api(pipeline_proto, options)

    def run_again(self) -> RunnerResult | None:
        """Runs what ran before; None if nothing did."""
        if self._proto is None or self._run_options is None:
            return None
        return super().run_via_runner_api(self._proto, self._run_options)
