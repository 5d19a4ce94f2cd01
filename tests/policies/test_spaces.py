"""Spaces: support, JSON round trips, stacking and the flat encoding."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from policies import spaces
from policies.errors import ConfigError

BOOL: Any = np.bool_
LOW = np.array([-1.5, -np.inf, 0.1], np.float32)
HIGH = np.array([1.5, np.inf, 0.3], np.float32)
EVERY_SPACE = {
    "box float32": Box(-np.inf, np.inf, (4,)),
    "box float64 bounds": Box(-1 / 3, 1e300, (2, 3), np.float64),
    "box bounds per element": Box(LOW, HIGH),
    "box half open": Box(0.0, np.inf, (2,)),
    "box uint8 image": Box(0, 255, (8, 6, 3), np.uint8),
    "box int64": Box(-(2**40), 2**40, (2,), np.int64),
    "box scalar": Box(-2.0, 2.0, (), np.float32),
    "box bool": Box(0, 1, (3,), BOOL),
    "discrete": Discrete(5),
    "discrete with start": Discrete(3, start=-1),
    "multi discrete": MultiDiscrete([2, 5, 3], start=[0, 10, -1]),
    "multi discrete 2-D": MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi discrete int32": MultiDiscrete([4, 4], dtype=np.int32),
    "multi binary": MultiBinary(4),
    "multi binary 2-D": MultiBinary((2, 3)),
    "dict": Dict({"b": Discrete(2), "a": Box(0.0, 1.0, (2,))}),
    "tuple": Tuple((Box(0.0, 1.0, (2,)), Discrete(3, start=4))),
    "nested": Dict(
        {"x": Tuple((Dict({"y": MultiBinary(2)}), Box(-1.0, 1.0, ()))), "w": Discrete(2)}
    ),
}
every_space = pytest.mark.parametrize("space", EVERY_SPACE.values(), ids=EVERY_SPACE.keys())


def _samples(space: gym.Space[Any], n: int) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(n)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return set(a) == set(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b)


@every_space
def test_json_round_trip_gives_an_equal_space(space: gym.Space[Any]) -> None:
    text = json.dumps(spaces.space_to_json(space), allow_nan=False)
    restored = spaces.space_from_json(json.loads(text))
    assert restored == space
    for (path, leaf), (same_path, same) in zip(
        spaces.leaf_spaces(space), spaces.leaf_spaces(restored), strict=True
    ):
        assert (path, leaf.dtype, leaf.shape) == (same_path, same.dtype, same.shape)
        if isinstance(leaf, Box) and isinstance(same, Box):  # Box's own == is only approximate.
            assert np.array_equal(leaf.low, same.low) and np.array_equal(leaf.high, same.high)


def test_json_keeps_the_order_of_dict_keys() -> None:
    space = Dict([("b", Discrete(2)), ("a", Discrete(3))])
    restored = spaces.space_from_json(spaces.space_to_json(space))
    assert isinstance(restored, Dict) and list(restored.spaces) == ["b", "a"]


def test_uniform_bounds_take_one_number() -> None:
    assert len(json.dumps(spaces.space_to_json(Box(0, 255, (84, 84, 4), np.uint8)))) < 120


@pytest.mark.parametrize(
    "description",
    [
        {"type": "__import__"},
        {"type": "Text", "dtype": "float32"},
        {"type": "Discrete", "dtype": "object", "n": 2, "start": 0},
        {"type": "Box", "dtype": "float32"},
        {},
    ],
)
def test_bad_descriptions_are_refused(description: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="space"):
        spaces.space_from_json(description)


@every_space
def test_supported_spaces_pass(space: gym.Space[Any]) -> None:
    spaces.check_supported(space, "observation")


def test_unsupported_part_is_named_with_its_path() -> None:
    space = Dict({"goal": Tuple((Discrete(2), Text(5)))})
    with pytest.raises(ConfigError, match=r'observation space\["goal"\]\[1\]: Text spaces'):
        spaces.check_supported(space, "observation")


def test_empty_containers_and_odd_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty Tuple"):
        spaces.check_supported(Dict({"a": Tuple(())}), "action")
    odd: Any = [(1, Discrete(2))]
    with pytest.raises(ConfigError, match="key 1 is not a string"):
        spaces.check_supported(Dict(odd), "action")


@every_space
def test_stack_and_unstack_are_inverse_and_values_stay_in_the_space(space: gym.Space[Any]) -> None:
    values = _samples(space, 5)
    batch = spaces.stack(space, values)
    assert spaces.batch_size(space, batch) == 5
    singles = spaces.unstack(space, batch)
    assert all(space.contains(single) for single in singles)
    assert _same(spaces.stack(space, singles), batch)
    rows = np.array([4, 0])
    assert _same(spaces.index(space, batch, rows), spaces.stack(space, [values[4], values[0]]))
    mask = np.arange(5) < 2
    assert _same(spaces.index(space, batch, mask), spaces.stack(space, values[:2]))


@every_space
def test_zero_values_stack_to_an_empty_batch_of_the_right_types(space: gym.Space[Any]) -> None:
    empty = spaces.stack(space, [])
    assert _same(empty, spaces.zeros(space, 0))
    assert _same(spaces.concat(space, [empty, spaces.zeros(space, 2)]), spaces.zeros(space, 2))
    assert spaces.flatten_batch(space, empty).shape == (0, spaces.flat_size(space))


def test_stack_names_the_leaf_that_does_not_fit() -> None:
    space = Dict({"a": Box(0.0, 1.0, (2,)), "b": Discrete(3)})
    with pytest.raises(ValueError, match=r'values\["a"\] has shape \(1, 3\), expected \(n, 2\)'):
        spaces.stack(space, [{"a": np.zeros(3), "b": 0}])
    with pytest.raises(ValueError, match=r'values\["b"\] has dtype float64, expected int64'):
        spaces.stack(space, [{"a": np.zeros(2), "b": 1.5}])
    with pytest.raises(ValueError, match=r'values\["a"\] differ in shape'):
        spaces.stack(space, [{"a": np.zeros(2), "b": 1}, {"a": np.zeros(3), "b": 1}])


def test_whole_numbers_never_wrap_in_a_narrower_type() -> None:
    space = Box(0, 255, (1,), np.uint8)
    assert spaces.stack(space, [[255]]).dtype == np.uint8
    with pytest.raises(ValueError, match="expected uint8"):
        spaces.stack(space, [[256]])


def _flatten_one(space: gym.Space[Any], value: Any) -> list[float]:
    """Slow reference, value by value."""
    if isinstance(space, Dict):
        return [x for key in sorted(space.spaces) for x in _flatten_one(space[key], value[key])]
    if isinstance(space, Tuple):
        return [x for i, child in enumerate(space) for x in _flatten_one(child, value[i])]
    if isinstance(space, Discrete):
        return [float(i == value - space.start) for i in range(space.n)]
    if isinstance(space, MultiDiscrete):
        digits = zip(np.ravel(value), np.ravel(space.nvec), np.ravel(space.start), strict=True)
        return [float(i == x - start) for x, n, start in digits for i in range(n)]
    return [float(np.float32(x)) for x in np.ravel(value)]


@every_space
def test_flat_encoding_agrees_with_the_encoding_of_single_values(space: gym.Space[Any]) -> None:
    if space == EVERY_SPACE["box float64 bounds"]:
        space = Box(-1.0, 1.0, (2, 3), np.float64)
    values = _samples(space, 6)
    flat = spaces.flatten_batch(space, spaces.stack(space, values))
    assert flat.dtype == np.float32
    assert flat.shape == (6, spaces.flat_size(space))
    assert np.array_equal(flat, np.array([_flatten_one(space, value) for value in values]))


def test_flat_vectors_are_not_copied() -> None:
    batch = np.ones((3, 4), np.float32)
    assert spaces.flatten_batch(Box(-1.0, 1.0, (4,)), batch) is batch


def test_flat_encoding_refuses_values_outside_the_space() -> None:
    with pytest.raises(ValueError, match="of row 1 is not in Discrete"):
        spaces.flatten_batch(Discrete(2, start=1), np.array([1, 0]))


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (Box(0.0, 1.0, (0,)), "without elements"),
        (Box(0.0, 1.0, (3, 0)), "without elements"),
        (Discrete(10**7 + 1), "10000001 values"),
        (MultiDiscrete([2**62, 2**62]), "values, more than"),
    ],
)
def test_spaces_without_elements_and_huge_ones_are_refused(
    leaf: gym.Space[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        spaces.check_supported(Dict({"a": leaf}), "observation")
    assert str(caught.value).startswith('observation space["a"]: ')


def test_a_leaf_of_too_many_elements_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces.check_supported(Discrete(10**7), "action")
    monkeypatch.setattr(spaces, "_MAX_ELEMENTS", 10)
    spaces.check_supported(Box(0.0, 1.0, (2, 5)), "action")
    with pytest.raises(ConfigError, match="action space: 11 elements, more than"):
        spaces.check_supported(Box(0.0, 1.0, (11,)), "action")


def test_only_uint8_boxes_with_three_axes_are_images() -> None:
    assert spaces.is_image(Box(0, 255, (8, 8, 3), np.uint8))
    assert not spaces.is_image(Box(0, 255, (8, 8), np.uint8))
    assert not spaces.is_image(Box(0.0, 1.0, (8, 8, 3)))
