"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), top to bottom.

Advantages are GAE(lambda) (arXiv:1506.02438) with the three ends of a fragment kept apart:
terminated (no bootstrap), truncated (bootstrap from the true last observation) and cut (the same).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field

from policies.actor_critic import map_tensors
from policies.config import AlgorithmConfig
from policies.errors import RunError
from policies.learners.adam import Adam
from policies.learners.learner import LearnerState, policy_for, use_threads
from policies.learners.minibatches import Minibatches, Rows, Sequences
from policies.policy import Policy
from policies.random_streams import Purpose, stream
from policies.returns import explained_variance, generalized_advantages
from policies.sample_batch import (
    ACTION_LOGP,
    ACTIONS,
    NEW_OBS,
    OBS,
    REWARDS,
    TERMINATEDS,
    TRUNCATEDS,
    SampleBatch,
    state_in,
)
from policies.schedules import ScheduleSpec, parse, value_at

EXTRAS = (ACTION_LOGP,)


class PPOConfig(AlgorithmConfig):
    """PPO's own settings; the defaults solve CartPole-v1."""

    lr: ScheduleSpec = Field(
        [[0, 2e-3], [100_000, 0.0]],
        description="Learning rate of Adam: a number, or [[env_steps, value], ...] in between.",
    )
    gamma: float = Field(0.98, ge=0, le=1, description="Discount per environment step.")
    gae_lambda: float = Field(
        0.8, ge=0, le=1, description="GAE's lambda: 0 is one-step, 1 is Monte Carlo."
    )
    clip_param: ScheduleSpec = Field(
        [[0, 0.2], [100_000, 0.0]],
        description="Half-width of the ratio's clip: a number or [[env_steps, value], ...].",
    )
    num_epochs: int = Field(10, ge=1, description="Passes over each train batch.")
    minibatch_size: int = Field(128, ge=1, description="Rows of one gradient step.")
    entropy_coeff: ScheduleSpec = Field(
        0.0, description="Weight of the entropy bonus: a number or [[env_steps, value], ...]."
    )
    vf_loss_coeff: float = Field(0.5, ge=0, description="Weight of the value loss.")
    vf_clip_param: float | None = Field(
        None, gt=0, description="Half-width of the value clip; none: not clipped."
    )
    kl_coeff: float = Field(
        0.0, ge=0, description="First weight of the adaptive KL penalty; 0: no penalty."
    )
    kl_target: float = Field(0.01, gt=0, description="KL (nats) the adaptive penalty aims at.")
    target_kl: float | None = Field(
        None, gt=0, description="Stops a round's epochs above 1.5 times this KL (nats)."
    )
    normalize_advantages: bool = Field(
        True, description="Shifts and scales a minibatch's advantages to mean 0 and std 1."
    )
    grad_clip: float | None = Field(0.5, gt=0, description="Largest global gradient norm.")
    adam_eps: float = Field(1e-5, gt=0, description="Epsilon of Adam.")


CONFIG = PPOConfig


def initial_state(
    config: PPOConfig, observation_space: gym.Space, action_space: gym.Space
) -> LearnerState:
    """Fresh weights from the config's seed, empty filter and moments."""
    policy = policy_for(config, observation_space, action_space)
    policy.network.to(config.learner_device)
    optimizer = Adam(dict(policy.network.named_parameters()), eps=config.adam_eps)
    return LearnerState(policy, optimizer, scalars={"kl_coeff": config.kl_coeff})


def update(
    config: PPOConfig, state: LearnerState, batch: SampleBatch
) -> tuple[LearnerState, dict[str, float]]:
    """One round of PPO: returns, then epochs of minibatches for each train batch.

    Args:
        config: See `PPOConfig`.
        state: Consumed; go on with the returned one.
        batch: The round's rows, sorted by (shard, env, env_step).

    Returns:
        The new state and statistics of the update.

    Raises:
        RunError: The loss is not finite. Nothing of the new state may be used then.
    """
    use_threads(config.learner_threads)
    rng = stream(config.seed, Purpose.LEARNER, state.version)
    coeffs = _Coefficients(
        lr=value_at(parse(config.lr), state.env_steps),
        clip=value_at(parse(config.clip_param), state.env_steps),
        entropy=value_at(parse(config.entropy_coeff), state.env_steps),
        kl=state.scalars["kl_coeff"],
    )
    data = postprocess(config, state, batch)
    epochs = 0
    for rows in train_batches(data, config.train_batch_size):
        epochs += _fit(config, state, data, rows, coeffs, rng)
    stats = _diagnose(state, data, coeffs)
    stats["epochs"] = float(epochs)
    state.scalars["kl_coeff"] = adapt_kl(coeffs.kl, stats["kl"], config.kl_target)
    state.version += 1
    state.env_steps += len(batch)
    return state, stats


