"""How fast a node answers, against a bare echo of the same bytes on the same machine, in the same minutes.

    python benchmarks/node.py            (two minutes; --seconds makes it shorter or longer)

Three servers run side by side: a `websockets` echo that does nothing, and a node on a one-dimensional family, asked by the
same client (`websockets`, one connection, one message at a time). Turns are taken in short slices, so that whatever else the
machine does falls on all alike. Every answer of the node is computed, noised, paid for and stored in its ledger before it is
sent. Wanted: one query a message at 0.6 of the echo's rate or more, and 64 chains to a message at ten times the answers or
more. Each kind of question is measured by itself; the ratio that counts is the worst. The exit code is 1 if either is missed.

On a machine with other work, who waits for a core decides the clock's ratio; so the processor time of client and server together,
echo's over node's, is shown beside it (one message at a time: on a quiet machine the two would be nearly the same).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import msgspec
from websockets.sync.client import connect as dial

from sfumato.node.config import read_owner
from sfumato.node.tokens import TokenFile
from sfumato.owners.remote import connect
from sfumato.protocol.frames import Ask, Begin, Open
from sfumato.protocol.questions import LANGEVIN, WALK, Linear, Ratio, Statistic, Terms
from sfumato.vault.lattice import choose_gamma

N = 20_000
MANY = 64
WANTED_RATE, WANTED_GAIN = 0.6, 10.0
OWNER = """
name = "Benchmark"
[data]
path = "people.csv"
[domain.y]
kind = "binary"
[studies.coin]
model = "model.py:coin"
[budgets]
total = { epsilon = 8.0, delta = 1e-3 }
[listen]
port = PORT
[limits]
messages_per_second = 1e9
requests_per_second = 1e9
"""
ECHO = """
import asyncio, sys
from websockets.asyncio.server import serve
async def echo(socket):
    async for message in socket:
        await socket.send(message)
async def main():
    async with serve(echo, "127.0.0.1", int(sys.argv[1]), compression=None):
        await asyncio.Future()
asyncio.run(main())
"""


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def prepare(folder: Path, port: int) -> str:
    (folder / "people.csv").write_text("y\n" + "\n".join(str(int(i % 10 < 3)) for i in range(N)) + "\n")
    (folder / "model.py").write_text("import sfumato as sf\ncoin = sf.families.Bernoulli()\n")
    (folder / "owner.toml").write_text(OWNER.replace("PORT", str(port)))
    file = read_owner(folder / "owner.toml")
    return TokenFile(file.place(file.tokens)).add("bench")


def wait_for(url: str) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=1).close()  # noqa: S310 (loopback)
            return
        except OSError:
            time.sleep(0.25)
    raise SystemExit("the node did not start")


def processor_seconds(pid: int) -> float:
    """User and system time of a process, all its threads; with the client's own."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()


class Asker:
    """One raw connection: what `RemoteDoor` sends, without its retries, so that both servers have the same client."""

    def __init__(self, url: str, token: str, opening: list[bytes], make: object, pid: int) -> None:
        self._pid, self.messages, self.processor = pid, 0, 0.0
        dialled = dial(url, compression=None, additional_headers={"Authorization": f"Bearer {token}"})
        self._socket = dialled.__enter__()  # it is closed with the process
        for message in opening:
            self._socket.send(message)
            reply = self._socket.recv()
            assert reply[0] == 0, reply
        self._make, self._turn = make, 0

    def slice(self, seconds: float) -> float:
        """Messages a second; they and their processor time are counted."""
        count, started, used = 0, time.perf_counter(), processor_seconds(self._pid)
        while (now := time.perf_counter()) - started < seconds:
            self._socket.send(self._make(self._turn))
            reply = self._socket.recv()
            assert reply[0] != 1, reply
            self._turn += 1
            count += 1
        self.messages += count
        self.processor += processor_seconds(self._pid) - used
        return count / (now - started)


def questions(chains: int) -> dict[str, tuple[Terms, object]]:
    def terms(kernel: str) -> Terms:
        more = {"matrix": [[0.02]], "proposal_sigma": 200.0, "proposal_gamma": choose_gamma(200.0, N)}
        return Terms(
            kernel=kernel, chains=chains, sigma=100.0, gamma=choose_gamma(100.0, N),
            **(more if kernel == LANGEVIN else {}),
        )  # fmt: skip

    def theta(turn: int) -> list[list[float]]:
        return [[-0.8 + 1e-4 * ((turn + chain) % 100)] for chain in range(chains)]

    asked = [True] * chains
    return {
        "statistic": (terms(LANGEVIN), lambda turn: Statistic(chains=chains)),
        "correction": (terms(LANGEVIN), lambda turn: Linear(direction=theta(turn), asked=asked)),
        "ratio": (terms(WALK), lambda turn: Ratio(theta=theta(turn), theta_prop=theta(turn + 1), asked=asked)),
    }


