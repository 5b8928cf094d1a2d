"""Attacks on a node: each is refused with its code, the process stays up, and no record shows in any reply or log."""

import itertools
import json
import socket
import struct
import time
import urllib.parse
from contextlib import closing

import msgspec
import numpy as np
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as dial

import sfumato as sf
from node_helpers import call, load, prepare, threaded
from sfumato.node.catalogue import CATALOGUE
from sfumato.node.logs import LINES_PER_SECOND
from sfumato.node.tokens import TokenFile
from sfumato.protocol.frames import Ask, Begin, Left, Open
from sfumato.protocol.questions import Linear, Ratio, Release, Remainder, Statistic, Terms, encode
from sfumato.vault.lattice import choose_gamma

N = 500
CANARIES = (31.4159265, -27.1828182, 16.1803398)  # values no program would print by itself
SIGMA = 3.0
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
pack = msgspec.msgpack.encode


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    """A node whose records are canaries: real numbers, three of which stand out."""
    folder = tmp_path_factory.mktemp("attacked")
    values = np.random.default_rng(1).uniform(-5, 5, N)
    values[:3] = CANARIES
    tokens = prepare(
        folder, values=values, studies=("mean",),
        limits="header_seconds = 1.5\nsend_seconds = 2.0\nhandshake_seconds = 3.0\nfailed_logins_per_minute = 100000\n"
        "connections_per_token = 8",
    )  # fmt: skip
    text = (folder / "owner.toml").read_text()
    domain = '[domain.y]\nkind = "interval"\nlower = -40.0\nupper = 40.0'
    text = text.replace('[domain.y]\nkind = "binary"', domain).replace(
        'model = "model.py:mean"', 'model = "model.py:mean"\nsigma_floor = 0.5\ntheta_bound = 60.0'
    )
    (folder / "owner.toml").write_text(text)
    (folder / "model.py").write_text(
        "import numpyro\nimport numpyro.distributions as dist\n\n\ndef mean(y):\n"
        '    m = numpyro.sample("m", dist.Normal(0.0, 10.0))\n'
        '    with numpyro.plate("people", y.shape[0]):\n        numpyro.sample("obs", dist.Normal(m, 20.0), obs=y)\n'
    )
    with threaded(folder) as running:
        running.tokens, running.folder = tokens, folder
        running.heard = []
        yield running
        assert not running.node.closing
        assert call(f"{running.url}/healthz")[0] == 200  # after everything that was done to it


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A node that allows little."""
    folder = tmp_path_factory.mktemp("strict")
    tokens = prepare(folder, studies=("bern",), limits="failed_logins_per_minute = 1\nmessages_per_second = 5.0")
    with threaded(folder) as running:
        running.tokens, running.heard = tokens, []
        yield running


@pytest.fixture(autouse=True)
def nothing_leaks(owner, capfd):
    """After every test: the node is up, and no canary is in anything it said, printed or wrote, as text or as bytes."""
    yield
    assert call(f"{owner.url}/healthz") == (200, {"ok": True, "state": "serving"})
    owner.heard += [part.encode() for part in capfd.readouterr()]
    written = [
        path.read_bytes() for path in owner.folder.iterdir() if path.name.startswith(("owner.ledger", "node.log"))
    ]
    assert len(written) >= 3  # log, ledger, journal
    said = b"\n".join(owner.heard + written)
    assert not found_in(said)
    assert b"Traceback" not in said


def forms_of_canaries():
    """How a canary would look in a leak.

    As digits; as a float64 in either byte order; as a float32 with msgpack's mark before it, or beside its neighbour (four bytes
    alone turn up by chance in a ledger full of noise and hashes).
    """
    for value in CANARIES:
        for digits in (8, 7, 6):
            yield f"{value:.{digits}g}".encode()
            yield f"{abs(value):.{digits}g}".replace(".", "").encode()
        for sign in (value, -value):
            yield from (struct.pack(order, sign) for order in (">d", "<d"))
            yield b"\xca" + struct.pack(">f", sign)
    for pair in itertools.pairwise(CANARIES):
        yield from (struct.pack(order, *pair) for order in (">2f", "<2f"))


def found_in(said: bytes) -> list[bytes]:
    return [form for form in forms_of_canaries() if form in said]


def test_a_leak_would_be_seen(owner):
    leaks = [
        msgspec.msgpack.encode({"numbers": list(CANARIES)}), msgspec.json.encode(CANARIES), repr(CANARIES[0]).encode(),
        np.array(CANARIES).tobytes(), np.array(CANARIES, "f4").tobytes(), np.array(CANARIES, ">f4").tobytes(),
        msgspec.msgpack.encode([-CANARIES[1]]), f"{CANARIES[2]:.6f}".encode(),
    ]  # fmt: skip
    for leak in leaks:
        assert found_in(b"before" + leak + b"after"), leak
    assert not found_in(b"before after")


def hear(owner, value):
    owner.heard.append(value if isinstance(value, bytes) else repr(value).encode())
    return value


def ask(owner, path, token=None, body=None, method=None, headers=None):
    return hear(owner, call(f"{owner.url}{path}", token, body, method, headers))


class Line:
    """A raw WebSocket."""

    def __init__(self, owner, who="alice", **options):
        given = owner.tokens.get(who, who)
        self._owner = owner
        self._context = dial(
            f"{owner.url.replace('http', 'ws')}/ws", compression=None, max_size=None,
            additional_headers={"Authorization": f"Bearer {given}", **options.pop("headers", {})}, **options,
        )  # fmt: skip

    def __enter__(self):
        self.socket = self._context.__enter__()
        return self

    def __exit__(self, *error):
        return self._context.__exit__(*error)

    def say(self, message: bytes | str):
        self.socket.send(message)
        reply = hear(self._owner, self.socket.recv(timeout=60))
        return (None, reply[1:]) if reply[0] == 0 else (msgspec.msgpack.decode(reply[1:])["code"], reply[1:])

    def code(self, message):
        return self.say(message)[0]


def fingerprint(owner):
    return next(iter(owner.node.studies["mean"].forms))


def opening(owner, run="attack", **changes):
    given = {"study": "mean", "model": fingerprint(owner), "run": run, "epsilon": 2.0, "delta": 1e-6} | changes
    return pack(Open(**given))


def terms(**changes):
    sigma = changes.pop("sigma", SIGMA)
    given = {"kernel": "walk", "chains": 1, "sigma": sigma, "gamma": choose_gamma(SIGMA, N)} | changes
    return pack(Begin(terms=Terms(**given)))


def ratio(theta=0.1, theta_prop=0.11):
    return Ratio(theta=[[theta]], theta_prop=[[theta_prop]], asked=[True])


def remainder(theta=0.1, theta_prop=0.11, slope=0.01):
    return Remainder(theta=[[theta]], theta_prop=[[theta_prop]], slope=[[slope]], asked=[True])


def near(**changes):
    """Terms of Langevin around a reference point."""
    given = {"kernel": "langevin", "matrix": [[0.01]], "proposal_sigma": 8.0, "proposal_gamma": choose_gamma(8.0, N)}
    return terms(**(given | {"centre": [0.1]} | changes))


@pytest.fixture
def line(owner, request):
    with Line(owner) as line:
        assert line.code(opening(owner, run=f"r{abs(hash(request.node.name)) % 10**9}")) is None
        assert line.code(terms()) is None
        yield line


# -- who knocks -------------------------------------------------------------------------------------------------------


def test_no_token_or_a_wrong_one_opens_nothing(owner):
    book = TokenFile(owner.folder / "tokens.json")
    gone = book.add("gone")
    book.revoke("gone")
    brief = book.add("brief", days=1e-9)
    foreign = TokenFile(owner.folder / "other.json").add("alice")
    good = owner.tokens["alice"]
    wrong = [gone, brief, foreign, good[:-1], good + "A", good.lower(), "x", "sfu_alice_", good.replace("alice", "bob")]
    for token in wrong:
        for path in ("/api/handshake", "/api/status", "/api/console/state", "/metrics"):
            assert ask(owner, path, token)[1]["code"] == "unauthorised", (token, path)
        with pytest.raises(InvalidStatus) as refused, Line(owner, token):
            pass
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body)["code"] == "unauthorised"
    for path in ("/api/handshake", "/api/status", "/api/console/state", "/metrics"):
        assert ask(owner, path)[1]["code"] == "unauthorised"
        assert ask(owner, path, headers={"Authorization": f"Basic {good}"})[1]["code"] == "unauthorised"


def test_a_token_opens_its_own_doors_only(owner):
    assert ask(owner, "/api/console/state", owner.tokens["alice"])[1]["code"] == "forbidden"
    assert ask(owner, "/api/console/pause", owner.tokens["alice"], b"{}")[1]["code"] == "forbidden"
    assert ask(owner, "/metrics", owner.tokens["alice"])[1]["code"] == "forbidden"
    assert ask(owner, "/api/handshake", owner.tokens["owner"])[1]["code"] == "forbidden"
    assert ask(owner, "/api/console/state", owner.tokens["watch"])[1]["code"] == "forbidden"
    assert ask(owner, "/metrics", owner.tokens["watch"])[0] == 200
    with pytest.raises(InvalidStatus) as refused, Line(owner, "owner"):
        pass
    assert refused.value.response.status_code == 403


def test_many_wrong_tokens_are_slowed_down_and_right_ones_are_not(strict):
    wrong = f"sfu_alice_{'A' * 43}"
    codes = [call(f"{strict.url}/api/handshake", wrong)[1]["code"] for _ in range(33)]
    assert codes[0] == "unauthorised"
    assert codes[-1] == "too-fast"
    assert call(f"{strict.url}/api/handshake", strict.tokens["bob"])[0] == 200  # a colleague at the same address
    assert call(f"{strict.url}/api/handshake", wrong)[1]["code"] == "too-fast"


def test_a_foreign_origin_or_host_is_refused(owner):
    token = owner.tokens["alice"]
    for origin in ("https://evil.example", "null", "http://127.0.0.1", owner.url.replace("http", "https") + ".evil"):
        with pytest.raises(InvalidStatus) as refused, Line(owner, origin=origin):
            pass
        assert json.loads(refused.value.response.body)["code"] == "foreign-origin", origin
        answer = ask(owner, "/api/console/pause", owner.tokens["owner"], b"{}", headers={"Origin": origin})
        assert answer[1]["code"] == "foreign-origin"
    with Line(owner, origin=owner.url):  # its own page may
        pass
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", ""):
        assert ask(owner, "/api/handshake", token, headers={"Host": host})[1]["code"] == "foreign-host", host


# -- what is asked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "code"),
    [(0.0, "sigma-too-small"), (1e-9, "sigma-too-small"), (0.49, "sigma-too-small"), (-3.0, "sigma-too-small"),
     (float("nan"), "bad-number"), (float("inf"), "bad-number"), (1e300, "bad-request")],
)  # fmt: skip
def test_noise_that_is_none_is_refused(line, sigma, code):
    assert line.code(terms(sigma=sigma)) == code
    release = Release(what="gradient", theta=[0.1], matrix=[[1.0]], radius=1.0, sigma=sigma)
    assert line.code(pack(Ask("p", release))) in (code, "bad-request")


@pytest.mark.parametrize(
    ("theta", "code"),
    [
        (61.0, "outside-support"),
        (-1e300, "outside-support"),
        (float("nan"), "bad-number"),
        (float("inf"), "bad-number"),
    ],
)
def test_parameters_outside_the_support_are_refused(line, theta, code):
    for question in (ratio(theta), ratio(0.1, theta)):
        assert line.code(pack(Ask("q", question))) == code
    release = Release(what="gradient", theta=[theta], matrix=[[1.0]], radius=1.0, sigma=9.0)
    assert line.code(pack(Ask("q", release))) == code
    for at in ({"theta": theta}, {"theta_prop": theta}):
        assert line.code(pack(Ask("q", remainder(**at)))) == code
    assert line.code(near(centre=[theta])) == code


def test_langevin_around_a_point_asks_only_what_its_terms_allow(line):
    for matrix in ([[float("nan")]], [[float("inf")]]):
        assert line.code(near(matrix=matrix)) == "bad-number"
    for changes in ({"matrix": [[0.1, 0.0]]}, {"matrix": []}, {"centre": [0.1, 0.2]}, {"matrix": [[1e200]]}):
        assert line.code(near(**changes)) in ("bad-number", "bad-request"), changes
    for changes in ({"sigma": 1e-9}, {"proposal_sigma": 1e-9}):
        assert line.code(near(**changes)) == "sigma-too-small"
    assert line.code(near()) is None
    assert line.code(pack(Ask("n0", remainder(slope=float("nan"))))) == "bad-number"
    for question in (ratio(), Linear(direction=[[0.1]], asked=[True]), Statistic(chains=2)):
        assert line.code(pack(Ask("n1", question))) == "bad-request"
    assert line.code(pack(Ask("n2", Statistic(chains=1)))) is None
    assert line.code(pack(Ask("n3", remainder()))) is None


def test_numbers_of_the_wrong_shape_or_kind_are_refused(line):
    wrong = [
        Ratio(theta=[[0.1, 0.2]], theta_prop=[[0.1, 0.2]], asked=[True]), Ratio(theta=[], theta_prop=[], asked=[]),
        Ratio(theta=[[0.1]] * 2, theta_prop=[[0.1]] * 2, asked=[True] * 2), Statistic(chains=1), Statistic(chains=-1),
        Linear(direction=[[0.1]], asked=[True]),
        Release(what="rows", theta=[0.1], matrix=[[1.0]], radius=1.0, sigma=9.0),
        Release(what="gradient", theta=[0.1], matrix=[[float("nan")]], radius=1.0, sigma=9.0),
        Release(what="gradient", theta=[0.1], matrix=[[1.0]], radius=-1.0, sigma=9.0),
        Release(what="gradient", theta=[0.1], matrix=[[1.0]], radius=float("inf"), sigma=9.0),
    ]  # fmt: skip
    for question in wrong:
        assert line.code(pack(Ask("q", question))) in ("bad-request", "bad-number"), question
    for chains in (0, -1, 257, 10**9):
        assert line.code(terms(chains=chains)) == "bad-number"
    for gamma in (0.0, 1.0, float("nan"), 3e-10):
        assert line.code(terms(gamma=gamma)) in ("bad-request", "bad-number")
    assert line.code(terms(kernel="os.system")) == "bad-request"
    assert line.code(pack(Ask("q", ratio()))) is None  # and a right one is still answered


@pytest.mark.parametrize(
    "study",
    ["", ".", "..", "mean.py", "../mean", "model.py:mean", "mean\x00", "m" * 5000, "__class__", "numpy", "/etc/passwd"],
)
def test_names_lead_nowhere(owner, study):
    with Line(owner) as line:
        assert line.code(opening(owner, study=study)) == "not-found"


def test_another_model_under_an_approved_name_is_refused(owner):
    with Line(owner) as line:
        for model in ("", "0" * 64, fingerprint(owner)[:-1], "mean"):
            assert line.code(opening(owner, model=model)) == "other-model"
        for run in ("", "a b", "../x", "x" * 81, "né", "a\n"):
            assert line.code(opening(owner, run=run)) == "bad-request"
        for epsilon, delta in ((0.0, 1e-6), (-1.0, 1e-6), (float("nan"), 1e-6), (1.0, 0.0), (1.0, 1.0), (1e9, 1e-6)):
            assert line.code(opening(owner, epsilon=epsilon, delta=delta)) in ("bad-number", "bad-request")
        assert line.code(opening(owner, epsilon=9.0, delta=1e-5)) == "budget-spent"
        assert line.code(opening(owner, protocol=99)) == "other-version"


def test_messages_out_of_order_and_nonsense_are_refused(owner):
    with Line(owner) as line:
        assert line.code(pack(Ask("q", ratio()))) == "not-begun"
        assert line.code(terms()) == "not-begun"
        assert line.code(pack(Left())) == "not-begun"
        assert line.code(opening(owner, run="order")) is None
        assert line.code(pack(Ask("q", ratio()))) == "not-begun"
        deep = b"\x91" * 5000 + b"\xc0"
        for message in (
            b"\xc1",
            b"\x00",
            b"{}",
            b"\x93\x01\x02\x03",
            b"\xff" * 50,
            deep,
            b"\x90",
            pack({"type": "exec"}),
        ):
            assert line.code(message) == "bad-request", message[:20]
        assert line.code("text") == "bad-request"
        extra = msgspec.msgpack.encode({"type": "open", "code": "import os", "study": "mean"})
        assert line.code(extra) == "bad-request"
        assert line.code(terms()) is None


def test_replayed_messages_get_the_same_bytes_and_cost_nothing(owner, line):
    first = line.say(pack(Ask("q/1", ratio())))
    left = line.say(pack(Left()))
    for _ in range(3):
        assert line.say(pack(Ask("q/1", ratio()))) == first
    assert line.say(pack(Left())) == left
    assert line.code(pack(Ask("q/1", ratio(0.1, 0.12)))) == "other-content"
    assert line.code(pack(Ask("", ratio()))) == "bad-request"
    assert line.code(pack(Ask("q/1", ratio())).replace(b"q/1", b"q\xff1")) == "bad-request"  # no text at all
    assert line.code(pack(Ask("x" * 300, ratio()))) == "bad-request"
    later = [line.say(pack(Ask(f"q/{i}", ratio()))) for i in (5, 3, 4)]  # reordered: ids, not places, count
    assert len({body for _, body in later}) == 3


def test_averaging_the_same_question_ends_with_the_budget(owner):
    with Line(owner) as line:
        assert line.code(opening(owner, run="average", epsilon=0.3)) is None
        assert line.code(terms()) is None
        codes = [line.code(pack(Ask(f"a/{i}", ratio(0.1, 0.4)))) for i in range(60)]
    assert codes[0] is None
    assert codes[-1] == "budget-spent"


# -- how much, how slowly ---------------------------------------------------------------------------------------------


def test_a_message_of_a_hundred_megabytes_closes_its_line_only(owner, line):
    with Line(owner) as other, pytest.raises(ConnectionClosed) as closed:
        other.socket.send(b"\x93" + b"\x00" * 100_000_000)
        other.socket.recv(timeout=60)
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert line.code(pack(Ask("still", ratio()))) is None


def test_long_bodies_are_refused_with_and_without_a_length(owner):
    status, said = ask(owner, "/api/console/plan", owner.tokens["owner"], b"x" * 200_000)
    assert (status, said["code"]) == (413, "too-large")
    with closing(raw_socket(owner)) as raw:
        head = (
            f"POST /api/console/plan HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {owner.tokens['owner']}\r\n"
        )
        raw.sendall((head + "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n").encode())
        reply = b""
        try:
            for _ in range(40):
                raw.sendall(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            reply = raw.recv(4096)
        except OSError:
            pass
        assert b" 413 " in reply


def raw_socket(owner):
    parts = urllib.parse.urlsplit(owner.url)
    made = socket.create_connection((parts.hostname, parts.port), timeout=15)
    return made


LORIS = [
    b"", b"GET /healthz HTTP/1.1\r\nHost: 127",
    b"POST /api/console/plan HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{",
]  # fmt: skip


@pytest.mark.parametrize("first", LORIS)
def test_slow_loris_is_cut_off(owner, first):
    with closing(raw_socket(owner)) as raw:
        raw.sendall(first)
        began, cut = time.monotonic(), False
        while time.monotonic() - began < 12:
            try:
                raw.sendall(b"X" if first else b"")
                raw.settimeout(0.3)
                if raw.recv(4096) == b"":
                    cut = True
                    break
            except TimeoutError:
                continue
            except OSError:
                cut = True
                break
        assert cut


def test_a_client_that_says_nothing_is_hung_up_on(owner):
    with Line(owner) as line, pytest.raises(ConnectionClosed) as closed:
        line.socket.recv(timeout=20)
    assert closed.value.rcvd.reason == "too-slow"


def test_too_many_connections_of_one_token_are_refused(owner):
    lines = []
    try:
        with pytest.raises(InvalidStatus) as refused:
            for _ in range(12):
                lines.append(Line(owner, "bob"))
                lines[-1].__enter__()
        assert json.loads(refused.value.response.body)["code"] == "too-many"
    finally:
        for line in lines[:-1]:
            line.__exit__(None, None, None)


def test_nonsense_does_not_fill_the_log(owner, line):
    """Every refusal is counted; a few of them a second are written out, and one line says how many were not."""
    log, metrics = owner.folder / "node.log", owner.node.metrics
    owner.node.log.tidy()
    began, size, before = time.monotonic(), len(log.read_text().splitlines()), metrics.refusals["bad-request"]
    for _ in range(500):
        assert line.code(b"\xc1") == "bad-request"
    seconds = time.monotonic() - began
    assert metrics.refusals["bad-request"] - before == 500
    time.sleep(1.0)  # until the last second is over
    owner.node.log.tidy()
    lines = [json.loads(entry) for entry in log.read_text().splitlines()[size:]]
    written = [entry for entry in lines if entry["event"] == "refused"]
    left_out = sum(entry["count"] for entry in lines if entry["event"] == "left-out")
    assert len(written) + left_out == 500
    assert len(written) <= LINES_PER_SECOND * (seconds + 2)
    assert len(lines) <= 2 * LINES_PER_SECOND * (seconds + 3)


def test_messages_faster_than_allowed_are_refused(strict):
    with Line(strict) as line:
        assert "too-fast" in [line.code(b"\xc0") for _ in range(12)]


# -- paths and pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/..", "/../owner.toml", "/%2e%2e/owner.toml", "/static/../tokens.json", "/console.js/../../config.py", "//etc/passwd",
     "/people.csv", "/tokens.json", "/owner.ledger", "/console.html%00", "/docs", "/redoc", "/.env", "/api/console/../../x"],
)  # fmt: skip
def test_paths_lead_to_pages_and_nowhere_else(owner, path):
    with closing(raw_socket(owner)) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        reply = b""
        while part := raw.recv(65536):
            reply += part
    hear(owner, reply)
    assert reply.split(b" ")[1] in (b"404", b"400"), reply[:200]


def test_every_answer_carries_the_policy(owner):
    import urllib.request

    with urllib.request.urlopen(f"{owner.url}/") as page:
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["X-Frame-Options"] == "DENY"
        assert "Server" not in page.headers


def test_wrong_methods_and_bodies_have_codes(owner):
    token = owner.tokens["owner"]
    assert ask(owner, "/api/console/pause", token, method="GET")[1]["code"] == "wrong-method"
    assert ask(owner, "/nothing")[1]["code"] == "not-found"
    for body in (b"", b"[]", b"{", b'{"x": 1}', b"\xff\xfe", b'"' + b"a" * 1000):
        assert ask(owner, "/api/console/pause", token, body)[1]["code"] == "bad-request", body
    plan = {"study": "mean", "epsilon": 1.0, "delta": 1e-6, "n": 1000}
    for change in (
        {"study": "../x"},
        {"epsilon": -1},
        {"epsilon": "1"},
        {"n": 1.5},
        {"n": 1},
        {"delta": 2},
        {"more": 1},
    ):
        said = ask(owner, "/api/console/plan", token, json.dumps(plan | change).encode())[1]
        assert said["code"] in ("bad-request", "not-found"), change
    assert ask(owner, "/api/console/revoke", token, b'{"name": "nobody"}')[1]["code"] == "not-found"


def test_metrics_hold_counts_and_budgets_only(owner):
    text = ask(owner, "/metrics", owner.tokens["watch"])[1]
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names <= {
        "sfumato_answers_total", "sfumato_numbers_total", "sfumato_refusals_total", "sfumato_runs_opened_total",
        "sfumato_spent_total", "sfumato_start_time_seconds", "sfumato_connections", "sfumato_paused",
        "sfumato_budget_cap_mu_squared", "sfumato_budget_spent_mu_squared",
    }  # fmt: skip
    assert "_bucket" not in text and "seconds_sum" not in text


def test_the_log_has_no_numbers_of_answers_and_no_time_finer_than_a_second(owner, line):
    reply = line.say(pack(Ask("logged", ratio())))[1]
    number = msgspec.msgpack.decode(reply)["numbers"][0]
    text = (owner.folder / "node.log").read_text()
    assert str(number) not in text
    assert all("." not in json.loads(entry)["at"] for entry in text.splitlines())


def test_a_run_that_fails_inside_says_internal_and_logs_no_message(owner, line, monkeypatch):
    secret = f"record {CANARIES[0]}"

    def broken(*_):
        raise ValueError(secret)

    monkeypatch.setattr("sfumato.vault.desk.Desk.answer_bytes", broken)
    assert line.code(pack(Ask("boom", ratio()))) == "internal"
    assert secret not in (owner.folder / "node.log").read_text()


def test_schemathesis_finds_nothing(owner):
    schema = schemathesis.openapi.from_dict(json.loads(json.dumps(ask(owner, "/openapi.json")[1])))
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 9
    with requests.Session() as session:
        for operation in operations:
            attack_operation(owner, operation, session)


def attack_operation(owner, operation, session):
    """Well-formed and malformed requests, with three kinds of token; every answer has a documented status, type and shape."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from schemathesis.generation import GenerationMode

    statuses = set()

    @settings(
        max_examples=20, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(data=st.data())
    def attack(data):
        mode = data.draw(st.sampled_from(GenerationMode)) if operation.body else GenerationMode.POSITIVE
        case = data.draw(operation.as_strategy(generation_mode=mode))
        who = data.draw(st.sampled_from(("owner", "alice", "watch")))
        if who == "owner" and operation.path.endswith(("pause", "revoke")):
            who = "alice"  # the owner would be obeyed
        attack_once(case, owner.tokens[who])

    def attack_once(case, token):
        answer = case.call(base_url=owner.url, session=session, headers={"Authorization": f"Bearer {token}"})
        hear(owner, answer.content)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            said = answer.json()
            assert said["code"] in CATALOGUE and said["status"] == answer.status_code

    attack()
    attack_once(operation.Case(), "nonsense")
    assert statuses & ({200} if operation.path == "/healthz" else {401, 403})


def test_the_client_sees_refusals_as_the_librarys_own_errors(owner):
    remote = sf.connect(owner.url, token=owner.tokens["alice"])
    name, study, n = remote.study(load(owner.folder, "mean"), kernel="guided")
    assert (name, n) == ("mean", N)
    door = remote.door(name, study.model.fingerprint(), epsilon=1.0, delta=1e-6, run_id="client")
    with pytest.raises(sf.errors.OwnerRefused) as refused:
        door.begin(Terms(kernel="walk", chains=1, sigma=1e-9, gamma=1e-20))
    assert refused.value.code == "sigma-too-small"
    assert str(CANARIES[0]) not in str(refused.value)
    door.close()
    assert encode(study and ratio())


def test_every_refusal_has_a_line_in_the_manual():
    from pathlib import Path

    manual = (Path(__file__).parents[2] / "docs" / "how-to" / "run-a-node.md").read_text()
    for code, entry in CATALOGUE.items():
        assert f"| `{code}` | {entry.status} | {entry.sentence} |" in manual, code
