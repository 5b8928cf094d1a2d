"""Three owners' folders, each with a table, the approved study, a budget and tokens; and their nodes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from sfumato.demo.consortium import DELTA, visits
from sfumato.demo.consortium.tables import COLUMNS, GUESS, Insurer
from sfumato.errors import OwnerLost
from sfumato.node.process import NodeProcess, running
from sfumato.node.tokens import TokenFile
from sfumato.tools.progress import Tick
from sfumato.vault.sealed.identity import Identity

FILE = """# Written by `sfumato demo consortium`; `sfumato init` writes one of your own, with every key explained.
name = "{name}"
log = "node.log"

[data]
path = "records.csv"

{domain}
[studies.visits]
model = "visits.py:visits"
guess = {{ {guess} }}

[budgets]
total = {{ epsilon = {epsilon!r}, delta = {delta!r} }}

[limits]
shutdown_seconds = 2.0

[consortium]
name = "insurers"
colluders = {colluders}
unsealed = true

[consortium.members]
{members}
"""
COLLUDERS = 1
"""Others that each insurer assumes to work with the analyst."""
A_DAY = 1.0


class Owner(NamedTuple):
    """An insurer whose node is up: where, and the tokens to it (they live for a day, and as long as the node)."""

    insurer: Insurer
    node: NodeProcess
    folder: Path
    owner_token: str
    analyst_token: str

    @property
    def name(self) -> str:
        """What it is called."""
        return self.insurer.name

    def console(self) -> dict[str, Any]:
        """What its console shows at this moment."""
        try:
            state: dict[str, Any] = self.node.get("/api/console/state", self.owner_token)
        except OSError as error:
            raise OwnerLost(
                f"the node of {self.name!r} does not answer any more ({type(error).__name__}); what was drawn is saved.",
                owner=self.name,
            ) from None
        return state


@contextmanager
def owners(insurers: list[Insurer], epsilon: float, progress: bool | Tick | None = None) -> Iterator[list[Owner]]:
    """Every insurer's own node, up and running; at the end they and their folders are gone."""
    with TemporaryDirectory(prefix="sfumato-consortium-", ignore_cleanup_errors=True) as place:
        folders = [Path(place) / insurer.name.lower().replace(" ", "-") for insurer in insurers]
        for folder in folders:
            folder.mkdir()
        keys = [Identity.new(folder / "identity.key").public for folder in folders]
        members = "\n".join(f'"{insurer.name}" = "{key}"' for insurer, key in zip(insurers, keys, strict=True))
        books = [_write(folder, insurer, epsilon, members) for folder, insurer in zip(folders, insurers, strict=True)]
        files = [(insurer.name, folder / "owner.toml") for insurer, folder in zip(insurers, folders, strict=True)]
        tokens = [(book.add("owner", "owner", days=A_DAY), book.add("analyst", days=A_DAY)) for book in books]
        with running(files, progress) as nodes:
            everyone = zip(insurers, nodes, folders, tokens, strict=True)
            yield [Owner(insurer, node, folder, *pair) for insurer, node, folder, pair in everyone]


def _write(folder: Path, insurer: Insurer, epsilon: float, members: str) -> TokenFile:
    rows = np.stack([insurer.records[name] for name in COLUMNS], axis=1)
    np.savetxt(folder / "records.csv", rows, fmt="%d", delimiter=",", header=",".join(COLUMNS), comments="")
    (folder / "visits.py").write_bytes(Path(visits.__file__).read_bytes())
    domain = "\n".join(f'[domain.{name}]\nkind = "binary"\n' for name in COLUMNS)
    guess = ", ".join(f"{name} = {value}" for name, value in GUESS.items())
    text = FILE.format(
        name=insurer.name, domain=domain, guess=guess, epsilon=float(epsilon), delta=DELTA, members=members,
        colluders=COLLUDERS,
    )  # fmt: skip
    (folder / "owner.toml").write_text(text, encoding="utf-8")
    return TokenFile(folder / "tokens.json")
