"""A node that is killed, starved and crowded: never an overspend, never two noises for one query, and the chain finishes.

`make chaos` (SFUMATO_CHAOS_ROUNDS=200) kills as often as the design asks for; an ordinary run of the tests kills once at every
planted moment, and once at random.
"""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import timedelta
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from node_helpers import N, call, load, prepare, threaded, wait_for
from sfumato.cli import main
from sfumato.cli.ledger import PROBLEMS_FOUND
from sfumato.errors import BudgetSpent, OwnerRefused
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream, State
from sfumato.node import tokens as tokens_module
from sfumato.node.config import read_owner
from sfumato.node.tokens import TokenFile
from sfumato.owners.remote import connect
from sfumato.owners.rounds import Rounds
from sfumato.protocol.frames import Ask, Begin, Open
from sfumato.protocol.questions import Linear, Statistic, Terms, decode_reply
from sfumato.vault.lattice import choose_gamma
from sfumato.vault.ledger import Ledger

MODES = (
    "before-reserve",
    "after-reserve",
    "before-answer",
    "after-answer",
    "in-fold",
    "handshake",
    "open",
    "account",
    "random",
)
ROUNDS = int(os.environ.get("SFUMATO_CHAOS_ROUNDS", len(MODES)))
MOMENTS = {"open": 1, "account": 3, "in-fold": 3}
"""How often a moment comes for sure while two clients reconnect; twelve times, where nothing is said."""
STEPS, CHAINS = 30, 2
TERMS = Terms(
    kernel="langevin", chains=2, sigma=20.0, gamma=choose_gamma(20.0, N), matrix=[[0.04]], proposal_sigma=60.0,
    proposal_gamma=choose_gamma(60.0, N),
)  # fmt: skip
HERE = Path(__file__).parent


