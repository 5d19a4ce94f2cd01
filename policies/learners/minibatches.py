"""What a learner draws its minibatches from: single rows, or sequences for recurrent networks.

Both give the network's outputs for a choice of units together with the rows they belong to, so
that a loss is written once, on rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from policies.actor_critic import ActorCritic, map_tensors

ROWS_AT_ONCE = 4096
"""Rows that go through the network together where no gradient is needed: bounds the memory."""


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
        """The rows themselves."""
        return rows

    def forward(
        self, network: ActorCritic, units: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Minibatches`."""
        outputs, values, _ = network(take(self._obs, units), ())
        return units, outputs, values


class Sequences:
    """Chunks of at most `length` consecutive rows of a fragment, each with its recorded state.

    A chunk never crosses an episode's end, so no state leaks between episodes. Shorter ones are
    padded at their end to feed the network; the padding is dropped from its outputs, so no loss
    ever sees it.

    Args:
        obs: Preprocessed observations, a struct of tensors [n, ...].
        state: Recurrent state before each row: tensors [n, size].
        offsets: Bounds of the fragments: int64 [f + 1].
        length: Rows of the longest chunk.
    """

    def __init__(
        self, obs: Any, state: tuple[torch.Tensor, ...], offsets: np.ndarray, length: int
    ) -> None:
        starts, ends = chunk_bounds(offsets, length)
        rows = starts[:, None] + np.arange(int((ends - starts).max(initial=0)))
        inside = rows < ends[:, None]
        device = state[0].device
        self._rows = torch.from_numpy(np.where(inside, rows, ends[:, None] - 1)).to(device)
        self._inside = torch.from_numpy(inside).to(device)
        self._obs, self._state = obs, state
        self._mean_rows = len(state[0]) / len(starts)
        self.units = len(starts)

    def per_minibatch(self, rows: int) -> int:
        """Chunks of the mean length that make `rows` rows, at least one."""
        return max(1, round(rows / self._mean_rows))

    def forward(
        self, network: ActorCritic, units: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Minibatches`; units in ascending order give rows in ascending order."""
        padded = self._rows.index_select(0, units)
        rows = padded.flatten()
        sequences = map_tensors(lambda x: x.unflatten(0, padded.shape), take(self._obs, rows))
        outputs, values = network.forward_sequences(sequences, take(self._state, padded[:, 0]))
        kept = self._inside.index_select(0, units).flatten().nonzero().squeeze(1)
        return rows[kept], take(outputs.flatten(0, 1), kept), take(values.flatten(), kept)


def forward_all(
    network: ActorCritic, minibatches: Minibatches, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The network's outputs [n, d] and values [n] at every row, in the rows' order, no gradient."""
    order = torch.arange(minibatches.units, device=device)
    with torch.no_grad():
        parts = [
            minibatches.forward(network, units)[1:]
            for units in order.split(minibatches.per_minibatch(ROWS_AT_ONCE))
        ]
    return torch.cat([outputs for outputs, _ in parts]), torch.cat([values for _, values in parts])


def take(struct: Any, rows: torch.Tensor) -> Any:
    """The chosen rows of every tensor of a struct."""
    # Twice as fast as struct[rows], which matters at a hundred rows.
    return map_tensors(lambda x: x.index_select(0, rows), struct)


def train_batches(minibatches: Minibatches, rows: int, batch_rows: int | None) -> list[np.ndarray]:
    """Cuts all units, in their order, into train batches of about equal size.

    Args:
        minibatches: The units.
        rows: Rows of all units together.
        batch_rows: Wanted rows of a train batch; None makes one batch of everything.

    Returns:
        Unit numbers of each train batch.
    """
    count = 1 if batch_rows is None else max(1, round(rows / batch_rows))
    return np.array_split(np.arange(minibatches.units), min(count, minibatches.units))


def split_evenly(order: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    """Consecutive parts of `size`; a rest shorter than half of it joins the part before."""
    count, rest = divmod(len(order), size)
    sizes = [size] * count
    if not count or 2 * rest >= size:
        sizes.append(rest)
    else:
        sizes[-1] += rest
    return order.split([size for size in sizes if size])


def chunk_bounds(offsets: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts fragments into chunks of at most `length` rows: the chunks' starts and ends.

    Args:
        offsets: Bounds of the fragments: int64 [f + 1].
        length: Rows of the longest chunk.

    Returns:
        First row of each chunk, and the row after its last, both int64 [chunks].
    """
    chunks = -(-np.diff(offsets) // length)
    fragment = np.repeat(np.arange(len(chunks)), chunks)
    number = np.arange(len(fragment)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    starts = offsets[fragment] + number * length
    return starts, np.minimum(starts + length, offsets[fragment + 1])
