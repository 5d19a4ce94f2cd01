"""Action distributions, acting side: numpy only, no torch import, no generator inside.

A distribution maps a row of network outputs ("inputs") to a distribution over one action of an
action space:

    Discrete       softmax over n logits
    MultiDiscrete  independent softmaxes, logits concatenated
    MultiBinary    independent Bernoullis, one logit each
    Box            independent normals, inputs = mean | log_std; optionally squashed by tanh
    Dict, Tuple    product of the leaves, inputs concatenated (Dict keys sorted)

Sampling is a pure function of the inputs and of uniform noise that the caller draws, so that a
run's random streams decide every action. The learning side (log-probabilities, entropies and
divergences of torch tensors) is in `torch_distributions`, imported when a `torch_*` method is first
used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from policies.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from policies.torch_distributions import TorchDistribution

FloatArray = npt.NDArray[np.floating]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Actions = Any  # a struct: one array, or a dict or tuple of structs

LOG_STD_LIMIT = 20.0
"""log_std is clipped to plus or minus this: far outside any use, it only keeps exp() finite."""

SQUASH_LIMIT = float(np.nextafter(np.float32(1.0), np.float32(0.0)))
"""The largest float32 below 1. Squashed actions beyond it count as it, for a finite density."""

_SMALLEST_UNIFORM = 2.0**-54
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class ActionDistribution(ABC):
    """A family of distributions over the actions of one space.

    Attributes:
        input_size: Network outputs per row, d.
        noise_size: Uniforms in [0, 1) that one sample uses.
        log_std_indices: Positions in the inputs that hold a log standard deviation.
    """

    input_size: int
    noise_size: int
    log_std_indices: IntArray = np.zeros(0, np.int64)

    @abstractmethod
    def sample(self, inputs: FloatArray, noise: FloatArray) -> Actions:
        """Actions [n, ...] from inputs [n, input_size] and uniforms in [0, 1) [n, noise_size]."""

    @abstractmethod
    def greedy(self, inputs: FloatArray) -> Actions:
        """The most likely actions [n, ...] (of a squashed normal: tanh of the mean)."""

    @abstractmethod
    def log_prob(self, inputs: FloatArray, actions: Actions) -> Float64Array:
        """Log-probability (discrete parts) plus log-density (Box parts), float64 [n]."""

    def sample_with_log_prob(
        self, inputs: FloatArray, noise: FloatArray
    ) -> tuple[Actions, Float64Array]:
        """`sample` and the `log_prob` of what it drew, sharing work where they can."""
        actions = self.sample(inputs, noise)
        return actions, self.log_prob(inputs, actions)

    def torch_log_prob(self, inputs: torch.Tensor, actions: Actions) -> torch.Tensor:
        """`log_prob` on torch tensors [n], differentiable in `inputs`."""
        return self._torch.log_prob(inputs, actions)

    def torch_entropy(self, inputs: torch.Tensor) -> torch.Tensor:
        """Entropy in nats [n] (differential for Box parts), differentiable."""
        return self._torch.entropy(inputs)

    def torch_kl(self, inputs_old: torch.Tensor, inputs_new: torch.Tensor) -> torch.Tensor:
        """KL(old || new) in nats [n], differentiable in both."""
        return self._torch.kl(inputs_old, inputs_new)

    @cached_property
    def _torch(self) -> TorchDistribution:
        from policies.torch_distributions import torch_form

        return torch_form(self)


class Categorical(ActionDistribution):
    """One of n actions; inputs are unnormalised log-probabilities (-inf: impossible).

    Sampling inverts the cumulative distribution at one uniform; an action of probability zero is
    never drawn.
    """

    def __init__(self, n: int, start: int = 0) -> None:
        """Actions are `start` to `start + n - 1`."""
        self.n = n
        self.start = start
        self.input_size = n
        self.noise_size = 1

    def sample(self, inputs: FloatArray, noise: FloatArray) -> IntArray:
        cumulative = _shifted_logits(inputs)
        np.exp(cumulative, out=cumulative)
        np.add.accumulate(cumulative, axis=0, out=cumulative)
        return self._with_start(_invert(cumulative, noise[:, 0]))

    def sample_with_log_prob(
        self, inputs: FloatArray, noise: FloatArray
    ) -> tuple[IntArray, Float64Array]:
        logits = _shifted_logits(inputs)
        cumulative = np.exp(logits)
        np.add.accumulate(cumulative, axis=0, out=cumulative)
        index = _invert(cumulative, noise[:, 0])
        log_prob = _pick(logits, index)
        log_prob -= np.log(cumulative[-1])
        return self._with_start(index), log_prob

    def greedy(self, inputs: FloatArray) -> IntArray:
        return self._with_start(inputs.argmax(axis=1))

    def log_prob(self, inputs: FloatArray, actions: IntArray) -> Float64Array:
        logits = _shifted_logits(inputs)
        log_prob = _pick(logits, np.asarray(actions, np.int64) - self.start)
        log_prob -= np.log(np.exp(logits).sum(axis=0))
        return log_prob

    def _with_start(self, index: IntArray) -> IntArray:
        return index + self.start if self.start else index


class Bernoulli(ActionDistribution):
    """A MultiBinary space of the given shape; each input is the logit of a one."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.input_size = self.noise_size = math.prod(shape)

    def sample(self, inputs: FloatArray, noise: FloatArray) -> npt.NDArray[np.int8]:
        # The logistic function by tanh, which never overflows.
        ones = noise < 0.5 * (1.0 + np.tanh(0.5 * inputs.astype(np.float64)))
        return ones.astype(np.int8).reshape(-1, *self.shape)

    def greedy(self, inputs: FloatArray) -> npt.NDArray[np.int8]:
        return (inputs > 0).astype(np.int8).reshape(-1, *self.shape)

    def log_prob(self, inputs: FloatArray, actions: npt.NDArray[np.integer]) -> Float64Array:
        logits = inputs.astype(np.float64)
        ones = np.asarray(actions).reshape(len(logits), -1) != 0
        return -np.logaddexp(0.0, np.where(ones, -logits, logits)).sum(axis=1)


