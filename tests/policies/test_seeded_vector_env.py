"""Our own vector environments, in this process: seeds, ends, restarts, checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from policies.action_log import MAX_REPLAYED_STEPS
from policies.errors import RunError
from policies.sync_vector_env import SyncVectorEnv
from policies.testing import CountingEnv, FailingEnv, SchemaCheckingEnv


class SeedEnv(gym.Env[np.ndarray, int]):
    """Observes the seed of its reset; an episode ends when the action is 1."""

    def __init__(self) -> None:
        self.observation_space = Box(-1, 2**31, (1,), np.float64)
        self.action_space: gym.Space[Any] = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._obs = np.full(1, -1 if seed is None else seed, np.float64)
        return self._obs, {}

    def step(self, action: int) -> Any:
        return self._obs, 0.0, action == 1, False, {}


class WrongValueEnv(SeedEnv):
    """Returns something wrong from its third step on."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self._wrong = wrong
        self._count = 0

    def step(self, action: int) -> Any:
        self._count += 1
        good: Any = (self._obs, 1.0, False, False, {})
        if self._count < 3:
            return good
        return {
            "shape": (np.zeros(2), *good[1:]),
            "dtype": (np.zeros(1, np.complex64), *good[1:]),
            "nan obs": (np.full(1, np.nan), *good[1:]),
            "nan reward": (self._obs, np.nan, *good[2:]),
            "no reward": (self._obs, None, *good[2:]),
            "no info": good[:4],
            "no tuple": None,
        }[self._wrong]


def make(ref: Any, num_envs: int = 2, config: Any = None, **arguments: Any) -> SyncVectorEnv:
    arguments.setdefault("reset_seed", lambda env, episode: 100 * env + episode)
    return SyncVectorEnv(ref, config or {}, num_envs, **arguments)


