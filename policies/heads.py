"""The last layers of actor-critic networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from policies.distributions import output_order
from policies.encoders import initialize
from policies.model_config import ModelConfig

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class PolicyHead(nn.Module):
    """Features [..., size] to distribution inputs [..., num_outputs].

    With `model.free_log_std` the outputs at `log_std_indices` are the parameter `log_std`, the same
    for every observation; the linear layer then makes only the others.
    """

    def __init__(
        self,
        size: int,
        num_outputs: int,
        model: ModelConfig,
        rng: np.random.Generator,
        log_std_indices: Sequence[int],
    ) -> None:
        super().__init__()
        indices = [int(index) for index in log_std_indices]
        self.free = bool(indices) and model.free_log_std
        self.linear = nn.Linear(size, num_outputs - len(indices) * self.free)
        initialize(self.linear, POLICY_GAIN, rng)
        if self.free:
            self.log_std = nn.Parameter(torch.full((len(indices),), model.initial_log_std))
            order = np.argsort(output_order(num_outputs, indices))
            self.is_ordered = bool((order == np.arange(num_outputs)).all())
            self.register_buffer("order", torch.from_numpy(order), persistent=False)
        elif indices:
            with torch.no_grad():
                self.linear.bias[indices] = model.initial_log_std

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Distribution inputs."""
        outputs: torch.Tensor = self.linear(features)
        if not self.free:
            return outputs
        log_std = self.log_std.expand(*outputs.shape[:-1], -1)
        outputs = torch.cat([outputs, log_std], dim=-1)
        if self.is_ordered:
            return outputs
        order: Any = self.order
        return outputs[..., order]


class ValueHead(nn.Module):
    """Features [..., size] to values [...]."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 1)
        initialize(self.linear, VALUE_GAIN, rng)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Values."""
        values: torch.Tensor = self.linear(features)
        return values.squeeze(-1)
