"""Start the service: addresses, TLS, the server's own limits, and a clean end."""

import asyncio
import errno
import gc
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import State

from sfumato.errors import InvalidInput
from sfumato.node.config import Limits, Listen, OwnerFile, check_listen
from sfumato.node.service import make_app
from sfumato.node.state import Node
from sfumato.tools.kept_programs import kept_programs

PING_SECONDS = 20.0
"""Until a ping, and from its answer to the next. An analyst who is busy elsewhere answers none, for as long as it may be idle."""


def server_for(node: Node, *, dev: bool = False) -> uvicorn.Server:
    """Build the server of a node.

    Raises
    ------
    InvalidInput
        It would send tokens over a network in the clear, or its certificate cannot be used.
    """
    listen, limits = node.file.listen, node.limits
    check_listen(listen, dev=dev)
    tls: dict[str, Any] = {}
    if listen.certificate is not None and listen.key is not None:
        tls = {
            "ssl_certfile": str(node.file.place(listen.certificate)),
            "ssl_keyfile": str(node.file.place(listen.key)),
            "ssl_version": ssl.PROTOCOL_TLS_SERVER,
        }
    config = uvicorn.Config(
        make_app(node), host=listen.host, port=listen.port, log_config=None, access_log=False, server_header=False,
        date_header=False, http=protocol_for(limits), ws=Wire, ws_max_size=limits.message_bytes,
        ws_per_message_deflate=False, ws_ping_interval=PING_SECONDS, ws_ping_timeout=limits.idle_seconds,
        timeout_keep_alive=int(max(1, limits.header_seconds)), timeout_graceful_shutdown=int(limits.shutdown_seconds),
        h11_max_incomplete_event_size=32768, lifespan="on", proxy_headers=False, **tls,
    )  # fmt: skip
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"certificate and key of [listen] must be readable PEM files ({type(error).__name__})."
        ) from None
    return uvicorn.Server(config)


class Wire(WebSocketsSansIOProtocol):
    """A WebSocket that can be cut, and that can be answered where a message is read.

    A client that takes nothing would never take the word that it is over either: it is cut. And a message that can be answered
    at once need not go through a queue and wake a task. Whatever is not plain (a text, a fragment, a client that is slow to
    take replies) goes the usual way.
    """

    _at_once: Callable[[bytes], bytes | None] | None = None

    async def run_asgi(self) -> None:
        """Hand both ways over with the connection."""
        extensions: dict[str, Any] = self.scope["extensions"]
        extensions["sfumato.wire"] = self
        await super().run_asgi()

    def cut(self) -> None:
        """End the connection without a word."""
        self.transport.abort()

    def listen(self, at_once: Callable[[bytes], bytes | None]) -> None:
        """Ask `at_once` for the reply to every whole message; where it has none, the message is handed on."""
        self._at_once = at_once

    def handle_bytes(self, event: Frame) -> None:
        """Answer a message here, or hand it on; none overtakes one that was handed on."""
        plain = event.fin and self.writable.is_set() and self.conn.state is State.OPEN
        if self._at_once is not None and plain and self.queue.empty():
            reply = self._at_once(bytes(event.data))
            if reply is not None:
                self.conn.send_binary(reply)
                self.transport.write(b"".join(self.conn.data_to_send()))
                return
        super().handle_bytes(event)


def protocol_for(limits: Limits) -> type[HttpToolsProtocol]:
    """HTTP with two limits the server lacks: a deadline for the first request, and a count of open connections."""
    inside: set[Any] = set()

    class Limited(HttpToolsProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._deadline = asyncio.get_running_loop().call_later(limits.header_seconds, self._too_slow)
            inside.add(self)
            if len(inside) > 2 * limits.connections + 64:
                transport.abort()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._deadline.cancel()
            self._deadline = asyncio.get_running_loop().call_later(limits.header_seconds, self._too_slow)

        def on_message_complete(self) -> None:
            self._deadline.cancel()
            super().on_message_complete()

        def handle_websocket_upgrade(self) -> None:
            self._gone()
            super().handle_websocket_upgrade()

        def connection_lost(self, exc: Exception | None) -> None:
            self._gone()
            super().connection_lost(exc)

        def _gone(self) -> None:
            self._deadline.cancel()
            inside.discard(self)

        def _too_slow(self) -> None:
            # A request trickling in one byte at a time: nobody is answered, the line is cut.
            if not self.transport.is_closing():
                self.transport.abort()

    return Limited


@contextmanager
def held(listen: Listen) -> Iterator[list[socket.socket]]:
    """Hold the address from before the records are read, which may take minutes, to the end. Nobody is let in yet.

    Raises
    ------
    InvalidInput
        Another program has it, or it is none of this machine's.
    """
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            sockets = _all_bound(stack, list(dict.fromkeys((family, address) for family, _, _, _, address in found)))
        except OSError as error:
            raise _not_ours(listen, error) from None
        yield sockets


def let_in(listen: Listen, sockets: list[socket.socket]) -> None:
    """Listen. Two programs may hold one address; the second to listen on it learns so here."""
    try:
        for one in sockets:
            one.listen()
    except OSError as error:
        raise _not_ours(listen, error) from None


def _all_bound(stack: ExitStack, places: list[tuple[int, Any]]) -> list[socket.socket]:
    """All addresses of a name, without those this machine lacks (localhost is often an IPv6 one too); one at least."""
    sockets, missing = [], OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, address in places:
        try:
            sockets.append(_bound(stack, family, address))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            missing = error
    if not sockets:
        raise missing
    return sockets


def _bound(stack: ExitStack, family: int, address: Any) -> socket.socket:
    one = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    if os.name == "posix":  # a node that was restarted need not wait until its last connections are forgotten
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind(address)
    return one


def _not_ours(listen: Listen, error: OSError) -> InvalidInput:
    where = f"a node needs an address of its own to listen on, and {listen.host}:{listen.port}"
    if error.errno == errno.EADDRINUSE:
        return InvalidInput(
            f"{where} is in use by another program, or by this node started before; end that one, or give another port in "
            "[listen] or with --port."
        )
    return InvalidInput(f"{where} cannot be had ({error.strerror}); give another host or port in [listen].")


def serve(file: OwnerFile, *, dev: bool = False, announce: Callable[[], None] = lambda: None) -> None:
    """Serve until told to stop; `announce` is called once records, studies and ledger are in order."""
    check_listen(file.listen, dev=dev)
    # One thread for XLA, which reads this when it first computes: the passes over a table are shared out whole (`vault.parts`).
    os.environ.setdefault("NPROC", "1")
    # Answers are small: computed in the thread that asks, they need not wait for another one to wake up.
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]  # once, not at every answer
    with kept_programs(), held(file.listen) as sockets:
        node = Node(file)
        try:
            server = server_for(node, dev=dev)
            let_in(file.listen, sockets)
        except BaseException:
            node.close()
            raise
        scheme = "https" if file.listen.certificate else "http"
        node.log.event("start", what=f"{scheme}://{file.listen.host}:{file.listen.port}", studies=list(node.studies))
        gc.collect()
        gc.freeze()  # what is here now stays: the collector need not look through all of it again and again
        announce()
        server.run(sockets)
