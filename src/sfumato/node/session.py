"""One analyst's WebSocket: a loop that reads a message, answers it, and reads the next.

The path of an ordinary question is kept short: one strict msgpack decode, plain comparisons, the desk, all where the message
is read (`Session.at_once`). Work that needs longer than a moment (compiling a chain, many records) happens on a thread.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from sfumato.errors import BudgetSpent, InvalidInput, LedgerError
from sfumato.node.catalogue import CATALOGUE, CLOSE_CODE, Refusal, body, refusal_of
from sfumato.node.guard import Message, Receive, Send
from sfumato.node.lanes import Lane
from sfumato.node.state import ActiveRun, Node
from sfumato.node.tokens import Token
from sfumato.protocol.frames import FINE, GOODBYE, REFUSED, Agree, Ask, Begin, Keys, Open, Request
from sfumato.protocol.questions import Release, Terms, encode

_ask = msgspec.msgpack.Decoder(Ask)
_request = msgspec.msgpack.Decoder(Request)
_plain = msgspec.msgpack.Encoder()
T = TypeVar("T")
_ARRAY = 0x90  # the first byte of a short msgpack array: an `Ask`


class Wire(Protocol):
    """What a session may do with its connection besides receiving and sending; see `sfumato.node.serve.Wire`."""

    def cut(self) -> None:
        """End it without a word."""
        ...

    def listen(self, at_once: Callable[[bytes], bytes | None]) -> None:
        """Ask for replies where messages are read."""
        ...


class Session:
    """A connection with a valid token.

    Parameters
    ----------
    node, token
        Where it came in, and as whom.
    receive, send, wire
        The two ends of the socket, and the connection itself where it can be had.
    """

    def __init__(self, node: Node, token: Token, receive: Receive, send: Send, wire: Wire | None = None) -> None:
        self.node, self.token, self._wire = node, token, wire
        self._receive, self._send = receive, send
        self._bucket = node.bucket(token.name)
        self._run: ActiveRun | None = None
        self._closed = False
        self._parted = False
        self._idle = False  # waiting for a message, with nothing under way
        self._heard = time.monotonic()
        self._sending: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def late(self, now: float) -> bool:
        """Whether it has said nothing, or taken nothing, for too long."""
        limits = self.node.limits
        if self._sending is not None:
            return now - self._sending > limits.send_seconds
        return now - self._heard > (limits.handshake_seconds if self._run is None else limits.idle_seconds)

    def stop(self, code: str) -> None:
        """Close the connection with a code of the catalogue; callable from outside the loop's own task."""
        if self._closed:
            return
        self._closed = True
        self.node.metrics.refusals[code] += 1
        self.node.log.event("closed", who=self.token.name, code=code)
        if self._sending is not None and self._wire is not None:
            self._wire.cut()  # it does not take what it asked for: no farewell would reach it
            return
        task = asyncio.get_running_loop().create_task(self._close(code))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, code: str) -> None:
        status = CATALOGUE[code].status
        try:
            await self._send({"type": "websocket.close", "code": CLOSE_CODE + status, "reason": code})
        except Exception as error:  # it may be gone already
            self.node.log.unexpected("close", error)

    async def serve(self) -> None:
        """Answer until the other side leaves."""
        node = self.node
        node.sessions.add(self)
        if self._wire is not None:
            self._wire.listen(self.at_once)
        try:
            while not self._closed:
                self._idle = True
                message = await self._receive()
                self._idle = False
                if message["type"] != "websocket.receive":
                    self._parted = message.get("code") == GOODBYE
                    break
                self._heard = time.monotonic()
                reply = await self._reply(message)
                if self._closed:
                    break
                self._sending = self._heard
                await self._send({"type": "websocket.send", "bytes": reply})
                self._sending = None
        except (OSError, RuntimeError):  # the other side went away while it was being answered
            pass
        finally:
            node.sessions.discard(self)
            if self._run is not None:
                node.leave_run(self._run, self, parted=self._parted)

    async def _reply(self, message: Message) -> bytes:
        try:
            data = message.get("bytes")
            if not data:
                raise Refusal("bad-request", "text where msgpack is spoken")
            if not self._bucket.take():
                raise Refusal("too-fast", "messages")
            if self.node.paused:
                raise Refusal("paused")
            if data[0] & 0xF0 == _ARRAY:
                return FINE + await self._answer(data)
            return FINE + await self._manage(_decoded(_request, data))
        except Exception as error:
            return self._refuse(error)

    def _refuse(self, error: Exception) -> bytes:
        refusal = refusal_of(error)
        if isinstance(error, BudgetSpent) and self._run is not None:
            self._note_end(self._run, refusal)
            return REFUSED + _plain.encode(body(refusal.code))
        self.node.metrics.refusals[refusal.code] += 1
        if refusal.code == "internal":
            self.node.log.unexpected("session", error, who=self.token.name)
        else:
            self.node.log.event("refused", who=self.token.name, code=refusal.code, what=refusal.detail[:300])
        return REFUSED + _plain.encode(body(refusal.code))

    def _note_end(self, run: ActiveRun, refusal: Refusal) -> None:
        """Count that a run asked beyond its budget, apart from refusals: it is how a run ends. The log has one line of it.

        Who opens a run for more than is left is refused, like anyone else who asks for what there is not.
        """
        self.node.metrics.spent[run.study.name] += 1
        if run.name not in self.node.ended:
            self.node.ended.add(run.name)
            self.node.log.event("spent", who=run.analyst, what=f"run {run.opened.run} ends: {refusal.detail[:300]}")

    # -- questions ------------------------------------------------------------------------------------------------

    def at_once(self, data: bytes) -> bytes | None:
        """Reply to an ordinary question without waking the session's task.

        None for whatever needs more than a moment, or a refusal's care, or has something before it: `serve` sees to it.
        """
        run, node = self._run, self.node
        if not self._idle or run is None or node.tick or node.paused or not data or data[0] & 0xF0 != _ARRAY:
            return None
        if self._closed or run.holder is not self or run.closed or not run.chains or not self._bucket.allows():
            return None
        try:
            ask = _decoded(_ask, data)
        except Refusal:
            return None
        if not run.answers_at_once(ask.question):
            return None
        self._bucket.take()
        self._heard = time.monotonic()
        try:
            run.study.check_question(ask.question)
            reply = run.desk.answer_bytes(ask.id, ask.question)
        except Exception as error:
            return self._refuse(error)
        run.took(time.monotonic() - self._heard)
        node.metrics.answered(run.study.name, run.numbers(ask.question))
        return FINE + reply

    async def _answer(self, data: bytes) -> bytes:
        run = self._held()
        ask = _decoded(_ask, data)
        if not run.chains and not isinstance(ask.question, Release):
            raise Refusal("not-begun", "no terms are settled")
        run.study.check_question(ask.question)
        if run.answers_at_once(ask.question):
            reply = run.desk.answer_bytes(ask.id, ask.question)
        else:
            cold = not isinstance(ask.question, Release) and not run.desk.is_warm(ask.question)  # it compiles
            lane = self.node.beginning if cold else self.node.answering
            reply = await self._at_the_desk(run, lane, partial(run.desk.answer_bytes, ask.id, ask.question))
        if self.node.tick:
            await self.node.tick.wait()
        if self.node.paused:
            raise Refusal("paused")  # it is kept: the same id gets it later
        self.node.metrics.answered(run.study.name, run.numbers(ask.question))
        return reply

    def _held(self) -> ActiveRun:
        run = self._run
        if run is None:
            raise Refusal("not-begun", "no run is open")
        if run.holder is not self or run.closed:
            raise Refusal("busy", f"run {run.opened.run}")  # the client dials again, and finds it open
        return run

    # -- everything else ------------------------------------------------------------------------------------------

    async def _manage(self, request: Request) -> bytes:
        if isinstance(request, Open):
            return await self._open(request)
        run = self._held()
        if isinstance(request, Begin):
            return await self._begin(run, request.terms)
        if isinstance(request, Keys | Agree):
            return await self._keys(run, request)
        left = await self._at_the_desk(
            run, self.node.answering, lambda: {"left": run.desk.left, "everybody": run.desk.left_for_everybody}
        )
        return _plain.encode(left)

    async def _keys(self, run: ActiveRun, request: Keys | Agree) -> bytes:
        """The owner's own key for the run; or what it makes of everybody's."""
        if not run.opened.sealed:
            raise Refusal("not-sealed", f"run {run.opened.run}")

        def agreed() -> bytes:
            if isinstance(request, Keys):
                return run.desk.key_message()
            try:
                keyset = run.desk.agree(request.messages)
            except (InvalidInput, LedgerError) as error:
                raise Refusal("bad-keys", str(error)) from None
            self.node.log.event("keys", who=run.analyst, what=f"run {run.opened.run}, keyset {keyset.hex()[:24]}")
            return keyset

        return _plain.encode(await self._at_the_desk(run, self.node.answering, agreed))

    async def _open(self, request: Open) -> bytes:
        if self._run is not None:
            self.node.leave_run(self._run, self)
        opened = partial(self.node.open_run, self.token, request, self)
        self._run = await self.node.answering.run(self.token.name, opened)
        return encode(self._run.facts)

    async def _begin(self, run: ActiveRun, terms: Terms) -> bytes:
        run.study.check_terms(terms, self.node.limits.chains)
        if run.settled(terms):  # the client came back
            return encode(await self._at_the_desk(run, self.node.answering, partial(run.desk.begin, terms)))
        self.node.count_beginning(run.analyst)
        agreed = await self._at_the_desk(run, self.node.beginning, partial(run.desk.begin, terms))
        run.settle_terms(terms)
        self.node.log.event(
            "begin",
            who=run.analyst,
            what=f"study {run.study.name}, run {run.opened.run}, {terms.kernel}, {terms.chains} chains, sigma {terms.sigma:.4g}",
        )
        return encode(agreed)

    async def _at_the_desk(self, run: ActiveRun, lane: Lane, call: Callable[[], T]) -> T:
        """Ask the desk on a thread, in this token's turn; not for a client who has dialled again while it waited."""

        def held() -> T:
            self._held()
            return call()

        with run.on_a_thread():
            return await lane.run(self.token.name, held)


def _decoded(decoder: Any, data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad-request", f"msgpack: {type(error).__name__}") from None