def askers(
    url: str, echo: str, token: str, models: list[str], pids: tuple[int, int]
) -> dict[tuple[str, int], tuple[Asker, Asker]]:
    encode = msgspec.msgpack.Encoder().encode
    out = {}
    for chains in (1, MANY):
        for kind, (terms, make) in questions(chains).items():
            model = models[0] if terms.kernel == LANGEVIN else models[-1]
            run = f"bench-{kind}-{chains}"
            opening = [
                encode(Open(study="coin", model=model, run=run, epsilon=4.0, delta=1e-4)),
                encode(Begin(terms=terms)),
            ]

            def message(turn: int, run: str = run, make: object = make) -> bytes:
                return encode(Ask(f"{run}/{turn}", make(turn)))

            node = Asker(url, token, opening, message, pids[0])
            out[kind, chains] = (node, Asker(echo, "", [], message, pids[1]))
    return out


def measure(seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder, port, other = Path(name), free_port(), free_port()
        token = prepare(folder, port)
        env = os.environ | {"SFUMATO_STATE": name}
        node = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", "from sfumato.cli import main; raise SystemExit(main())", "serve",
             str(folder / "owner.toml")], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        echo = subprocess.Popen([sys.executable, "-c", ECHO, str(other)])  # noqa: S603
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz")
            owner = connect(f"http://127.0.0.1:{port}", token=token)
            pairs = askers(
                f"ws://127.0.0.1:{port}/ws", f"ws://127.0.0.1:{other}", token, owner.studies["coin"].models,
                (node.pid, echo.pid),
            )  # fmt: skip
            return compare(pairs, seconds)
        finally:
            node.terminate()
            echo.terminate()
            node.wait(30)
            echo.wait(30)


def compare(pairs: dict[tuple[str, int], tuple[Asker, Asker]], seconds: float) -> dict[str, object]:
    turn = 0.4
    rounds = max(3, int(seconds / (len(pairs) * 2 * turn)))
    for node, echo in pairs.values():
        node.slice(0.2), echo.slice(0.2)  # warm up
    rates: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in pairs}
    for _ in range(rounds):
        for key, (node, echo) in pairs.items():
            rates[key].append((node.slice(turn), echo.slice(turn)))
    rows = {}
    for (kind, chains), found in rates.items():
        ratio = statistics.median(ours / bare for ours, bare in found)
        ours = statistics.median(ours for ours, _ in found)
        rows[f"{kind} x {chains}"] = {
            "messages_per_second": round(ours), "answers_per_second": round(ours * chains),
            "echo_per_second": round(statistics.median(bare for _, bare in found)), "ratio_to_echo": round(ratio, 3),
            "ratio_by_processor_time": round(by_processor(*pairs[kind, chains]), 3),
        }  # fmt: skip
    gains = {
        kind: round(rows[f"{kind} x {MANY}"]["answers_per_second"] / rows[f"{kind} x 1"]["answers_per_second"], 1)
        for kind in ("statistic", "correction", "ratio")
    }
    worst = min(row["ratio_to_echo"] for name, row in rows.items() if name.endswith(" x 1"))
    return {"rows": rows, "gain_of_64_chains": gains, "worst_ratio": worst, "verdict": verdict(rows, gains)}


def by_processor(node: Asker, echo: Asker) -> float:
    return (echo.processor / echo.messages) / (node.processor / node.messages)


def verdict(rows: dict[str, dict[str, float]], gains: dict[str, float]) -> dict[str, bool]:
    """What was wanted, and whether it was reached."""
    ones = {name: row["ratio_to_echo"] for name, row in rows.items() if name.endswith(" x 1")}
    reached = {f"{name}: {WANTED_RATE:g} of the echo": ratio >= WANTED_RATE for name, ratio in ones.items()}
    return reached | {
        f"{kind} x {MANY}: {WANTED_GAIN:g} times x 1": gain >= WANTED_GAIN for kind, gain in gains.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.seconds)
    if options.json:
        print(json.dumps(found, indent=2))
        return int(not all(found["verdict"].values()))
    for name, row in found["rows"].items():
        print(f"{name:<18} {row['messages_per_second']:>7,} messages/s {row['answers_per_second']:>9,} answers/s"
              f"   echo {row['echo_per_second']:>7,}/s   ratio {row['ratio_to_echo']:.2f}"
              f"   by processor time {row['ratio_by_processor_time']:.2f}")  # fmt: skip
    for kind, gain in found["gain_of_64_chains"].items():
        print(f"64 chains to a message, {kind}: {gain:.1f} times the answers (wanted {WANTED_GAIN:g})")
    print(f"worst ratio to the echo, one query a message: {found['worst_ratio']:.2f} (wanted {WANTED_RATE:g})")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for wanted, reached in found["verdict"].items():
        print(f"{'reached' if reached else 'MISSED '} {wanted}")
    return int(not all(found["verdict"].values()))


if __name__ == "__main__":
    sys.exit(main())