class Zygote:
    """Starts nodes quickly, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._out = (folder / "console.out").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "node_zygote.py")], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._out,
        )  # fmt: skip
        self.pid, self.url, self._path = 0, "", ""

    def serve(self, folder: Path) -> None:
        """From now on, start nodes of this owner."""
        self._path = str(folder / "owner.toml")
        self.url = f"http://127.0.0.1:{read_owner(self._path).listen.port}"

    def start(self, mode: str = "none", count: int = 0, *, wait: bool = True) -> None:
        self._process.stdin.write(json.dumps([self._path, mode, count]) + "\n")
        self._process.stdin.flush()
        self.pid = int(self._process.stdout.readline())
        if wait:
            wait_for(self.url)

    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self, how=signal.SIGKILL) -> None:
        if self.pid and self.alive():
            os.kill(self.pid, how)
        while self.pid and self.alive():
            time.sleep(0.01)

    def close(self) -> None:
        self.kill()
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()
        self._out.close()


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


@pytest.fixture
def nursery(tmp_path, zygote):
    tokens = prepare(tmp_path, studies=("bern",))
    zygote.serve(tmp_path)
    yield tmp_path, tokens, zygote
    zygote.kill()


def chain(folder, owner, seen: dict):
    """A real chain over the wire; every reply it got is kept by id."""
    approved, study, n = owner.study(load(folder, "bern"), kernel="langevin")
    door = owner.door(approved, study.model.fingerprint(), epsilon=6.0, delta=1e-6, run_id="chain")
    asked = door.ask

    def watched(query_id, question):
        reply = asked(query_id, question)
        assert seen.setdefault(query_id, reply) == reply
        return reply

    door.ask = watched
    rounds = Rounds(study.model, [door], run_id="chain")
    kernel, stream = (
        Langevin(np.eye(1) * 0.04, 0.01, public_part(study.family, study.model, n)),
        PublicStream(1, CHAINS),
    )
    with jax.enable_x64(True):
        theta = jnp.full((CHAINS, 1), -0.85)
        states = State(
            theta,
            jax.jit(jax.vmap(study.model.log_prior))(theta),
            jnp.asarray(stream.directions(1)),
            jnp.full(theta.shape, jnp.nan),
        )
    rounds.begin(kernel, 20.0, states)
    done = 0
    while True:
        chunk = rounds.chunk(states, stream.peek(kernel, STEPS), STEPS, 1)
        states, done = chunk.states, done + chunk.steps
        stream.consume(chunk.steps)
        yield done


def hammer(owner, study, seen: dict, stop: threading.Event, trouble: list):
    """Ask, and ask again what was asked before: the same id must give the same bytes for ever."""
    try:
        model = owner.studies["bern"].models[0]
        door = owner.door("bern", model, epsilon=5.0, delta=1e-6, run_id=study)
        door.begin(TERMS)
        rng = random.Random(study)  # noqa: S311
        while not stop.is_set():
            fresh = rng.random() < 0.5 or not seen
            name = f"h/{len(seen)}" if fresh else rng.choice(list(seen))
            reply = door.ask(name, Statistic(chains=2))
            assert seen.setdefault(name, reply) == reply, name
        door.close()
    except BaseException as error:
        trouble.append(error)
        raise


def check_books(folder, seen: dict[str, dict]):
    """The ledger holds, no cap was passed, and every reply a client saw is the one that is kept and paid for."""
    with Ledger(folder / "owner.ledger") as ledger:
        result = ledger.verify()
        assert result.ok, result.problems
        states = {state.name: state for state in ledger.accounts()}
        for state in states.values():
            assert state.spent <= state.cap
        for run, replies in seen.items():
            account = ledger.existing(f"run alice/{run}")
            with account._store.read() as db:
                rows = dict(db.execute("SELECT query_id, answer FROM answers WHERE account = ?", (account._number,)))
            for query_id, reply in replies.items():
                assert decode_reply(rows[query_id]) == reply
            answered = sum(decode_reply(row).quanta for row in rows.values())
            assert answered <= states[f"run alice/{run}"].spent


def test_kill_nine_again_and_again(nursery):
    folder, tokens, zygote = nursery
    zygote.start()
    owner = connect(zygote.url, token=tokens["alice"], patience=300.0)
    seen, stop, trouble = {"chain": {}, "hammer": {}}, threading.Event(), []
    walking = chain(folder, owner, seen["chain"])
    next(walking)
    steps = []

    def walk():
        try:
            while not stop.is_set():
                steps.append(next(walking))
        except BaseException as error:
            trouble.append(error)
            raise

    workers = [
        threading.Thread(target=walk),
        threading.Thread(target=hammer, args=(owner, "hammer", seen["hammer"], stop, trouble)),
    ]
    for worker in workers:
        worker.start()
    deaths = kill_often(zygote, tokens["alice"], trouble)
    zygote.kill()
    zygote.start()
    before = steps[-1] if steps else 0
    until = time.monotonic() + 120
    while (not steps or steps[-1] <= before) and time.monotonic() < until:
        time.sleep(0.1)
    stop.set()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    assert not trouble, trouble
    assert steps[-1] > before  # the chain goes on after the last death as after the first
    assert len(seen["hammer"]) > 0
    zygote.kill(signal.SIGTERM)  # a clean end folds the journal
    check_books(folder, seen)
    print(f"{ROUNDS} rounds; died at the planted moment: {deaths}; {steps[-1]} steps, {len(seen['hammer'])} queries")
    assert sum(deaths.values()) == ROUNDS
    assert all(deaths[mode] > 0 for mode in MODES[:ROUNDS])  # every planted moment came


def kill_often(zygote, token, trouble):
    """Start and kill, at random and at planted moments; how often each moment came."""
    rng, deaths = random.Random(6), dict.fromkeys(MODES, 0)  # noqa: S311
    for round_ in range(ROUNDS):
        mode = MODES[round_ % len(MODES)]
        # A moment that does not come, because a client was busy elsewhere, is waited for once more, then at its first chance.
        for count in (rng.randint(1, MOMENTS.get(mode, 12)), 1, 1):
            zygote.kill()
            zygote.start(mode, count, wait=False)
            until = time.monotonic() + (rng.uniform(0.0, 4.0) if mode == "random" else 60.0)
            while zygote.alive() and time.monotonic() < until:
                if mode == "handshake":
                    with_handshake(zygote.url, token)
                time.sleep(0.02)
            if mode == "random" or not zygote.alive():
                deaths[mode] += 1
                break
        assert not trouble, trouble
    return deaths


def with_handshake(url, token):
    request = urllib.request.Request(f"{url}/api/handshake", headers={"Authorization": f"Bearer {token}"})
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except OSError:
        pass


def let_files_grow_to(pid: int, size: int) -> None:
    """No file of a running process can be written beyond this size; at 0 not at all, not even by root; at -1 freely."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))


