"""Over the wire: an owner's node, and the door the analyst's loop asks at.

The analyst notices no difference from a local run except the address. A connection that breaks is made again, the run is
opened again under the same name, the terms are settled again, and the question is asked again with the same id: the node
gives the answer it gave before, to the last bit, or its first.
"""

import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from sfumato.errors import BadAnswer, BudgetSpent, InvalidInput, LedgerError, OwnerRefused
from sfumato.kernel import AUTO, asks_first
from sfumato.protocol.consortium import Seat
from sfumato.protocol.frames import (
    FINE,
    PASSING,
    Agree,
    Approved,
    Ask,
    Begin,
    Handshake,
    Keys,
    Left,
    Open,
    OwnBudget,
    Refused,
)
from sfumato.protocol.questions import PROTOCOL, Agreed, Facts, Question, Reply, Terms, decode_reply
from sfumato.study.target import Study, computes_alike, make_study
from sfumato.tools.notebook import card
from sfumato.tools.progress import say

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds a door tries to get an answer before it says that nobody answers."""
OPEN_SECONDS = 5.0
"""A node is given this long to say what it serves, however little patience there is for refusals."""
REPLY_SECONDS = 120.0
"""Seconds one answer may take: compiling a chain on the node takes some."""
WORD_SECONDS = 2.0
"""After so long without an answer whoever watches is told why nothing moves."""
MAX_REPLY = 1 << 26

_facts = msgspec.msgpack.Decoder(Facts)
_agreed = msgspec.msgpack.Decoder(Agreed)
_left = msgspec.msgpack.Decoder(dict[str, int])
_bytes = msgspec.msgpack.Decoder(bytes)
_refused = msgspec.msgpack.Decoder(Refused)
_encoder = msgspec.msgpack.Encoder()


def connect(
    url: str, *, token: str, certificate: str | None = None, insecure: bool = False, patience: float = PATIENCE
) -> "RemoteOwner":
    """Reach an owner's node.

    Parameters
    ----------
    url
        Such as ``https://node.hospital.example:8750``. Plain http is for this machine only.
    token
        The token the owner gave you.
    certificate
        A PEM file of certificates to trust besides the system's, where the owner signs its own.
    insecure
        Allow plain http to another machine: the token then travels in the clear. For trying out.
    patience
        Seconds to go on trying when nobody answers.

    Returns
    -------
    RemoteOwner
        Takes the place of data in `sample` and `plan`.

    Examples
    --------
    >>> owner = connect("http://127.0.0.1:8750", token="sfu_alice_...")  # doctest: +SKIP
    >>> run = sample(coin, owner, epsilon=1.0, delta=1e-6)  # doctest: +SKIP
    """
    line = _Line(url, token, certificate, insecure, patience)
    return RemoteOwner(line, line.handshake())


class RemoteOwner:
    """A data owner at the other end of a wire: what it says about itself, and the doors it opens.

    Attributes
    ----------
    name
        What the owner is called.
    studies
        The approved studies: name, number of records, domain, limits.
    budget
        What you may spend there, and what is left of it.
    """

    def __init__(self, line: "_Line", said: Handshake) -> None:
        self._line, self._said, self._budget = line, said, said.budget
        self.name = said.name
        self.studies = {study.name: study for study in said.studies}

    @property
    def analyst(self) -> str:
        """Under which name the token is known there."""
        return self._said.analyst

    @property
    def budget(self) -> OwnBudget:
        """What the owner lets you spend and what you have left of it, as it is now: the node is asked.

        It counts your own spending. The node's total is common to all analysts: where it leaves less than you have, `limited` is
        true, and a run may be refused or end before your budget does.
        """
        self._budget = self._line.handshake().budget
        return self._budget

    @property
    def outside(self) -> str:
        """What the owner does with records outside the domain."""
        return self._said.outside

    @property
    def precision(self) -> str:
        """How the owner evaluates records."""
        return self._said.precision

    @property
    def n(self) -> int:
        """Number of records: public. Of the first study, if they differ."""
        return next(iter(self.studies.values())).n

    def study(
        self, model: Any, domain: Mapping[str, Any] | None = None, sensitivity: Any = "auto", kernel: str = "auto"
    ) -> tuple[str, Study, int]:
        """Find the approved study that is this model: its name there, the study, and its number of records.

        The domain comes from the owner; the model is compared by fingerprint, and again by the node.

        Raises
        ------
        InvalidInput
            The owner has approved no such model, or has another domain for it.
        """
        from sfumato.domain import from_dict

        tried: dict[str, Study] = {}
        trouble: InvalidInput | None = None
        for approved in self.studies.values():
            there = {name: from_dict(spec) for name, spec in approved.domain.items()}
            key = json.dumps(approved.domain, sort_keys=True)
            try:
                if key not in tried:
                    tried[key] = make_study(model, there, sensitivity, kernel)
            except InvalidInput as error:
                trouble = error  # a model of other columns, or one that cannot be asked about in this way
                continue
            if tried[key].model.fingerprint() in approved.models:
                _same_domain(self.name, domain, approved.domain)
                _same_numbers(self.name, tried[key], approved)
                return approved.name, _answerable(tried[key], kernel, approved), approved.n
        if not tried and trouble is not None:
            raise trouble
        mine = sorted({study.model.fingerprint()[:12] for study in tried.values()})
        theirs = ", ".join(f"{s.name} ({'/'.join(m[:12] for m in s.models)})" for s in self.studies.values())
        raise InvalidInput(
            f"{self.name!r} answers for the models it has approved: {theirs}; yours has the fingerprint "
            f"{' or '.join(mine) or 'of other columns'}. Use the owner's own file, to the letter."
        )

    @property
    def seat(self) -> Seat | None:
        """The owner's place in a consortium, if it has one."""
        return self._said.seat

    def door(
        self, study: str, model: str, *, epsilon: float, delta: float, run_id: str, sealed: bool = False
    ) -> "RemoteDoor":
        """Open a run there, or come back to it: the same id, study and guarantee give the same account."""
        asked = Open(study=study, model=model, run=run_id, epsilon=float(epsilon), delta=float(delta), sealed=sealed)
        return RemoteDoor(self._line, asked, self.name)

    def _repr_html_(self) -> str:
        rows = [("address", self._line.url), ("studies", ", ".join(self.studies))]
        return card(f"Owner {self.name}", [*rows, ("your budget when last asked", str(self._budget))])

    def __repr__(self) -> str:
        studies = ", ".join(self.studies)
        return f"<Owner {self.name!r} at {self._line.url}: {studies}; your budget when last asked: {self._budget}>"


