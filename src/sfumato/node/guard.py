"""Before any handler: names, origins, sizes, rates; after it: headers, and no word of what went wrong.

A plain ASGI layer around the whole service, so that no route can be added that forgets it.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from sfumato.node.catalogue import CATALOGUE, Refusal, body, refusal_of
from sfumato.node.config import LOCAL_NAMES, Limits, Listen
from sfumato.node.limits import Bucket, Buckets
from sfumato.node.logs import Log
from sfumato.node.metrics import Metrics

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Guard:
    """Wraps the service.

    Parameters
    ----------
    app
        The service.
    listen, limits
        Under which names it may be reached, and how much a visitor may ask.
    """

    def __init__(self, app: App, listen: Listen, limits: Limits, log: Log, metrics: Metrics) -> None:
        self._app, self.limits, self._log, self._metrics = app, limits, log, metrics
        self._names = {name.lower() for name in (*LOCAL_NAMES, *listen.names, listen.host)}
        self._origins = {origin.lower().rstrip("/") for origin in listen.origins}
        self._visitors = Buckets(lambda: Bucket(limits.requests_per_second))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, pass on, dress the answer."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope, headers)
        except Refusal as refusal:
            return await self.refuse(scope, send, refusal)
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        await self._http(scope, receive, send)

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        host = _host(headers.get("host", ""))
        if host not in self._names:
            raise Refusal("foreign-host", f"Host {host[:80]!r}")
        origin = headers.get("origin")
        if origin is not None and not self._own(origin, headers["host"]):
            raise Refusal("foreign-origin", f"Origin {origin[:80]!r}")
        if not self._visitors.of(str((scope.get("client") or ("?",))[0])).take():
            raise Refusal("too-fast")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.body_bytes:
            raise Refusal("too-large", f"Content-Length {length[:20]}")

    def _own(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may talk to the node: its own console, or one the owner named."""
        parts = urlsplit(origin)
        return origin.lower().rstrip("/") in self._origins or (
            parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
        )

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self, scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # whatever a handler raised: the visitor hears a code
            refusal = refusal_of(error)
            if refusal.code == "internal" and not exchange.over:
                self._log.unexpected("http", error, path=str(scope.get("path", ""))[:100])
            if not exchange.started:
                await self.refuse(scope, send, refusal)

    async def refuse(self, scope: Scope, send: Send, refusal: Refusal) -> None:
        """Refuse by code; the detail goes to the log."""
        self._metrics.refusals[refusal.code] += 1
        self._log.event("refused", code=refusal.code, what=refusal.detail)
        await send_refusal(scope, send, refusal.code)


class _Exchange:
    """One request and its answer: the body is counted, the answer is dressed."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard, self._scope, self._receive, self._send = guard, scope, receive, send
        self._taken = 0
        self.started = self.over = False

    async def receive(self) -> Message:
        """Pass on a piece of the body; past the limit the request is refused, whatever its handler makes of half of it."""
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        if self._taken > self._guard.limits.body_bytes and not self.over:
            self.over = True
            if not self.started:
                self.started = True
                await self._guard.refuse(self._scope, self._send, Refusal("too-large", "a body without end"))
        return {"type": "http.disconnect"} if self.over else message

    async def send(self, message: Message) -> None:
        """Pass on a piece of the answer."""
        if self.over:
            return
        if message["type"] == "http.response.start":
            self.started = True
            _dress(message)
        await self._send(message)


async def send_refusal(scope: Scope, send: Send, code: str) -> None:
    """A refusal before or instead of an answer; a WebSocket is refused before it is accepted, with the same body."""
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    if kind.startswith("websocket") and kind not in scope.get("extensions", {}):
        return await send({"type": "websocket.close", "code": 1008, "reason": code})
    content = json.dumps(body(code)).encode()
    start: Message = {
        "type": f"{kind}.start",
        "status": CATALOGUE[code].status,
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())],
    }
    if code == "unauthorised":
        start["headers"].append((b"www-authenticate", b"Bearer"))
    _dress(start)
    await send(start)
    await send({"type": f"{kind}.body", "body": content})


def _dress(message: Message) -> None:
    present = {name.lower() for name, _ in message.get("headers", [])}
    extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
    message["headers"] = [*message.get("headers", []), *extra]


def _host(value: str) -> str:
    """The name in a Host header, without its port."""
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    return value.partition(":")[0].lower()