def test_a_disk_that_takes_no_more_stops_answers_and_loses_none(nursery):
    """The disk of a running node becomes read-only, comes back, fills up, and comes back."""
    folder, tokens, zygote = nursery
    zygote.start()
    owner = connect(zygote.url, token=tokens["alice"], patience=0.3)
    door = owner.door("bern", owner.studies["bern"].models[0], epsilon=5.0, delta=1e-6, run_id="disk")
    door.begin(TERMS)
    seen = {}

    def ask(count):
        for _ in range(count):
            name = f"q/{len(seen)}"
            seen[name] = door.ask(name, Statistic(chains=2))

    ask(5)
    largest = max(path.stat().st_size for path in folder.glob("owner.ledger*"))
    for size, some in ((0, 0), (largest + 20_000, 10)):
        before = len(seen)
        let_files_grow_to(zygote.pid, size)
        with pytest.raises(OwnerRefused) as refused:
            ask(4000)
        assert len(seen) >= before + some
        assert refused.value.code == "ledger"  # the node is there, and says what is the matter
        with pytest.raises(OwnerRefused) as refused:
            door.ask("another", Statistic(chains=2))
        assert refused.value.code == "ledger"
        assert call(f"{zygote.url}/healthz")[0] == 200
        let_files_grow_to(zygote.pid, -1)
        ask(5)  # the same node goes on
    zygote.kill()
    zygote.start()
    door.close()
    patient = connect(zygote.url, token=tokens["alice"])
    door = patient.door("bern", patient.studies["bern"].models[0], epsilon=5.0, delta=1e-6, run_id="disk")
    door.begin(TERMS)
    assert all(door.ask(name, Statistic(chains=2)) == reply for name, reply in seen.items())
    zygote.kill(signal.SIGTERM)
    check_books(folder, {"disk": seen})


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    tokens = prepare(tmp_path, studies=("bern",))
    years = iter(range(10**9))
    monkeypatch.setattr(
        "sfumato.vault.ledger.chain.now", lambda: f"{1990 + (next(years) * 7) % 60}-01-01T00:00:00.000+00:00"
    )
    with threaded(tmp_path) as running:
        owner = connect(running.url, token=tokens["alice"])
        door = owner.door("bern", owner.studies["bern"].models[0], epsilon=5.0, delta=1e-6, run_id="clock")
        door.begin(TERMS)
        seen = {f"q/{i}": door.ask(f"q/{i}", Statistic(chains=2)) for i in range(300)}
        assert all(door.ask(name, Statistic(chains=2)) == reply for name, reply in list(seen.items())[::30])
        door.close()
        check_tokens_by_the_clock(running, tmp_path, monkeypatch)
    check_books(tmp_path, {"clock": seen})


def check_tokens_by_the_clock(running, folder, monkeypatch):
    """A token with an end is refused once the clock has passed it; a clock that goes back spends nothing and loses nothing."""
    token = TokenFile(folder / "tokens.json").add("brief", days=1)
    owner = connect(running.url, token=token)
    door = owner.door("bern", owner.studies["bern"].models[0], epsilon=2.0, delta=1e-6, run_id="brief")
    door.begin(TERMS)
    seen = {f"q/{i}": door.ask(f"q/{i}", Statistic(chains=2)) for i in range(5)}
    left, real = door.left, tokens_module.now
    with monkeypatch.context() as later:
        later.setattr(tokens_module, "now", lambda: real() + timedelta(days=2))
        for knock in (lambda: connect(running.url, token=token), lambda: ask_until_refused(door)):
            with pytest.raises(OwnerRefused) as refused:
                knock()
            assert refused.value.code == "unauthorised"
    with monkeypatch.context() as earlier:
        earlier.setattr(tokens_module, "now", lambda: real() - timedelta(days=20_000))
        connect(running.url, token=token)
        assert all(door.ask(name, Statistic(chains=2)) == reply for name, reply in seen.items())
        assert door.left == left
        cost = door.ask("next", Statistic(chains=2)).quanta
        assert door.left == left - cost
    door.close()


