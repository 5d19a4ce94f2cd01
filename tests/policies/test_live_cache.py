"""Live objects by content hash."""

from __future__ import annotations

import threading

from policies.live_cache import LiveCache


def test_an_entry_is_taken_out_once() -> None:
    cache = LiveCache(2)
    cache.put("value", "run", "hash")
    assert cache.take("run") is None
    assert cache.take("run", "other") is None
    assert cache.take("run", "hash") == "value"
    assert cache.take("run", "hash") is None


def test_the_oldest_entry_makes_room() -> None:
    evicted: list[str] = []
    cache = LiveCache(2, evicted.append)
    for name in "abc":
        cache.put(name, name)
    assert evicted == ["a"]
    assert cache.take("a") is None
    assert cache.take("b") == "b"
    cache.put("d", "d")
    cache.put("e", "e")
    assert evicted == ["a", "c"]


def test_a_value_under_a_known_key_replaces_the_old_one_and_is_the_newest() -> None:
    evicted: list[str] = []
    cache = LiveCache(2, evicted.append)
    cache.put("old", "x")
    cache.put("y", "y")
    cache.put("new", "x")
    assert evicted == ["old"]
    cache.put("z", "z")
    assert evicted == ["old", "y"]
    assert cache.take("x") == "new"


def test_the_same_value_again_is_not_evicted() -> None:
    evicted: list[object] = []
    cache = LiveCache(1, evicted.append)
    value = object()
    cache.put(value, "x")
    cache.put(value, "x")
    assert evicted == []
    assert cache.take("x") is value


def test_any_entry_of_a_run_is_its_oldest() -> None:
    cache = LiveCache(4)
    for run, name in [("q", "0"), ("r", "1"), ("r", "2")]:
        cache.put(name, run, name)
    assert cache.take_any("r") == "1"
    assert cache.take_any("r") == "2"
    assert cache.take_any("r") is None
    assert cache.take("q", "0") == "0"


def test_clearing_lets_go_of_everything() -> None:
    evicted: list[str] = []
    cache = LiveCache(3, evicted.append)
    cache.put("a", "a")
    cache.put("b", "b")
    cache.clear()
    assert evicted == ["a", "b"]
    assert cache.take("a") is None


def test_only_one_of_many_threads_gets_an_entry() -> None:
    cache = LiveCache(1)

    def take_into(results: list[object]) -> None:
        results.append(cache.take("key"))

    for _ in range(50):
        cache.put("value", "key")
        got: list[object] = []
        threads = [threading.Thread(target=take_into, args=(got,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, got)) == ["None"] * 3 + ["value"]
