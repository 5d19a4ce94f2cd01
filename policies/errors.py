"""The two errors that reach a user as one line: a mistake to mend, and a run that failed."""

from __future__ import annotations


class ConfigError(ValueError):
    """The command line, the configuration or a call is wrong.

    The message is one line that names the thing and the way out. Commands print it and exit 2.
    """


class RunError(RuntimeError):
    """The run failed: an environment raised, a value is not finite, a file is damaged.

    The message is one line that names the thing. Commands print it and exit 1.
    """
