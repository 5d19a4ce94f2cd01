"""The layers below a policy's outputs: encoders of observations, and how their weights start.

Weights are made by numpy from a generator of the run, never by torch's global one, so the same seed
gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from policies.errors import ConfigError
from policies.model_config import ModelConfig
from policies.spaces import flat_size, is_image

HIDDEN_GAIN = math.sqrt(2.0)
SMALLEST_IMAGE = 36

# Functions, not modules: a module's call costs as much as tanh of a small batch.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": nn.functional.silu,
}


def orthogonal(
    shape: tuple[int, int], gain: float, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """A random matrix whose shorter side's vectors are orthogonal and of length `gain`.

    Uniform over such matrices (Saxe et al. 2013): QR of a Gaussian matrix, with the signs that make
    it unique.
    """
    rows, columns = shape
    gaussian = rng.standard_normal((max(shape), min(shape)))
    q, r = np.linalg.qr(gaussian)
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return (gain * (q if rows >= columns else q.T)).astype(np.float32)


def initialize(
    module: nn.Linear | nn.Conv2d | nn.LSTM, gain: float, rng: np.random.Generator
) -> None:
    """Makes a layer's weight matrices orthogonal and its biases zero, in place."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.zero_()
                continue
            shape = (len(parameter), parameter[0].numel())
            weights = torch.from_numpy(np.ascontiguousarray(orthogonal(shape, gain, rng)))
            parameter.copy_(weights.reshape(parameter.shape))


class MLPEncoder(nn.Module):
    """Fully connected layers: float32 [n, in] to [n, size]."""

    def __init__(self, in_size: int, model: ModelConfig, rng: np.random.Generator) -> None:
        super().__init__()
        sizes = [in_size, *model.hidden]
        self.layers = nn.ModuleList(
            nn.Linear(before, after) for before, after in zip(sizes[:-1], sizes[1:], strict=True)
        )
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            initialize(layer, HIDDEN_GAIN, rng)
        self.activation = _ACTIVATIONS[model.activation]
        self.size = sizes[-1]

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Features [n, size]."""
        for layer in self.layers:
            obs = self.activation(layer(obs))
        return obs


class ImageEncoder(nn.Module):
    """The convolutional network of Mnih et al. 2015 (Nature): uint8 images to [n, 512].

    Images may have their channels last [n, H, W, C] or first [n, C, H, W]; the shorter of the two
    axes is taken for the channels. They stay uint8 up to here and are divided by 255.
    """

    size = 512

    def __init__(self, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        """Raises ConfigError for images smaller than 36 by 36."""
        super().__init__()
        self.channels_last = shape[2] <= shape[0]
        height, width = shape[:2] if self.channels_last else shape[1:]
        channels = shape[2] if self.channels_last else shape[0]
        if min(height, width) < SMALLEST_IMAGE:
            raise ConfigError(
                f"images of {height} x {width} are too small for the convolutional network, which "
                f"needs {SMALLEST_IMAGE} x {SMALLEST_IMAGE}; set model.custom_network, or wrap the "
                "env in gymnasium.wrappers.FlattenObservation"
            )
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(channels, 32, kernel_size=8, stride=4),
                nn.Conv2d(32, 64, kernel_size=4, stride=2),
                nn.Conv2d(64, 64, kernel_size=3, stride=1),
            ]
        )
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv2d)
            initialize(convolution, HIDDEN_GAIN, rng)
            height, width = (
                (side - convolution.kernel_size[0]) // convolution.stride[0] + 1
                for side in (height, width)
            )
        self.linear = nn.Linear(64 * height * width, self.size)
        initialize(self.linear, HIDDEN_GAIN, rng)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Features [n, 512]."""
        x = obs.permute(0, 3, 1, 2) if self.channels_last else obs
        x = x.float() / 255.0
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        return torch.relu(self.linear(x.flatten(start_dim=1)))


def build_encoder(
    observation_space: gym.Space, model: ModelConfig, rng: np.random.Generator
) -> MLPEncoder | ImageEncoder:
    """The encoder of an observation space: convolutional for images, else fully connected.

    Raises:
        ConfigError: If an image is too small.
    """
    if is_image(observation_space):
        return ImageEncoder(observation_space.shape or (), rng)
    return MLPEncoder(flat_size(observation_space), model, rng)
