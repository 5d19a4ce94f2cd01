"""Environments in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from policies.errors import ConfigError, RunError
from policies.process_vector_env import ProcessVectorEnv
from policies.sync_vector_env import SyncVectorEnv
from policies.testing import CountingEnv, IdentityEnv

NESTED = {
    "type": "Dict",
    "spaces": [
        ["b", {"type": "Discrete", "dtype": "int64", "n": 3, "start": 1}],
        [
            "a",
            {
                "type": "Tuple",
                "spaces": [
                    {"type": "Box", "dtype": "float32", "shape": [2], "low": -1.0, "high": 1.0}
                ],
            },
        ],
    ],
}


@pytest.fixture
def made() -> Iterator[list[ProcessVectorEnv]]:
    envs: list[ProcessVectorEnv] = []
    yield envs
    for env in envs:
        env.close()


def seeds(env: int, episode: int) -> int:
    return 100 * env + episode


def both(
    made: list[ProcessVectorEnv], ref: Any, config: dict[str, Any], **arguments: Any
) -> tuple[ProcessVectorEnv, SyncVectorEnv]:
    arguments = {"reset_seed": seeds, "env_timeout_s": 60.0, **arguments}
    made.append(ProcessVectorEnv(ref, config, 2, **arguments))
    return made[-1], SyncVectorEnv(ref, config, 2, **arguments)


def assert_same(ours: Any, theirs: Any) -> None:
    """Two structs or step results, bit for bit."""
    if isinstance(ours, dict):
        assert sorted(ours) == sorted(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("ref", "config", "horizon"),
    [
        ("CartPole-v1", {}, None),
        ("Pendulum-v1", {}, 7),
        ("policies.testing:IdentityEnv", {"space": NESTED, "steps": 5}, None),
        ("policies.testing:FailingEnv", {"seeds": [1, 101], "after": 1}, None),
        ("policies.testing:FailingEnv", {"seeds": [1, 101], "where": "reset"}, None),
    ],
)
def test_transitions_are_those_of_the_same_environment_in_this_process(
    made: list[ProcessVectorEnv], ref: str, config: dict[str, Any], horizon: int | None
) -> None:
    ours, theirs = both(made, ref, config, horizon=horizon)
    assert ours.observation_space == theirs.observation_space
    assert_same(ours.reset(), theirs.reset())
    batched = gym.vector.utils.batch_space(ours.action_space, 2)
    batched.seed(0)
    for _ in range(40):
        actions = batched.sample()
        assert_same(ours.step(actions), theirs.step(actions))
    assert_same(ours.get_state(), theirs.get_state())
    assert ours.episodes.tolist() == theirs.episodes.tolist()


def make(made: list[ProcessVectorEnv], name: str, **config: Any) -> ProcessVectorEnv:
    made.append(
        ProcessVectorEnv(f"policies.testing:{name}", config, 2, reset_seed=seeds, env_timeout_s=2.0)
    )
    return made[-1]


ACTIONS = np.zeros(2, np.int64)


def test_a_hung_step_is_killed_and_reported(made: list[ProcessVectorEnv]) -> None:
    env = make(made, "HangingEnv", seeds=[100], after=1)
    env.reset()
    assert env.step(ACTIONS).valid.all()
    hung = env._processes[1]._process.pid
    started = time.monotonic()
    result = env.step(ACTIONS)
    assert result.valid.tolist() == [True, False]
    assert result.failed == [(1, "step took longer than 2 s; its process was killed")]
    assert result.obs.ravel().tolist() == [2.0, 0.0]
    assert time.monotonic() - started < 30.0
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
    assert env.step(ACTIONS).valid.all()


def test_a_hung_reset_keeps_the_episode_that_had_ended(made: list[ProcessVectorEnv]) -> None:
    env = make(made, "HangingEnv", where="reset", seeds=[101], length=2)
    env.reset()
    env.step(ACTIONS)
    result = env.step(ACTIONS)
    assert result.valid.all() and result.terminateds.all() and not result.failed
    assert result.reset_failed == [(1, "reset took longer than 2 s; its process was killed")]
    assert env.episodes.tolist() == [1, 2]


def test_a_process_that_dies_is_replaced(made: list[ProcessVectorEnv]) -> None:
    env = make(made, "DyingEnv", seeds=[0], after=0)
    env.reset()
    result = env.step(ACTIONS)
    assert result.failed == [(0, "its process ended in step (exit code 7)")]
    assert env.step(ACTIONS).valid.all()


def test_a_process_that_is_killed_between_steps_is_replaced(made: list[ProcessVectorEnv]) -> None:
    env = make(made, "CountingEnv")
    env.reset()
    os.kill(env._processes[0]._process.pid, signal.SIGKILL)
    result = env.step(ACTIONS)
    assert result.failed == [(0, "its process ended in step (signal 9)")]
    assert result.valid.tolist() == [False, True]


def test_each_step_of_a_replay_has_the_timeout_for_itself(made: list[ProcessVectorEnv]) -> None:
    env = make(made, "HangingEnv", seconds=0.25, after=0, length=1000)
    env.reset()
    for _ in range(12):
        env.step(ACTIONS)
    assert env.set_state(env.get_state()).ravel().tolist() == [12.0, 12.0]
    assert env.step(ACTIONS).obs.ravel().tolist() == [13.0, 13.0]


def test_a_hung_replay_is_an_error(made: list[ProcessVectorEnv]) -> None:
    env = make(made, "HangingEnv", seeds=[7], after=2)
    env.reset()
    for _ in range(4):
        env.step(ACTIONS)
    state = env.get_state()
    state["seed"][1] = 7
    message = r"\(env 1\): restoring its state failed: a step of the replay took longer than 2 s"
    with pytest.raises(RunError, match=message):
        env.set_state(state)


def test_mistakes_are_the_same_errors_as_in_this_process() -> None:
    with pytest.raises(ConfigError, match="gravitas"):
        ProcessVectorEnv("CartPole-v1", {"gravitas": 1}, 2, reset_seed=seeds)
    with pytest.raises(RunError, match="fails in constructor"):
        ProcessVectorEnv(
            "policies.testing:FailingEnv", {"where": "constructor"}, 1, reset_seed=seeds
        )
    with pytest.raises(ConfigError, match="JSON data"):
        ProcessVectorEnv(IdentityEnv, {"space": gym.spaces.Discrete(2)}, 1, reset_seed=seeds)
    with pytest.raises(ConfigError, match="cannot be found by another process"):
        ProcessVectorEnv(lambda: CountingEnv(), {}, 1, reset_seed=seeds)


def test_what_an_environment_prints_stays_out_of_standard_output() -> None:
    code = (
        "from policies.process_vector_env import ProcessVectorEnv\n"
        "env = ProcessVectorEnv('printing_env:PrintingEnv', {}, 1, reset_seed=lambda i, k: k)\n"
        "env.close()\n"
        "print('done')"
    )
    source = (
        "from policies.testing import CountingEnv\n"
        "class PrintingEnv(CountingEnv):\n"
        "    def __init__(self):\n"
        "        print('hello from the environment', flush=True)\n"
        "        super().__init__()\n"
    )
    setup = "import sys, types, os, tempfile\nd = tempfile.mkdtemp()\nsys.path.append(d)\n" + (
        f"open(os.path.join(d, 'printing_env.py'), 'w').write({source!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", setup + code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # The caller imports the class to check the name; only the other process builds it.
    assert done.stdout == "done\n"
    assert done.stderr.count("hello from the environment") == 1


@pytest.mark.faults
def test_the_environments_end_with_their_parent_even_in_a_step() -> None:
    code = (
        "from policies.process_vector_env import ProcessVectorEnv\n"
        "env = ProcessVectorEnv('policies.testing:HangingEnv', {'after': 0}, 1, "
        "reset_seed=lambda i, k: k)\n"
        "env.reset()\n"
        "print(env._processes[0]._process.pid, flush=True)\n"
        "env.step([0])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20.0
    while _runs(child):
        assert time.monotonic() < deadline, "the environment's process outlives its parent"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
