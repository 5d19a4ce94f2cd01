"""Acting with the newest policy of a run: evaluation and single actions, in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from policies import inference
from policies.config import AlgorithmConfig
from policies.evaluation import evaluate
from policies.learners.learner import learner_threads, policy_for
from policies.policy import Policy
from policies.run_directory import VersionInfo
from policies.training_run import POLICY_ID, TrainingRun


class NewestPolicy(ABC):
    """What `pipelines.algorithm.Algorithm` can do without training.

    Attributes:
        config: The run's settings.
        run: The run.
    """

    config: AlgorithmConfig
    run: TrainingRun
    _acting: tuple[str, Policy] | None = None

    @abstractmethod
    def _version_to_act(self) -> VersionInfo:
        """The version whose policy acts."""

    def evaluate(self, episodes: int | None = None) -> dict[str, Any]:
        """Plays exactly N episodes with the newest policy, in this process.

        Args:
            episodes: N; default: `evaluation_episodes`, with the seeds of the version's own
                evaluation.

        Returns:
            `mean`, `std`, `n`, `lengths`, `returns` and `capped`.
        """
        count = self.config.evaluation_episodes if episodes is None else episodes
        version = self._version_to_act().version
        with learner_threads(self.config.learner_threads):
            return evaluate(self.get_policy(), self.config, version, count)

    def get_policy(self, policy_id: str = POLICY_ID) -> Policy:
        """The newest policy; it does not change when training goes on.

        Raises:
            KeyError: There is no policy of that name.
        """
        if policy_id != POLICY_ID:
            raise KeyError(f"unknown policy {policy_id!r}; known: {POLICY_ID!r}")
        info = self._version_to_act()
        weights = info.file("weights")
        if self._acting is None or self._acting[0] != weights.sha256:
            policy = policy_for(self.config, *self.run.spaces)
            policy.set_weights(self.run.directory.read_arrays(info.version, weights))
            self._acting = (weights.sha256, policy)
        return self._acting[1]

    def compute_single_action(
        self,
        observation: Any,
        state: Sequence[np.ndarray] | None = None,
        *,
        policy_id: str = POLICY_ID,
        explore: bool = False,
        full_fetch: bool = False,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
    ) -> Any:
        """One action for one observation, as the environment takes it.

        Args:
            observation: As the environment gives it; the filter is applied and does not learn.
            state: Recurrent state, or None at an episode's start.
            policy_id: Which policy.
            explore: Sample instead of taking the most probable action.
            full_fetch: Return (action, state, extras) in any case.
            unsquash_action: Default: the configuration's `normalize_actions`.
            clip_action: Default: the configuration's `clip_actions`; not applied when unsquashed.

        Returns:
            The action; with a recurrent policy or `full_fetch`, (action, state, extras).
        """
        policy = self.get_policy(policy_id)
        action, next_state, extras = policy.compute_single_action(
            observation,
            tuple(state or ()),
            explore,
            unsquash_action=unsquash_action,
            clip_action=clip_action,
        )
        if full_fetch or policy.is_recurrent:
            return action, next_state, extras
        return action

    def compute_actions(
        self,
        observations: Mapping[Any, Any],
        state: Mapping[Any, Sequence[np.ndarray]] | None = None,
        *,
        policy_id: str = POLICY_ID,
        explore: bool = False,
        full_fetch: bool = False,
        unsquash_actions: bool | None = None,
        clip_actions: bool | None = None,
    ) -> Any:
        """One action for each of several observations, in one pass through the network.

        Args:
            observations: By any key, such as an agent's id.
            state: Recurrent state by key; keys without one start an episode.
            policy_id: Which policy.
            explore: As for `compute_single_action`.
            full_fetch: Return three dicts in any case.
            unsquash_actions: As `unsquash_action` of `compute_single_action`.
            clip_actions: As `clip_action` of `compute_single_action`.

        Returns:
            Actions by key; with a recurrent policy or `full_fetch`, three dicts: actions, states,
            extras.
        """
        policy = self.get_policy(policy_id)
        result = inference.compute_actions(
            policy,
            observations,
            state or {},
            explore=explore,
            unsquash_actions=unsquash_actions,
            clip_actions=clip_actions,
        )
        return result if full_fetch or policy.is_recurrent else result[0]
