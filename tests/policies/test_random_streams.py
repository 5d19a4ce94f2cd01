"""Random streams: repeatable, apart from each other, and pinned."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from policies.random_streams import Purpose, episode_ids, seed_for, stream


def draws(*arguments):
    return stream(*arguments).random(4).tobytes()


def test_equal_names_give_equal_numbers():
    assert draws(7, Purpose.LEARNER, 3) == draws(7, Purpose.LEARNER, 3)
    assert seed_for(7, Purpose.RESET, 1, 2, 3) == seed_for(7, Purpose.RESET, 1, 2, 3)


def test_every_part_of_the_name_tells_streams_apart():
    names = [
        (seed, purpose, *key)
        for seed in (0, 1, 2**40)
        for purpose in Purpose
        for key in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**32 - 1,), (1, 0, 0)]
    ]
    assert len({draws(*name) for name in names}) == len(names)
    assert len({seed_for(*name) for name in names}) == len(names)


def test_streams_are_the_seed_sequences_of_their_names():
    sequence = np.random.SeedSequence(5, spawn_key=(int(Purpose.ACTION_NOISE), 2, 0, 9))
    expected = np.random.Generator(np.random.PCG64(sequence)).random(8)
    actual = stream(5, Purpose.ACTION_NOISE, 2, 0, 9).random(8)
    assert actual.tobytes() == expected.tobytes()


def test_purposes_keep_their_numbers():
    assert [(purpose.name, int(purpose)) for purpose in Purpose] == [
        ("INIT", 0),
        ("LEARNER", 1),
        ("EVALUATION", 2),
        ("CONFIRMATION", 3),
        ("RESET", 4),
        ("ACTION_NOISE", 5),
    ]


def test_streams_ignore_and_leave_the_global_generator():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = draws(1, Purpose.INIT)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.random.seed(1)
    assert draws(1, Purpose.INIT) == first


def test_neighbouring_streams_are_uncorrelated():
    rows = np.array([stream(0, Purpose.ACTION_NOISE, 1, 0, env).random(2000) for env in range(16)])
    correlation = np.corrcoef(rows)[np.triu_indices(16, 1)]
    assert np.abs(correlation).max() < 0.1
    assert rows.mean() == pytest.approx(0.5, abs=0.01)


def test_numpy_integers_name_the_same_stream():
    assert draws(1, Purpose.RESET, np.int64(3), np.int32(4)) == draws(1, Purpose.RESET, 3, 4)


def test_seeds_fit_an_environment():
    seeds = [seed_for(0, Purpose.RESET, 0, env, 0) for env in range(200)]
    assert all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
    assert len(set(seeds)) == 200


@pytest.mark.parametrize("key", [(-1,), (2**32,), (0, 2**40)])
def test_keys_out_of_range_are_refused(key):
    with pytest.raises(ValueError, match="key must be in"):
        stream(0, Purpose.RESET, *key)


def test_bad_seeds_are_refused():
    with pytest.raises(ValueError, match="0 or more, got -1"):
        stream(-1, Purpose.RESET)
    with pytest.raises(TypeError):
        stream(None, Purpose.RESET)
    with pytest.raises(TypeError):
        stream(0, Purpose.RESET, 1.5)


def test_episode_ids_are_distinct_and_fit_int64():
    envs, counters = (x.ravel() for x in np.meshgrid(range(3), range(3)))
    keys = itertools.product(["a", "b", ""], range(3), range(3))
    ids = np.concatenate([episode_ids(*key, envs, counters) for key in keys])
    assert ids.dtype == np.int64 and (ids >= 0).all()
    assert len(np.unique(ids)) == len(ids) == 3**5


def test_episode_ids_never_change_between_processes():
    ids = episode_ids("run", 12, 0, np.array([3]), np.array([4]))
    assert ids.tolist() == [3171575476579813189]
    none = np.zeros(0, np.int64)
    assert episode_ids("run", 0, 0, none, none).tolist() == []


def test_episode_ids_are_hashes_of_their_names():
    ids = episode_ids("r\u00fcn", 7, 2, np.array([0, 250]), np.array([1, 10**6]))
    for eps_id, env, counter in zip(ids.tolist(), [0, 250], [1, 10**6], strict=True):
        words = b"".join(x.to_bytes(8, "little") for x in (7, 2, env, counter))
        digest = hashlib.blake2b(words + "r\u00fcn".encode(), digest_size=8).digest()
        assert eps_id == int.from_bytes(digest, "little") % 2**63
