"""Advantages and returns of fragments, vectorised over all rows of a batch.

Notation, per row t: reward r, value v = V(obs), next value v' = V(true next obs) (the last
observation of an episode, never the one after its reset), terminated z, boundary b (the last row of
an episode: terminated or truncated). A *segment* is a run of rows that ends at a boundary or at the
end of a fragment. Every quantity here is a linear recursion x_t = a_t + c_t x_{t+1} inside a
segment, with x = 0 beyond it; `_solve` computes all of them at once.

A truncation and a fragment cut end a segment with v' as bootstrap; a termination ends it without.
The results for a fragment are the same bits whatever other fragments are in the batch. Rewards and
values must be finite: a NaN spreads to other rows. Only v' of terminated rows is never read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def generalized_advantages(
    rewards: ArrayLike,
    values: ArrayLike,
    next_values: ArrayLike,
    terminateds: ArrayLike,
    boundaries: ArrayLike,
    gamma: ArrayLike,
    lam: ArrayLike,
    fragment_offsets: ArrayLike | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Computes generalised advantage estimates (Schulman et al. 2016, eq. 16).

    delta_t = r_t + gamma (1 - z_t) v'_t - v_t and A_t = delta_t + gamma lam (1 - b_t) A_{t+1}.

    Args:
        rewards: [n].
        values: [n], V(obs) of each row.
        next_values: [n], V(true next obs) of each row; never read where terminated.
        terminateds: bool [n], the environment ended the episode at this row.
        boundaries: bool [n], this row is the last of its episode (terminated or truncated).
        gamma: discount, a number or one for each row [n].
        lam: trace decay, a number or one for each row [n].
        fragment_offsets: int [f + 1], first row of each fragment and then n; one fragment if None.

    Returns:
        Advantages and value targets (advantage + value), both float64 [n].

    Raises:
        ValueError: A shape is wrong, the offsets do not ascend from 0 to n, or a row is terminated
            but no boundary.
    """
    reward = _column("rewards", rewards, None)
    n = len(reward)
    value = _column("values", values, n)
    terminated, ends = _segment_ends(terminateds, boundaries, fragment_offsets, n)
    discount = _coefficient("gamma", gamma, n)
    deltas = reward + _bootstrap(next_values, terminated, discount) - value
    advantages = _solve(deltas, discount * _coefficient("lam", lam, n), ends)
    return advantages, advantages + value


def lambda_returns(
    rewards: ArrayLike,
    next_values: ArrayLike,
    terminateds: ArrayLike,
    boundaries: ArrayLike,
    gamma: ArrayLike,
    lam: ArrayLike,
    fragment_offsets: ArrayLike | None = None,
) -> FloatArray:
    """Computes lambda-returns (Sutton and Barto 2018, eq. 12.18 in recursive form).

    G_t = r_t + gamma (1 - z_t) [(1 - lam) v'_t + lam G_{t+1}]; at the end of a segment
    G_t = r_t + gamma (1 - z_t) v'_t. Equals advantages + values of `generalized_advantages` where
    v'_t = v_{t+1} inside segments, and needs no v.

    Args and raises: as `generalized_advantages`.

    Returns:
        float64 [n].
    """
    reward = _column("rewards", rewards, None)
    n = len(reward)
    terminated, ends = _segment_ends(terminateds, boundaries, fragment_offsets, n)
    discount = _coefficient("gamma", gamma, n)
    decay = _coefficient("lam", lam, n)
    bootstrap = _bootstrap(next_values, terminated, discount)
    constants = reward + np.where(ends, bootstrap, (1.0 - decay) * bootstrap)
    return _solve(constants, discount * decay, ends)


def discounted_returns(
    rewards: ArrayLike,
    next_values: ArrayLike,
    terminateds: ArrayLike,
    boundaries: ArrayLike,
    gamma: ArrayLike,
    fragment_offsets: ArrayLike | None = None,
) -> FloatArray:
    """Computes discounted sums of rewards, bootstrapped where a segment ends unterminated.

    G_t = r_t + gamma G_{t+1}; at the end of a segment G_t = r_t + gamma (1 - z_t) v'_t. With zeros
    as `next_values` this is the plain sum of the rewards seen.

    Args and raises: as `generalized_advantages`.

    Returns:
        float64 [n].
    """
    return lambda_returns(
        rewards, next_values, terminateds, boundaries, gamma, 1.0, fragment_offsets
    )


