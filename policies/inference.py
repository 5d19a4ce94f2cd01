"""Actions for observations that come one by one or by name, as an environment takes them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from policies import spaces
from policies.policy import Policy

State = tuple[np.ndarray, ...]


def compute_actions(
    policy: Policy,
    observations: Mapping[Hashable, Any],
    states: Mapping[Hashable, Sequence[np.ndarray]],
    *,
    explore: bool = False,
    unsquash_actions: bool | None = None,
    clip_actions: bool | None = None,
) -> tuple[dict[Hashable, Any], dict[Hashable, State], dict[Hashable, dict[str, Any]]]:
    """One action for each observation, in one pass through the network.

    Args:
        policy: What acts.
        observations: Raw observations by any key, such as an agent's id.
        states: Recurrent states by the same keys, arrays [size]; a key without one starts an
            episode.
        explore: Sample instead of taking the most probable action.
        unsquash_actions: None: as the policy is configured.
        clip_actions: None: as the policy is configured.

    Returns:
        By key: env actions, next states (() without memory), and extras such as `action_logp`.
    """
    keys = list(observations)
    if not keys:
        return {}, {}, {}
    batch = spaces.stack(policy.observation_space, [observations[key] for key in keys])
    actions, next_state, extras = policy.compute_actions(
        batch, _stacked(policy, keys, states), explore
    )
    env_actions = policy.to_env_action(
        actions, unsquash_action=unsquash_actions, clip_action=clip_actions
    )
    return (
        {key: spaces.index(policy.action_space, env_actions, row) for row, key in enumerate(keys)},
        {key: tuple(array[row] for array in next_state) for row, key in enumerate(keys)},
        {key: {name: x[row] for name, x in extras.items()} for row, key in enumerate(keys)},
    )


def _stacked(
    policy: Policy, keys: Sequence[Hashable], states: Mapping[Hashable, Sequence[np.ndarray]]
) -> State:
    stacked = tuple(array.copy() for array in policy.initial_state(len(keys)))
    for row, key in enumerate(keys):
        given = states.get(key)
        if given:
            for array, part in zip(stacked, given, strict=True):
                array[row] = part
    return stacked
