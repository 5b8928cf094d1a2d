"""Starts a node per line of standard input, by forking a process that has everything imported and nothing running.

A line is JSON, ``[PATH, MODE, COUNT]``: the child serves the owner's file and kills itself with SIGKILL at the COUNT-th moment of
that MODE, or lives until somebody else does. The pid is answered. Forking saves the imports, which are most of a start.
"""

import json
import os
import signal
import sys
from pathlib import Path

import sfumato.node.serve as serving
from sfumato.node.config import read_owner
from sfumato.node.state import Node
from sfumato.vault.ledger import Account, Journal, Ledger
from sfumato.vault.sealed.book import SealBook
from sfumato.vault.sealed.session import RunKeys


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bomb(owner: type, name: str, count: int, *, after: bool) -> None:
    """Let the count-th call of a method be the last thing this process does."""
    original, calls = getattr(owner, name), 0

    def armed(*arguments, **options):
        nonlocal calls
        calls += 1
        mine = calls  # another thread may be called while this one is at work
        if mine == count and not after:
            die()
        result = original(*arguments, **options)
        if mine == count and after:
            die()
        return result

    setattr(owner, name, armed)


MOMENTS = {
    "before-reserve": (Account, "reserve_up_to", False),
    "after-reserve": (Account, "reserve_up_to", True),
    "before-answer": (Journal, "append", False),
    "after-answer": (Journal, "append", True),  # kept, not yet sent
    "in-fold": (Journal, "_store", True),  # in the ledger, and still in the journal
    "handshake": (Node, "handshake", False),
    "open": (Node, "open_run", True),
    "account": (Ledger, "account", True),
    "key-made": (SealBook, "next_epoch", True),  # its epoch is known, and nobody has heard of the key
    "key-noted": (SealBook, "note_key", True),
    "agreed": (RunKeys, "agree", True),
    "begun": (RunKeys, "begin", True),  # paid for, and not drawn
    "sealed": (RunKeys, "seal", True),  # drawn and masked, and not stored
}


def child(path: Path, mode: str, count: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if mode in MOMENTS:
        owner, name, after = MOMENTS[mode]
        bomb(owner, name, count, after=after)
    serving.serve(read_owner(path))


def main() -> None:
    from jax._src import xla_bridge

    assert not xla_bridge._backends, "a fork must come before JAX starts its threads"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    for line in sys.stdin:
        path, mode, count = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(0)
            try:
                child(Path(path), mode, count)
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
