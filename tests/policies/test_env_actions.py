"""From policy actions to env actions: unsquash, else clip, each flag on its own."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from policies.env_actions import EnvActions

BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
HALF_BOUNDED = gym.spaces.Box(np.array([0.0, -1.0]), np.array([np.inf, 1.0]), dtype=np.float64)
ACTIONS = np.array([[-1.0, 1.0], [0.0, 0.5], [3.0, -30.0]], np.float32)
UNSQUASHED = [[-2.0, 10.0], [0.0, 7.5], [2.0, 0.0]]
CLIPPED = [[-1.0, 1.0], [0.0, 0.5], [2.0, 0.0]]


@pytest.mark.parametrize(
    ("normalize", "clip", "expected"),
    [
        (True, True, UNSQUASHED),
        (True, False, UNSQUASHED),
        (False, True, CLIPPED),
        (False, False, ACTIONS.tolist()),
    ],
)
def test_flags_are_independent(normalize, clip, expected):
    conversion = EnvActions(BOX, normalize_actions=normalize, clip_actions=clip)
    assert conversion.to_env(ACTIONS).tolist() == expected
    override = EnvActions(BOX, normalize_actions=not normalize, clip_actions=not clip)
    got = override.to_env(ACTIONS, unsquash_action=normalize, clip_action=clip)
    assert got.tolist() == expected


@pytest.mark.parametrize(
    ("normalize", "clip", "unsquash_action", "clip_action", "expected"),
    [
        (False, True, None, None, CLIPPED),
        (False, True, None, False, ACTIONS.tolist()),
        (False, False, None, True, CLIPPED),
        (False, False, True, None, UNSQUASHED),
        (True, True, False, None, CLIPPED),
        (True, False, False, None, ACTIONS.tolist()),
    ],
)
def test_a_flag_left_open_takes_its_own_default(
    normalize, clip, unsquash_action, clip_action, expected
):
    conversion = EnvActions(BOX, normalize_actions=normalize, clip_actions=clip)
    got = conversion.to_env(ACTIONS, unsquash_action=unsquash_action, clip_action=clip_action)
    assert got.tolist() == expected


def test_leaves_without_finite_bounds_are_clipped_where_they_have_some():
    actions = np.array([[-5.0, 5.0], [1e9, 0.5]], np.float32)
    clipped = EnvActions(HALF_BOUNDED).to_env(actions)
    assert clipped.tolist() == [[0.0, 1.0], [1e9, 0.5]] and clipped.dtype == np.float64
    untouched = EnvActions(HALF_BOUNDED, clip_actions=False).to_env(actions)
    assert untouched.tolist() == actions.tolist()


def test_stored_actions_stay_and_env_actions_have_the_dtype_of_the_space():
    kept = ACTIONS.copy()
    space = gym.spaces.Box(-2.0, 2.0, (2,), np.float64)
    env_actions = EnvActions(space).to_env(ACTIONS)
    assert env_actions.dtype == np.float64 and (kept == ACTIONS).all()
    assert all(space.contains(action) for action in env_actions)


def test_every_env_action_is_inside_the_largest_finite_bounds():
    largest = np.finfo(np.float32).max
    space = gym.spaces.Box(-largest, largest, (1,))
    env_actions = EnvActions(space).to_env(np.array([[-1.0], [0.0], [1.0]], np.float32))
    assert env_actions.tolist() == [[-largest], [0.0], [largest]]


def test_nested_spaces_convert_their_boxes_only():
    space = gym.spaces.Dict(
        {"b": BOX, "a": gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)))}
    )
    actions = {"a": (np.array([2, 0, 1]), np.ones((3, 2), np.int8)), "b": ACTIONS}
    env_actions = EnvActions(space).to_env(actions)
    assert env_actions["b"].tolist() == UNSQUASHED
    assert env_actions["a"][0] is actions["a"][0] and env_actions["a"][1] is actions["a"][1]


def test_discrete_actions_pass_untouched():
    actions = np.array([1, 0])
    assert EnvActions(gym.spaces.Discrete(2)).to_env(actions) is actions


def test_from_env_is_the_inverse_with_its_jacobian():
    conversion = EnvActions(BOX)
    inside = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    back, log_scale = conversion.from_env(conversion.to_env(inside))
    np.testing.assert_allclose(back, inside, atol=1e-6)
    assert log_scale == pytest.approx(np.log(2.0) + np.log(5.0))
    same, zero = EnvActions(BOX, normalize_actions=False).from_env(inside)
    assert same is inside and zero == 0.0
