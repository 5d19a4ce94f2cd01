"""Messages between processes."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time

import numpy as np
import pytest

from policies.env_wire import Wire, WireClosedError, WireError, WireTimeoutError, encode


def _pair() -> tuple[Wire, Wire]:
    a, b = socket.socketpair()
    return Wire(a), Wire(b)


def test_bodies_and_arrays_come_out_as_they_went_in() -> None:
    a, b = _pair()
    arrays: dict[str, np.ndarray] = {
        "float": np.linspace(0, 1, 6).reshape(2, 3),
        "strided": np.arange(12, dtype=np.uint8)[::2],
        "empty": np.zeros((0, 4), np.int64),
        "scalar": np.array(True),
        "text": np.array(["ab", "c"]),
    }
    a.send({"operation": "step", "id": 3, "value": float("nan")}, arrays)
    body, received = b.receive(5.0)
    assert body["id"] == 3 and np.isnan(body["value"])
    assert list(received) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(received[name], array)
        assert received[name].dtype == array.dtype and received[name].flags.writeable


def test_a_message_larger_than_the_sockets_buffers_arrives() -> None:
    a, b = _pair()
    array = np.random.default_rng(0).integers(256, size=(8, 2**20), dtype=np.uint8)
    sender = threading.Thread(target=a.send, args=({}, {"x": array}))
    sender.start()
    _, received = b.receive(30.0)
    sender.join()
    np.testing.assert_array_equal(received["x"], array)


def test_objects_are_not_sent() -> None:
    with pytest.raises(TypeError, match="not plain data"):
        encode({}, {"x": np.array([object()])})


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        json.dumps({"body": {}}).encode(),
        json.dumps({"body": {}, "arrays": [["x", "|O", [1]]]}).encode(),
        json.dumps({"body": {}, "arrays": [["x", "<f8", [-1]]]}).encode(),
        json.dumps({"body": {}, "arrays": [["x", "<f8", [2**40]]]}).encode(),
        json.dumps({"body": {}, "arrays": [["x", "no dtype", [1]]]}).encode(),
    ],
)
def test_what_is_not_a_message_is_refused(header: bytes) -> None:
    a, b = socket.socketpair()
    a.sendall(struct.pack("<I", len(header)) + header + bytes(64))
    with pytest.raises(WireError):
        Wire(b).receive(5.0)
    a.close()


def test_an_endless_header_is_refused_before_it_is_read() -> None:
    a, b = socket.socketpair()
    a.sendall(struct.pack("<I", 2**32 - 1))
    with pytest.raises(WireError, match="header of"):
        Wire(b).receive(5.0)
    a.close()


def test_silence_and_half_messages_time_out() -> None:
    a, b = socket.socketpair()
    wire = Wire(b)
    started = time.monotonic()
    with pytest.raises(WireTimeoutError):
        wire.receive(0.05)
    a.sendall(encode({}, {"x": np.zeros(9)})[:-1])
    with pytest.raises(WireTimeoutError):
        wire.receive(0.05)
    assert time.monotonic() - started < 5.0
    a.close()


def test_the_end_of_the_other_side_is_noticed() -> None:
    a, b = _pair()
    a.close()
    b.wait_for_hang_up()
    with pytest.raises(WireClosedError):
        b.receive()
    with pytest.raises(WireClosedError):
        b.send({})
