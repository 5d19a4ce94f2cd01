"""The loops that a good engineer would write without any framework, to compare with.

They do the same work as ours: step the same vector environment, sample actions from the same
two-layer tanh network, keep observations, actions, log-probabilities, rewards and ends.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.optim.adam import adam

Layers = list[tuple[np.ndarray, np.ndarray]]


def tanh_network(inputs: int, outputs: int, hidden: int = 64) -> nn.Sequential:
    """Two tanh layers and a linear head."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


def numpy_layers(network: nn.Sequential) -> Layers:
    """The network's weights [in, out] and biases."""
    linear = [module for module in network if isinstance(module, nn.Linear)]
    return [
        (np.ascontiguousarray(m.weight.detach().numpy().T), m.bias.detach().numpy().copy())
        for m in linear
    ]


class _Storage:
    def __init__(self, steps: int, envs: int, obs_size: int) -> None:
        self.obs = np.empty((steps, envs, obs_size), np.float32)
        self.actions = np.empty((steps, envs), np.int64)
        self.logp = np.empty((steps, envs), np.float32)
        self.rewards = np.empty((steps, envs))
        self.terminated = np.empty((steps, envs), bool)
        self.truncated = np.empty((steps, envs), bool)


def sample_with_torch(
    envs: gym.vector.VectorEnv, obs: np.ndarray, network: nn.Module, steps: int
) -> np.ndarray:
    """Steps with a torch policy; returns the last observations."""
    rows = _Storage(steps, envs.num_envs, obs.shape[1])
    with torch.inference_mode():
        for step in range(steps):
            logits = network(torch.from_numpy(obs))
            log_probs = torch.log_softmax(logits, dim=-1)
            actions = torch.multinomial(log_probs.exp(), 1)
            rows.obs[step] = obs
            rows.logp[step] = log_probs.gather(1, actions)[:, 0].numpy()
            rows.actions[step] = actions[:, 0].numpy()
            obs, rewards, terminated, truncated, _ = envs.step(rows.actions[step])
            rows.rewards[step] = rewards
            rows.terminated[step] = terminated
            rows.truncated[step] = truncated
    return obs


def sample_with_numpy(
    envs: gym.vector.VectorEnv,
    obs: np.ndarray,
    layers: Layers,
    steps: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Steps with a numpy policy; returns the last observations."""
    rows = _Storage(steps, envs.num_envs, obs.shape[1])
    index = np.arange(envs.num_envs)
    for step in range(steps):
        x = obs
        for weights, bias in layers[:-1]:
            x = np.tanh(x @ weights + bias)
        logits = x @ layers[-1][0] + layers[-1][1]
        logits -= logits.max(axis=1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        cumulative = np.exp(log_probs).cumsum(axis=1)
        actions = (cumulative[:, :-1] < rng.random((len(obs), 1))).sum(axis=1)
        rows.obs[step] = obs
        rows.actions[step] = actions
        rows.logp[step] = log_probs[index, actions]
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        rows.rewards[step] = rewards
        rows.terminated[step] = terminated
        rows.truncated[step] = truncated
    return obs


class BarePPO:
    """PPO's gradient steps on ready tensors, with the fused Adam: no statistics, no checks.

    Args:
        obs: [n, size]. actions: [n]. logp, advantages, targets: [n].
    """

    def __init__(
        self, policy: nn.Module, value: nn.Module, lr: float = 2e-3, eps: float = 1e-5
    ) -> None:
        self.policy, self.value, self.lr, self.eps = policy, value, lr, eps
        self.parameters = [*policy.parameters(), *value.parameters()]
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [torch.zeros(()) for _ in self.parameters]

    def update(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        logp: torch.Tensor,
        advantages: torch.Tensor,
        targets: torch.Tensor,
        epochs: int,
        minibatch: int,
        rng: np.random.Generator,
        clip: float = 0.2,
        max_norm: float = 0.5,
    ) -> None:
        """Epochs of minibatches."""
        for _ in range(epochs):
            order = torch.from_numpy(rng.permutation(len(obs)))
            for rows in order.split(minibatch):
                o = obs[rows]
                log_probs = torch.log_softmax(self.policy(o), dim=-1)
                new = log_probs.gather(1, actions[rows][:, None])[:, 0]
                ratio = (new - logp[rows]).exp()
                a = advantages[rows]
                a = (a - a.mean()) / (a.std() + 1e-8)
                surrogate = torch.min(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a).mean()
                error = (self.value(o)[:, 0] - targets[rows]).square().mean()
                (0.25 * error - surrogate).backward()
                torch.nn.utils.clip_grad_norm_(self.parameters, max_norm, foreach=True)
                self._step()

    def _step(self) -> None:
        adam(
            self.parameters,
            [p.grad for p in self.parameters],
            self.first,
            self.second,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.lr,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )
        for parameter in self.parameters:
            parameter.grad = None
