"""Action distributions, learning side: log-probabilities, entropies, divergences of torch tensors.

Each class is the twin of one in `distributions` and agrees with it; the formulas work in the dtype
of the inputs and are differentiable in them. Reach them through `ActionDistribution.torch_log_prob`
and its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from policies.distributions import (
    LOG_STD_LIMIT,
    SQUASH_LIMIT,
    ActionDistribution,
    Bernoulli,
    Categorical,
    DiagGaussian,
    Product,
    SquashedGaussian,
)

_LOG_2PI = math.log(2.0 * math.pi)
_QUADRATURE_POINTS = 64


class TorchDistribution(Protocol):
    """What a learner needs of a distribution: inputs [n, d] to values [n]."""

    def log_prob(self, inputs: torch.Tensor, actions: Any) -> torch.Tensor:
        """Log-probability or log-density of the actions [n, ...]."""

    def entropy(self, inputs: torch.Tensor) -> torch.Tensor:
        """Entropy in nats."""

    def kl(self, inputs_old: torch.Tensor, inputs_new: torch.Tensor) -> torch.Tensor:
        """KL(old || new) in nats."""


class TorchCategorical:
    """Softmax over logits; see `distributions.Categorical`."""

    def __init__(self, start: int) -> None:
        self._start = start

    def log_prob(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """log p(action)."""
        index = actions.long() - self._start if self._start else actions.long()
        return torch.log_softmax(inputs, dim=-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def entropy(self, inputs: torch.Tensor) -> torch.Tensor:
        """-sum p log p, where 0 log 0 = 0."""
        log_p = _finite(torch.log_softmax(inputs, dim=-1))
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, inputs_old: torch.Tensor, inputs_new: torch.Tensor) -> torch.Tensor:
        """sum p_old (log p_old - log p_new)."""
        log_old = _finite(torch.log_softmax(inputs_old, dim=-1))
        log_new = _finite(torch.log_softmax(inputs_new, dim=-1))
        return (log_old.exp() * (log_old - log_new)).sum(-1)


class TorchBernoulli:
    """Independent Bernoullis; see `distributions.Bernoulli`."""

    def log_prob(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Sum over components of log sigmoid(+-logit)."""
        ones = actions.reshape(inputs.shape) != 0
        return torch.nn.functional.logsigmoid(torch.where(ones, inputs, -inputs)).sum(-1)

    def entropy(self, inputs: torch.Tensor) -> torch.Tensor:
        """Sum over components of -p log p - (1 - p) log(1 - p)."""
        log_one, log_zero = _log_bernoulli(inputs)
        return -(log_one.exp() * log_one + log_zero.exp() * log_zero).sum(-1)

    def kl(self, inputs_old: torch.Tensor, inputs_new: torch.Tensor) -> torch.Tensor:
        """Sum over components."""
        one_old, zero_old = _log_bernoulli(inputs_old)
        one_new, zero_new = _log_bernoulli(inputs_new)
        divergence = one_old.exp() * (one_old - one_new) + zero_old.exp() * (zero_old - zero_new)
        return divergence.sum(-1)


