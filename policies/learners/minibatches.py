"""What a learner draws its minibatches from: single rows, or sequences for recurrent networks.

Both give the network's outputs for a choice of units together with the rows they belong to, so
that a loss is written once, on rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from policies.actor_critic import ActorCritic, map_tensors


class Minibatches(Protocol):
    """A set of units to shuffle and to feed through the network."""

    units: int
    """Number of units that may be drawn."""

    def per_minibatch(self, rows: int) -> int:
        """Units that make a minibatch of about `rows` rows."""

    def forward(
        self, network: ActorCritic, units: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows [m] of the units, and the network's outputs [m, d] and values [m] there."""


class Rows:
    """Each row by itself.

    Args:
        obs: Preprocessed observations, a struct of tensors [n, ...].
        size: n.
    """

    def __init__(self, obs: Any, size: int) -> None:
        self.units = size
        self._obs = obs

    def per_minibatch(self, rows: int) -> int:
        return rows

    def forward(
        self, network: ActorCritic, units: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs, values, _ = network(map_tensors(lambda x: x[units], self._obs), ())
        return units, outputs, values


class Sequences:
    """Chunks of at most `length` consecutive rows of a fragment, each with its recorded state.

    A chunk never crosses an episode's end, so no state leaks between episodes; shorter ones are
    padded at their end, and what the network says about padding is never looked at.

    Args:
        obs: Preprocessed observations, a struct of tensors [n, ...].
        state: Recurrent state at the start of each row: tensors [n, size].
        offsets: Bounds of the fragments: int64 [f + 1].
        length: Longest chunk.
    """

    def __init__(
        self, obs: Any, state: tuple[torch.Tensor, ...], offsets: np.ndarray, length: int
    ) -> None:
        starts, ends = chunk_bounds(offsets, length)
        steps = np.arange(int((ends - starts).max(initial=1)))
        rows = starts[:, None] + steps[None, :]
        self._mask = torch.from_numpy(rows < ends[:, None])
        self._rows = torch.from_numpy(np.minimum(rows, ends[:, None] - 1))
        self._starts = torch.from_numpy(starts)
        self._obs = obs
        self._state = state
        self._mean_rows = float((ends - starts).mean())
        self.units = len(starts)

    def per_minibatch(self, rows: int) -> int:
        return max(1, round(rows / self._mean_rows))

    def forward(
        self, network: ActorCritic, units: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, mask = self._rows[units], self._mask[units]
        starts = self._starts[units]
        outputs, values = network.forward_sequences(
            map_tensors(lambda x: x[rows], self._obs),
            tuple(array[starts] for array in self._state),
        )
        return rows[mask], outputs[mask], values[mask]


def chunk_bounds(offsets: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts fragments into chunks of at most `length` rows: their starts and ends."""
    starts = np.concatenate(
        [np.arange(a, b, length) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        or [np.zeros(0, np.int64)]
    ).astype(np.int64)
    fragment = np.searchsorted(offsets, starts, side="right")
    return starts, np.minimum(starts + length, offsets[np.minimum(fragment, len(offsets) - 1)])
