"""A WebSocket that is read by whoever waits for the answer.

The blocking client of `websockets` reads on a thread of its own and hands every message over, which takes half as long as all
else of a short exchange. Its protocol (bytes in, messages out, no socket) does the talking here, on a plain socket.
"""

import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State
from websockets.uri import parse_uri

from sfumato.protocol.frames import GOODBYE

_READ = 1 << 16
_HEARD = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT, Opcode.CLOSE)


class Socket:
    """One connection.

    Parameters
    ----------
    uri
        Such as ``wss://node.hospital.example:8750/ws``.
    headers
        Sent with the request.
    tls
        For wss.
    max_size
        Bytes of a message at the most.
    timeout
        Seconds until the connection must stand.

    Raises
    ------
    websockets.exceptions.InvalidHandshake
        The other side refused; with its response where it gave one.
    OSError
        Nobody answers, or not in time.
    """

    def __init__(
        self, uri: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, max_size: int, timeout: float
    ) -> None:
        target, until = parse_uri(uri), time.monotonic() + timeout
        self._protocol, self._events = ClientProtocol(target, max_size=max_size), deque[Event]()
        self._socket: socket.socket = socket.create_connection((target.host, target.port), timeout)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=target.host)
            request = self._protocol.connect()
            request.headers.update(headers)
            self._protocol.send_request(request)
            self._flush()
            while self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None:
                self._read(until)
            if self._protocol.handshake_exc is not None:
                raise self._protocol.handshake_exc
        except BaseException:
            self._socket.close()
            raise

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._protocol.send_binary(message)
        self._flush()

    def recv(self, timeout: float) -> bytes | str:
        """Wait for the next message.

        Raises
        ------
        ConnectionError
            The other side has closed.
        TimeoutError
            Nothing came in time.
        """
        until, parts = time.monotonic() + timeout, list[bytes]()
        while True:
            while self._events:
                event = self._events.popleft()
                if not isinstance(event, Frame) or event.opcode not in _HEARD:
                    continue
                if event.opcode is Opcode.CLOSE:
                    raise ConnectionResetError("the other side said goodbye")
                if event.opcode is Opcode.TEXT:
                    return bytes(event.data).decode("utf-8", "replace")
                parts.append(bytes(event.data))
                if event.fin:
                    return parts[0] if len(parts) == 1 else b"".join(parts)
            if self._protocol.parser_exc is not None:
                raise ConnectionAbortedError(
                    f"the other side broke a rule ({type(self._protocol.parser_exc).__name__})"
                )
            self._read(until)

    def close(self) -> None:
        """Say goodbye, if the other side still listens, and hang up."""
        try:
            self._protocol.send_close(GOODBYE)
            self._socket.settimeout(1.0)
            self._flush()
        except (OSError, WebSocketException):
            pass
        finally:
            self._socket.close()

    def _read(self, until: float) -> None:
        """Take in what has come; answer pings; notice the end."""
        if (rest := until - time.monotonic()) <= 0:
            raise TimeoutError("no message in time")
        self._socket.settimeout(rest)
        data = self._socket.recv(_READ)
        if data:
            self._protocol.receive_data(data)
            self._flush()
        else:
            opening = self._protocol.state is State.CONNECTING
            self._protocol.receive_eof()
            if not opening:
                raise ConnectionResetError("the other side hung up")
        self._events.extend(self._protocol.events_received())

    def _flush(self) -> None:
        """Send what the protocol has to say; an empty piece is the end of what it will."""
        if piece := b"".join(self._protocol.data_to_send()):
            self._socket.sendall(piece)

    def __del__(self) -> None:
        # A door that nobody closed hangs up with its last owner; the node gives back what was reserved and not spent.
        if hasattr(self, "_socket"):
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
