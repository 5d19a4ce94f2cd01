"""A hung environment ends the process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from policies.watchdog import Watchdog

_HANGS = """
from policies.vector_envs import make_vector_env
config = {"where": "%s", "after": 1}
env = make_vector_env(
    "policies.testing:HangingEnv", config, 2, reset_seed=lambda i, k: k, env_timeout_s=0.5
)
env.reset()
while True:
    env.step([0, 0])
"""


@pytest.mark.parametrize("where", ["reset", "step"])
def test_the_stack_is_printed_and_the_process_ends(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGS % where], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "HangingEnv' (env 0) has been in one step or reset for more than 0.5 s" in done.stderr
    assert "time.sleep(self._seconds)" in done.stderr
    assert "isolation=process" in done.stderr


def test_many_short_calls_and_idle_time_are_not_a_hang() -> None:
    watchdog = Watchdog(0.1)
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        watchdog.enter("env")
        watchdog.leave()
    time.sleep(0.3)
    watchdog.close()


def test_a_suspended_process_is_not_a_hang() -> None:
    code = (
        "import os, signal, subprocess, time\n"
        "from policies.watchdog import Watchdog\n"
        "watchdog = Watchdog(1.0)\n"
        "watchdog.enter('env')\n"
        "subprocess.Popen(['sh', '-c', f'sleep 2; kill -CONT {os.getpid()}'])\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(0.3)\n"
        "watchdog.leave()\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "alive\n"


def test_no_timeout_watches_nothing() -> None:
    watchdog = Watchdog(None)
    watchdog.enter("env")
    assert watchdog._thread is None
    watchdog.close()


def test_the_thread_ends_with_the_watchdog() -> None:
    watchdog = Watchdog(0.2)
    watchdog.enter("env")
    watchdog.leave()
    thread = watchdog._thread
    assert thread is not None and thread.is_alive()
    del watchdog
    thread.join(10.0)
    assert not thread.is_alive()


def test_each_step_of_a_replay_has_the_timeout_for_itself() -> None:
    code = (
        "from policies.vector_envs import make_vector_env\n"
        "config = {'seconds': 0.06, 'after': 0, 'length': 1000}\n"
        "env = make_vector_env('policies.testing:HangingEnv', config, 1, "
        "reset_seed=lambda i, k: k, env_timeout_s=0.6)\n"
        "env.reset()\n"
        "for _ in range(20):\n"
        "    env.step([0])\n"
        "env.set_state(env.get_state())\n"
        "env.close()\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