def ask_until_refused(door):
    """The connection under way is cut within a second; then the door dials again."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        door.ask("q/0", Statistic(chains=2))
        time.sleep(0.05)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crowd")
    tokens = prepare(
        folder,
        studies=("bern",),
        total=2.0,
        limits="send_seconds = 1.5\nconnections_per_token = 100\nconnections = 200",
    )
    with threaded(folder) as running:
        yield folder, tokens, running


def test_a_slow_client_keeps_nobody_waiting_and_is_hung_up_on(crowded):
    folder, tokens, running = crowded
    owner = connect(running.url, token=tokens["alice"])
    model = owner.studies["bern"].models[0]
    door = owner.door("bern", model, epsilon=0.5, delta=1e-6, run_id="quick")
    door.begin(TERMS)
    door.ask("q/0", Statistic(chains=2))
    slow = raw_websocket(running, tokens["bob"])
    pack = msgspec.msgpack.encode
    send_frame(slow, pack(Open(study="bern", model=model, run="slow", epsilon=0.5, delta=1e-6)))
    many = msgspec.structs.replace(TERMS, chains=256)
    send_frame(slow, pack(Begin(terms=many)))
    flood = frame(pack(Ask("s/0", Statistic(chains=256)))) * 200  # always the same answer, some kilobytes each
    slow.settimeout(0.2)
    began, cut = time.monotonic(), False
    while time.monotonic() - began < 30 and not cut:
        try:
            slow.sendall(flood)
        except TimeoutError:
            pass
        except OSError:
            cut = True
        before = time.monotonic()
        door.ask(f"q/{before}", Statistic(chains=2))
        assert time.monotonic() - before < 10
    slow.close()
    assert cut
    door.close()


def test_fifty_clients_on_a_budget_for_ten(crowded):
    folder, tokens, running = crowded
    model = connect(running.url, token=tokens["alice"]).studies["bern"].models[0]
    dear = msgspec.structs.replace(TERMS, proposal_sigma=1.5, proposal_gamma=choose_gamma(1.5, N))
    quanta, refused, lock, trouble = [], [], threading.Lock(), []

    def client(number):
        who = "alice" if number % 2 else "bob"
        try:
            door = connect(running.url, token=tokens[who], patience=60.0).door(
                "bern", model, epsilon=0.6, delta=1e-6, run_id=f"crowd-{number}"
            )
            door.begin(dear)
            for i in range(400):
                reply = door.ask(f"c/{i}", Statistic(chains=2))
                with lock:
                    quanta.append(reply.quanta)
            door.close()
        except BudgetSpent:
            with lock:
                refused.append(number)
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not trouble, trouble
    assert len(refused) > 30  # there was not enough for all
    with Ledger(folder / "owner.ledger") as ledger:
        node = ledger.existing("node")
        assert sum(quanta) <= node.spent <= node.cap <= ledger.cap
        assert sum(quanta) > 0.3 * node.cap  # and most of what there was came out as answers
        assert ledger.verify().ok


def command(capsys, verb, *arguments):
    """Exit code and problems of `sfumato ledger`."""
    capsys.readouterr()
    code = main(["ledger", verb, *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out).get("problems", [])


def copied(capsys, source, target):
    """Copy a ledger as the manual says; the head the command prints."""
    capsys.readouterr()
    assert main(["ledger", "backup", str(source), str(target), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] and Path(said["path"]) == target
    return said["head"]


def test_backup_and_restore_of_a_node_in_use(tmp_path, capsys):
    tokens = prepare(tmp_path, studies=("bern",))
    with threaded(tmp_path) as running:
        owner = connect(running.url, token=tokens["alice"])
        door = owner.door("bern", owner.studies["bern"].models[0], epsilon=5.0, delta=1e-6, run_id="kept")
        door.begin(TERMS)
        seen = {f"q/{i}": door.ask(f"q/{i}", Statistic(chains=2)) for i in range(20)}
        running.node.books.journal.fold()
        old = copied(capsys, tmp_path / "owner.ledger", tmp_path / "old.ledger")
        seen |= {f"q/{i}": door.ask(f"q/{i}", Statistic(chains=2)) for i in range(20, 300)}
        door.close()
    newest = copied(capsys, tmp_path / "owner.ledger", tmp_path / "new.ledger")
    assert newest != old
    assert command(capsys, "verify", tmp_path / "old.ledger", "--head", old) == (0, [])
    code, problems = command(capsys, "verify", tmp_path / "old.ledger", "--head", newest)
    assert code == PROBLEMS_FOUND and any("cut off" in problem for problem in problems)  # too old to be used
    (tmp_path / "owner.ledger").unlink()
    for leftover in tmp_path.glob("owner.ledger-*"):
        leftover.unlink()
    (tmp_path / "new.ledger").rename(tmp_path / "owner.ledger")
    assert command(capsys, "verify", tmp_path / "owner.ledger", "--head", newest) == (0, [])
    with threaded(tmp_path) as running:
        owner = connect(running.url, token=tokens["alice"])
        door = owner.door("bern", owner.studies["bern"].models[0], epsilon=5.0, delta=1e-6, run_id="kept")
        door.begin(TERMS)
        assert all(door.ask(name, Statistic(chains=2)) == reply for name, reply in seen.items())
        assert door.ask("new", Linear(direction=[[0.1], [0.2]], asked=[True, True])).id == "new"
        door.close()


# -- a WebSocket by hand, for a client that does not read ---------------------------------------------------------------


def raw_websocket(running, token):
    port = running.file.listen.port
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.sendall(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {token}\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += made.recv(1)
    assert b" 101 " in head
    return made


def frame(body: bytes) -> bytes:
    size = bytes([0x80 | len(body)]) if len(body) < 126 else bytes([0x80 | 126]) + len(body).to_bytes(2)
    return b"\x82" + size + b"\0\0\0\0" + body  # masked with zeros


def send_frame(made, body: bytes) -> None:
    made.sendall(frame(body))
    made.recv(65536)
