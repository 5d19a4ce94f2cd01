"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), top to bottom.

Advantages are GAE(lambda) (arXiv:1506.02438) with the three ends of a fragment kept apart:
terminated (no bootstrap), truncated (bootstrap from the true last observation) and cut (the same).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field, model_validator
from torch.nn.functional import mse_loss

from policies.config import AlgorithmConfig, Finite, PositiveFinite
from policies.errors import RunError
from policies.learners.adam import Adam
from policies.learners.learner import (
    LearnerState,
    learner_threads,
    merge_observations,
    policy_for,
)
from policies.learners.minibatches import (
    Minibatches,
    Rows,
    Sequences,
    forward_all,
    split_evenly,
    take,
    train_batches,
)
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
        2e-3,
        description="Learning rate of Adam: a number, or [[env_steps, value], ...] in between.",
    )
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="GAE's lambda: 0 is one-step, 1 is Monte Carlo."
    )
    clip_param: ScheduleSpec = Field(
        0.2,
        description="Half-width of the ratio's clip: a number or [[env_steps, value], ...].",
    )
    num_epochs: int = Field(10, ge=1, description="Passes over each train batch.")
    minibatch_size: int = Field(256, ge=1, description="Rows of one gradient step.")
    entropy_coeff: ScheduleSpec = Field(
        0.0, description="Weight of the entropy bonus: a number or [[env_steps, value], ...]."
    )
    vf_loss_coeff: Finite = Field(0.5, ge=0, description="Weight of the value loss.")
    vf_clip_param: PositiveFinite | None = Field(
        None, description="Half-width of the value clip; none: not clipped."
    )
    kl_coeff: Finite = Field(
        0.0, ge=0, description="First weight of the adaptive KL penalty; 0: no penalty."
    )
    kl_target: PositiveFinite = Field(0.01, description="KL (nats) the adaptive penalty aims at.")
    target_kl: PositiveFinite | None = Field(
        None, description="Stops a round's epochs above 1.5 times this KL (nats)."
    )
    normalize_advantages: bool = Field(
        True, description="Shifts and scales a minibatch's advantages to mean 0 and std 1."
    )
    grad_clip: PositiveFinite | None = Field(0.5, description="Largest global gradient norm.")
    adam_eps: PositiveFinite = Field(1e-5, description="Epsilon of Adam.")

    @model_validator(mode="after")
    def _not_negative(self) -> Self:
        for name in ("lr", "clip_param", "entropy_coeff"):
            if min(parse(getattr(self, name)).values) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        return self


CONFIG = PPOConfig


def initial_state(
    config: PPOConfig, observation_space: gym.Space, action_space: gym.Space
) -> LearnerState:
    """Fresh weights from the config's seed, empty filter and moments."""
    policy = policy_for(config, observation_space, action_space)
    policy.network.to(config.learner_device)
    optimizer = Adam(dict(policy.network.named_parameters()), eps=config.adam_eps)
    return LearnerState(policy, optimizer, scalars={"kl_coeff": config.kl_coeff})


@dataclass
class Coefficients:
    """What a round's schedules say: learning rate, clip, entropy and KL weights."""

    lr: float
    clip: float
    entropy: float
    kl: float


def update(
    config: PPOConfig, state: LearnerState, batch: SampleBatch
) -> tuple[LearnerState, dict[str, float]]:
    """One round of PPO: returns, then epochs of minibatches for each train batch, then the filter.

    Args:
        config: See `PPOConfig`.
        state: Consumed; go on with the returned one.
        batch: The round's rows, sorted by (shard, env, env_step).

    Returns:
        The new state and statistics of the update; docs/ppo.md explains each.

    Raises:
        RunError: There are no rows, or the loss or its gradient is not finite. Nothing of the state
            may be used then.
    """
    if not len(batch):
        raise RunError(f"round {state.version + 1} has no rows to learn from")
    rng = stream(config.seed, Purpose.LEARNER, state.version)
    coeffs = Coefficients(
        lr=value_at(parse(config.lr), state.env_steps),
        clip=value_at(parse(config.clip_param), state.env_steps),
        entropy=value_at(parse(config.entropy_coeff), state.env_steps),
        kl=state.scalars["kl_coeff"],
    )
    with learner_threads(config.learner_threads):
        data = postprocess(config, state.policy, batch)
        stats = _fit(config, state, data, coeffs, rng)
        stats |= _diagnose(config, state.policy, data, coeffs)
    if not all(math.isfinite(value) for value in stats.values()):
        raise RunError(_not_finite(state, f"after its last epoch: {stats}"))
    merge_observations(state, batch)
    state.scalars["kl_coeff"] = adapt_kl(coeffs.kl, stats["kl"], config.kl_target)
    state.version += 1
    state.env_steps += len(batch)
    return state, stats


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