# --- 1. returns ---------------------------------------------------------------------------------


@dataclass
class TrainData:
    """A round's rows as the loss needs them; tensors lie on the learner's device.

    Attributes:
        minibatches: Units to draw, single rows or sequences.
        actions: Struct of tensors [n, ...].
        logp: Behaviour log-probabilities [n].
        advantages: GAE(lambda) [n].
        targets: Value targets [n].
        values: Value estimates before the update [n].
        outputs: Distribution parameters before the update [n, d].
    """

    minibatches: Minibatches
    actions: Any
    logp: torch.Tensor
    advantages: torch.Tensor
    targets: torch.Tensor
    values: torch.Tensor
    outputs: torch.Tensor

    def __len__(self) -> int:
        return len(self.logp)


def postprocess(config: PPOConfig, state: LearnerState, batch: SampleBatch) -> TrainData:
    """Values, advantages and targets of every row, under the weights that acted."""
    device = torch.device(config.learner_device)
    policy, offsets = state.policy, batch.fragment_offsets()
    terminateds, truncateds = batch[TERMINATEDS], batch[TRUNCATEDS]
    last = offsets[1:] - 1
    obs = policy.network_inputs(batch[OBS])
    # Inside a fragment the next observation is the next row's; only the ends need their own.
    end_obs = policy.network_inputs(batch.take(last)[NEW_OBS])
    if policy.is_recurrent:
        count = len(policy.initial_state(1))
        recurrent = tuple(batch.torch(state_in(i)).to(device) for i in range(count))
        outputs, values, end_values = _unroll(policy, obs, end_obs, recurrent, offsets)
        length = config.model.max_seq_len
        minibatches: Minibatches = Sequences(obs, recurrent, offsets, length)
    else:
        with torch.no_grad():
            outputs, values, _ = policy.network(obs, ())
            end_values = policy.network.value(end_obs, ())
        minibatches = Rows(obs, len(batch))
    value_array = values.double().cpu().numpy()
    next_values = np.empty_like(value_array)
    next_values[:-1] = value_array[1:]
    next_values[last] = end_values.double().cpu().numpy()
    advantages, targets = generalized_advantages(
        batch[REWARDS],
        value_array,
        next_values,
        terminateds,
        terminateds | truncateds,
        config.gamma,
        config.gae_lambda,
        offsets,
    )
    return TrainData(
        minibatches,
        map_tensors(lambda x: x.to(device), batch.torch(ACTIONS)),
        batch.torch(ACTION_LOGP).float().to(device),
        torch.from_numpy(advantages).float().to(device),
        torch.from_numpy(targets).float().to(device),
        values,
        outputs,
    )


