"""``python -m sfumato.cli.child ARGUMENTS``: the command ``sfumato ARGUMENTS``, which ends when whoever started it does.

Standard input is a pipe that the other side holds open. Its end, also by a kill that nobody can catch, closes the pipe.
"""

import os
import signal
import sys
import threading

from sfumato.cli import main


def _follow() -> None:
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be in the way at the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_follow, daemon=True).start()
    sys.exit(main())
