"""The settings of a config class as a flat table: dotted key, what it takes, default, meaning."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_PLAIN = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
    dict: "a mapping",
    list: "a list",
    tuple: "a list",
}
_PLURALS = {"an integer": "integers", "a number": "numbers", "a list": "lists", "text": "texts"}


@dataclass(frozen=True)
class ConfigField:
    """One setting.

    Attributes:
      key: dotted, for example `model.hidden`.
      expected: what values it takes, in words.
      default: the default as JSON text, or "required".
      description: one sentence with unit and effect.
      is_mapping: whether it takes a mapping with keys of the user's choice.
      owner: the class that declares it.
    """

    key: str
    expected: str
    default: str
    description: str
    is_mapping: bool
    owner: type[BaseModel]


def config_fields(config_class: type[BaseModel]) -> dict[str, ConfigField]:
    """All settings of a class in the order of declaration, those of nested models one by one."""
    return {field.key: field for field in _walk(config_class, "", None, None)}


def sections(config_class: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Dotted key -> class of every nested model, for example `model`."""
    found: dict[str, type[BaseModel]] = {}
    for name, info in config_class.model_fields.items():
        nested = _nested(info.annotation)
        if nested is not None:
            found[name] = nested
            found |= {f"{name}.{key}": value for key, value in sections(nested).items()}
    return found


def describe(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> str:
    """What values an annotated type takes, in words: `an integer of at least 1 or null`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return describe(inner, [*more, *metadata])
    if origin in (Union, types.UnionType):
        choices = [choice for choice in get_args(annotation) if choice is not type(None)]
        if float in choices and int in choices:
            choices.remove(int)  # every integer is a number
        said = [describe(choice, metadata) for choice in choices]
        return " or ".join(said + ["null"] * (type(None) in get_args(annotation)))
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
    plain = _PLAIN.get(origin or annotation)
    if plain is None:
        is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        return "a mapping" if is_section else "any value"
    items = [item for item in get_args(annotation) if item is not Ellipsis]
    if origin in (list, tuple) and items:
        return f"a list of {_plural(describe(items[0]))}"
    return plain + (_bounds(metadata) if plain in _PLURALS else "")


def _plural(description: str) -> str:
    """`an integer of at least 1` -> `integers of at least 1`; a choice goes into brackets."""
    for one, many in _PLURALS.items():
        if description.startswith(one) and " or " not in description:
            return many + description.removeprefix(one)
    return f"({description})"


def _bounds(metadata: tuple[Any, ...] | list[Any]) -> str:
    """` of at least 1`, ` above 0 and at most 1`, or nothing."""
    parts = []
    for item in metadata:
        constraints = item.metadata if isinstance(item, FieldInfo) else [item]
        for constraint in constraints:
            if isinstance(constraint, annotated_types.Ge):
                parts.append(f"of at least {constraint.ge}")
            elif isinstance(constraint, annotated_types.Gt):
                parts.append(f"above {constraint.gt}")
            elif isinstance(constraint, annotated_types.Le):
                parts.append(f"at most {constraint.le}")
            elif isinstance(constraint, annotated_types.Lt):
                parts.append(f"below {constraint.lt}")
    return f" {' and '.join(parts)}" if parts else ""


def _walk(
    config_class: type[BaseModel],
    prefix: str,
    owner: type[BaseModel] | None,
    defaults: BaseModel | None,
) -> Iterator[ConfigField]:
    """`defaults` holds what the outer class sets for the nested one, where it sets anything."""
    for name, info in config_class.model_fields.items():
        default = info.get_default(call_default_factory=True)
        if defaults is not None:
            default = getattr(defaults, name)
        nested = _nested(info.annotation)
        if nested is not None:
            inner = default if isinstance(default, BaseModel) else None
            yield from _walk(nested, f"{prefix}{name}.", nested, inner)
            continue
        yield ConfigField(
            key=f"{prefix}{name}",
            expected=describe(info.annotation, info.metadata),
            default="required" if info.is_required() else _json_text(default),
            description=info.description or "",
            is_mapping=dict in (info.annotation, get_origin(info.annotation)),
            owner=owner or _declaring(config_class, name),
        )


def _declaring(config_class: type[BaseModel], name: str) -> type[BaseModel]:
    """The furthest ancestor that has the field: an override stays with the shared settings."""
    owners = [
        cls
        for cls in config_class.__mro__
        if issubclass(cls, BaseModel) and name in getattr(cls, "model_fields", {})
    ]
    return owners[-1]


def _json_text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _nested(annotation: Any) -> type[BaseModel] | None:
    choices = get_args(annotation) if get_origin(annotation) is not None else (annotation,)
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, BaseModel):
            return choice
    return None
