"""From a file, `--set` and flags to a checked config, with errors of one line.

Later sources win: the class's defaults, then the file, then `--set` and flags, which may not
contradict each other. Mappings are merged key by key, everything else is replaced.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import fsspec
from pydantic import BaseModel, ValidationError

from policies.config import MAX_DEPTH, AlgorithmConfig, config_dict, require_json
from policies.config_fields import ConfigField, config_fields, sections
from policies.config_renames import renamed_keys, resolve, shortened, show
from policies.config_yaml import parse_yaml, to_yaml
from policies.errors import ConfigError

C = TypeVar("C", bound=AlgorithmConfig)

_MAX_FILE_BYTES = 2**20


def load_config(
    config_class: type[C],
    *,
    base: Mapping[str, Any] | None = None,
    file: str | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    notify: Callable[[str], None] | None = None,
) -> C:
    """Builds a config from all its sources; none of the arguments is changed.

    Args:
      config_class: the learner's config class.
      base: settings under all others, for example those of the run that is resumed.
      file: path or fsspec URL of a YAML or JSON file with a mapping of settings.
      sets: texts `key=value` with a dotted key and a YAML value, for example
        `model.hidden=[64,64]`; of two with the same key the later one counts.
      flags: values of the command's own flags, or a caller's settings, by (dotted) key; None is a
        value (null), so leave out flags that were not given.
      notify: gets one line for each of RLlib's names that was translated; prints to stderr if None.

    Raises:
      ConfigError: one line that names the key, the value and what was expected; for unknown keys
        the nearest known one.
    """
    schema = _Schema(config_class, notify or _print_notice)
    settings = schema.settings("the base settings", base or {})
    if file is not None:
        settings = _merged_settings(settings, schema.settings(file, _read_file(file)))
    from_flags = schema.settings("settings", flags or {})
    from_sets: dict[str, Any] = {}
    for text in sets:
        from_sets = _merged_settings(from_sets, schema.settings("--set", _parse_set(text)))
    _refuse_contradictions(from_flags, from_sets)
    for layer in (from_flags, from_sets):
        settings = _merged_settings(settings, layer)
    return schema.build(settings)


def config_yaml(config: AlgorithmConfig) -> str:
    """The resolved settings as YAML in the order of declaration; `load_config` reads it back."""
    return to_yaml(config_dict(config))


class _Schema:
    """What a config class knows: its settings by dotted key, and how to check them."""

    def __init__(self, config_class: type[Any], notify: Callable[[str], None]) -> None:
        self.config_class = config_class
        self.notify = notify
        self.fields: dict[str, ConfigField] = config_fields(config_class)
        self.sections = sections(config_class)
        table_sections = {
            ".".join(parts[:end])
            for parts in (old.split(".") for old in renamed_keys())
            for end in range(1, len(parts))
        }
        self.prefixes = table_sections | self.sections.keys()

    def settings(self, source: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """One source's settings by our dotted keys, renamed and known; values are unchecked."""
        require_shallow(values, source)
        found: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for written, raw in self._leaves(source, values, ""):
            key, value = self._translate(source, written, raw)
            if key is None:
                continue
            if key in found and not self.fields[key].is_mapping:
                raise ConfigError(
                    f"{source}: {origin[key]} and {written} are the same setting; keep one"
                )
            found[key] = _merged(found.get(key), copy.deepcopy(value))
            origin[key] = written
        return found

    def build(self, settings: Mapping[str, Any]) -> Any:
        """Checks the values strictly (no text for numbers, no true for 1) and makes the config."""
        nested: dict[str, Any] = {}
        for key, value in settings.items():
            try:
                require_json(value, key)
            except ValueError as error:
                raise ConfigError(shortened(str(error))) from None
            self._place(nested, key, value)
        try:
            return self.config_class.model_validate_json(json.dumps(nested), strict=True)
        except ValidationError as error:
            raise ConfigError(self._explain(error, nested)) from None

    def _leaves(self, source: str, values: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
        """Dotted key and value of each setting; mappings that are values stay whole."""
        leaves: list[tuple[str, Any]] = []
        for key, value in values.items():
            if not isinstance(key, str):
                raise ConfigError(f"{source}: the key {prefix}{key!r} is not text")
            path = f"{prefix}{key}"
            if path in self.prefixes and isinstance(value, Mapping):
                leaves += self._leaves(source, value, f"{path}.")
            elif path in self.sections:
                if value is not None:
                    raise ConfigError(f"{path}: got {show(value)}, expected a mapping of settings")
            else:
                leaves.append((path, value))
        return leaves

    def _translate(self, source: str, written: str, value: Any) -> tuple[str | None, Any]:
        """Our key for what was written, or None for what is dropped; and the value."""
        parts = written.split(".")
        if len(parts) > MAX_DEPTH:
            raise ConfigError(
                f"{source}: {shortened(written)}: nested more than {MAX_DEPTH} levels deep"
            )
        for end in range(len(parts), 0, -1):
            key, below = ".".join(parts[:end]), parts[end:]
            candidate = functools.reduce(lambda inner, part: {part: inner}, reversed(below), value)
            resolved = resolve(key, candidate, self.fields.keys(), self.config_class.__name__)
            if resolved is not None:
                if resolved.notice:
                    self.notify(resolved.notice)
                return resolved.key, resolved.value
            if key in self.fields and (not below or self.fields[key].is_mapping):
                return key, candidate
        raise ConfigError(f"{source}: {self._unknown(written)}")

    def _unknown(self, key: str) -> str:
        by_last_part = {known.split(".")[-1]: known for known in self.fields}
        names = {**by_last_part, **{known: known for known in self.fields}}
        for old, row in renamed_keys().items():
            if row.new in self.fields:
                names.setdefault(old, str(row.new))
        last = key.split(".")[-1]
        near = difflib.get_close_matches(key, names, n=2) or [
            *([last] if last in names else difflib.get_close_matches(last, names, n=1))
        ]
        suggestions = list(dict.fromkeys(names[name] for name in near))
        if suggestions:
            return f"unknown setting {shortened(key)}; did you mean {' or '.join(suggestions)}?"
        return f"unknown setting {shortened(key)}; --print_config lists all of them"

    def _place(self, nested: dict[str, Any], key: str, value: Any) -> None:
        """Puts a setting into the nested settings, over the class's default where it merges."""
        *outer, name = key.split(".")
        for depth, part in enumerate(outer, 1):
            if part not in nested:
                # Only what differs from the nested class's own default, so that the config still
                # knows which settings were given (`exclude_unset`).
                default = self._default(".".join(outer[:depth]))
                nested[part] = _values(default, exclude_defaults=True) or {}
            nested = nested[part]
        if not self.fields[key].is_mapping:
            nested[name] = _whole_numbers(value)
        else:
            nested[name] = _merged(copy.deepcopy(_values(self._default(key))), value)

    def _default(self, key: str) -> Any:
        """The class's default of a setting or section."""
        first, *parts = key.split(".")
        default = self.config_class.model_fields[first].get_default(call_default_factory=True)
        for part in parts:
            default = getattr(default, part, None)
        return default

    def _explain(self, error: ValidationError, data: Mapping[str, Any]) -> str:
        """All problems in one line, each with key, value and what was expected."""
        lines: dict[str, None] = {}
        for problem in error.errors():
            key, value = self._locate(problem["loc"], data)
            raised = problem.get("ctx", {}).get("error")
            if raised is not None and key:
                text = shortened(str(raised))
                lines[text if text.startswith(key) else f"{key}: {text}"] = None
            elif raised is not None:
                lines[str(raised)] = None
            elif key in self.fields:
                expected = self.fields[key].expected
                lines[f"{key}: got {show(value)}, expected {expected}"] = None
            else:
                lines[f"{key or 'config'}: {problem['msg']}"] = None
        return "; ".join(lines)

    def _locate(self, location: tuple[int | str, ...], data: Any) -> tuple[str, Any]:
        """The setting that an error is about; its location also holds branches of unions."""
        key = ""
        for part in location:
            if key in self.fields or not isinstance(data, Mapping) or part not in data:
                break
            key, data = f"{key}.{part}" if key else str(part), data[part]
        return key, data


def require_shallow(value: object, source: str, *, depth: int = 0) -> None:
    """Checks that a value has few levels of lists and mappings, and so does not contain itself.

    Raises:
      ConfigError: it has more than `config.MAX_DEPTH`; the message names the source.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(f"{shortened(source)}: nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for item in value:
        require_shallow(item, source, depth=depth + 1)


def _values(value: Any, *, exclude_defaults: bool = False) -> Any:
    """A nested model as JSON values; anything else as it is."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=exclude_defaults)
    return value


def _merged(under: Any, over: Any) -> Any:
    """Mappings merged key by key, at every depth; anything else is replaced."""
    if not (isinstance(under, Mapping) and isinstance(over, Mapping)):
        return over
    result = dict(under)
    for key, value in over.items():
        result[key] = _merged(result[key], value) if key in result else value
    return result


def _whole_numbers(value: Any) -> Any:
    """1e6 as 1000000, so that it may be given for an integer; a float setting takes both."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list | tuple):
        return [_whole_numbers(item) for item in value]
    return value


def _merged_settings(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two sources' settings by dotted key, the second over the first."""
    merged = dict(under)
    for key, value in over.items():
        merged[key] = _merged(merged.get(key), value)
    return merged


def _read_file(path: str) -> Mapping[str, Any]:
    path_shown = shortened(path)
    try:
        with fsspec.open(path, "rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
        text = "" if len(data) > _MAX_FILE_BYTES else data.decode("utf-8")
    except Exception as error:  # Archives and remote file systems raise errors of their own.
        detail = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"cannot read the config file {path_shown}: {shortened(detail)}"
        ) from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"the config file {path_shown} is larger than 1 MiB; is it the right file?"
        )
    values = parse_yaml(text, path)
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path_shown}: expected a mapping of settings, got {show(values)}")
    return values


def _parse_set(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    shown = shortened(text)
    if not equals or not key.strip():
        raise ConfigError(f"--set {shown}: expected key=value, for example model.hidden=[64,64]")
    if not value.strip():
        raise ConfigError(f"--set {shown}: no value; write {key.strip()}=null or {key.strip()}=''")
    return {key.strip(): parse_yaml(value, f"--set {text}")}


def _refuse_contradictions(flags: Mapping[str, Any], sets: Mapping[str, Any]) -> None:
    for key in flags.keys() & sets.keys():
        one, other = flags[key], sets[key]
        if one != other and not (isinstance(one, Mapping) and isinstance(other, Mapping)):
            raise ConfigError(
                f"{key} is given twice: as a flag ({show(one)}) and with --set ({show(other)})"
            )


def _print_notice(line: str) -> None:
    print(line, file=sys.stderr)
