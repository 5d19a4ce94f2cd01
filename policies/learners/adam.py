"""Adam as a function on arrays that the learner's state holds.

`torch.optim.Adam` is never constructed: its constructor imports the compiler, a second of start-up,
and keeps state in an object that would have to be pickled. The public function
`torch.optim.adam.adam` has neither fault, but takes 93 us to prepare and call the fused kernel for
a network of 12 parameters, which takes 35 us itself: a tenth of a gradient step of 128 rows. So
`step` calls the kernel, `torch._fused_adam_`, although its name is private; the tests compare each
step with that of `torch.optim.Adam`, and would show a release of torch that changes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from policies.errors import RunError


class Adam:
    """Moments and step count for a set of named parameters (Kingma & Ba, arXiv:1412.6980).

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; the parameter changes by
    -lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) in step t.

    Args:
        parameters: Name to parameter. Updated in place, in name order; those that need no gradient
            are left alone.
        eps: Added to the denominator.
        betas: Decay rates of the first and second moment.

    Example:
        >>> optimizer = Adam(dict(network.named_parameters()))
        >>> loss.backward()
        >>> norm = optimizer.step(lr=1e-3, max_norm=0.5)
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        eps: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._names = sorted(name for name in parameters if parameters[name].requires_grad)
        self._parameters: list[torch.Tensor] = [parameters[name] for name in self._names]
        self._first = [torch.zeros_like(p) for p in self._parameters]
        self._second = [torch.zeros_like(p) for p in self._parameters]
        device = self._parameters[0].device if self._parameters else None
        self._count = torch.zeros((), device=device)
        self._eps = eps
        self._betas = betas

    def step(self, lr: float, max_norm: float | None = None) -> torch.Tensor:
        """Applies the parameters' gradients and clears them.

        Args:
            lr: Learning rate.
            max_norm: Largest global norm of the gradients; longer ones are scaled down to it.

        Returns:
            The norm before scaling, a tensor of one number. It is not finite where a gradient was
            not; the parameters are spoilt then.
        """
        gradients = [
            p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters
        ]
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))
        if max_norm is not None:
            torch._foreach_div_(gradients, norm.clamp(min=max_norm) / max_norm)
        self._count += 1
        torch._fused_adam_(
            self._parameters,
            gradients,
            self._first,
            self._second,
            [],
            [self._count] * len(gradients),
            lr=lr,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )
        for parameter in self._parameters:
            parameter.grad = None
        return norm

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The state as named arrays: `first/NAME`, `second/NAME` and the step count `steps`."""
        return {name: x.detach().cpu().numpy().copy() for name, x in self._tensors().items()}

    def load_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores what `to_arrays` returned; nothing changes when it raises.

        Raises:
            RunError: An array is missing, unexpected or has another shape.
        """
        tensors = self._tensors()
        problems = [f"{name} is missing" for name in tensors if name not in arrays]
        problems += [f"{name} is unexpected" for name in sorted(arrays) if name not in tensors]
        problems += [
            f"{name} has shape {list(arrays[name].shape)} instead of {list(tensor.shape)}"
            for name, tensor in tensors.items()
            if name in arrays and arrays[name].shape != tuple(tensor.shape)
        ]
        if problems:
            raise RunError(f"the optimizer's state does not fit the network: {'; '.join(problems)}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(torch.from_numpy(np.array(arrays[name])))

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {f"first/{n}": x for n, x in zip(self._names, self._first, strict=True)}
        tensors |= {f"second/{n}": x for n, x in zip(self._names, self._second, strict=True)}
        return tensors | {"steps": self._count}
