"""The interface of actor-critic networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

State = tuple[torch.Tensor, ...]


class ActorCritic(nn.Module, ABC):
    """What policies and learners need of a network. Shapes: n rows, d distribution inputs."""

    is_recurrent = False

    @abstractmethod
    def forward(self, obs: Any, state: State = ()) -> tuple[torch.Tensor, torch.Tensor, State]:
        """One step: distribution inputs [n, d], values [n], next state (each [n, size])."""

    def policy(self, obs: Any, state: State = ()) -> tuple[torch.Tensor, State]:
        """Distribution inputs [n, d] and next state, without the work for values only."""
        inputs, _, next_state = self(obs, state)
        return inputs, next_state

    def value(self, obs: Any, state: State = ()) -> torch.Tensor:
        """Values [n], without the work for the policy only."""
        values: torch.Tensor = self(obs, state)[1]
        return values

    def forward_sequences(self, obs: Any, state: State = ()) -> tuple[torch.Tensor, torch.Tensor]:
        """Whole sequences at once.

        Args:
            obs: Struct of tensors [B, L, ...]; sequence b is one stretch of one episode.
            state: The state before the first step, each [B, size].

        Returns:
            Distribution inputs [B, L, d] and values [B, L].
        """
        steps = []
        for step in range(leading_shape(obs)[1]):
            inputs, values, state = self(map_tensors(lambda x, i=step: x[:, i], obs), state)
            steps.append((inputs, values))
        return torch.stack([s[0] for s in steps], 1), torch.stack([s[1] for s in steps], 1)

    def initial_state(self, n: int) -> tuple[npt.NDArray[Any], ...]:
        """The state of n new episodes: arrays [n, size]; empty without memory."""
        return ()

    def training_on(self, rng: np.random.Generator) -> AbstractContextManager[None]:
        """While it lasts, layers behave as in training, and draw from `rng` alone.

        Outside they act alike each time. The networks of this package have no layer that differs.
        """
        return nullcontext()


def map_tensors(function: Any, struct: Any) -> Any:
    if isinstance(struct, dict):
        return {key: map_tensors(function, child) for key, child in struct.items()}
    if isinstance(struct, tuple):
        return tuple(map_tensors(function, child) for child in struct)
    return function(struct)


def leading_shape(struct: Any) -> tuple[int, int]:
    while isinstance(struct, dict | tuple):
        struct = next(iter(struct.values())) if isinstance(struct, dict) else struct[0]
    return struct.shape[0], struct.shape[1]
