"""The recurrent state of environments that are stepped together: a tuple of arrays [n, ...]."""

from __future__ import annotations

import numpy as np

State = tuple[np.ndarray, ...]


def choose_rows(rows: np.ndarray, chosen: State, other: State) -> State:
    """The state that is `chosen` where `rows` (bool [n]) is True and `other` elsewhere.

    The result shares no memory with the arguments; without memory it is ().
    """
    return tuple(
        np.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)
        for new, old in zip(chosen, other, strict=True)
    )
