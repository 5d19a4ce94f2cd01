"""Messages between a process and the environments it keeps in others: JSON and raw arrays.

One message is

    u32 length of the header | header: canonical JSON | the arrays' bytes, one after the other

with `{"body": ..., "arrays": [[name, dtype, shape], ...]}` in the header. Nothing is pickled: what
arrives is plain data, whoever sent it.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

_HEADER = struct.Struct("<I")
_MAX_HEADER = 16 * 2**20
_MAX_BYTES = 4 * 2**30
_PLAIN_KINDS = "biufSU"

Message = tuple[dict[str, Any], dict[str, np.ndarray]]


class WireError(Exception):
    """The other side sent something that is not a message."""


class WireClosedError(Exception):
    """The other side is gone."""


class WireTimeoutError(Exception):
    """No message in time."""


def encode(body: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """One message.

    Raises:
        TypeError: the body is not JSON, or an array is not plain data.
    """
    layout, parts = [], []
    for name, array in (arrays or {}).items():
        if array.dtype.kind not in _PLAIN_KINDS:
            raise TypeError(f"array {name!r} has dtype {array.dtype}, which is not plain data")
        layout.append([name, array.dtype.str, list(array.shape)])
        parts.append(array.tobytes())
    header = json.dumps({"body": body, "arrays": layout}, separators=(",", ":")).encode()
    return b"".join([_HEADER.pack(len(header)), header, *parts])


class Wire:
    """One end of a stream socket that carries messages.

    Args:
        connection: A connected stream socket; the wire owns it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._deadline: float | None = None

    def send(
        self,
        body: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Sends one message.

        Raises:
            WireClosedError: the other side is gone.
            WireTimeoutError: it does not read.
        """
        self._deadline = _deadline(timeout_s)
        remaining = memoryview(encode(body, arrays))
        while len(remaining):
            try:
                remaining = remaining[self._socket.send(remaining) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise WireClosedError from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """Receives one message: its body, and its arrays as fresh writable ones.

        Raises:
            WireClosedError: the other side is gone.
            WireTimeoutError: nothing, or not all of it, came in time.
            WireError: what came is not a message.
        """
        self._deadline = _deadline(timeout_s)
        (length,) = _HEADER.unpack(self._read(_HEADER.size))
        if length > _MAX_HEADER:
            raise WireError(f"a header of {length} bytes")
        try:
            header = json.loads(self._read(length))
            layout = [
                (str(name), np.dtype(dtype), tuple(int(size) for size in shape))
                for name, dtype, shape in header["arrays"]
            ]
            body = dict(header["body"])
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"not a header: {error}") from error
        return body, {name: self._array(dtype, shape) for name, dtype, shape in layout}

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        if dtype.kind not in _PLAIN_KINDS or min(shape, default=0) < 0 or size > _MAX_BYTES:
            raise WireError(f"an array of dtype {dtype} and shape {shape}")
        return np.frombuffer(self._read(size), dtype).reshape(shape)

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            try:
                received = self._socket.recv_into(view[done:])
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError as error:
                raise WireClosedError from error
            if not received:
                raise WireClosedError
            done += received
        return data

    def _wait(self, event: int) -> None:
        timeout = None
        if self._deadline is not None:
            timeout = max(0.0, self._deadline - time.monotonic())
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(None if timeout is None else math.ceil(timeout * 1000)):
            raise WireTimeoutError

    def wait_for_hang_up(self) -> None:
        """Returns when the other side is gone; messages are left alone."""
        poll = select.poll()
        poll.register(self._socket, 0)
        poll.poll()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