class TorchDiagGaussian:
    """Independent normals, inputs mean | log_std; see `distributions.DiagGaussian`."""

    def log_prob(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Log-density."""
        mean, log_std = _mean_and_log_std(inputs)
        z = (actions.reshape(mean.shape).to(mean.dtype) - mean) * (-log_std).exp()
        return -(0.5 * (z * z + _LOG_2PI) + log_std).sum(-1)

    def entropy(self, inputs: torch.Tensor) -> torch.Tensor:
        """Sum of log_std + log(2 pi e) / 2."""
        _, log_std = _mean_and_log_std(inputs)
        return (log_std + 0.5 * (_LOG_2PI + 1.0)).sum(-1)

    def kl(self, inputs_old: torch.Tensor, inputs_new: torch.Tensor) -> torch.Tensor:
        """Sum of log(s_new / s_old) + (s_old^2 + (m_old - m_new)^2) / (2 s_new^2) - 1/2."""
        mean_old, log_std_old = _mean_and_log_std(inputs_old)
        mean_new, log_std_new = _mean_and_log_std(inputs_new)
        log_ratio = log_std_old - log_std_new
        z = (mean_old - mean_new) * (-log_std_new).exp()
        return (0.5 * ((2.0 * log_ratio).exp() + z * z - 1.0) - log_ratio).sum(-1)


class TorchSquashedGaussian(TorchDiagGaussian):
    """tanh of normals; see `distributions.SquashedGaussian`.

    The divergence is inherited: KL does not change under the bijection tanh.
    """

    def __init__(self) -> None:
        points, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS)
        self._points = torch.from_numpy(points)
        self._weights = torch.from_numpy(weights / math.sqrt(2.0 * math.pi))

    def log_prob(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """log N(atanh a) - log(1 - a^2)."""
        a = actions.reshape(*inputs.shape[:-1], -1).to(inputs.dtype)
        a = a.clamp(-SQUASH_LIMIT, SQUASH_LIMIT)
        above, below = torch.log1p(a), torch.log1p(-a)
        return super().log_prob(inputs, 0.5 * (above - below)) - (above + below).sum(-1)

    def entropy(self, inputs: torch.Tensor) -> torch.Tensor:
        """Entropy of the normals plus E[log(1 - tanh(x)^2)] by Gauss-Hermite quadrature.

        There is no closed form; the quadrature needs no noise, and is good to 1e-3 for std up to 2.
        """
        mean, log_std = _mean_and_log_std(inputs)
        points = self._points.to(inputs)
        x = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * points
        log_derivative = 2.0 * (math.log(2.0) - x - torch.nn.functional.softplus(-2.0 * x))
        return super().entropy(inputs) + (log_derivative @ self._weights.to(inputs)).sum(-1)


class TorchProduct:
    """Independent parts: everything is the sum over them; see `distributions.Product`."""

    def __init__(
        self,
        parts: Sequence[TorchDistribution],
        slices: Sequence[slice],
        split: Callable[[Any], Sequence[Any]],
    ) -> None:
        self._parts = list(zip(parts, slices, strict=True))
        self._split = split

    def log_prob(self, inputs: torch.Tensor, actions: Any) -> torch.Tensor:
        """Sum of the parts' log-probabilities."""
        total = inputs.new_zeros(inputs.shape[:-1])
        for (part, columns), action in zip(self._parts, self._split(actions), strict=True):
            total = total + part.log_prob(inputs[..., columns], action)
        return total

    def entropy(self, inputs: torch.Tensor) -> torch.Tensor:
        """Sum of the parts' entropies."""
        total = inputs.new_zeros(inputs.shape[:-1])
        for part, columns in self._parts:
            total = total + part.entropy(inputs[..., columns])
        return total

    def kl(self, inputs_old: torch.Tensor, inputs_new: torch.Tensor) -> torch.Tensor:
        """Sum of the parts' divergences."""
        total = inputs_old.new_zeros(inputs_old.shape[:-1])
        for part, columns in self._parts:
            total = total + part.kl(inputs_old[..., columns], inputs_new[..., columns])
        return total


def torch_form(distribution: ActionDistribution) -> TorchDistribution:
    """The torch twin of a numpy distribution."""
    if isinstance(distribution, Categorical):
        return TorchCategorical(distribution.start)
    if isinstance(distribution, Bernoulli):
        return TorchBernoulli()
    if isinstance(distribution, SquashedGaussian):
        return TorchSquashedGaussian()
    if isinstance(distribution, DiagGaussian):
        return TorchDiagGaussian()
    if isinstance(distribution, Product):
        parts = [torch_form(part) for part in distribution.parts]
        return TorchProduct(parts, distribution.input_slices, distribution.split)
    raise TypeError(f"no torch form of {type(distribution).__name__}")


def _mean_and_log_std(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, log_std = inputs.chunk(2, dim=-1)
    return mean, log_std.clamp(-LOG_STD_LIMIT, LOG_STD_LIMIT)


def _log_bernoulli(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_sigmoid = torch.nn.functional.logsigmoid
    return _finite(log_sigmoid(logits)), _finite(log_sigmoid(-logits))


def _finite(log_probabilities: torch.Tensor) -> torch.Tensor:
    """Minus infinity becomes the lowest number, so that zero times it is zero."""
    return log_probabilities.clamp(min=torch.finfo(log_probabilities.dtype).min)
