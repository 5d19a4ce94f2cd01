"""The uniform numbers that decide one round's actions of one shard."""

from __future__ import annotations

import numpy as np

from policies.random_streams import Purpose, stream


class ActionNoise:
    """A table of uniforms with a row per transition and a column per environment.

    The table comes from the stream of (version, shard). The k-th transition of environment e
    always acts with entry (k, e), whatever the other environments do. A step that is no transition
    (a reset step of NEXT_STEP autoreset, a failed or idle environment) uses up nothing, so all
    autoreset modes act alike.

    Args:
        seed: The run's seed.
        version: Version of the weights that act.
        shard: The shard.
        num_envs: Number of environments.
        size: Uniforms that one action uses.
        rows: Rows to draw at a time, at least; how many changes no number.
    """

    def __init__(
        self, seed: int, version: int, shard: int, num_envs: int, size: int, rows: int
    ) -> None:
        self._stream = stream(seed, Purpose.ACTION_NOISE, version, shard)
        self._num_envs = num_envs
        self._size = size
        self._rows = max(1, rows)
        self._table = np.zeros((0, size))
        self._steps = 0  # since the row that the table begins with
        self._next = np.arange(num_envs)

    def next(self) -> np.ndarray:
        """Numbers for the next transition of every environment: float64 [num_envs, size]."""
        # After k steps no environment has made more than k transitions.
        if self._steps * self._num_envs >= len(self._table):
            self._draw()
        return self._table.take(self._next, axis=0)

    def _draw(self) -> None:
        """Drops the rows that all environments have used, and adds at least as many as are left.

        So an environment that stays behind the others does not make them pay for every block.
        """
        used = int(self._next.min()) // self._num_envs
        left = self._table[used * self._num_envs :]
        count = max(self._rows * self._num_envs, len(left))
        self._table = np.concatenate([left, self._stream.random((count, self._size))])
        self._next -= used * self._num_envs
        self._steps -= used

    def advance(self, made: np.ndarray) -> None:
        """Moves on the environments that made a transition (bool [num_envs])."""
        self._steps += 1
        np.add(self._next, self._num_envs, out=self._next, where=made)
