"""Actor-critic networks with memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from policies.actor_critic import ActorCritic, State
from policies.encoders import build_encoder, initialize
from policies.heads import PolicyHead, ValueHead
from policies.model_config import ModelConfig


class Recurrent(ActorCritic):
    """One encoder and one LSTM (Hochreiter & Schmidhuber 1997) under both heads.

    The state is (hidden [n, lstm_size], cell [n, lstm_size]); episodes start from zeros.
    """

    is_recurrent = True

    def __init__(
        self,
        observation_space: gym.Space[Any],
        num_outputs: int,
        model: ModelConfig,
        rng: np.random.Generator,
        log_std_indices: Sequence[int] = (),
    ) -> None:
        """See `build_network`."""
        super().__init__()
        self.encoder = build_encoder(observation_space, model, rng)
        self.size = model.lstm_size
        self.lstm = nn.LSTM(self.encoder.size, self.size, batch_first=True)
        initialize(self.lstm, 1.0, rng)
        self.policy_head = PolicyHead(self.size, num_outputs, model, rng, log_std_indices)
        self.value_head = ValueHead(self.size, rng)

    def forward(
        self, obs: torch.Tensor, state: State = ()
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """One step."""
        features, next_state = self._step(obs, state)
        return self.policy_head(features), self.value_head(features), next_state

    def policy(self, obs: torch.Tensor, state: State = ()) -> tuple[torch.Tensor, State]:
        """One step without values."""
        features, next_state = self._step(obs, state)
        return self.policy_head(features), next_state

    def value(self, obs: torch.Tensor, state: State = ()) -> torch.Tensor:
        """Values of one step."""
        values: torch.Tensor = self.value_head(self._step(obs, state)[0])
        return values

    def forward_sequences(
        self, obs: torch.Tensor, state: State = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encodes all steps as one batch and runs the LSTM over each sequence."""
        features, _ = self._unroll(obs, state)
        return self.policy_head(features), self.value_head(features)

    def initial_state(self, n: int) -> tuple[npt.NDArray[Any], ...]:
        """Zeros."""
        return tuple(np.zeros((n, self.size), np.float32) for _ in range(2))

    def _step(self, obs: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        features, next_state = self._unroll(obs.unsqueeze(1), state)
        return features.squeeze(1), next_state

    def _unroll(self, obs: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        batch, length = obs.shape[:2]
        encoded = self.encoder(obs.flatten(0, 1)).reshape(batch, length, -1)
        hidden, cell = state
        # The LSTM's own states have a leading axis for its layers.
        features, (hidden, cell) = self.lstm(
            encoded, (hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous())
        )
        return features, (hidden.squeeze(0), cell.squeeze(0))
