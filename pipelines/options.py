"""The command line of training: our flags, then the runner's; anything else is an error.

Beam only warns about a flag it does not know, and a mistyped limit then trains for hours.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.run_settings import DEFAULT_ALGO
from pipelines.runners import RunnerInfo, add_runner_flags, pipeline_options, runner_named
from policies.config import AlgorithmConfig
from policies.config_fields import config_fields
from policies.config_loading import require_shallow
from policies.config_renames import renamed_keys, resolve, shortened
from policies.errors import ConfigError
from policies.learners.learner import learner_named

SETTING_FLAGS = {
    "environment and sampling": (
        "env",
        "env_isolation",
        "seed",
        "num_rollout_workers",
        "num_envs_per_worker",
        "rollout_fragment_length",
    ),
    "learning": ("train_batch_size", "learner_device", "learner_threads"),
    "evaluation": ("evaluation_interval", "evaluation_episodes"),
    "when to stop": ("stop_return", "max_env_steps", "max_rounds", "max_seconds"),
    "the run": ("rounds_per_job", "keep_versions"),
}
"""Settings that have a flag of their own, by section of `--help`; --set changes any other."""

_TEXT_FLAGS = {"env", "env_isolation", "learner_device"}
_OUR_FLAGS = {
    "environment and sampling": (
        ("env_config", "JSON", "Keyword arguments of the environment: '{\"key\": 1}'."),
    ),
    "learning": (("algo", "NAME", "Learning algorithm; the only one is ppo."),),
    "settings": (
        ("config", "FILE", "YAML or JSON file with settings, such as --print_config prints."),
        ("set", "KEY=VALUE", "Any setting, such as lr=1e-3 or model.hidden=[64,64]; repeatable."),
    ),
    "the run": (
        ("run_dir", "PATH", "Folder or URL of the run; default: a new one, runs/ENV-NUMBER."),
        ("allow_import", "MODULE", "Lets a resumed run import this module; repeatable."),
    ),
}
_REPEATABLE = {"set", "allow_import"}
_SWITCHES = {
    "settings": (("print_config", "Print the resolved settings as YAML, and stop."),),
    "the run": (
        ("resume", "Go on with the run in --run_dir, or start one if it holds none."),
        ("quiet", "Print nothing but errors."),
    ),
}
_SECTIONS = (
    "environment and sampling",
    "learning",
    "evaluation",
    "when to stop",
    "settings",
    "the run",
)


class TrainOptions(PipelineOptions):
    """Flags of `pipelines.train`, as Beam options; a flag that is not given is None."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        for section in _SECTIONS:
            group = parser.add_argument_group(section)
            for name in SETTING_FLAGS.get(section, ()):
                metavar = name.upper() if name in _TEXT_FLAGS else "N"
                text = _escaped(str(AlgorithmConfig.model_fields[name].description))
                group.add_argument(f"--{name}", action=_Once, metavar=metavar, help=text)
            for name, metavar, text in _OUR_FLAGS.get(section, ()):
                action = "append" if name in _REPEATABLE else _Once
                group.add_argument(f"--{name}", action=action, metavar=metavar, help=text)
            for name, text in _SWITCHES.get(section, ()):
                group.add_argument(f"--{name}", action="store_true", default=False, help=text)


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line.

    Attributes:
        flags: Our flags by name, as they were written.
        runner: The runner.
        beam_flags: What belongs to Beam and the runner, as it was written.
    """

    flags: argparse.Namespace
    runner: RunnerInfo
    beam_flags: tuple[str, ...]

    @property
    def algo(self) -> str | None:
        """The learning algorithm, if one was named."""
        return None if self.flags.algo is None else str(self.flags.algo).lower()

    @property
    def config_class(self) -> type[AlgorithmConfig]:
        """The algorithm's config class; ConfigError if there is no such algorithm."""
        return learner_named(DEFAULT_ALGO if self.algo is None else self.algo).CONFIG

    def settings(self) -> dict[str, Any]:
        """The configuration's settings that were given as flags; `none` is None."""
        given = {
            name: getattr(self.flags, name) for names in SETTING_FLAGS.values() for name in names
        }
        values = {
            name: text if name in _TEXT_FLAGS else _number(text)
            for name, text in given.items()
            if text is not None
        }
        if self.flags.env_config is not None:
            values["env_config"] = _json_object("--env_config", self.flags.env_config)
        return values


def parse(argv: Sequence[str]) -> CommandLine | None:
    """Parses the command line of `pipelines.train`.

    Returns:
        None if it asks for help.

    Raises:
        ConfigError: A flag is unknown (with the nearest), lacks its value, is there twice with
            different values or has a wrong one.
    """
    ours, passed = _split(argv)
    if "--help" in ours or "-h" in ours:
        return None
    parser = _parser()
    known, rest = parser.parse_known_args(list(_joined(ours, parser)))
    runner = runner_named(known.runner or "DirectRunner")
    everything = _Parser(add_help=False, allow_abbrev=False)
    add_runner_flags(everything, runner)
    _, unknown = everything.parse_known_args(rest)
    if runner.in_process:
        # `--num_workers` is Dataflow's too, but here it can only be meant as RLlib's.
        foreign = (at for at, word in enumerate(rest) if _flag_name(word) in renamed_keys())
        unknown = unknown or next((rest[at : at + 2] for at in foreign), [])
    command = CommandLine(known, runner, (*rest, *passed))
    if unknown:
        raise ConfigError(_unknown_flag(unknown, everything, command.config_class))
    if command.algo is not None:
        learner_named(command.algo)
    pipeline_options(runner, command.beam_flags)
    return command