def actions(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_every_episode_of_every_environment_has_its_own_seed() -> None:
    env = make(SeedEnv)
    assert env.reset().ravel().tolist() == [0, 100]
    result = env.step(actions(0, 1))
    assert result.obs.ravel().tolist() == [0, 101]
    assert result.final_obs is not None and result.final_obs[1, 0] == 100
    assert env.step(actions(1, 1)).obs.ravel().tolist() == [1, 102]
    assert env.episodes.tolist() == [1, 2]
    assert env.reset_envs(np.array([True, False])).ravel().tolist() == [2, 102]
    assert env.reset().ravel().tolist() == [3, 103]
    assert env.reset(np.array([7, 9])).ravel().tolist() == [7, 109]


def test_environments_that_are_not_active_are_left_alone() -> None:
    env = make(CountingEnv, config={"lengths": [2]})
    env.reset()
    env.step(actions(0, 0))
    result = env.step(actions(0, 0), np.array([True, False]))
    assert result.valid.tolist() == [True, False]
    assert result.terminateds.tolist() == [True, False]
    assert result.obs.ravel().tolist() == [0.0, 1.0]
    assert result.rewards.tolist() == [2.0, 0.0]
    assert env.step(actions(0, 0)).terminateds.tolist() == [False, True]


def test_the_horizon_truncates_and_never_terminates() -> None:
    env = make(CountingEnv, config={"lengths": [5]}, horizon=3)
    env.reset()
    results = [env.step(actions(0, 0)) for _ in range(4)]
    assert [r.truncateds.tolist() for r in results] == [
        [False] * 2,
        [False] * 2,
        [True] * 2,
        [False] * 2,
    ]
    assert not any(r.terminateds.any() for r in results)
    assert results[2].final_obs is not None
    assert results[2].final_obs.ravel().tolist() == [3.0, 3.0]
    assert results[2].obs.ravel().tolist() == [0.0, 0.0]


def test_a_termination_at_the_horizon_stays_one() -> None:
    env = make(CountingEnv, config={"lengths": [3]}, horizon=3)
    env.reset()
    result = [env.step(actions(0, 0)) for _ in range(3)][-1]
    assert result.terminateds.all()


def test_a_later_step_does_not_change_an_earlier_result() -> None:
    env = make(CountingEnv, config={"lengths": [2]})
    obs = env.reset()
    first = env.step(actions(0, 0))
    env.step(actions(0, 0))
    assert obs.ravel().tolist() == [0.0, 0.0]
    assert first.obs.ravel().tolist() == [1.0, 1.0]
    assert first.final_obs is None and first.failed == []


NESTED = Dict({"b": Tuple([Discrete(3), Box(-1, 1, (2,))]), "a": MultiBinary(2)})


@pytest.mark.parametrize(
    "space", [Discrete(3, start=2), MultiDiscrete([2, 3]), MultiBinary(3), Box(-1, 1, (2,)), NESTED]
)
def test_environments_get_actions_of_their_space(space: gym.Space[Any]) -> None:
    env = make(SchemaCheckingEnv, 3, {"observation_space": space, "action_space": space})
    env.reset()
    batched = gym.vector.utils.batch_space(space, 3)
    for _ in range(12):
        env.step(batched.sample())


# --- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_failed_environment_is_restarted_with_its_next_episode(where: str) -> None:
    env = make(FailingEnv, config={"where": where, "seeds": [101], "length": 3, "after": 1})
    env.reset()
    results = [env.step(actions(0, 0)) for _ in range(5)]
    if where == "step":
        failed = results[4]
        assert [r.valid.tolist() for r in results[:4]] == [[True, True]] * 4
        assert failed.valid.tolist() == [True, False]
        assert failed.rewards.tolist() == [1.0, 0.0]
        assert failed.obs.ravel().tolist() == [2.0, 0.0]
        [(index, error)] = failed.failed
    else:
        failed = results[2]
        assert failed.terminateds.tolist() == [True, True] and failed.valid.all()
        assert failed.obs.ravel().tolist() == [0.0, 0.0]
        assert not failed.failed
        [(index, error)] = failed.reset_failed
    assert index == 1
    assert error.startswith(f"RuntimeError: this environment fails in {where} (")
    assert "testing.py:" in error
    assert env.episodes[1] == 2


def test_too_many_failures_report_the_first_error() -> None:
    env = make(FailingEnv, 1, {"after": 0}, max_restarts=2)
    env.reset()
    assert len(env.step(actions(0)).failed) == 1
    assert len(env.step(actions(0)).failed) == 1
    with pytest.raises(
        RunError, match=r"\(env 0\) failed 3 times.*max_env_restarts=2.*RuntimeError"
    ):
        env.step(actions(0))


class SavedFailingEnv(FailingEnv):
    """Saves itself."""

    def get_state(self) -> dict[str, int]:
        return {"count": self._count}

    def set_state(self, state: Any) -> None:
        self._count = int(state["count"])


@pytest.mark.parametrize("cls", [FailingEnv, SavedFailingEnv])
def test_a_restored_environment_may_fail_no_more_often_than_a_live_one(cls: type) -> None:
    env = make(cls, 1, {"after": 0}, max_restarts=2)
    env.reset()
    env.step(actions(0))
    env.step(actions(0))
    restored = make(cls, 1, {"after": 0}, max_restarts=2)
    restored.set_state(env.get_state())
    with pytest.raises(RunError, match=r"failed 3 times.*first error: .*fails in step"):
        restored.step(actions(0))


def test_the_next_step_reports_resets_that_failed() -> None:
    env = make(FailingEnv, config={"where": "reset", "seeds": [0, 1, 103]})
    assert env.reset().ravel().tolist() == [0.0, 0.0]
    assert env.episodes.tolist() == [2, 0]
    result = env.step(actions(0, 0))
    assert result.valid.all() and not result.failed
    assert [index for index, _ in result.reset_failed] == [0, 0]
    assert all("fails in reset" in error for _, error in result.reset_failed)
    assert not env.step(actions(0, 0)).reset_failed
    for _ in range(3):
        env.reset_envs(np.array([False, True]))
    assert [index for index, _ in env.step(actions(0, 0)).reset_failed] == [1]


def test_a_restart_that_fails_is_reported_too() -> None:
    class FailingTwice(FailingEnv):
        def _chosen(self, where: str) -> bool:
            return (where, self._seed) in [("step", 0), ("reset", 1)]

    env = make(FailingTwice, 1, {"after": 0})
    env.reset()
    result = env.step(actions(0))
    assert [error.split(" (")[0] for _, error in (*result.failed, *result.reset_failed)] == [
        "RuntimeError: this environment fails in step",
        "RuntimeError: this environment fails in reset",
    ]
    assert env.episodes.tolist() == [2]


def test_the_first_observation_after_a_restart_is_checked() -> None:
    class SpoiledRestart(FailingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            obs, info = super().reset(seed=seed)
            return obs + (np.nan if seed == 1 else 0.0), info

    env = make(SpoiledRestart, 1, {"after": 0})
    env.reset()
    with pytest.raises(RunError, match="obs is not finite"):
        env.step(actions(0))


def test_environments_are_closed_when_a_later_one_cannot_be_built() -> None:
    closed: list[int] = []

    class Closing(SeedEnv):
        def close(self) -> None:
            closed.append(1)

    def create() -> gym.Env[Any, Any]:
        if len(closed) == 0 and next(count) == 2:
            raise RuntimeError("no more")
        return Closing()

    count = iter(range(9))
    with pytest.raises(RunError, match="no more"):
        make(create, 3)
    assert closed == [1, 1]


def test_an_endless_episode_cannot_be_saved_by_its_actions_for_ever() -> None:
    env = make(FailingEnv, config={"after": 10**9, "length": 8}, horizon=None)
    assert env._replayed is not None
    assert env._replayed.limit == MAX_REPLAYED_STEPS == 100_000
    env._replayed.limit = 5
    env.reset()
    for _ in range(5):
        env.step(actions(0, 0))
    assert len(env.get_state()["actions/0"]) == 10
    env.step(actions(0, 0))
    with pytest.raises(RunError, match=r"6 steps .* limited to 5; set horizon, or .*get_state\(\)"):
        env.get_state()
    # The episode may still end, and the next one can be saved again.
    env.step(actions(0, 0))
    env.step(actions(0, 0))
    assert len(env.get_state()["actions/0"]) == 0


def test_a_finished_episode_forgives_earlier_failures() -> None:
    config = {"after": 0, "seeds": [0, 2, 4, 6, 8], "length": 2}
    env = make(FailingEnv, 1, config, max_restarts=1)
    env.reset()
    failures = sum(len(env.step(actions(0)).failed) for _ in range(14))
    assert failures == 5


def test_no_restarts_means_the_first_failure_is_the_error() -> None:
    env = make(FailingEnv, 1, {"after": 0}, max_restarts=0)
    env.reset()
    with pytest.raises(RunError, match=r"\(env 0\) failed: RuntimeError: this environment fails"):
        env.step(actions(0))


def test_a_reset_that_always_fails_ends_the_run_at_the_start() -> None:
    with pytest.raises(RunError, match=r"failed 4 times.*fails in reset"):
        make(FailingEnv, 1, {"where": "reset"}).reset()


def test_an_environment_that_cannot_be_rebuilt_is_an_error() -> None:
    built: list[int] = []

    def create() -> gym.Env[Any, Any]:
        built.append(1)
        return FailingEnv("step" if len(built) == 1 else "constructor", after=0)

    env = make(create, 1)
    env.reset()
    with pytest.raises(RunError, match=r"failed 4 times.*first error: .*fails in step"):
        env.step(actions(0))


def test_the_error_names_the_line_of_the_environment() -> None:
    class LineEnv(SeedEnv):
        def step(self, action: int) -> Any:
            return [][0]

    env = make(LineEnv, 1, max_restarts=0)
    env.reset()
    with pytest.raises(RunError, match=r"IndexError: .*test_seeded_vector_env.py:\d+\)"):
        env.step(actions(0))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("shape", r"obs has shape \(2,\), expected \(1,\)"),
        ("dtype", "obs has dtype complex64, expected float64"),
        ("nan obs", "obs is not finite"),
        ("nan reward", r"rewards is not finite \(nan\) at step 3"),
        ("no reward", "rewards, terminateds and truncateds must be single values"),
        ("no info", "must return"),
        ("no tuple", "must return"),
    ],
)
def test_a_broken_contract_is_an_error_at_once(wrong: str, problem: str) -> None:
    good = iter([False, True])

    def create() -> gym.Env[Any, Any]:
        return WrongValueEnv(wrong) if next(good) else SeedEnv()

    env = make(create)
    env.reset()
    env.step(actions(0, 0))
    env.step(actions(0, 0))
    with pytest.raises(RunError, match=rf"create' \(env 1\): .*{problem}"):
        env.step(actions(0, 0))


