"""What a type takes, in words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from policies.config_fields import config_fields, describe, sections


class Inner(BaseModel):
    size: int = Field(3, ge=1, description="Size.")


class Outer(BaseModel):
    name: str = Field(description="Name.")
    inner: Inner = Field(Inner(size=7), description="Inner.")
    free: dict[str, Any] = Field(default_factory=dict, description="Free.")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "an integer"),
        (Annotated[int, Field(ge=1)], "an integer of at least 1"),
        (Annotated[float, Field(gt=0, le=1)], "a number above 0 and at most 1"),
        (float | None, "a number or null"),
        (bool | Annotated[float, Field(gt=0)] | None, "true or false or a number above 0 or null"),
        (Literal["a", "b"], "one of a, b"),
        (list[int], "a list of integers"),
        (list[int | float], "a list of numbers"),
        (list[int | None], "a list of (an integer or null)"),
        (float | list[list[int | float]], "a number or a list of lists of numbers"),
        (tuple[str, ...], "a list of texts"),
        (dict[str, int], "a mapping"),
        (Inner, "a mapping"),
        (Any, "any value"),
    ],
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert describe(annotation) == words


def test_fields_of_nested_models_have_the_outer_classes_defaults() -> None:
    fields = config_fields(Outer)
    assert list(fields) == ["name", "inner.size", "free"]
    assert [field.default for field in fields.values()] == ["required", "7", "{}"]
    assert [field.is_mapping for field in fields.values()] == [False, False, True]
    assert fields["inner.size"].owner is Inner
    assert sections(Outer) == {"inner": Inner}
