"""The one way from a policy's action to the environment's: rollouts, evaluation and serving use it.

A policy's Box actions are unbounded or in [-1, 1]; what is stored and learned from is always the
policy's action. On the way out each Box leaf is either unsquashed (affinely from [-1, 1] to its
bounds, then clipped) or clipped, never both, and takes the dtype of its space. Discrete kinds pass
untouched.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from policies.spaces import leaf_spaces, map_leaves


class EnvActions:
    """Converts between policy actions and env actions of one space.

    The two flags are independent: leaves whose bounds are not all finite cannot be unsquashed, and
    are clipped where `clip_actions` says so.

    Example:
        >>> conversion = EnvActions(gym.spaces.Box(0.0, 10.0, (1,)))
        >>> conversion.to_env(np.array([[-1.0], [0.0], [3.0]], np.float32)).tolist()
        [[0.0], [5.0], [10.0]]
    """

    def __init__(
        self,
        action_space: gym.Space[Any],
        *,
        normalize_actions: bool = True,
        clip_actions: bool = True,
    ) -> None:
        """Sets the defaults of `to_env`."""
        self.action_space = action_space
        self.normalize_actions = normalize_actions
        self.clip_actions = clip_actions
        leaves = [leaf for _, leaf in leaf_spaces(action_space)]
        boxes = [_BoxBounds(leaf) for leaf in leaves if isinstance(leaf, gym.spaces.Box)]
        self._has_box = bool(boxes)
        self._log_scale = sum(box.log_scale for box in boxes)
        self._bounds = map_leaves(
            lambda leaf: _BoxBounds(leaf) if isinstance(leaf, gym.spaces.Box) else None,
            action_space,
        )

    def to_env(
        self,
        actions: Any,
        *,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
    ) -> Any:
        """The env actions of a batch of policy actions (struct with leading axis n).

        Args:
            actions: As `Policy.compute_actions` returns them.
            unsquash_action: Overrides `normalize_actions`.
            clip_action: Overrides `clip_actions`.
        """
        if not self._has_box:
            return actions
        unsquash = self.normalize_actions if unsquash_action is None else unsquash_action
        clip = self.clip_actions if clip_action is None else clip_action
        return map_leaves(
            lambda _, bounds, x: x if bounds is None else bounds.to_env(x, unsquash, clip),
            self.action_space,
            self._bounds,
            actions,
        )

    def from_env(self, actions: Any) -> tuple[Any, float]:
        """The policy actions that unsquash to the given env actions.

        Returns:
            The policy actions, and log |d env action / d policy action| of one row: subtract it
            from a log-density over policy actions to get the one over env actions.
        """
        if not self._has_box or not self.normalize_actions:
            return actions, 0.0
        policy_actions = map_leaves(
            lambda _, bounds, x: x if bounds is None else bounds.from_env(x),
            self.action_space,
            self._bounds,
            actions,
        )
        return policy_actions, self._log_scale


class _BoxBounds:
    """The bounds of one Box leaf and what follows from them."""

    def __init__(self, box: gym.spaces.Box) -> None:
        self._low = box.low
        self._high = box.high
        self._dtype = box.dtype
        self._is_bounded = bool(box.bounded_below.all() and box.bounded_above.all())
        self.log_scale = 0.0
        if self._is_bounded:
            # Halved before subtracting, as bounds may be the largest floats there are.
            low, high = box.low.astype(np.float64) / 2, box.high.astype(np.float64) / 2
            self._center = high + low
            self._half = high - low
            self.log_scale = float(np.log(self._half).sum())

    def to_env(self, values: npt.NDArray[Any], unsquash: bool, clip: bool) -> npt.NDArray[Any]:
        if unsquash and self._is_bounded:
            values = self._clipped(self._half * values + self._center)
        elif clip:
            values = self._clipped(values)
        return values.astype(self._dtype, copy=False)

    def from_env(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self._is_bounded:
            return values
        return ((values - self._center) / self._half).astype(np.float32)

    def _clipped(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.minimum(np.maximum(values, self._low), self._high)