def postprocess(config: PPOConfig, policy: Policy, batch: SampleBatch) -> TrainData:
    """Values, advantages and targets of every row, under the weights that acted."""
    device, network = torch.device(config.learner_device), policy.network
    offsets = batch.fragment_offsets()
    last = offsets[1:] - 1
    obs = policy.network_inputs(batch[OBS])
    # Inside a fragment the next observation is the next row's; only the ends need their own.
    end_obs = policy.network_inputs(batch.select([NEW_OBS]).take(last)[NEW_OBS])
    end_state: tuple[torch.Tensor, ...] = ()
    minibatches: Minibatches = Rows(obs, len(batch))
    if policy.is_recurrent:
        count = len(policy.initial_state(1))
        recurrent = tuple(batch.torch(state_in(i), device) for i in range(count))
        minibatches = Sequences(obs, recurrent, offsets, config.model.max_seq_len)
        ends = torch.from_numpy(last).to(device)
        with torch.no_grad():
            end_state = network(take(obs, ends), take(recurrent, ends))[2]
    outputs, values = forward_all(network, minibatches, device)
    with torch.no_grad():
        end_values = network.value(end_obs, end_state)
    v = values.double().cpu().numpy()
    next_v = np.empty_like(v)
    next_v[:-1] = v[1:]
    next_v[last] = end_values.double().cpu().numpy()
    terminateds = batch[TERMINATEDS]
    ended = terminateds | batch[TRUNCATEDS]
    advantages, targets = generalized_advantages(
        batch[REWARDS], v, next_v, terminateds, ended, config.gamma, config.gae_lambda, offsets
    )
    return TrainData(
        minibatches,
        batch.torch(ACTIONS, device),
        batch.torch(ACTION_LOGP, device).float(),
        torch.from_numpy(advantages).float().to(device),
        torch.from_numpy(targets).float().to(device),
        values,
        outputs,
    )


