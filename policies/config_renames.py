"""RLlib's names of settings: what each is called here, or why it is refused.

The table is data, `renamed_keys.json`, one row a name:

- `old`: RLlib's dotted key. A row may also have the name of a setting of ours, for its values.
- `new`: our dotted key; without it no value but the ignored ones is accepted.
- `values`: pairs of RLlib's value and ours; other values are passed on as they are.
- `only_values`: true where no other values than the listed ones are accepted.
- `ignored`: values that ask for nothing and are dropped.
- `reason`: one clause that says what to do instead, or why.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from typing import Any

from policies.errors import ConfigError


@dataclass(frozen=True)
class RenamedKey:
    """One row of the table; see the module for the meaning of each part."""

    old: str
    new: str | None = None
    values: tuple[tuple[Any, Any], ...] = ()
    only_values: bool = False
    ignored: tuple[Any, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Resolved:
    """What a key and its value mean here.

    Attributes:
      key: our key, or None when the setting is dropped.
      value: the value under our key.
      notice: one line to tell the user, or None when nothing was changed.
    """

    key: str | None
    value: Any
    notice: str | None


@functools.cache
def renamed_keys() -> dict[str, RenamedKey]:
    """The table, by RLlib's key."""
    text = resources.files("policies").joinpath("renamed_keys.json").read_text("utf-8")
    rows = {}
    for row in json.loads(text):
        values = tuple((theirs, ours) for theirs, ours in row.pop("values", []))
        ignored = tuple(row.pop("ignored", []))
        renamed = RenamedKey(values=values, ignored=ignored, **row)
        if renamed.old in rows:
            raise ValueError(f"renamed_keys.json has two rows for {renamed.old}")
        rows[renamed.old] = renamed
    return rows


def resolve(key: str, value: Any, known: Collection[str], class_name: str) -> Resolved | None:
    """Translates one setting, or returns None where the table says nothing about it.

    Args:
      key: dotted key as the user wrote it.
      value: its value.
      known: the dotted keys of the config class; one of these is never taken for RLlib's name.
      class_name: the config class, for messages.

    Raises:
      ConfigError: the table refuses the key or the value, or this learner has no such setting.
    """
    row = renamed_keys().get(key)
    if row is None or (key in known and row.new != key):
        return None
    shown = f"{key}={show(value)}"
    if _listed(value, row.ignored):
        return Resolved(None, None, f"{shown} is RLlib's and has no effect here: ignored")
    for theirs, ours in row.values:
        if _same(value, theirs):
            return _renamed(row, shown, ours, known, class_name)
    if row.new is None or row.only_values:
        raise ConfigError(f"{shown}: RLlib's setting, not accepted here: {row.reason}")
    if row.new == key:
        return Resolved(key, value, None)
    return _renamed(row, shown, value, known, class_name)


def _renamed(
    row: RenamedKey, shown: str, value: Any, known: Collection[str], class_name: str
) -> Resolved:
    assert row.new is not None
    if row.new not in known:
        raise ConfigError(
            f"{shown}: RLlib's name for {row.new}, a setting that {class_name} does not have"
        )
    return Resolved(row.new, value, f"{shown} is RLlib's; taken as {row.new}={show(value)}")


def show(value: Any) -> str:
    """A value as short JSON text, for messages."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, TypeError, RecursionError):  # circular, too deep or too many digits
        text = f"a value of type {type(value).__name__}"
    return shortened(text, 60)


def shortened(text: str, limit: int = 200) -> str:
    """A text of at most `limit` characters, for messages: what is too long ends in three dots."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _same(left: Any, right: Any) -> bool:
    """Equality in which true is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _listed(value: Any, listed: tuple[Any, ...]) -> bool:
    return any(_same(value, item) for item in listed)