def explained_variance(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Computes the share of the targets' variance that the predictions explain.

    1 - Var(targets - predictions) / Var(targets): 1 is perfect, 0 no better than a constant, and a
    constant error does not count.

    Args:
        targets: [n].
        predictions: [n].

    Returns:
        The explained variance; 0.0 where the targets have no variance (it is undefined there).

    Raises:
        ValueError: The shapes differ or are not one-dimensional.
    """
    target = _column("targets", targets, None)
    prediction = _column("predictions", predictions, len(target))
    variance = float(np.var(target)) if len(target) else 0.0
    if variance == 0.0:
        return 0.0
    return 1.0 - float(np.var(target - prediction)) / variance


def _solve(constants: FloatArray, coefficients: FloatArray, ends: NDArray[np.bool_]) -> FloatArray:
    """Solves x_t = a_t + c_t x_{t+1} with x = 0 beyond each segment, for all rows at once.

    A parallel prefix scan (Hillis and Steele 1986): after the pass of stride s, x_t sums the terms
    of rows t .. t + 2s - 1 and c_t is the product of their coefficients, which is 0 as soon as a
    segment ends among them. Passes: log2 of the longest segment.

    Args:
        constants: a, float64 [n].
        coefficients: c, float64 [n] or [1].
        ends: bool [n], last row of a segment; true at the last row.

    Returns:
        x, float64 [n].
    """
    n = len(constants)
    if n == 0:
        return constants
    # Passes that a longer neighbour causes add 0 * x, which changes no bit but that of -0.0.
    x = constants + 0.0
    c = np.where(ends, 0.0, coefficients)
    longest = int(np.diff(np.flatnonzero(ends), prepend=-1).max())
    stride = 1
    while stride < longest:
        x[:-stride] += c[:-stride] * x[stride:]
        c[:-stride] *= c[stride:]
        stride *= 2
    return x


def _segment_ends(
    terminateds: ArrayLike, boundaries: ArrayLike, fragment_offsets: ArrayLike | None, n: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns the terminated rows and the last rows of segments, both bool [n]."""
    terminated = _flags("terminateds", terminateds, n)
    boundary = _flags("boundaries", boundaries, n)
    if (terminated > boundary).any():
        row = int(np.argmax(terminated > boundary))
        raise ValueError(f"row {row} is terminated but not a boundary")
    ends = boundary.copy()
    if fragment_offsets is not None:
        offsets = np.asarray(fragment_offsets)
        _check_offsets(offsets, n)
        if n:
            ends[offsets[1:] - 1] = True
    elif n:
        ends[-1] = True
    return terminated, ends


def _check_offsets(offsets: NDArray[np.int64], n: int) -> None:
    """Raises ValueError unless the offsets ascend strictly from 0 to n."""
    if n == 0 and offsets.size <= 1 and not offsets.any():
        return
    if (
        offsets.ndim != 1
        or offsets.dtype.kind not in "iu"
        or len(offsets) < 2
        or offsets[0] != 0
        or offsets[-1] != n
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        raise ValueError(
            f"fragment_offsets must be integers ascending from 0 to the number of rows {n}, "
            f"got {offsets!r}"
        )


def _bootstrap(
    next_values: ArrayLike, terminated: NDArray[np.bool_], discount: FloatArray
) -> FloatArray:
    """Returns gamma (1 - z) v', without reading v' where terminated."""
    next_value = _column("next_values", next_values, len(terminated))
    return np.where(terminated, 0.0, next_value) * discount


def _column(name: str, values: ArrayLike, n: int | None) -> FloatArray:
    """Returns float64 [n], or raises ValueError naming the column."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (n is not None and len(array) != n):
        raise ValueError(f"{name} must have shape [{'n' if n is None else n}], got {array.shape}")
    return array


def _flags(name: str, values: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Returns bool [n], or raises ValueError naming the column."""
    array = np.asarray(values, dtype=np.bool_)
    if array.shape != (n,):
        raise ValueError(f"{name} must have shape [{n}], got {array.shape}")
    return array


def _coefficient(name: str, value: ArrayLike, n: int) -> FloatArray:
    """Returns float64 [n] or, for a single number, [1]."""
    array = np.asarray(value, dtype=np.float64)
    return array.reshape(1) if array.ndim == 0 else _column(name, array, n)