class DiagGaussian(ActionDistribution):
    """Independent normals over a Box of the given shape; inputs are mean | log_std.

    Actions are float32, whatever the Box's own dtype, and unbounded: the policy's actions, before
    clipping or unsquashing. Log-densities are those of the stored (rounded) action.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        # Not at the top: it takes 0.2 s to import, and policies of discrete actions never need it.
        from scipy.special import ndtri

        self._normal: Callable[[FloatArray], Float64Array] = ndtri
        self.shape = shape
        self.size = math.prod(shape)
        self.input_size = 2 * self.size
        self.noise_size = self.size
        self.log_std_indices = np.arange(self.size, 2 * self.size)
        self._minus_ones = np.full(self.size, -1.0)

    def sample(self, inputs: FloatArray, noise: FloatArray) -> npt.NDArray[np.float32]:
        mean, log_std = self._parameters(inputs)
        return self._draw(mean, np.exp(log_std), noise)

    def sample_with_log_prob(
        self, inputs: FloatArray, noise: FloatArray
    ) -> tuple[npt.NDArray[np.float32], Float64Array]:
        mean, log_std = self._parameters(inputs)
        actions = self._draw(mean, np.exp(log_std), noise)
        return actions, self._log_density(mean, log_std, actions.reshape(mean.shape))

    def greedy(self, inputs: FloatArray) -> npt.NDArray[np.float32]:
        return inputs[:, : self.size].astype(np.float32).reshape(-1, *self.shape)

    def log_prob(self, inputs: FloatArray, actions: FloatArray) -> Float64Array:
        mean, log_std = self._parameters(inputs)
        return self._log_density(mean, log_std, np.asarray(actions).reshape(mean.shape))

    def _draw(
        self, mean: Float64Array, std: Float64Array, noise: FloatArray
    ) -> npt.NDArray[np.float32]:
        x = self._normal(np.maximum(noise, _SMALLEST_UNIFORM))
        x *= std
        x += mean
        return self._squashed(x).astype(np.float32).reshape(-1, *self.shape)

    def _squashed(self, x: FloatArray) -> FloatArray:
        return x

    def _log_density(
        self, mean: Float64Array, log_std: Float64Array, x: FloatArray
    ) -> Float64Array:
        z = x - mean
        z *= np.exp(-log_std)
        z *= z
        z *= 0.5
        z += log_std
        # A matrix product, because sums over a short last axis are slow in numpy.
        return z @ self._minus_ones - self.size * _HALF_LOG_2PI

    def _parameters(self, inputs: FloatArray) -> tuple[Float64Array, Float64Array]:
        wide = inputs.astype(np.float64)
        log_std = wide[:, self.size :]
        np.minimum(log_std, LOG_STD_LIMIT, out=log_std)
        np.maximum(log_std, -LOG_STD_LIMIT, out=log_std)
        return wide[:, : self.size], log_std


class SquashedGaussian(DiagGaussian):
    """a = tanh(x), x normal: actions in [-1, 1] (Haarnoja et al. 2018, appendix C).

    With x = atanh(a), log p(a) = log N(x) - log(1 - a^2). Both are sums of log1p(a) and log1p(-a),
    which are exact in the stored action, so nothing cancels near the bounds.
    """

    def greedy(self, inputs: FloatArray) -> npt.NDArray[np.float32]:
        return np.tanh(super().greedy(inputs))

    def _squashed(self, x: FloatArray) -> FloatArray:
        return np.tanh(x)

    def _log_density(
        self, mean: Float64Array, log_std: Float64Array, x: FloatArray
    ) -> Float64Array:
        a = np.clip(x.astype(np.float64), -SQUASH_LIMIT, SQUASH_LIMIT)
        above, below = np.log1p(a), np.log1p(-a)
        log_density = super()._log_density(mean, log_std, 0.5 * (above - below))
        return log_density + (above + below) @ self._minus_ones


class Product(ActionDistribution):
    """Independent parts with slices of inputs and noise: Dict, Tuple and MultiDiscrete.

    `split` takes actions [n, ...] to one per part, `join` puts them together.
    """

    def __init__(
        self,
        parts: Sequence[ActionDistribution],
        join: Callable[[list[Actions]], Actions],
        split: Callable[[Actions], Sequence[Actions]],
    ) -> None:
        self.parts = tuple(parts)
        self.join = join
        self.split = split
        self.input_slices = _consecutive([part.input_size for part in self.parts])
        self.input_size = sum(part.input_size for part in self.parts)
        self.noise_size = sum(part.noise_size for part in self.parts)
        noise_slices = _consecutive([part.noise_size for part in self.parts])
        self._parts = list(zip(self.parts, self.input_slices, noise_slices, strict=True))
        self.log_std_indices = np.concatenate(
            [np.zeros(0, np.int64)] + [part.log_std_indices + i.start for part, i, _ in self._parts]
        )

    def sample(self, inputs: FloatArray, noise: FloatArray) -> Actions:
        return self.join([part.sample(inputs[:, i], noise[:, u]) for part, i, u in self._parts])

    def sample_with_log_prob(
        self, inputs: FloatArray, noise: FloatArray
    ) -> tuple[Actions, Float64Array]:
        drawn = [part.sample_with_log_prob(inputs[:, i], noise[:, u]) for part, i, u in self._parts]
        log_prob = np.zeros(len(inputs))
        for _, part_log_prob in drawn:
            log_prob += part_log_prob
        return self.join([action for action, _ in drawn]), log_prob

    def greedy(self, inputs: FloatArray) -> Actions:
        return self.join([part.greedy(inputs[:, i]) for part, i, _ in self._parts])

    def log_prob(self, inputs: FloatArray, actions: Actions) -> Float64Array:
        total = np.zeros(len(inputs))
        for (part, i, _), action in zip(self._parts, self.split(actions), strict=True):
            total += part.log_prob(inputs[:, i], action)
        return total


def distribution_for(action_space: gym.Space[Any], *, squash: bool = False) -> ActionDistribution:
    """The distribution of an action space (the module's table).

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, Box of floats, or Dict or Tuple of
            these.
        squash: Squash the normals of bounded Box leaves by tanh, into [-1, 1].

    Raises:
        ConfigError: If the space, or a leaf of it, has no distribution.
    """
    if isinstance(action_space, gym.spaces.Discrete):
        return Categorical(int(action_space.n), int(action_space.start))
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        return _multi_categorical(action_space)
    if isinstance(action_space, gym.spaces.MultiBinary):
        return Bernoulli(tuple(action_space.shape))
    if isinstance(action_space, gym.spaces.Box):
        return _gaussian(action_space, squash)
    if isinstance(action_space, gym.spaces.Dict):
        children: Mapping[str, gym.Space[Any]] = action_space.spaces
        keys = sorted(children)
        return Product(
            [distribution_for(children[key], squash=squash) for key in keys],
            join=lambda actions: dict(zip(keys, actions, strict=True)),
            split=lambda actions: [actions[key] for key in keys],
        )
    if isinstance(action_space, gym.spaces.Tuple):
        return Product(
            [distribution_for(child, squash=squash) for child in action_space.spaces],
            join=tuple,
            split=tuple,
        )
    raise ConfigError(
        f"no action distribution for {type(action_space).__name__} actions; use Discrete, "
        "MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these"
    )


def output_order(num_outputs: int, log_std_indices: Sequence[int]) -> IntArray:
    """Positions in the inputs of a distribution: first those from the layer, then the log stds."""
    indices = np.asarray(log_std_indices, np.int64)
    return np.concatenate([np.setdiff1d(np.arange(num_outputs), indices), indices])


def _multi_categorical(space: gym.spaces.MultiDiscrete) -> Product:
    shape = space.nvec.shape
    return Product(
        [
            Categorical(int(n), int(start))
            for n, start in zip(space.nvec.ravel(), space.start.ravel(), strict=True)
        ],
        join=lambda columns: np.stack(columns, axis=1).reshape(-1, *shape),
        split=lambda actions: actions.reshape(len(actions), -1).T,
    )


def _gaussian(space: gym.spaces.Box, squash: bool) -> DiagGaussian:
    if not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"no action distribution for a Box of {space.dtype}; use MultiDiscrete for whole "
            "numbers, or a float Box"
        )
    bounded = bool(space.bounded_below.all() and space.bounded_above.all())
    return SquashedGaussian(space.shape) if squash and bounded else DiagGaussian(space.shape)


def _shifted_logits(inputs: FloatArray) -> Float64Array:
    """Float64 logits minus each row's maximum, transposed to [d, n].

    Transposed, because reductions over a short last axis are several times slower in numpy.
    """
    logits = inputs.T.astype(np.float64, order="C")
    logits -= np.maximum.reduce(logits, axis=0)
    return logits


def _invert(cumulative: Float64Array, uniforms: FloatArray) -> IntArray:
    """The index drawn at each uniform, from unnormalised cumulative probabilities [d, n]."""
    reached = cumulative[:-1] <= uniforms * cumulative[-1]
    return np.add.reduce(reached, axis=0, dtype=np.int64)


def _pick(rows: Float64Array, index: IntArray) -> Float64Array:
    """rows[index[j], j] for rows [d, n]."""
    n = rows.shape[1]
    return rows.ravel().take(index * n + np.arange(n))


def _consecutive(sizes: Sequence[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(start, end) for start, end in zip(ends[:-1], ends[1:], strict=True)]
