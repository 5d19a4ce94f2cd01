"""Forward passes of fully connected actor-critic networks in numpy, for acting.

At the sizes of acting (tens of rows, tens of units) torch spends most of its time on its own calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.distributions import output_order
from policies.model_config import ModelConfig

Array = npt.NDArray[np.float32]
Layer = tuple[Array, Array]


class NumpyMLP:
    """The numpy twin of `networks.FeedForward` on flat observations; agrees to float32 rounding.

    The given arrays are viewed, not copied: it follows weights that change in place.
    """

    def __init__(
        self,
        policy_layers: Sequence[Layer],
        value_layers: Sequence[Layer],
        activation: str,
        log_std: Array | None = None,
        log_std_indices: Sequence[int] = (),
    ) -> None:
        """Takes layers as (weights [in, out], bias [out]), the heads last; see `from_weights`."""
        self._activate = _ACTIVATIONS[activation]
        self._policy_layers = list(policy_layers)
        self._value_layers = list(value_layers)
        self._log_std = log_std
        if log_std is not None:
            size = policy_layers[-1][0].shape[1]
            order = output_order(size + len(log_std), log_std_indices)
            self._layer_outputs, self._log_std_outputs = order[:size], order[size:]

    @classmethod
    def from_weights(
        cls,
        weights: Mapping[str, npt.NDArray[Any]],
        model: ModelConfig,
        log_std_indices: Sequence[int] = (),
    ) -> NumpyMLP:
        """Builds it from named arrays, as `Policy.get_weights` gives them.

        Args:
            weights: Name to float32 array; weights [out, in], as torch keeps them.
            model: The settings that the network was built with.
            log_std_indices: As for `networks.build_network`.

        Raises:
            KeyError: If an array is missing.
        """
        policy, value = ("encoder",) * 2 if model.share_layers else _ENCODERS
        depth = range(len(model.hidden))
        policy_names = [f"{policy}.layers.{i}" for i in depth] + ["policy_head.linear"]
        value_names = [f"{value}.layers.{i}" for i in depth] + ["value_head.linear"]
        log_std = weights.get("policy_head.log_std")
        return cls(
            [_layer(weights, name) for name in policy_names],
            [_layer(weights, name) for name in value_names],
            model.activation,
            None if log_std is None else np.asarray(log_std, np.float32),
            log_std_indices,
        )

    def policy(self, obs: Array) -> Array:
        """Distribution inputs [n, d] of flat observations [n, size]."""
        outputs = self._forward(self._policy_layers, obs)
        if self._log_std is None:
            return outputs
        inputs = np.empty((len(obs), outputs.shape[1] + len(self._log_std)), np.float32)
        inputs[:, self._layer_outputs] = outputs
        inputs[:, self._log_std_outputs] = self._log_std
        return inputs

    def value(self, obs: Array) -> Array:
        """Values [n] of flat observations [n, size]."""
        return self._forward(self._value_layers, obs)[:, 0]

    def _forward(self, layers: list[Layer], x: Array) -> Array:
        activate = self._activate
        for weights, bias in layers[:-1]:
            x = x @ weights
            x += bias
            activate(x)
        weights, bias = layers[-1]
        x = x @ weights
        x += bias
        return x


_ENCODERS = ("policy_encoder", "value_encoder")


def _layer(weights: Mapping[str, npt.NDArray[Any]], name: str) -> Layer:
    # A transposed view multiplies as fast as a transposed copy.
    matrix = np.asarray(weights[f"{name}.weight"], np.float32).T
    return matrix, np.asarray(weights[f"{name}.bias"], np.float32)


def _tanh(x: Array) -> None:
    np.tanh(x, out=x)


def _relu(x: Array) -> None:
    np.maximum(x, np.float32(0.0), out=x)


def _silu(x: Array) -> None:
    # x sigmoid(x), by tanh because exp(-x) overflows.
    half = x * np.float32(0.5)
    np.tanh(half, out=half)
    half += np.float32(1.0)
    x *= half
    x *= np.float32(0.5)


_ACTIVATIONS: dict[str, Callable[[Array], None]] = {"tanh": _tanh, "relu": _relu, "silu": _silu}
