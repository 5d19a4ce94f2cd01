"""Networks of the user's own, named by import path."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from policies.actor_critic import ActorCritic, State, leading_shape, map_tensors
from policies.errors import ConfigError
from policies.model_config import ModelConfig
from policies.torch_random import torch_seeded_from


class Custom(ActorCritic):
    """The user's module behind the same interface.

    Its forward(obs) returns (distribution inputs, values). With a method initial_state(n), giving a
    tuple of arrays [n, size], it has memory: forward(obs, state) then returns (distribution inputs,
    values, next state). The observations are tensors in the structure of the space, Discrete as
    int64 [n].

    It is in evaluation mode but for gradient steps: Dropout is off and BatchNorm uses its running
    statistics when acting, evaluating and estimating values.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.is_recurrent = hasattr(module, "initial_state")
        self.eval()

    def forward(self, obs: Any, state: State = ()) -> tuple[torch.Tensor, torch.Tensor, State]:
        """One step of the module."""
        if not self.is_recurrent:
            inputs, values = self.module(obs)
            return inputs, values.reshape(len(inputs)), ()
        inputs, values, next_state = self.module(obs, state)
        return inputs, values.reshape(len(inputs)), tuple(next_state)

    def forward_sequences(self, obs: Any, state: State = ()) -> tuple[torch.Tensor, torch.Tensor]:
        """Step by step with memory, else all steps as one batch."""
        if self.is_recurrent:
            return super().forward_sequences(obs, state)
        batch, length = leading_shape(obs)
        inputs, values, _ = self(map_tensors(lambda x: x.flatten(0, 1), obs))
        return inputs.reshape(batch, length, -1), values.reshape(batch, length)

    def initial_state(self, n: int) -> tuple[npt.NDArray[Any], ...]:
        """What the module says, as numpy arrays."""
        if not self.is_recurrent:
            return ()
        start: Any = self.module.initial_state
        return tuple(np.array(array, np.float32) for array in start(n))

    @contextmanager
    def training_on(self, rng: np.random.Generator) -> Iterator[None]:
        """Training mode; torch's generators are seeded from `rng`, and put back afterwards."""
        with torch_seeded_from(rng, next(self.parameters()).device):
            self.train()
            try:
                yield
            finally:
                self.eval()


def build_custom(
    path: str, observation_space: gym.Space[Any], num_outputs: int, model: ModelConfig
) -> Custom:
    module_name, _, class_name = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in class_name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model.custom_network {path!r} cannot be imported: {error}") from error
    try:
        module = target(observation_space, num_outputs, **model.custom_network_config)
    except Exception as error:
        raise ConfigError(
            f"model.custom_network {path!r} cannot be made from (observation_space, num_outputs, "
            f"**custom_network_config): {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.custom_network {path!r} is not a torch.nn.Module")
    return Custom(module)
