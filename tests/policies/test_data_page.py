"""The examples on the data model's page and in the class docstring run as shown."""

from __future__ import annotations

import doctest
import pathlib

from policies import sample_batch

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "data.md"


def test_the_examples_of_the_page_run() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10 and result.failed == 0


def test_the_examples_of_the_docstrings_run() -> None:
    result = doctest.testmod(sample_batch)
    assert result.attempted > 0 and result.failed == 0


def test_the_page_names_every_column_with_a_fixed_type() -> None:
    text = PAGE.read_text()
    assert [name for name in sample_batch.COLUMN_TYPES if f"`{name}`" not in text] == []
