"""A policy: spaces, network, action distribution and observation filter behind one interface.

Everything works on batches; a single action is a batch of one. Acting is numpy but for networks
that only torch can run (images, LSTM, custom); learning uses `network` and `distribution` with
torch directly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from policies import spaces
from policies.actors import Actor, NumpyActor, TorchActor, to_numpy, to_tensors
from policies.distributions import distribution_for
from policies.env_actions import EnvActions
from policies.errors import ConfigError, RunError
from policies.filters import MeanStd
from policies.model_config import ModelConfig
from policies.networks import FeedForward, build_network
from policies.random_streams import Purpose, stream
from policies.sample_batch import (
    ACTION_DIST_INPUTS,
    ACTION_LOGP,
    ACTIONS,
    OBS,
    VF_PREDS,
    SampleBatch,
    T,
    state_in,
)

Array = npt.NDArray[Any]
Struct = Any
State = tuple[Array, ...]

_FILTER = "filter/"


class Policy:
    """Chooses actions, and gives their log-probabilities and the values of observations.

    Attributes:
        observation_space, action_space: Of single observations and actions.
        model: The settings of the network.
        network: The torch module; trained in place, acting follows.
        distribution: The action distribution, whose inputs the network makes.
        filter: The observation filter, or None. Frozen: the learner assigns a merged one.
        noise_size: Uniforms that one action uses.
        is_recurrent: Whether acting carries a state from step to step.

    Example:
        >>> space = gym.spaces.Box(-1.0, 1.0, (3,))
        >>> policy = Policy(space, gym.spaces.Discrete(2))
        >>> actions, state, extras = policy.compute_actions(np.zeros((5, 3), np.float32))
        >>> actions.shape, extras["action_logp"].shape
        ((5,), (5,))
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig | None = None,
        *,
        seed: int = 0,
        observation_filter: Literal["none", "mean_std"] = "none",
        normalize_actions: bool = True,
        clip_actions: bool = True,
        squash: bool = False,
        actor: Literal["auto", "numpy", "torch"] = "auto",
    ) -> None:
        """Makes a policy with fresh weights.

        Args:
            observation_space: Of single observations.
            action_space: Of single actions.
            model: The network's settings; None for the defaults.
            seed: Decides the initial weights, and the noise of calls that bring none.
            observation_filter: "mean_std" normalises observations by `filter`.
            normalize_actions: Whether bounded Box actions are unsquashed on the way to the env.
            clip_actions: Whether Box actions that are not unsquashed are clipped.
            squash: Whether the actions of bounded Box spaces are squashed by tanh.
            actor: What acts: "numpy" only for fully connected networks; "auto" where it can.

        Raises:
            ConfigError: If a space is not supported, or the settings do not fit together.
        """
        spaces.check_supported(observation_space, "observation")
        spaces.check_supported(action_space, "action")
        self.observation_space = observation_space
        self.action_space = action_space
        self.model = model or ModelConfig()
        self.env_actions = EnvActions(
            action_space, normalize_actions=normalize_actions, clip_actions=clip_actions
        )
        self.distribution = distribution_for(action_space, squash=squash)
        self.noise_size = self.distribution.noise_size
        self.filter = MeanStd.zero(observation_space) if observation_filter == "mean_std" else None
        self.network = build_network(
            observation_space,
            self.distribution.input_size,
            self.model,
            stream(seed, Purpose.INIT),
            log_std_indices=self.distribution.log_std_indices.tolist(),
        )
        self.is_recurrent = self.network.is_recurrent
        self._actor = self._make_actor(actor)
        self._rng = stream(seed, Purpose.ACTION_NOISE)
        self._is_image = spaces.is_image(observation_space)

    def compute_actions(
        self,
        obs: Struct,
        state: State = (),
        explore: bool = True,
        noise: Array | None = None,
        extras: Collection[str] = (ACTION_LOGP,),
    ) -> tuple[Struct, State, dict[str, Array]]:
        """Actions for n observations.

        Args:
            obs: Raw observations, struct [n, ...].
            state: The recurrent state, arrays [n, size]; () without memory.
            explore: Whether to sample; otherwise the most likely action is taken.
            noise: Uniforms in [0, 1) [n, noise_size]. None draws from the policy's own stream.
            extras: Which of "action_logp" (float64 [n]), "action_dist_inputs" (float32 [n, d]) and
                "vf_preds" (float32 [n]) to return; others are not computed.

        Returns:
            Policy actions [n, ...] as to be stored (`to_env_action` makes the env's), the next
            state, and the extras by name.
        """
        features = self.preprocess(obs)
        more: dict[str, Array] = {}
        if VF_PREDS in extras:
            inputs, more[VF_PREDS], next_state = self._actor.policy_and_value(features, state)
        else:
            inputs, next_state = self._actor.policy(features, state)
        if ACTION_DIST_INPUTS in extras:
            more[ACTION_DIST_INPUTS] = inputs
        wants_log_prob = ACTION_LOGP in extras
        if not explore:
            actions = self.distribution.greedy(inputs)
            if wants_log_prob:
                more[ACTION_LOGP] = self.distribution.log_prob(inputs, actions)
            return actions, next_state, more
        if noise is None:
            noise = self._rng.random((len(inputs), self.noise_size))
        if wants_log_prob:
            actions, more[ACTION_LOGP] = self.distribution.sample_with_log_prob(inputs, noise)
        else:
            actions = self.distribution.sample(inputs, noise)
        return actions, next_state, more

    def compute_single_action(
        self,
        obs: Any,
        state: State = (),
        explore: bool = False,
        rng: np.random.Generator | None = None,
        *,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
    ) -> tuple[Any, State, dict[str, Any]]:
        """One env action for one observation.

        Args:
            obs: A raw observation, as the space has it.
            state: The recurrent state, arrays [size]; () starts an episode.
            explore: Whether to sample.
            rng: Where the noise comes from; None for the policy's own stream.
            unsquash_action: Overrides the policy's `normalize_actions`.
            clip_action: Overrides the policy's `clip_actions`.

        Returns:
            The env action, the next state (arrays [size]), and the extras without batch axis
            ("action_logp" of the action before `to_env_action`).
        """
        batch = spaces.stack(self.observation_space, [obs])
        batched_state = tuple(x[None] for x in state) if state else self.initial_state(1)
        noise = None if rng is None else rng.random((1, self.noise_size))
        actions, next_state, extras = self.compute_actions(batch, batched_state, explore, noise)
        env_actions = self.to_env_action(
            actions, unsquash_action=unsquash_action, clip_action=clip_action
        )
        action = spaces.index(self.action_space, env_actions, 0)
        return action, tuple(x[0] for x in next_state), {k: v[0] for k, v in extras.items()}

    def to_env_action(
        self,
        actions: Struct,
        *,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
    ) -> Struct:
        """Env actions of policy actions [n, ...]; see `env_actions.EnvActions.to_env`."""
        return self.env_actions.to_env(
            actions, unsquash_action=unsquash_action, clip_action=clip_action
        )

    def value(self, obs: Struct, state: State = ()) -> npt.NDArray[np.float32]:
        """Values of n raw observations, float32 [n]."""
        return self._actor.value(self.preprocess(obs), state)

    def log_prob(self, batch: SampleBatch) -> npt.NDArray[np.float64]:
        """Log-probabilities (log-densities for Box parts) of a batch's actions, float64 [n].

        They are in the space of the logged actions: where the batch's metadata say
        `actions_in = env` and the policy unsquashes, the Jacobian is accounted for.

        Raises:
            ValueError: If the policy has memory and a fragment starts in the middle of an episode
                without a recorded state.
        """
        features = self.preprocess(batch[OBS])
        if self.is_recurrent:
            inputs = self._sequence_inputs(batch, features)
        else:
            inputs, _ = self._actor.policy(features, ())
        actions, log_scale = batch[ACTIONS], 0.0
        if batch.metadata.get("actions_in") == "env":
            actions, log_scale = self.env_actions.from_env(actions)
        return self.distribution.log_prob(inputs, actions) - log_scale

    def initial_state(self, n: int) -> State:
        """The recurrent state of n new episodes, arrays [n, size]; () without memory."""
        return self.network.initial_state(n)

    def preprocess(self, obs: Struct) -> Struct:
        """What the network takes, in numpy: filtered, and float32 [n, flat size].

        Images stay as they are (uint8). A custom network gets the structure of the space, its
        floats as float32.
        """
        if self.filter is not None:
            obs = self.filter.normalize(self.observation_space, obs)
        if self.model.custom_network is not None:
            return spaces.map_leaves(_as_custom_input, self.observation_space, obs)
        return obs if self._is_image else spaces.flatten_batch(self.observation_space, obs)

    def network_inputs(self, obs: Struct) -> Struct:
        """`preprocess` as torch tensors on the network's device."""
        return to_tensors(self.preprocess(obs), next(self.network.parameters()).device)

    @cached_property
    def zero_actions(self) -> Struct:
        """One policy action [1, ...], as an example of structure, shapes and dtypes."""
        return self.distribution.greedy(np.zeros((1, self.distribution.input_size), np.float32))

    def get_weights(self) -> dict[str, Array]:
        """Copies of the network's arrays, and of the filter's under "filter/", names sorted."""
        arrays = {name: to_numpy(x).copy() for name, x in self.network.state_dict().items()}
        if self.filter is not None:
            arrays |= {_FILTER + name: array for name, array in self.filter.to_arrays().items()}
        return dict(sorted(arrays.items()))

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Takes all arrays of `get_weights`; nothing changes when it raises.

        Raises:
            ConfigError: If arrays are missing, unexpected or of another shape.
            RunError: If one is not finite.
        """
        expected = self.get_weights()
        _check_weights(weights, expected)
        new_filter = None
        if self.filter is not None:
            arrays = {name: weights[_FILTER + name] for name in self.filter.to_arrays()}
            new_filter = MeanStd.from_arrays(arrays)
        with torch.no_grad():
            for name, tensor in self.network.state_dict().items():
                tensor.copy_(to_tensors(np.asarray(weights[name]), "cpu"))
        self.filter = new_filter

    def _make_actor(self, kind: str) -> Actor:
        is_flat = isinstance(self.network, FeedForward) and not spaces.is_image(
            self.observation_space
        )
        if kind == "numpy" and not is_flat:
            raise ConfigError(
                "actor=numpy works for fully connected networks only; use actor=auto for images, "
                "use_lstm or a custom_network"
            )
        if is_flat and kind != "torch":
            indices = self.distribution.log_std_indices.tolist()
            return NumpyActor(self.network, self.model, indices)
        return TorchActor(self.network)

    def _sequence_inputs(self, batch: SampleBatch, features: Struct) -> Array:
        """Distribution inputs [n, d] of a network with memory, each fragment one sequence."""
        offsets = batch.fragment_offsets()
        starts, lengths = offsets[:-1], np.diff(offsets)
        steps = np.arange(lengths.max(initial=0))
        padded = np.minimum(starts[:, None] + steps, offsets[1:, None] - 1)
        device = next(self.network.parameters()).device
        with torch.inference_mode():
            inputs, _ = self.network.forward_sequences(
                to_tensors(_rows(features, padded), device),
                to_tensors(self._states_at(batch, starts), device),
            )
        return to_numpy(inputs)[steps < lengths[:, None]]

    def _states_at(self, batch: SampleBatch, starts: npt.NDArray[np.int64]) -> State:
        fresh = self.initial_state(len(starts))
        if state_in(0) in batch:
            return tuple(batch[state_in(i)][starts] for i in range(len(fresh)))
        if (batch[T][starts] != 0).any():
            raise ValueError(
                f"a fragment starts in the middle of an episode, and column {state_in(0)}, the "
                "recurrent state there, is missing"
            )
        return fresh


def _as_custom_input(leaf: gym.Space[Any], values: Array) -> Array:
    is_float = np.issubdtype(values.dtype, np.floating)
    return values.astype(np.float32, copy=False) if is_float else values


def _rows(struct: Struct, index: npt.NDArray[np.int64]) -> Struct:
    if isinstance(struct, dict):
        return {key: _rows(child, index) for key, child in struct.items()}
    if isinstance(struct, tuple):
        return tuple(_rows(child, index) for child in struct)
    return struct[index]


def _check_weights(weights: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    problems = [f"{name} is missing" for name in expected if name not in weights]
    problems += [f"{name} is unexpected" for name in sorted(weights) if name not in expected]
    problems += [
        f"{name} has shape {list(weights[name].shape)} instead of {list(array.shape)}"
        for name, array in expected.items()
        if name in weights and weights[name].shape != array.shape
    ]
    if problems:
        raise ConfigError(
            f"weights do not fit the policy (another model or other spaces?): {'; '.join(problems)}"
        )
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise RunError(f"weights {name} are not finite (NaN or infinite)")
