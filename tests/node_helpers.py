"""A real node for tests: on loopback, in a thread (where noise can be injected) or in a process (which can be killed)."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sfumato.node.config import read_owner
from sfumato.node.serve import server_for
from sfumato.node.state import Node
from sfumato.node.tokens import TokenFile

N = 3000
OWNER = """
name = "{name}"
log = "node.log"

[data]
path = "people.csv"

[domain.y]
kind = "binary"
columns = "said_yes"

{studies}

[budgets]
total = {{ epsilon = {total}, delta = 1e-5 }}
{budgets}

[listen]
port = {port}

[limits]
requests_per_second = 10000.0
begins_per_minute = 100000.0
{limits}
"""
MODEL = """
import numpyro
import numpyro.distributions as dist
import sfumato as sf


def coin(y):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(p), obs=y)


bern = sf.families.Bernoulli()
"""
YES = (np.arange(N) % 10 < 3).astype(int)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def prepare(
    folder: Path, *, limits: str = "", budgets: str = "", total: float = 8.0, values=YES, studies=("coin", "bern"),
    name: str = "St Elsewhere",
) -> dict[str, str]:  # fmt: skip
    """Write an owner's folder; return its tokens: alice and bob are analysts."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "\n".join(f"{i},{v}" for i, v in enumerate(values))
    (folder / "people.csv").write_text(f"person,said_yes\n{rows}\n")
    (folder / "model.py").write_text(MODEL)
    tables = "\n".join(f'[studies.{name}]\nmodel = "model.py:{name}"' for name in studies)
    text = OWNER.format(port=free_port(), limits=limits, budgets=budgets, total=total, studies=tables, name=name)
    (folder / "owner.toml").write_text(text)
    book = TokenFile(folder / "tokens.json")
    return {
        "alice": book.add("alice"), "bob": book.add("bob"), "owner": book.add("owner", "owner"),
        "watch": book.add("watch", "monitor"),
    }  # fmt: skip


def load(folder: Path, name: str):
    """The owner's own model, as the analyst would have it: the same file."""
    from sfumato.files.study import load_model

    return load_model(f"model.py:{name}", folder)


class Threaded:
    """A node in this process."""

    def __init__(self, folder: Path, source=None) -> None:
        self.file = read_owner(folder / "owner.toml")
        self.folder, self.url = folder, f"http://127.0.0.1:{self.file.listen.port}"
        self.node = Node(self.file, source=source)
        self._server = server_for(self.node)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for(self.url)

    def _run(self) -> None:
        asyncio.run(self._server.serve())

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def threaded(folder: Path, source=None):
    running = Threaded(folder, source)
    try:
        yield running
    finally:
        running.stop()


class Process:
    """A node in a process of its own."""

    def __init__(self, folder: Path, wait: bool = True) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{read_owner(folder / 'owner.toml').listen.port}"
        code = "import sys; from sfumato.cli import main; sys.exit(main())"
        self._out = (folder / "console.out").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", str(folder / "owner.toml")], stdout=self._out, stderr=self._out
        )  # fmt: skip
        if wait:
            wait_for(self.url, self.process)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._out.close()

    def stop(self) -> int:
        self.process.terminate()
        self._out.close()
        return self.process.wait(30)


@contextmanager
def process(folder: Path):
    running = Process(folder)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def wait_for(url: str, process=None, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process is None or process.poll() is None, "the node ended"
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the node did not start")


def call(url: str, token: str | None = None, body: bytes | None = None, method: str | None = None, headers=None):
    """Status and JSON of one HTTP request."""
    import json
    import urllib.error

    given = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
    if body is not None:
        given.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(url, data=body, headers=given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            raw, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        raw, status = error.read(), error.code
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw.decode()
