"""Running a network for acting, without gradients: numpy arrays in, numpy arrays out.

Two forms of one interface. Both follow every change of the network's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from policies.model_config import ModelConfig
from policies.networks import ActorCritic
from policies.numpy_networks import NumpyMLP

Array = npt.NDArray[Any]
State = tuple[Array, ...]


class Actor(Protocol):
    """Preprocessed observations of n rows to what acting needs."""

    def policy(self, obs: Any, state: State) -> tuple[Array, State]:
        """Distribution inputs [n, d] and the next state."""

    def value(self, obs: Any, state: State) -> Array:
        """Values [n]."""

    def policy_and_value(self, obs: Any, state: State) -> tuple[Array, Array, State]:
        """Distribution inputs, values and the next state."""


class NumpyActor:
    """Acts with a `networks.FeedForward` in numpy, on views of the network's own weights.

    Views rather than copies, because torch's fused optimisers change weights without a trace.
    """

    def __init__(
        self, network: ActorCritic, model: ModelConfig, log_std_indices: Sequence[int]
    ) -> None:
        self._network = network
        self._model = model
        self._log_std_indices = log_std_indices
        self._parameters = list(network.parameters())
        self._on_cpu = False
        self._address = 0
        self._mlp: NumpyMLP

    def policy(self, obs: Array, state: State) -> tuple[Array, State]:
        """See `Actor`."""
        return self._current().policy(obs), ()

    def value(self, obs: Array, state: State) -> Array:
        """See `Actor`."""
        return self._current().value(obs)

    def policy_and_value(self, obs: Array, state: State) -> tuple[Array, Array, State]:
        """See `Actor`."""
        mlp = self._current()
        return mlp.policy(obs), mlp.value(obs), ()

    def _current(self) -> NumpyMLP:
        # Moving a network, as to another device and back, gives it new memory. Weights on a device
        # are copied at every call.
        if not self._on_cpu or self._parameters[0].data_ptr() != self._address:
            weights = {name: to_numpy(x) for name, x in self._network.state_dict().items()}
            self._mlp = NumpyMLP.from_weights(weights, self._model, self._log_std_indices)
            self._on_cpu = self._parameters[0].device.type == "cpu"
            self._address = self._parameters[0].data_ptr()
        return self._mlp


class TorchActor:
    """Acts with the network itself, on its device."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network
        self._parameter = next(network.parameters())

    def policy(self, obs: Any, state: State) -> tuple[Array, State]:
        """See `Actor`."""
        with torch.inference_mode():
            inputs, next_state = self._network.policy(*self._tensors(obs, state))
            return to_numpy(inputs), tuple(to_numpy(x) for x in next_state)

    def value(self, obs: Any, state: State) -> Array:
        """See `Actor`."""
        with torch.inference_mode():
            return to_numpy(self._network.value(*self._tensors(obs, state)))

    def policy_and_value(self, obs: Any, state: State) -> tuple[Array, Array, State]:
        """See `Actor`."""
        with torch.inference_mode():
            inputs, values, next_state = self._network(*self._tensors(obs, state))
            next_arrays = tuple(to_numpy(x) for x in next_state)
            return to_numpy(inputs), to_numpy(values), next_arrays

    def _tensors(self, obs: Any, state: State) -> tuple[Any, tuple[torch.Tensor, ...]]:
        device = self._parameter.device
        return to_tensors(obs, device), tuple(to_tensors(x, device) for x in state)


def to_tensors(struct: Any, device: torch.device | str) -> Any:
    """The same struct with torch tensors; they share memory where the arrays allow it."""
    if isinstance(struct, dict):
        return {key: to_tensors(child, device) for key, child in struct.items()}
    if isinstance(struct, tuple):
        return tuple(to_tensors(child, device) for child in struct)
    # Torch wants writable, aligned arrays; those that come out of Arrow are neither.
    array = struct if struct.flags.carray else np.array(struct, order="C")
    return torch.from_numpy(array).to(device)


def to_numpy(tensor: torch.Tensor) -> Array:
    """The tensor's values on the CPU; shares its memory if it is there already."""
    return tensor.detach().cpu().numpy()