class RemoteDoor:
    """One run at a node: asks, reconnects, asks again.

    Parameters
    ----------
    line
        How to reach the node.
    asked
        The run, as it is opened at every connection.
    name
        What the owner is called.
    """

    def __init__(self, line: "_Line", asked: Open, name: str) -> None:
        self._line, self._asked, self.name = line, asked, name
        self._socket: Any = None
        self._open = contextlib.ExitStack()
        self._terms: Terms | None = None
        self._agreed = Agreed()
        self._begun: dict[str, Any] | None = None  # what the chain rests on, as the node said it first
        self._ahead: _Ahead | None = None
        self._told = False  # that nobody answers
        self._key, self._messages = b"", list[bytes]()  # its key message, and everybody's, as they were agreed on
        try:
            self.facts: Facts = self._patiently(lambda: self._facts)
        except BaseException:
            self._hang_up()
            raise

    @property
    def left(self) -> int:
        """Quanta left for this run."""
        return self._said_left.get("left", 0)

    @property
    def left_for_everybody(self) -> int:
        """Quanta left of the run's promise against everybody."""
        return self._said_left.get("everybody", 0)

    @property
    def spent_for_everybody(self) -> int:
        """Quanta spent of it."""
        return max(self.facts.everybody - self.left_for_everybody, 0)

    @property
    def _said_left(self) -> dict[str, int]:
        said: dict[str, int] = self._patiently(lambda: self._exchange(_encoder.encode(Left()), _left.decode))
        return said

    def key_message(self) -> bytes:
        """The owner's key for the run, for the others; a connection that is made for it does not ask for the last one."""
        self._messages = []
        self._key = self._patiently(lambda: self._exchange(_encoder.encode(Keys()), _bytes.decode))
        return self._key

    def agree(self, messages: list[bytes]) -> bytes:
        """Agree on keys with all members, and settle the terms again that a chain had."""

        def settle() -> bytes:
            keyset: bytes = self._exchange(_encoder.encode(Agree(messages=messages)), _bytes.decode)
            self._settle_again()
            return keyset

        keyset: bytes = self._patiently(settle)
        self._messages = messages
        return keyset

    def begin(self, terms: Terms) -> Agreed:
        """Settle the terms of the chain; they are settled again at every new connection."""
        self._terms = None

        def settle() -> Agreed:
            return self._exchange(_encoder.encode(Begin(terms=terms)), _agreed.decode)

        self._agreed = self._patiently(settle)
        self._terms = terms
        return self._agreed

    def send(self, query_id: str, question: Question) -> bool:
        """Send a question ahead, so that other owners can be asked while this one works; `ask` then only waits."""
        if self._socket is None or self._ahead is not None:
            return False
        message = self._message(query_id, question)
        try:
            self._socket.send(message)
        except (OSError, self._line.breaks):
            self._hang_up()  # `ask` dials again
            return False
        self._ahead = _Ahead(query_id, question, message)
        return True

    def ask(self, query_id: str, question: Question) -> Reply:
        """Ask; the same id again gives the same answer."""
        message = self._message(query_id, question)
        return self._patiently(lambda: self._exchange(message, decode_reply))

    def _message(self, query_id: str, question: Question) -> bytes:
        """The question as it is sent; the one that was sent ahead is there already."""
        ahead = self._ahead
        if ahead is not None and ahead.query_id == query_id and ahead.question is question:
            return ahead.message
        return _encoder.encode(Ask(query_id, question))

    def close(self) -> None:
        """Hang up; the node gives back what was reserved and not spent."""
        self._hang_up()

    # -- the line -------------------------------------------------------------------------------------------------

    def _patiently(self, call: Any) -> Any:
        """Do it, on a new connection if need be, until patience ends."""
        began, pause = time.monotonic(), 0.02
        while True:
            try:
                self._dial()
                answer = call()
                if self._told:
                    self._tell(f"{self.name!r} answers again.", False)
                return answer
            except (OSError, TimeoutError, _Broken) as error:
                self._hang_up()
                failure: Exception = ConnectionError(f"{self.name!r} does not answer ({type(error).__name__})")
            except OwnerRefused as error:
                if error.code not in PASSING:
                    raise
                if error.code in ("busy", "shutting-down", "too-slow"):
                    self._hang_up()
                failure = error
            if time.monotonic() - began > self._line.patience:
                raise failure
            if time.monotonic() - began > WORD_SECONDS and not self._told:
                self._tell(f"{str(failure).rstrip('.')}; asking again.", True)
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _tell(self, words: str, missing: bool) -> None:
        """Once that it does not answer, once that it does again: also where the loop gives it several turns of patience."""
        self._told = missing
        say(words)

    def _dial(self) -> None:
        """Connect, open the run, settle the terms: whatever the last connection had. All of it, or there is no connection."""
        if self._socket is not None:
            return
        self._socket = self._open.enter_context(self._line.dial())
        try:
            self._come_back()
        except BaseException:  # on half a connection the next question would find no run
            self._hang_up()
            raise

    def _come_back(self) -> None:
        """Open the run on a new connection, under its name, and settle its terms again."""
        self._facts = self._exchange(_encoder.encode(self._asked), _facts.decode)
        if (self._facts.epsilon, self._facts.delta) != (self._asked.epsilon, self._asked.delta):
            raise self._nonsense("another promise than was asked for")
        now = self._facts.settled()
        begun = self._begun = self._begun or now
        if changed := [f"{name} = {now[name]!r:.80}" for name in now if now[name] != begun[name]]:
            raise OwnerRefused(
                f"{self.name!r} came back with {', '.join(changed)}, and the run began with another: the chain would have "
                "another target. Start a new run.", self.name, "other-terms"
            )  # fmt: skip
        if self._asked.sealed:
            if not self._messages:  # keys are being agreed on anew
                return
            if self._exchange(_encoder.encode(Keys()), _bytes.decode) != self._key:
                raise OwnerRefused(f"{self.name!r} has come back with another key.", self.name, "keys-gone")
            self._exchange(_encoder.encode(Agree(messages=self._messages)), _bytes.decode)
        self._settle_again()

    def _settle_again(self) -> None:
        """Settle the terms that the chain had, where it had any."""
        if self._terms is not None:
            again = self._exchange(_encoder.encode(Begin(terms=self._terms)), _agreed.decode)
            if again != self._agreed:
                raise OwnerRefused(
                    f"{self.name!r} came back with other terms; start a new run.", self.name, "other-terms"
                )

    def _hang_up(self) -> None:
        self._socket = self._ahead = None
        with contextlib.suppress(OSError, self._line.breaks):
            self._open.close()

    def _exchange(self, message: bytes, decode: Callable[[bytes], T]) -> T:
        """Say something and understand the reply, or refuse it as no reply at all."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.message != message:
            raise _Broken("a reply to something else is under way")
        try:
            if ahead is None:
                self._socket.send(message)
            reply = self._socket.recv(timeout=REPLY_SECONDS)
        except self._line.breaks as error:
            raise _Broken(type(error).__name__) from None
        try:
            if isinstance(reply, bytes) and reply[:1] == FINE:
                return decode(reply[1:])
            said = _refused.decode(reply[1:] if isinstance(reply, bytes) else b"")
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._nonsense(f"something that is no answer ({type(error).__name__})") from None
        raise refused(said, self.name)

    def _nonsense(self, what: str) -> BadAnswer:
        self._hang_up()
        return BadAnswer(
            f"an owner must answer the question asked, and {self.name!r} sent {what}; nothing of it is used. Ask its owner to "
            "look at the node's log.",
            owner=self.name,
        )


class _Ahead(NamedTuple):
    """A question that was sent and not waited for yet."""

    query_id: str
    question: Question
    message: bytes


class _Broken(ConnectionError):
    """A connection broke, or was never made."""


class _Line:
    """Address, token and trust: how a node is reached."""

    def __init__(self, url: str, token: str, certificate: str | None, insecure: bool, patience: float) -> None:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"a node's address is written https://host:port, got {url!r}.")
        self._local = _is_local(parts.hostname)
        if parts.scheme == "http" and not self._local and not insecure:
            raise InvalidInput(
                f"a token must not travel in the clear, and {parts.hostname} is another machine; use https:// (or "
                "insecure=True, for trying out on a network you trust)."
            )
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            raise InvalidInput("token must be the text the owner gave you, such as sfu_alice_....")
        self._parts, self._token, self.patience = parts, token, patience
        self._tls = _tls(certificate) if parts.scheme == "https" else None
        try:
            from websockets.exceptions import WebSocketException
        except ImportError:
            raise InvalidInput("reaching a node needs the package websockets: pip install 'sfumato[node]'.") from None
        self.breaks = WebSocketException

    @property
    def url(self) -> str:
        """The address, without the token."""
        return urlunsplit((self._parts.scheme, self._parts.netloc, "", "", ""))

    def handshake(self) -> Handshake:
        """Ask the node what it serves.

        Raises
        ------
        OwnerRefused
            The token is not valid there.
        ConnectionError
            Nobody answers.
        """
        request = urllib.request.Request(  # noqa: S310 (http or https: checked above)
            f"{self.url}/api/handshake", headers={"Authorization": f"Bearer {self._token}"}
        )
        handlers: list[Any] = [urllib.request.ProxyHandler({})] if self._local else []
        if self._tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._tls))
        try:
            with urllib.request.build_opener(*handlers).open(
                request, timeout=max(self.patience, OPEN_SECONDS)
            ) as answer:
                said = msgspec.json.decode(answer.read(MAX_REPLY), type=Handshake)
        except urllib.error.HTTPError as error:
            raise _from_body(error.read(65536), self.url) from None
        except (OSError, msgspec.DecodeError) as error:
            raise ConnectionError(
                f"no node answers at {self.url} ({type(error).__name__}); check the address."
            ) from None
        if said.protocol != PROTOCOL:
            raise InvalidInput(
                f"{said.name!r} speaks protocol {said.protocol}, this sfumato {PROTOCOL}; install the same version."
            )
        return said

    def dial(self) -> Any:
        """Open a WebSocket."""
        from websockets.exceptions import InvalidStatus, WebSocketException

        scheme = "wss" if self._parts.scheme == "https" else "ws"
        uri, headers = (
            f"{scheme}://{self._parts.netloc}/ws",
            {"Authorization": f"Bearer {self._token}", "User-Agent": "sfumato"},
        )
        try:
            return self._connected(uri, headers, max(self.patience, 1.0))
        except InvalidStatus as error:
            raise _from_body(bytes(error.response.body or b""), self.url) from None
        except (WebSocketException, EOFError) as error:
            raise _Broken(type(error).__name__) from None

    def _connected(self, uri: str, headers: Mapping[str, str], timeout: float) -> Any:
        from websockets.proxy import get_proxy
        from websockets.sync import client
        from websockets.uri import parse_uri

        from sfumato.owners.socket import Socket

        if self._local or get_proxy(parse_uri(uri)) is None:
            return Socket(uri, headers, self._tls, MAX_REPLY, timeout)
        return client.connect(  # it knows how to talk to a proxy
            uri, additional_headers=headers, compression=None, max_size=MAX_REPLY, open_timeout=timeout, ssl=self._tls,
            user_agent_header=None, ping_interval=None,
        )  # fmt: skip


def _answerable(study: Study, kernel: str, approved: Approved) -> Study:
    """What a node answers for: walks on any model, Langevin on families and where its own bounds are proven."""
    if approved.reference or study.can_answer("linear"):
        return study
    if kernel != AUTO and asks_first(kernel):
        raise InvalidInput(
            f"kernel={kernel!r} needs bounds that the owner can prove for study {approved.name!r}, and it has none; use "
            "kernel='guided'."
        )
    return study.without_reference()


def refused(said: Refused, owner: str) -> Exception:
    """Turn a code of the catalogue into what the library raises for it."""
    words = f"{owner!r} refuses: {said.error}"
    if said.code == "budget-spent":
        return BudgetSpent(words, needed=0.0, left=0.0, owner=owner)
    if said.code == "other-content":
        return LedgerError(words)
    return OwnerRefused(words, owner, said.code)


def _from_body(body: bytes, where: str) -> Exception:
    try:
        return refused(msgspec.json.decode(body, type=Refused), where)
    except msgspec.DecodeError:
        return ConnectionError(f"what answers at {where} is no node; check the address.")


def _same_numbers(owner: str, study: Study, approved: Approved) -> None:
    """Refuse a model that is written as the owner's and computes something else."""
    theirs = dict(zip(approved.models, approved.computes, strict=True))
    if not computes_alike(study, theirs[study.model.fingerprint()]):
        raise InvalidInput(
            f"both sides must compute the same, and your model is written as that of {owner!r} and computes something else: a "
            "variable outside of the function differs (a constant, a prior's scale?). Use the owner's own file, all of it."
        )


def _same_domain(owner: str, mine: Mapping[str, Any] | None, theirs: Mapping[str, Any]) -> None:
    if mine is None:
        return
    said = {name: column.to_dict() for name, column in mine.items()}
    if json.loads(json.dumps(said)) != json.loads(json.dumps(dict(theirs))):
        raise InvalidInput(
            f"the domain is the owner's to declare, and {owner!r} has {dict(theirs)}; leave domain= out."
        )


def _is_local(host: str) -> bool:
    import ipaddress

    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _tls(certificate: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if certificate is not None:
        try:
            context.load_verify_locations(certificate)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(f"certificate must be a readable PEM file ({type(error).__name__}).") from None
    return context