def print_help() -> None:
    """Prints the flags of `pipelines.train`."""
    _parser(add_help=True).print_help()


def _parser(*, add_help: bool = False) -> _Parser:
    parser = _Parser(
        prog="python -m pipelines.train",
        usage="%(prog)s [--name=value ...] [runner's flags] [-- more flags for the runner]",
        description="Trains a policy as a Beam pipeline.",
        epilog="Flags of Beam and of the runner may follow; after a bare -- everything goes to "
        "them unseen. A number may be `none`: no limit. docs/config.md lists all settings.",
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=add_help,
    )
    parser.add_argument(
        "--runner",
        action=_Once,
        metavar="NAME",
        help="Beam runner; default: DirectRunner, in this process.",
    )
    TrainOptions._add_argparse_args(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser that raises our error instead of printing usage and exiting."""

    def error(self, message: str) -> NoReturn:
        message = message.replace("argument ", "", 1)
        raise ConfigError(message.replace("ignored explicit argument", "takes no value, but got"))


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)


class _Once(argparse.Action):
    """Stores a value; a second, different one is an error, since one of them was forgotten."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before is not None and before != values:
            parser.error(f"{option_string} is there twice, with {before} and with {values}")
        setattr(namespace, self.dest, values)


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cuts at a bare `--`: what follows belongs to the runner, unseen."""
    words = list(argv)
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return words, []


def _joined(words: Sequence[str], parser: argparse.ArgumentParser) -> Iterator[str]:
    """`--flag -1e3` as `--flag=-1e3`: argparse takes it for another flag."""
    pending: str | None = None
    for word in words:
        if pending is not None and re.match(r"-\.?\d", word):
            yield f"{pending}={word}"
            pending = None
            continue
        if pending is not None:
            yield pending
        action = parser._option_string_actions.get(word)
        pending = word if action is not None and action.nargs != 0 else None
        if pending is None:
            yield word
    if pending is not None:
        yield pending


def _flag_name(word: str) -> str:
    return word.split("=")[0].lstrip("-").replace("-", "_") if word.startswith("--") else ""


def _unknown_flag(
    words: Sequence[str], everything: argparse.ArgumentParser, config_class: type[AlgorithmConfig]
) -> str:
    word = words[0]
    if not word.startswith("-"):
        return f"unexpected argument {word!r}; flags are written --name=value"
    flag, equals, text = word.partition("=")
    name = _flag_name(word)
    if not equals and len(words) > 1 and not words[1].startswith("-"):
        text = words[1]
    settings = config_fields(config_class)
    if name in renamed_keys() and name not in settings:
        return f"unknown flag {flag}: {_renamed(name, _number(text), config_class)}"
    if name in settings:
        return f"unknown flag {flag}; {_form(name, text)}"
    flags = {action: action for action in everything._option_string_actions}
    flags |= {f"--{known}": _form(known, "...") for known in settings}
    flags |= {f"--{known}": f"--{known}" for known in vars(_parser().parse_args([]))}
    near = difflib.get_close_matches(f"--{name}", flags, n=1)
    if near:
        return f"unknown flag {flag}; did you mean {flags[near[0]].removeprefix('write ')}?"
    return f"unknown flag {flag}; --help lists the flags, --set KEY=VALUE changes any setting"


def _renamed(name: str, value: Any, config_class: type[AlgorithmConfig]) -> str:
    """What RLlib's setting is here, or why it is not."""
    try:
        resolved = resolve(name, value, config_fields(config_class).keys(), config_class.__name__)
    except ConfigError as error:
        row = renamed_keys()[name]
        return f"RLlib's setting; {_form(row.new, '...')}" if row.new else str(error)
    if resolved is None or resolved.key is None:
        return "RLlib's setting, which has no effect here; leave it out"
    return f"RLlib's name; {_form(resolved.key, json.dumps(resolved.value))}"


def _form(setting: str, text: str) -> str:
    """How to write a setting on the command line."""
    if any(setting in names for names in SETTING_FLAGS.values()):
        return f"write --{setting}={text or '...'}"
    return f"write --set {setting}={text or '...'}"


def _number(text: str) -> Any:
    """A number, None for `none`, or the text, which the setting's own check then refuses."""
    if text.strip().lower() in ("none", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _json_object(flag: str, text: str) -> dict[str, Any]:
    form = f"write {flag}='{{\"key\": 1}}', in single quotes"
    shown = f"{flag}={shortened(text)}"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{shown}: not JSON ({error}); {form}") from error
    except RecursionError:
        raise ConfigError(f"{shown}: nested too deep") from None
    except ValueError:
        raise ConfigError(f"{shown}: an integer has too many digits") from None
    require_shallow(value, shown)
    if not isinstance(value, dict):
        raise ConfigError(f"{shown}: expected a JSON object; {form}")
    return value


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
