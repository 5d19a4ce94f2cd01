"""What a round does now, for whoever shows progress in the same process."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def on_stage(listener: Callable[[str], None]) -> Callable[[], None]:
    """Calls `listener` with `collect`, `learn`, `evaluate` or `publish` when that begins.

    Returns:
        A function that ends it.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def enter(name: str) -> None:
    """Tells the listeners that a stage begins."""
    for listener in _listeners:
        listener(name)
