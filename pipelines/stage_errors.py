"""What a failed job tells its user: one line, found in what the runner made of a stage's error.

Runners add to an error where it happened, and those with workers of their own pass it on as text
with tracebacks around it. Errors of ours name their class in that text.
"""

from __future__ import annotations

import re

from policies import errors
from policies.errors import ConfigError, RunError

_MAX_LINE = 1000
_WHILE_RUNNING = re.compile(r" \[while running '([^'\n]*)'\]\s*\Z")
_NAME = rf"(?<![\w.]){re.escape(errors.__name__)}\."
# The message ends where Beam's note on the stage follows it; it may have several lines, but the
# next error in the text is another one.
_OURS = re.compile(
    rf"{_NAME}(ConfigError|RunError): ((?:(?!{_NAME}).)*?)"
    r" \[while running '[^'\n]*'\]\s*?(?=\n|\Z)",
    re.S,
)
_OURS_ALONE = re.compile(rf"{_NAME}(ConfigError|RunError): (.*?)(?=\n\n|\Z)", re.S)
_ANY = re.compile(r"^([\w.]+: .*?) \[while running '([^'\n]*)'\]['\"]*\s*?$", re.M)


class StageError(RunError):
    """A stage raised something that no stage is meant to raise, or the runner itself failed.

    Its `__cause__` holds all that the runner said, tracebacks included.
    """


def failure(error: Exception) -> ConfigError | RunError:
    """The error to raise for what a runner raised.

    Returns:
        Our own error with its own message where a stage raised one, else a `StageError`.
    """
    text = str(error)
    if isinstance(error, ConfigError | RunError):
        return type(error)(_line(_WHILE_RUNNING.sub("", text)))
    found = _OURS.findall(text) or _OURS_ALONE.findall(text)
    if found:
        kind, message = found[-1]
        return ConfigError(_line(message)) if kind == "ConfigError" else RunError(_line(message))
    return StageError(f"the job failed: {_last_line(error, text)}")


def _last_line(error: Exception, text: str) -> str:
    """The innermost error of a text with tracebacks, with the stage it came from."""
    if "Traceback (most recent call last)" in text:
        found = _ANY.findall(text)
        if found:
            return _line(f"{found[-1][0]} (in {found[-1][1]})")
        lines = [line for line in text.splitlines() if line.strip()]
        return _line(lines[-1])
    # The repr of a KeyError's text has quotes of its own around the runner's note.
    note = _WHILE_RUNNING.search(text.rstrip("'\""))
    if note is None:
        return _line(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    message = text[: note.start()].lstrip("'\"")
    return _line(f"{type(error).__name__}: {message} (in {note.group(1)})")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 3]}..."
