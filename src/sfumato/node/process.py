"""Nodes as processes of this machine: ``sfumato serve``, started, waited for, and stopped whatever happens."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sfumato.errors import OwnerError
from sfumato.tools.progress import Tick, ticker

START_SECONDS = 120.0
"""Until a node must be up: it imports a good deal, and the machine may be busy."""
STOP_SECONDS = 15.0
"""From the request to end to the one that cannot be refused."""
OUTPUT = "serve.out"


class NodeProcess:
    """One node in a process of its own, on loopback.

    Parameters
    ----------
    path
        The owner's file.
    name
        What the owner is called in messages.
    port
        Where it listens, whatever the file says.
    """

    def __init__(self, path: Path, name: str, port: int) -> None:
        self.path, self.name, self.address = path, name, f"http://127.0.0.1:{port}"
        self._output = path.parent / OUTPUT
        # -P: whatever lies in the current folder is not imported.
        command = [sys.executable, "-P", "-m", "sfumato.cli.child", "serve", str(path), "--port", str(port)]
        with self._output.open("ab") as output:
            # A session of its own: Ctrl-C is for whoever asks, and the nodes answer until it has come to an end.
            self.process = subprocess.Popen(  # noqa: S603 (this interpreter, this package, the owner's file)
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Wait until it answers.

        Raises
        ------
        OwnerError
            It ended, or is not up in time; with the last thing it said.
        """
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            try:
                self.get("/healthz", timeout=2.0)
                return
            except OSError:
                time.sleep(0.1)
        raise OwnerError(f"the node of {self.name!r} did not start: {self._said()}", owner=self.name)

    def get(self, path: str, token: str | None = None, timeout: float = 30.0) -> Any:
        """Ask one of its JSON addresses, with a token where one is needed; past any proxy."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.address + path, headers=headers)  # noqa: S310 (http, loopback)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=timeout) as answer:
            return json.load(answer)

    def ask_to_stop(self) -> None:
        """Let it finish what is under way and settle its ledger."""
        if self.process.poll() is None:
            self.process.terminate()

    def stop(self) -> None:
        """Make sure that it is gone."""
        self.ask_to_stop()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            if self.process.stdin is not None:
                self.process.stdin.close()

    def _said(self) -> str:
        lines = self._output.read_text(encoding="utf-8", errors="replace").split("\n")
        last = " ".join(line.strip() for line in lines if line.strip())[-400:]
        return last or "it said nothing; look whether the machine is out of memory."


@contextmanager
def running(owners: Sequence[tuple[str, Path]], progress: bool | Tick | None = None) -> Iterator[list[NodeProcess]]:
    """Serve the files of some owners, given by name, at once; stop all of them at the end, however it comes about.

    `progress` is that of `sfumato.sample`.
    """
    with ExitStack() as stack:
        nodes: list[NodeProcess] = []
        for (name, path), port in zip(owners, free_ports(len(owners)), strict=True):
            node = NodeProcess(path, name, port)
            stack.callback(node.stop)
            nodes.append(node)
        stack.callback(_ask_all, nodes)  # all at once; then each is waited for
        with ticker(progress) as tick:
            for up, node in enumerate(nodes):
                tick(up, len(nodes), "starting nodes")
                node.wait()
            tick(len(nodes), len(nodes), "nodes are up")
        yield nodes


def _ask_all(nodes: Sequence[NodeProcess]) -> None:
    for node in nodes:
        node.ask_to_stop()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on at the moment, all different."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