def test_steps_before_a_reset_are_refused() -> None:
    with pytest.raises(ValueError, match="before the first reset"):
        make(SeedEnv).step(actions(0, 0))


def test_closing_twice_is_fine() -> None:
    env = make(SeedEnv)
    env.close()
    env.close()


def test_an_action_that_the_environment_changes_is_replayed_as_it_was() -> None:
    class Changing(SeedEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Box(-1, 1, (1,), np.float64)

        def step(self, action: Any) -> Any:
            self._obs = self._obs + action
            action += 1.0
            return self._obs, 0.0, False, False, {}

    env, given = make(Changing), np.full((2, 1), 0.5)
    env.reset()
    env.step(given)
    assert given.ravel().tolist() == [0.5, 0.5]
    fresh = make(Changing)
    assert fresh.set_state(env.get_state()).ravel().tolist() == [0.5, 100.5]
    again: Sequence[Any] = fresh.get_state()["actions/0"].ravel().tolist()
    assert again == [0.5, 0.5]


@pytest.mark.parametrize(
    ("reward", "terminated"),
    [("1", False), (10**400, False), (1.0, None), (1.0, "False"), (1.0, 2)],
)
def test_values_of_a_step_are_not_guessed(reward: object, terminated: object) -> None:
    class Guess(CountingEnv):
        def step(self, action: int):
            return self.observation_space.sample(), reward, terminated, False, {}

    env = make(Guess, 1)
    env.reset()
    with pytest.raises(RunError, match="must be single values, but step") as caught:
        env.step(actions(0))
    assert len(str(caught.value)) < 300


def test_an_exit_in_a_constructor_or_close_is_the_environments_failure() -> None:
    class Exits(CountingEnv):
        def __init__(self, now: bool) -> None:
            super().__init__()
            if now:
                raise SystemExit(3)

        def close(self) -> None:
            raise SystemExit(5)

    with pytest.raises(RunError, match="cannot be built: SystemExit: 3"):
        make(Exits, 1, {"now": True})
    make(Exits, 1, {"now": False}).close()
