"""YAML as settings need it: 1e-4 is a number, yes is text, and a key given twice is an error.

PyYAML follows YAML 1.1, where `1e-4` is text, `yes` is true, `1:30` is ninety and `2024-01-01` a
date. Here scalars are those of YAML 1.2's core schema (https://yaml.org/spec/1.2.2/#103-core-schema),
plus underscores in whole numbers (`1_000_000`). Aliases and merge keys are refused, since a few
lines of them can stand for more values than any memory holds; so is deep nesting.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from policies.config import MAX_DEPTH
from policies.config_renames import shortened
from policies.errors import ConfigError

_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
_FLOAT = rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_SCALARS = [
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)", "-+0123456789"),
    ("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789"),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise ConfigError(f"aliases (*name) are not allowed, line {line}; write the value out")
        if self._depth > MAX_DEPTH:
            raise ConfigError(f"nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise ConfigError(f"merge keys (<<) are not allowed, line {line}; write the keys out")
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, str) and key in seen:
            name = shortened(key)
            raise ConfigError(f"the key {name} is there twice, again in line {line}; keep one")
        if isinstance(key, str):
            seen.add(key)
    return loader.construct_mapping(node, deep=True)


for _tag, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text.

    Args:
      text: one YAML document; JSON is YAML.
      source: where it comes from, for messages.

    Raises:
      ConfigError: the text is not YAML, a mapping has a key twice, or there are aliases, merge keys
        or more than `config.MAX_DEPTH` levels.
    """
    source = shortened(source)
    try:
        return yaml.load(text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None and "\n" in text.strip() else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{source}: not valid YAML{where}: {shortened(problem)}") from None


def to_yaml(value: Any) -> str:
    """A value as YAML that `parse_yaml` reads back unchanged; keys keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
