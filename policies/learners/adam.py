"""Adam as a function on arrays that the learner's state holds.

`torch.optim.Adam` is never constructed: its constructor imports the compiler, a second of start-up,
and keeps state in an object that would have to be pickled. The functional, fused form has neither.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.optim.adam import adam

from policies.errors import RunError


class Adam:
    """Moments and step counts for a set of named parameters (Kingma & Ba, arXiv:1412.6980).

    Args:
        parameters: Name to parameter. Updated in place, in name order.
        eps: Added to the denominator.
        betas: Decay rates of the first and second moment.

    Example:
        >>> optimizer = Adam(dict(network.named_parameters()))
        >>> loss.backward()
        >>> optimizer.step(lr=1e-3, max_norm=0.5)
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        eps: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._names = sorted(parameters)
        self._parameters: list[torch.Tensor] = [parameters[name] for name in self._names]
        self._first = [torch.zeros_like(p) for p in self._parameters]
        self._second = [torch.zeros_like(p) for p in self._parameters]
        self._steps = [torch.zeros((), device=p.device) for p in self._parameters]
        self._eps = eps
        self._betas = betas

    def step(self, lr: float, max_norm: float | None = None) -> None:
        """Applies the gradients, clipped to a global norm of `max_norm`, then clears them."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if len(gradients) != len(self._parameters):
            raise RunError(f"no gradient reached {', '.join(self._without_gradient())}")
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, max_norm, foreach=True)
        adam(
            self._parameters,
            gradients,
            self._first,
            self._second,
            [],
            self._steps,
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=lr,
            weight_decay=0.0,
            eps=self._eps,
            maximize=False,
        )
        for parameter in self._parameters:
            parameter.grad = None

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The state as named arrays: `first/NAME`, `second/NAME`, `step/NAME`."""
        arrays = {}
        for kind, tensors in self._groups().items():
            for name, tensor in zip(self._names, tensors, strict=True):
                arrays[f"{kind}/{name}"] = tensor.detach().cpu().numpy().copy()
        return arrays

    def load_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores what `to_arrays` returned.

        Raises:
            RunError: An array is missing or has another shape.
        """
        for kind, tensors in self._groups().items():
            for name, tensor in zip(self._names, tensors, strict=True):
                key = f"{kind}/{name}"
                if key not in arrays or arrays[key].shape != tuple(tensor.shape):
                    raise RunError(f"optimizer state: {key!r} is missing or has another shape")
                with torch.no_grad():
                    tensor.copy_(torch.from_numpy(arrays[key]))

    def _groups(self) -> dict[str, list[torch.Tensor]]:
        return {"first": self._first, "second": self._second, "step": self._steps}

    def _without_gradient(self) -> list[str]:
        pairs = zip(self._names, self._parameters, strict=True)
        return [name for name, parameter in pairs if parameter.grad is None]