def _unroll(
    policy: Policy,
    obs: Any,
    end_obs: Any,
    state: tuple[torch.Tensor, ...],
    offsets: np.ndarray,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs and values of all rows and of the observation after each fragment.

    Each fragment is unrolled once from its first recorded state, its last new_obs appended.
    """
    count = len(offsets) - 1
    position = torch.arange(count)
    ends = torch.from_numpy(offsets[1:])
    extended = _concat(obs, end_obs)
    size = int(offsets[-1])
    longest = int(np.diff(offsets).max(initial=0)) + 1
    rows = torch.from_numpy(offsets[:-1])[:, None] + torch.arange(longest)[None, :]
    rows = torch.where(rows < ends[:, None], rows, size + position[:, None])
    starts = torch.from_numpy(offsets[:-1])
    with torch.no_grad():
        outputs, values = policy.network.forward_sequences(
            map_tensors(lambda x: x[rows], extended), tuple(array[starts] for array in state)
        )
    inside = torch.arange(longest)[None, :] < (ends - starts)[:, None]
    return outputs[inside], values[inside], values[position, ends - starts]


# --- 2. the loss --------------------------------------------------------------------------------


@dataclass
class _Coefficients:
    lr: float
    clip: float
    entropy: float
    kl: float


def surrogate_loss(ratio: torch.Tensor, advantages: torch.Tensor, clip: float) -> torch.Tensor:
    """Clipped surrogate, equation 7: -mean min(ratio A, clip(ratio, 1 +- clip) A)."""
    clipped = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)
    return -torch.min(ratio * advantages, clipped * advantages).mean()


def value_loss(
    values: torch.Tensor, targets: torch.Tensor, old: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Half the mean squared error; clipped: the larger error of the value and its clipped form."""
    error = (values - targets).square()
    if clip is not None:
        near = old + torch.clamp(values - old, -clip, clip)
        error = torch.max(error, (near - targets).square())
    return 0.5 * error.mean()


def _fit(
    config: PPOConfig,
    state: LearnerState,
    data: TrainData,
    units: np.ndarray,
    coeffs: _Coefficients,
    rng: np.random.Generator,
) -> int:
    """Epochs of minibatches over some units; returns how many epochs were made."""
    size = data.minibatches.per_minibatch(config.minibatch_size)
    for epoch in range(config.num_epochs):
        order = torch.from_numpy(units[rng.permutation(len(units))])
        total = torch.zeros((), device=data.logp.device)
        for chosen in minibatch_slices(order, size):
            loss = _loss(config, state.policy, data, chosen, coeffs)
            loss.backward()
            state.optimizer.step(coeffs.lr, config.grad_clip)
            total += loss.detach()
        if not torch.isfinite(total):
            raise RunError(
                f"the loss is not finite in round {state.version + 1}, epoch {epoch + 1}; "
                "lower lr, or look for extreme rewards or observations"
            )
        if config.target_kl is not None and _kl(state, data) > 1.5 * config.target_kl:
            return epoch + 1
    return config.num_epochs


def _loss(
    config: PPOConfig, policy: Policy, data: TrainData, units: torch.Tensor, coeffs: _Coefficients
) -> torch.Tensor:
    rows, outputs, values = data.minibatches.forward(policy.network, units)
    distribution = policy.distribution
    advantages = data.advantages[rows]
    if config.normalize_advantages and len(rows) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    actions = map_tensors(lambda x: x[rows], data.actions)
    ratio = torch.exp(distribution.torch_log_prob(outputs, actions) - data.logp[rows])
    loss = surrogate_loss(ratio, advantages, coeffs.clip)
    loss = loss + config.vf_loss_coeff * value_loss(
        values, data.targets[rows], data.values[rows], config.vf_clip_param
    )
    if coeffs.entropy:
        loss = loss - coeffs.entropy * distribution.torch_entropy(outputs).mean()
    if coeffs.kl:
        loss = loss + coeffs.kl * distribution.torch_kl(data.outputs[rows], outputs).mean()
    return loss


def train_batches(data: TrainData, train_batch_size: int | None) -> list[np.ndarray]:
    """Cuts the round's units, in their order, into train batches of about that many rows."""
    units = data.minibatches.units
    count = 1 if train_batch_size is None else max(1, round(len(data) / train_batch_size))
    return np.array_split(np.arange(units), min(count, units))


def minibatch_slices(order: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Consecutive slices of `size`; a rest shorter than half joins the slice before it."""
    bounds = list(range(0, len(order), size))
    if len(bounds) > 1 and len(order) - bounds[-1] < (size + 1) // 2:
        bounds.pop()
    return [order[a:b] for a, b in zip(bounds, [*bounds[1:], len(order)], strict=True)]


def adapt_kl(coeff: float, kl: float, target: float) -> float:
    """The adaptive KL penalty of section 4: half below target / 2, 1.5 times above 2 target."""
    if kl > 2.0 * target:
        return coeff * 1.5
    return coeff * 0.5 if kl < 0.5 * target else coeff


# --- 3. statistics ------------------------------------------------------------------------------


def _diagnose(state: LearnerState, data: TrainData, coeffs: _Coefficients) -> dict[str, float]:
    """What the update did, on all rows of the round with the new weights."""
    distribution = state.policy.distribution
    with torch.no_grad():
        units = torch.arange(data.minibatches.units)
        rows, outputs, values = data.minibatches.forward(state.policy.network, units)
        actions = map_tensors(lambda x: x[rows], data.actions)
        log_ratio = distribution.torch_log_prob(outputs, actions) - data.logp[rows]
        ratio = log_ratio.exp()
        advantages = data.advantages[rows]
        numbers = {
            "policy_loss": surrogate_loss(ratio, advantages, coeffs.clip),
            "value_loss": value_loss(values, data.targets[rows], data.values[rows], None),
            "entropy": distribution.torch_entropy(outputs).mean(),
            "kl": distribution.torch_kl(data.outputs[rows], outputs).mean(),
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": ((ratio - 1).abs() > coeffs.clip).float().mean(),
        }
    stats = {name: float(value) for name, value in numbers.items()}
    stats["explained_variance"] = explained_variance(
        data.targets.double().cpu().numpy(), data.values.double().cpu().numpy()
    )
    return stats | {"lr": coeffs.lr, "clip_param": coeffs.clip, "kl_coeff": coeffs.kl}


def _kl(state: LearnerState, data: TrainData) -> float:
    with torch.no_grad():
        units = torch.arange(data.minibatches.units)
        rows, outputs, _ = data.minibatches.forward(state.policy.network, units)
        return float(state.policy.distribution.torch_kl(data.outputs[rows], outputs).mean())


def _concat(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {key: _concat(first[key], second[key]) for key in first}
    if isinstance(first, tuple):
        return tuple(_concat(a, b) for a, b in zip(first, second, strict=True))
    return torch.cat((first, second))
