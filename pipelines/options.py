"""The command line of training: our flags, then the runner's; anything else is an error.

Beam only warns about a flag it does not know, and a mistyped limit then trains for hours.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.runners import RunnerInfo, add_runner_flags, runner_named
from policies.config_renames import renamed_keys
from policies.errors import ConfigError

CONFIG_FLAGS: dict[str, tuple[type, str]] = {
    "env": (str, "Environment: a registered Gymnasium id, or an import path module:Class."),
    "seed": (int, "Root of every random number of the run."),
    "num_rollout_workers": (int, "Shards that sample side by side; part of the run's identity."),
    "num_envs_per_worker": (int, "Environments that one shard steps together."),
    "rollout_fragment_length": (int, "Steps of each environment in a fragment."),
    "train_batch_size": (int, "Rows of one learner update; default: all rows of a round."),
    "rounds_per_job": (int, "Rounds in one Beam job; changes no result."),
    "max_env_steps": (int, "Stop after so many environment steps."),
    "max_rounds": (int, "Stop after so many rounds."),
    "max_seconds": (float, "Stop after so many seconds, at the end of a job."),
    "stop_return": (float, "Stop when the mean evaluation return reaches this."),
    "evaluation_interval": (int, "Rounds from one evaluation to the next; 0: never."),
    "evaluation_episodes": (int, "Episodes of one evaluation, exactly."),
    "learner_device": (str, "Where updates run: cpu, cuda or cuda:N."),
    "learner_threads": (int, "Threads of the learner's arithmetic."),
    "env_isolation": (str, "none, or process: each environment in a process of its own."),
    "keep_versions": (int, "Newest versions to keep, beside the best and every 100th."),
}


class TrainOptions(PipelineOptions):
    """Flags of `pipelines.train`, as Beam options; a flag that is not given is None."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--algo", default=None, help="Learning algorithm (ppo).")
        for name, (kind, text) in CONFIG_FLAGS.items():
            parser.add_argument(f"--{name}", type=kind, default=None, help=text)
        parser.add_argument(
            "--env_config", default=None, help="Keyword arguments of the environment, as JSON."
        )
        parser.add_argument("--config", default=None, help="YAML or JSON file with settings.")
        parser.add_argument(
            "--set", action="append", default=None, metavar="KEY=VALUE", help="One setting."
        )
        parser.add_argument(
            "--run_dir", default=None, help="Folder or URL of the run; default: runs/ENV-NUMBER."
        )
        parser.add_argument(
            "--allow_import",
            action="append",
            default=None,
            metavar="MODULE",
            help="Lets a stored run import this module.",
        )
        for name, text in (
            ("resume", "Go on with the run in --run_dir (start one if there is none)."),
            ("quiet", "Print nothing but errors."),
            ("print_config", "Print the resolved settings as YAML and stop."),
        ):
            parser.add_argument(f"--{name}", action="store_true", default=False, help=text)


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line.

    Attributes:
        flags: Our flags by name.
        runner: The runner.
        beam_flags: What belongs to Beam and the runner, as it was written.
    """

    flags: argparse.Namespace
    runner: RunnerInfo
    beam_flags: tuple[str, ...]

    def settings(self) -> dict[str, Any]:
        """The configuration's settings that were given as flags."""
        values = {name: getattr(self.flags, name) for name in CONFIG_FLAGS}
        if self.flags.env_config is not None:
            values["env_config"] = _json_object("--env_config", self.flags.env_config)
        return {name: value for name, value in values.items() if value is not None}


def parse(argv: Sequence[str]) -> CommandLine:
    """Parses the command line of `pipelines.train`.

    Raises:
        ConfigError: A flag is unknown (with the nearest), lacks its value or has a wrong one.
    """
    ours, passed = _split(argv)
    known, rest = _parser(with_runner=True).parse_known_args(ours)
    runner = runner_named(known.runner or "DirectRunner")
    everything = _Parser(add_help=False, allow_abbrev=False)
    add_runner_flags(everything, runner)
    _, unknown = everything.parse_known_args(rest)
    if unknown:
        raise ConfigError(_unknown_flag(unknown[0], everything))
    return CommandLine(known, runner, (*rest, *passed))


def print_help() -> None:
    """Prints the flags of `pipelines.train`."""
    _parser(with_runner=True, add_help=True).print_help()


def _parser(*, with_runner: bool, add_help: bool = False) -> _Parser:
    parser = _Parser(
        prog="python -m pipelines.train",
        description="Trains a policy as a Beam pipeline.",
        epilog="Flags of Beam and of the runner follow; after -- everything goes to them unseen.",
        allow_abbrev=False,
        add_help=add_help,
    )
    if with_runner:
        parser.add_argument("--runner", default=None, help="Beam runner; default: DirectRunner.")
    TrainOptions._add_argparse_args(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser that raises our error instead of printing usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.replace("argument ", "", 1))


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cuts at a bare `--`: what follows belongs to the runner, unseen."""
    words = list(argv)
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return words, []


def _unknown_flag(word: str, everything: argparse.ArgumentParser) -> str:
    flag = word.split("=")[0]
    if not flag.startswith("-"):
        return f"unexpected argument {word!r}; flags are written --name=value"
    row = renamed_keys().get(flag.lstrip("-"))
    if row is not None and row.new is not None:
        form = f"--{row.new}" if row.new in CONFIG_FLAGS else f"--set {row.new}=..."
        return f"unknown flag {flag}: RLlib's name; here it is {form}"
    ours = [f"--{name}" for name in vars(_parser(with_runner=True).parse_args([]))]
    near = difflib.get_close_matches(flag, [*ours, *everything._option_string_actions], n=1)
    if near:
        return f"unknown flag {flag}; did you mean {near[0]}?"
    return f"unknown flag {flag}; --help lists the flags, --set KEY=VALUE changes any setting"


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{flag}={text}: not JSON ({error}); write '{{\"key\": 1}}'") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag}={text}: expected a JSON object such as '{{\"key\": 1}}'")
    return value
