"""Random streams: every random number of a run comes from (seed, purpose, key), nothing else.

A stream is named by what it is for and by stable numbers (the version, the shard, the environment,
the episode), never by a worker, a clock or the order of arrival. So the same run draws the same
numbers on one worker or on many, and after a crash.

| purpose | key |
|---|---|
| INIT | () |
| LEARNER | (version) |
| EVALUATION | (version, episode) for resets; (version) for native vector environments |
| CONFIRMATION | as EVALUATION |
| RESET | (shard, env, episode number); (shard) for native vector environments |
| ACTION_NOISE | (version, shard), a column for each env; (version, purpose, episode) to evaluate, \
purpose being EVALUATION or CONFIRMATION; () for actions outside a run |

A native vector environment takes one seed, and derives those of its later resets from it.
"""

from __future__ import annotations

import enum
import hashlib
import operator
import struct

import numpy as np

_KEY_LIMIT = 2**32
_INT64_MASK = 2**63 - 1


class Purpose(enum.IntEnum):
    """What a stream is for. The numbers are part of a run's identity: never change one."""

    INIT = 0
    LEARNER = 1
    EVALUATION = 2
    CONFIRMATION = 3
    RESET = 4
    ACTION_NOISE = 5


def stream(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """Returns a fresh generator for one purpose and key.

    Args:
        seed: The run's seed, 0 or more.
        purpose: What the numbers are for.
        *key: Stable numbers that tell streams of one purpose apart, each in [0, 2**32).

    Returns:
        A PCG64 generator; equal arguments give equal numbers, others independent ones.

    Raises:
        ValueError: The seed or a key is negative or too large.
        TypeError: The seed or a key is not an integer.
    """
    return np.random.Generator(np.random.PCG64(_seed_sequence(seed, purpose, key)))


def seed_for(seed: int, purpose: Purpose, *key: int) -> int:
    """Returns an integer seed, for environments' `reset(seed=...)`.

    Args and raises: as `stream`.

    Returns:
        An integer in [0, 2**32).
    """
    return int(_seed_sequence(seed, purpose, key).generate_state(1, np.uint32)[0])


def episode_ids(
    run_id: str, version: int, shard: int, envs: np.ndarray, counters: np.ndarray
) -> np.ndarray:
    """The `eps_id` of recorded episodes of one version and shard.

    Args:
        run_id: The run's identity.
        version: The version of the weights when the episodes began.
        shard: The shard that recorded them.
        envs: int64 [n], the environments inside the shard.
        counters: int64 [n], the numbers of the episodes in their environments.

    Returns:
        int64 [n], BLAKE2b hashes of these, in [0, 2**63).
    """
    pack, run = struct.Struct("<qqqq").pack, run_id.encode()
    digests = [
        hashlib.blake2b(pack(version, shard, env, counter) + run, digest_size=8).digest()
        for env, counter in zip(envs.tolist(), counters.tolist(), strict=True)
    ]
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64) & _INT64_MASK


def _seed_sequence(seed: int, purpose: Purpose, key: tuple[int, ...]) -> np.random.SeedSequence:
    entropy = operator.index(seed)
    numbers = tuple(operator.index(number) for number in key)
    if entropy < 0:
        raise ValueError(f"a seed must be 0 or more, got {entropy}")
    # numpy splits larger numbers into words: (2**32,) would name the same stream as (0, 1).
    if not all(0 <= number < _KEY_LIMIT for number in numbers):
        raise ValueError(f"each number of a stream's key must be in [0, 2**32), got {numbers}")
    return np.random.SeedSequence(entropy, spawn_key=(int(purpose), *numbers))
