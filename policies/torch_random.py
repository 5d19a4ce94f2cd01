"""Torch's global generators, lent to one piece of work and put back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def torch_seeded_from(
    rng: np.random.Generator, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Seeds the generators of the CPU and of `device` from `rng`, and puts them back at the end.

    For code that can only draw from them: torch's layers when they are made, Dropout.
    """
    device = torch.device(device)
    seed = int(rng.integers(2**63))
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