def _fit(
    config: PPOConfig,
    state: LearnerState,
    data: TrainData,
    coeffs: Coefficients,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Trains on one train batch after the other; returns what was done."""
    batches = train_batches(data.minibatches, len(data), config.train_batch_size)
    size = data.minibatches.per_minibatch(config.minibatch_size)
    epoch, norms = 0, []
    for epoch, units in enumerate((u for u in batches for _ in range(config.num_epochs)), start=1):
        order = torch.from_numpy(rng.permutation(units)).to(data.logp.device)
        with state.policy.network.training_on(rng):
            for chosen in split_evenly(order, size):
                loss_of(config, state.policy, data, chosen, coeffs).backward()
                norms.append(state.optimizer.step(coeffs.lr, config.grad_clip))
        if not torch.isfinite(norms[-1]):
            raise RunError(_not_finite(state, f"in epoch {epoch}"))
        if config.target_kl is not None and _kl(state.policy, data) > 1.5 * config.target_kl:
            break
    grad_norm = float(torch.stack(norms).mean())
    return {"epochs": float(epoch), "gradient_steps": float(len(norms)), "grad_norm": grad_norm}


def loss_of(
    config: PPOConfig, policy: Policy, data: TrainData, units: torch.Tensor, coeffs: Coefficients
) -> torch.Tensor:
    """The loss of one minibatch: surrogate, value loss, entropy bonus and KL penalty."""
    rows, outputs, values = data.minibatches.forward(policy.network, units)
    distribution = policy.distribution
    advantages = take(data.advantages, rows)
    if config.normalize_advantages:
        advantages = normalized(advantages)
    logp = distribution.torch_log_prob(outputs, take(data.actions, rows))
    ratio = torch.exp(logp - take(data.logp, rows))
    loss = surrogate_loss(ratio, advantages, coeffs.clip)
    loss = loss + config.vf_loss_coeff * value_loss(
        values, take(data.targets, rows), take(data.values, rows), config.vf_clip_param
    )
    if coeffs.entropy:
        loss = loss - coeffs.entropy * distribution.torch_entropy(outputs).mean()
    if coeffs.kl:
        old = take(data.outputs, rows)
        loss = loss + coeffs.kl * distribution.torch_kl(old, outputs).mean()
    return loss


def normalized(advantages: torch.Tensor) -> torch.Tensor:
    """Mean 0 and sample standard deviation 1; a single one has none and is left alone."""
    if len(advantages) < 2:
        return advantages
    std, mean = torch.std_mean(advantages)
    return (advantages - mean) / (std + 1e-8)


def surrogate_loss(ratio: torch.Tensor, advantages: torch.Tensor, clip: float) -> torch.Tensor:
    """Clipped surrogate, equation 7: -mean min(ratio A, clip(ratio, 1 +- clip) A).

    The minimum only ever takes the clip's upper side for A > 0 and its lower side for A < 0, so
    its second argument may be A + clip |A|, which needs no gradient.
    """
    limit = advantages + clip * advantages.abs()
    return -torch.min(ratio * advantages, limit).mean()


def value_loss(
    values: torch.Tensor, targets: torch.Tensor, old: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Half the mean squared error; clipped: the larger error of the value and of old +- clip."""
    if clip is None:
        return 0.5 * mse_loss(values, targets)
    near = old + torch.clamp(values - old, -clip, clip)
    return 0.5 * torch.max((values - targets).square(), (near - targets).square()).mean()


def adapt_kl(coeff: float, kl: float, target: float) -> float:
    """The adaptive weight of section 4: half if kl < target / 2, 1.5 times if kl > 2 target."""
    if kl > 2.0 * target:
        return coeff * 1.5
    return coeff * 0.5 if kl < 0.5 * target else coeff


def _diagnose(
    config: PPOConfig, policy: Policy, data: TrainData, coeffs: Coefficients
) -> dict[str, float]:
    """What the update did, on all rows of the round with the new weights."""
    distribution = policy.distribution
    outputs, values = forward_all(policy.network, data.minibatches, data.logp.device)
    advantages = normalized(data.advantages) if config.normalize_advantages else data.advantages
    with torch.no_grad():
        log_ratio = distribution.torch_log_prob(outputs, data.actions) - data.logp
        numbers = {
            "policy_loss": surrogate_loss(log_ratio.exp(), advantages, coeffs.clip),
            "value_loss": value_loss(values, data.targets, data.values, None),
            "entropy": distribution.torch_entropy(outputs).mean(),
            "kl": distribution.torch_kl(data.outputs, outputs).mean(),
        } | ratio_statistics(log_ratio, coeffs.clip)
    stats = {name: float(value) for name, value in numbers.items()}
    stats["explained_variance"] = explained_variance(
        data.targets.double().cpu().numpy(), data.values.double().cpu().numpy()
    )
    settings = {"lr": coeffs.lr, "clip_param": coeffs.clip, "entropy_coeff": coeffs.entropy}
    return stats | settings | {"kl_coeff": coeffs.kl}


def ratio_statistics(log_ratio: torch.Tensor, clip: float) -> dict[str, torch.Tensor]:
    """Estimates of the KL divergence from samples, Schulman's k1 and k3, and the clipped share."""
    ratio = log_ratio.exp()
    return {
        "old_approx_kl": -log_ratio.mean(),
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": ((ratio - 1).abs() > clip).float().mean(),
    }


def _kl(policy: Policy, data: TrainData) -> float:
    """Mean KL divergence of the new from the old policy on all rows."""
    outputs, _ = forward_all(policy.network, data.minibatches, data.logp.device)
    with torch.no_grad():
        return float(policy.distribution.torch_kl(data.outputs, outputs).mean())


def _not_finite(state: LearnerState, where: str) -> str:
    return (
        f"the loss or its gradient is not finite in round {state.version + 1}, {where}; "
        "lower lr, or look for extreme rewards or observations"
    )
