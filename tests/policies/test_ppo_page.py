"""docs/ppo.md: its example runs, and it explains every setting and every metric."""

from __future__ import annotations

import code
import re
from pathlib import Path

import gymnasium as gym
import numpy as np

from policies.learners import ppo
from policies.sample_batch import SampleBatch

PAGE = Path(__file__).parents[2] / "docs" / "ppo.md"
OWN = ppo.PPOConfig.model_fields.keys() - ppo.AlgorithmConfig.model_fields.keys()


def rows_of_tables():
    """First cell to the rest of the row."""
    rows = re.findall(r"^\| `(\w+)` \| (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    return [(name, rest) for name, rest in rows]


def example():
    """The page's Python, and what its last comment says it prints."""
    (text,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return text, text.rstrip().rpartition("  # ")[2]


def test_the_example_runs_as_a_script(capsys):
    text, expected = example()
    exec(compile(text, PAGE.name, "exec"), {})
    assert capsys.readouterr().out.strip() == expected


def test_the_example_can_be_pasted_line_by_line(capsys):
    text, expected = example()
    console = code.InteractiveConsole()
    for line in text.splitlines():
        console.push(line)
    printed = capsys.readouterr()
    assert (printed.out.strip(), printed.err) == (expected, "")


def test_every_setting_is_explained_with_its_default():
    default_of = {name: ppo.PPOConfig.model_fields[name].default for name in OWN}
    first = {}
    for name, rest in rows_of_tables():
        first.setdefault(name, rest)
    assert first.keys() >= OWN
    for name, default in default_of.items():
        if isinstance(default, list):
            default = default[0][1]
        written = first[name].split(" ")[0].rstrip(",")
        words = {"none": None, "true": True, "false": False}
        assert (words[written] if written in words else float(written)) == default, name


def test_every_metric_is_explained():
    batch = SampleBatch.from_columns(
        {
            "eps_id": np.zeros(4, np.int64),
            "t": np.arange(4, dtype=np.int32),
            "obs": np.zeros((4, 1), np.float32),
            "new_obs": np.zeros((4, 1), np.float32),
            "actions": np.zeros(4, np.int64),
            "rewards": np.ones(4),
            "terminateds": np.zeros(4, bool),
            "truncateds": np.zeros(4, bool),
            "action_logp": np.full(4, np.log(0.5)),
        }
    )
    config = ppo.PPOConfig(num_epochs=1)
    state = ppo.initial_state(config, gym.spaces.Box(-1.0, 1.0, (1,)), gym.spaces.Discrete(2))
    _, stats = ppo.update(config, state, batch)
    assert stats.keys() <= {name for name, _ in rows_of_tables()}
