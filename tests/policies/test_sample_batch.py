"""The sample batch: building, reading, cutting into fragments, joining."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from policies import sample_batch as sb
from policies import spaces
from policies.sample_batch import SampleBatch

OBSERVATIONS = Box(-np.inf, np.inf, (4,))
ACTIONS = Discrete(2)


def make_columns(n: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "eps_id": np.repeat([7, 8], [n // 2, n - n // 2]),
        "agent_id": "agent_0",
        "t": np.concatenate([np.arange(n // 2), np.arange(n - n // 2)]),
        "obs": rng.standard_normal((n, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, n),
        "rewards": rng.standard_normal(n),
        "terminateds": np.zeros(n, bool),
        "truncateds": np.zeros(n, bool),
        "weights_version": 3,
    }


def make_batch(n: int = 6, **changes: Any) -> SampleBatch:
    columns = make_columns(n) | changes
    return SampleBatch.from_columns(columns, observation_space=OBSERVATIONS, action_space=ACTIONS)


def test_columns_have_the_types_of_the_data_model() -> None:
    batch = make_batch(shard=0, rewards=np.ones(6, np.float32))
    schema = batch.record_batch.schema
    for name in set(batch.names) & set(sb.COLUMN_TYPES):
        assert schema.field(name).type == sb.COLUMN_TYPES[name], name
    assert schema.field("obs").type == pa.fixed_shape_tensor(pa.float32(), [4])
    assert batch["agent_id"].tolist() == ["agent_0"] * 6
    assert batch["weights_version"].tolist() == [3] * 6


def test_reading_does_not_copy_and_cannot_write() -> None:
    columns = make_columns()
    batch = SampleBatch.from_columns(columns, observation_space=OBSERVATIONS)
    assert np.shares_memory(batch["obs"], columns["obs"])
    assert np.shares_memory(batch["rewards"], columns["rewards"])
    for name in ("obs", "rewards", "terminateds", "agent_id"):
        with pytest.raises(ValueError, match="read-only"):
            batch[name][0] = 0


def test_metadata_carries_the_spaces() -> None:
    batch = make_batch()
    assert batch.observation_space == OBSERVATIONS
    assert batch.action_space == ACTIONS
    assert batch.metadata["kind"] == "steps"
    assert batch.metadata["actions_in"] == "policy"
    assert SampleBatch.from_columns({"t": [0]}).observation_space is None


SPACES: list[gym.Space[Any]] = [
    Box(-1.0, 1.0, (3,)),
    Box(-1.0, 1.0, (2, 2), np.float64),
    Box(0, 255, (4, 4, 3), np.uint8),
    Box(-1.0, 1.0, ()),
    Box(0, 1, (3,), np.bool_),
    Discrete(3, start=2),
    MultiDiscrete([2, 3]),
    MultiDiscrete(np.array([[2, 3], [4, 5]])),
    MultiBinary(3),
    MultiBinary((2, 2)),
    Dict({"a": Box(0.0, 1.0, (2,)), "b": Tuple((Discrete(2), MultiBinary(2)))}),
    Tuple((Box(0.0, 1.0, (2,)), Dict({"0": Discrete(2), "1": Discrete(3)}))),
]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)


@pytest.mark.parametrize("n", [0, 5])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_space_round_trips_through_slices_takes_and_joins(
    space: gym.Space[Any], n: int
) -> None:
    space.seed(0)
    values = spaces.stack(space, [space.sample() for _ in range(n)])
    batch = SampleBatch.from_columns(
        {"obs": values, "actions": values}, observation_space=space, action_space=space
    )
    assert same(batch["obs"], values) and same(batch["actions"], values)
    assert batch.action_space == space
    assert same(sb.concat([batch.slice(0, 2), batch.slice(2, n)])["obs"], values)
    reverse = np.arange(n)[::-1]
    assert same(batch.take(reverse)["obs"], spaces.index(space, values, reverse))
    if n:
        rows = batch.to_rows()
        again = SampleBatch.from_rows(rows, observation_space=space, action_space=space)
        assert again.record_batch.equals(batch.record_batch)


def test_values_are_cast_to_the_space_but_never_rounded() -> None:
    batch = make_batch(obs=np.ones((6, 4)), actions=np.ones(6, np.int32))
    assert batch["obs"].dtype == np.float32 and batch["actions"].dtype == np.int64
    with pytest.raises(ValueError, match="column 'actions' has dtype float64, expected int64"):
        make_batch(actions=np.ones(6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"obs": np.ones((6, 3), np.float32)},
            r"column 'obs' has shape \(6, 3\), expected \(n, 4\)",
        ),
        ({"obs": {"a": np.ones(6)}}, "column 'obs'"),
        ({"rewards": np.ones(5)}, "column 'rewards' has 5 rows, expected 6"),
        ({"t": np.full(6, 2**40)}, "column 't' cannot become int32"),
        ({"agent_id": np.zeros(6)}, "column 'agent_id' has type double"),
        ({"t": np.full(6, 0.5)}, "column 't' cannot become int32"),
        ({"terminateds": np.ones(6)}, "column 'terminateds' has type double, expected bool"),
        ({"rewards": np.ones(6, bool)}, "column 'rewards' has type bool, expected double"),
        ({"rewards": "high"}, "column 'rewards' has type dictionary.* expected double"),
        ({"rewards": np.array(["1"] * 6)}, "column 'rewards' has type string, expected double"),
    ],
)
def test_columns_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_batch(**changes)


def test_a_nested_part_that_does_not_fit_is_named() -> None:
    space = Dict({"a": Box(0.0, 1.0, (2,)), "b": Discrete(2)})
    with pytest.raises(ValueError, match=r"""column 'obs'\["a"\] has shape"""):
        SampleBatch.from_columns(
            {"obs": {"a": np.zeros((1, 3)), "b": np.zeros(1, int)}}, observation_space=space
        )
    with pytest.raises(ValueError, match="column 'obs' has not the structure"):
        SampleBatch.from_columns({"obs": {"b": np.zeros(1, int)}}, observation_space=space)


def test_missing_columns_are_named_with_what_there_is() -> None:
    with pytest.raises(KeyError, match="no column 'vf_preds'; the batch has eps_id, agent_id"):
        make_batch()["vf_preds"]


def test_unknown_ends_are_errors_unless_asked_for() -> None:
    batch = make_batch(3, truncateds=pa.array([True, None, False]))
    with pytest.raises(ValueError, match="column 'truncateds' has 1 nulls, the first in row 1"):
        batch["truncateds"]
    values, known = batch.nullable("truncateds")
    assert values.tolist() == [True, False, False]
    assert known.tolist() == [True, False, True]
    values, known = batch.nullable("terminateds")
    assert values.tolist() == [False] * 3 and known.all()
    assert [row["truncateds"] for row in batch.to_rows()] == [True, None, False]
    again = SampleBatch.from_rows(batch.to_rows())
    assert again.column("truncateds").equals(batch.column("truncateds"))


def test_with_columns_replaces_and_appends() -> None:
    batch = make_batch()
    changed = batch.with_columns({"rewards": np.zeros(6), "advantages": np.ones(6, np.float32)})
    assert changed.names == [*batch.names, "advantages"]
    assert changed["rewards"].tolist() == [0.0] * 6
    assert changed.metadata == batch.metadata
    assert batch["rewards"].any()
    with pytest.raises(ValueError, match="column 'obs' has shape"):
        batch.with_columns({"obs": np.zeros((6, 2))})


def test_select_keeps_rows_order_and_metadata() -> None:
    batch = make_batch().select(["rewards", "t"])
    assert batch.names == ["rewards", "t"] and len(batch) == 6
    assert batch.observation_space == OBSERVATIONS
    assert len(make_batch().select([])) == 6
    with pytest.raises(KeyError, match="no column 'x'"):
        batch.select(["x"])


def test_slices_follow_python() -> None:
    batch = make_batch()
    for start, stop in [(0, 2), (4, 100), (3, 1), (-2, 6)]:
        assert np.array_equal(batch.slice(start, stop)["obs"], batch["obs"][start:stop])


def test_take_accepts_indices_and_masks() -> None:
    batch = make_batch()
    assert np.array_equal(batch.take([5, 0, 5])["obs"], batch["obs"][[5, 0, 5]])
    mask = batch["eps_id"] == 8
    assert np.array_equal(batch.take(mask)["rewards"], batch["rewards"][mask])
    with pytest.raises(ValueError, match="mask of 2 rows for a batch of 6"):
        batch.take([True, False])


def _reference_offsets(eps_id: list[int], agent: list[str], t: list[int]) -> list[int]:
    starts = [
        i
        for i in range(len(t))
        if i == 0 or (eps_id[i], agent[i], t[i]) != (eps_id[i - 1], agent[i - 1], t[i - 1] + 1)
    ]
    return [*starts, len(t)]


def test_fragments_start_where_episode_agent_or_step_break() -> None:
    eps_id, t = [1, 1, 1, 2, 2, 2, 2, 3], [0, 1, 2, 3, 4, 7, 8, 9]
    agent = ["a", "a", "b", "b", "b", "b", "b", "b"]
    batch = SampleBatch.from_columns({"eps_id": eps_id, "t": t, "agent_id": np.array(agent)})
    offsets = batch.fragment_offsets()
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [0, 2, 3, 5, 7, 8] == _reference_offsets(eps_id, agent, t)
    assert [len(fragment) for fragment in batch.fragments()] == [2, 1, 2, 2, 1]


def test_fragment_offsets_of_random_batches_agree_with_the_loop() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        n = int(rng.integers(1, 40))
        eps_id = np.sort(rng.integers(0, 3, n))
        t = np.cumsum(rng.random(n) < 0.9)
        agent = np.array(["a", "b"])[(rng.random(n) < 0.1).astype(int)]
        batch = SampleBatch.from_columns({"eps_id": eps_id, "t": t, "agent_id": agent})
        expected = _reference_offsets(eps_id.tolist(), agent.tolist(), t.tolist())
        assert batch.fragment_offsets().tolist() == expected


def test_an_empty_batch_has_no_fragments() -> None:
    batch = make_batch().slice(0, 0)
    assert batch.fragment_offsets().tolist() == [0]
    assert list(batch.fragments()) == []
    assert batch["obs"].shape == (0, 4)


def test_torch_gives_writable_copies() -> None:
    batch = make_batch()
    tensor = batch.torch("obs")
    tensor += 1
    assert torch.equal(tensor - 1, torch.tensor(batch["obs"]) + 1 - 1)
    assert not torch.equal(tensor, torch.tensor(batch["obs"]))
    assert batch.torch("terminateds").dtype == torch.bool
    nested = batch.with_columns({"extra": {"a": np.arange(6)}}).torch("extra")
    assert nested["a"].tolist() == list(range(6))
    with pytest.raises(TypeError, match="column 'agent_id'"):
        batch.torch("agent_id")


def test_join_unifies_dictionaries_and_keeps_shared_metadata() -> None:
    first = make_batch(4, agent_id="left").with_columns({"x": np.arange(4)})
    second = make_batch(2, agent_id="right").with_columns({"x": np.arange(2)})
    second = second.select([*reversed(second.names)])
    joined = sb.concat([first, second, first])
    assert joined["agent_id"].tolist() == ["left"] * 4 + ["right"] * 2 + ["left"] * 4
    assert joined["x"].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
    assert joined.metadata == first.metadata


def test_join_drops_metadata_that_differs_in_name_only() -> None:
    parts = [SampleBatch.from_columns({"t": [0]}, metadata={"source": s}) for s in ("a", "b")]
    assert "source" not in sb.concat(parts).metadata


def test_join_refuses_differing_kinds_columns_types_and_meanings() -> None:
    steps = make_batch().record_batch
    with pytest.raises(ValueError, match="kinds 'steps' and 'episodes'"):
        sb.concat_record_batches([steps, sb.with_kind(steps, sb.EPISODES)])
    with pytest.raises(ValueError, match="only some have the columns vf_preds"):
        sb.concat([make_batch(), make_batch(vf_preds=np.zeros(6))])
    with pytest.raises(ValueError, match="column 'x' is int64 in one, double in another"):
        sb.concat([make_batch(x=np.zeros(6, int)), make_batch(x=np.zeros(6))])
    logged = SampleBatch.from_columns(
        make_columns(),
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        metadata={"actions_in": "env"},
    )
    with pytest.raises(ValueError, match="actions_in is b'policy' in one, b'env' in another"):
        sb.concat([make_batch(), logged])
    with pytest.raises(ValueError, match="no batches"):
        sb.concat([])


def test_other_kinds_and_versions_are_not_steps() -> None:
    episodes = sb.record_batch({"length": np.arange(3), "shard": 0}, kind=sb.EPISODES)
    assert sb.kind(episodes) == "episodes"
    with pytest.raises(ValueError, match="kind 'episodes' where 'steps' is expected"):
        SampleBatch(episodes)
    with pytest.raises(ValueError, match="schema version '9'"):
        SampleBatch(episodes.replace_schema_metadata({"schema_version": "9"}))


def test_rows_must_agree_in_their_columns() -> None:
    with pytest.raises(ValueError, match="row 1 differs from row 0 in the columns rewards"):
        SampleBatch.from_rows([{"t": 0, "rewards": 1.0}, {"t": 1}])
    with pytest.raises(ValueError, match="no rows"):
        SampleBatch.from_rows([])
    with pytest.raises(ValueError, match="column 'rewards'"):
        SampleBatch.from_rows([{"rewards": "x"}])


def test_unaligned_decoded_buffers_read_right() -> None:
    batch = make_batch()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.record_batch.schema) as writer:
        writer.write_batch(batch.record_batch)
    raw = sink.getvalue().to_pybytes()
    shifted = memoryview(b"-" + raw)[1:]
    decoded = SampleBatch(pa.ipc.open_stream(pa.py_buffer(shifted)).read_next_batch())
    assert not decoded["rewards"].flags.aligned
    for name in batch.names:
        assert np.array_equal(decoded[name], batch[name])
    assert torch.equal(decoded.torch("obs"), batch.torch("obs"))
    assert decoded.fragment_offsets().tolist() == batch.fragment_offsets().tolist()
    assert sb.concat([decoded, batch]).take([0, 11])["rewards"].tolist() == [
        batch["rewards"][0],
        batch["rewards"][5],
    ]
