"""Finding numbers that are not finite."""

from __future__ import annotations

import numpy as np

from policies.finite_rows import first_not_finite


def test_finite_columns_and_other_kinds_of_number_pass() -> None:
    columns = {"a": np.ones((3, 2)), "b": np.arange(3), "c": {"d": (np.zeros(3, np.float32),)}}
    assert first_not_finite(columns, np.arange(3)) is None


def test_the_earliest_row_is_found_then_the_first_column() -> None:
    a, b = np.zeros((4, 2)), np.zeros(4)
    a[0, 1], a[2, 0], b[2] = np.nan, np.inf, np.nan
    times = np.array([9, 0, 3, 1])
    assert first_not_finite({"a": a, "b": b}, times) == ("a", 2, np.inf)
    column, row, value = first_not_finite({"b": b, "a": a}, times) or ("", 0, 0.0)
    assert (column, row) == ("b", 2)
    assert np.isnan(value)


def test_the_path_inside_a_struct_is_named() -> None:
    struct = {"x": np.zeros(2), "y": (np.zeros(2), np.array([0.0, -np.inf]))}
    assert first_not_finite({"obs": struct}, np.arange(2)) == ('obs["y"][1]', 1, -np.inf)


def test_only_the_chosen_rows_are_looked_at() -> None:
    values = np.array([np.nan, 0.0, np.inf])
    assert first_not_finite({"a": values}) is not None
    assert first_not_finite({"a": values}, rows=np.array([False, True, True])) == ("a", 2, np.inf)
    assert first_not_finite({"a": values}, rows=np.array([False, True, False])) is None
