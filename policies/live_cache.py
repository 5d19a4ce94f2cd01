"""Live objects of this process, keyed by the content hash of what they were made from.

A shortcut only: whatever is here can be rebuilt from a version's files, to the same bits. An
object that changes while it is used is taken out and put back under its new hash, so no hash ever
finds an object that has moved on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class LiveCache:
    """A locked map with room for the most recently put entries.

    Args:
        capacity: Entries kept.
        on_evict: Called with an entry that makes room for another.
    """

    def __init__(self, capacity: int, on_evict: Callable[[Any], None] | None = None) -> None:
        self._capacity = capacity
        self._on_evict = on_evict
        self._entries: OrderedDict[tuple[str, ...], Any] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, *key: str) -> Any | None:
        """Removes and returns the entry, or None."""
        with self._lock:
            return self._entries.pop(key, None)

    def take_any(self, first: str) -> Any | None:
        """Removes and returns the oldest entry whose key starts with `first`, or None."""
        with self._lock:
            for key in self._entries:
                if key[:1] == (first,):
                    return self._entries.pop(key)
        return None

    def put(self, value: Any, *key: str) -> None:
        """Keeps `value` under `key`; the oldest entries make room."""
        evicted = []
        with self._lock:
            if key in self._entries:
                evicted.append(self._entries.pop(key))
            self._entries[key] = value
            while len(self._entries) > self._capacity:
                evicted.append(self._entries.popitem(last=False)[1])
        for entry in evicted:
            if self._on_evict is not None and entry is not value:
                self._on_evict(entry)

    def clear(self, first: str | None = None) -> None:
        """Forgets the entries whose key starts with `first`, or all."""
        with self._lock:
            keys = [key for key in self._entries if first is None or key[0] == first]
            entries = [self._entries.pop(key) for key in keys]
        for entry in entries:
            if self._on_evict is not None:
                self._on_evict(entry)
