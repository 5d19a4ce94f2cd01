"""Actor-critic networks: observations to the inputs of an action distribution and to values.

`build_network` chooses by `ModelConfig`:

    default            two encoders, one for the policy and one for the value function
    share_layers       one encoder under both heads
    use_lstm           one encoder and one LSTM under both heads
    custom_network     the user's own module

Encoders are in `encoders`: layers of `model.hidden` on the flattened observation, or a
convolutional network for images. Observations come preprocessed (`Policy.preprocess`): float32
[n, size], or uint8 images. Everything else is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from policies.actor_critic import ActorCritic, State
from policies.custom_networks import build_custom
from policies.encoders import build_encoder
from policies.heads import PolicyHead, ValueHead
from policies.model_config import ModelConfig
from policies.recurrent_networks import Recurrent
from policies.torch_random import torch_seeded_from

__all__ = ["ActorCritic", "FeedForward", "Recurrent", "build_network"]


class FeedForward(ActorCritic):
    """Encoders and linear heads, without memory."""

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
        self.shared = model.share_layers
        if self.shared:
            self.encoder = build_encoder(observation_space, model, rng)
            size = self.encoder.size
        else:
            self.policy_encoder = build_encoder(observation_space, model, rng)
            size = self.policy_encoder.size
        self.policy_head = PolicyHead(size, num_outputs, model, rng, log_std_indices)
        if not self.shared:
            self.value_encoder = build_encoder(observation_space, model, rng)
        self.value_head = ValueHead(size, rng)

    def forward(
        self, obs: torch.Tensor, state: State = ()
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Distribution inputs, values, no state."""
        if self.shared:
            features = self.encoder(obs)
            return self.policy_head(features), self.value_head(features), ()
        return self.policy_head(self.policy_encoder(obs)), self.value(obs), ()

    def policy(self, obs: torch.Tensor, state: State = ()) -> tuple[torch.Tensor, State]:
        """Distribution inputs, no state."""
        encoder = self.encoder if self.shared else self.policy_encoder
        return self.policy_head(encoder(obs)), ()

    def value(self, obs: torch.Tensor, state: State = ()) -> torch.Tensor:
        """Values."""
        encoder = self.encoder if self.shared else self.value_encoder
        values: torch.Tensor = self.value_head(encoder(obs))
        return values

    def forward_sequences(
        self, obs: torch.Tensor, state: State = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All steps as one batch."""
        batch, length = obs.shape[:2]
        inputs, values, _ = self(obs.flatten(0, 1))
        return inputs.reshape(batch, length, -1), values.reshape(batch, length)


def build_network(
    observation_space: gym.Space[Any],
    num_outputs: int,
    model: ModelConfig,
    rng: np.random.Generator,
    log_std_indices: Sequence[int] = (),
) -> ActorCritic:
    """Builds the network that `model` describes, with orthogonal weights drawn from `rng`.

    Args:
        observation_space: Single observations, before preprocessing.
        num_outputs: Inputs of the action distribution.
        model: The settings.
        rng: Makes every weight; the same state gives the same bits. A custom network draws from
            torch's generator, seeded from `rng` and put back afterwards.
        log_std_indices: Outputs that are log standard deviations
            (`ActionDistribution.log_std_indices`).

    Raises:
        ConfigError: If an image is too small, or the custom network cannot be imported or made.
    """
    with torch_seeded_from(rng):
        if model.custom_network is not None:
            return build_custom(model.custom_network, observation_space, num_outputs, model)
        kind = Recurrent if model.use_lstm else FeedForward
        return kind(observation_space, num_outputs, model, rng, log_std_indices)
