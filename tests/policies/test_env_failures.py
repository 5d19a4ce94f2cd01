"""Counting the failures of environments."""

from __future__ import annotations

import numpy as np
import pytest

from policies.env_failures import FailureCounts
from policies.errors import RunError


def test_restored_counts_tolerate_no_more_than_live_ones() -> None:
    live, restored = FailureCounts("E", 2, 2), FailureCounts("E", 2, 2)
    live.add(1, "first")
    live.add(1, "second")
    restored.set_state(live.get_state())
    for counts in (live, restored):
        counts.add(0, "another")
        with pytest.raises(RunError, match=r"'E' \(env 1\) failed 3 times.*first error: first$"):
            counts.add(1, "third")
    restored.forgive([1])
    restored.add(1, "fourth")
    assert restored.get_state()["failures"].tolist() == [1, 1]
    assert restored.get_state()["first_error"].tolist() == ["another", "fourth"]


def test_saved_errors_do_not_tell_where_they_were_saved() -> None:
    counts = FailureCounts("E", 1, 9)
    counts.add(0, "KeyError: a/b of <X object at 0x7f00beef> (/home/me/my.code/envs/walk.py:12)")
    state = counts.get_state()
    assert state["first_error"].tolist() == ["KeyError: a/b of <X object> (walk.py:12)"]
    again = FailureCounts("E", 1, 9)
    again.set_state(state)
    assert again.get_state()["first_error"].tobytes() == state["first_error"].tobytes()
    with pytest.raises(RunError, match="code/envs/walk.py:12"):
        for _ in range(9):
            counts.add(0, "more")


def test_damaged_counts_are_refused() -> None:
    counts = FailureCounts("E", 2, 1)
    state = counts.get_state()
    for name, array in [("failures", np.zeros(3, np.int64)), ("first_error", np.array([""]))]:
        with pytest.raises(RunError, match="'E': damaged failure counts"):
            counts.set_state(state | {name: array})
    with pytest.raises(RunError, match="damaged"):
        counts.set_state(state | {"failures": np.zeros(2)})
    with pytest.raises(KeyError):
        counts.set_state({})
