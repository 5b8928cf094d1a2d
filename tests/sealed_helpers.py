"""Members of a consortium in one process, for tests of sealed sums."""

import numpy as np

from sfumato.errors import KeysGone
from sfumato.owners.local import LocalDoor, facts_of
from sfumato.owners.sealing import Sealing
from sfumato.vault import engine, records
from sfumato.vault.desk import Desk
from sfumato.vault.ledger import Ledger
from sfumato.vault.sealed.consortium import Consortium
from sfumato.vault.sealed.identity import Identity

NAMES = ("a", "b", "c")
CAP = 2**60


def parts_of(table, count):
    """A table cut into so many, unequal ones."""
    n = len(next(iter(table.values())))
    cuts = np.cumsum([n // count + 7 * (i - 1) for i in range(count - 1)])
    return [
        dict(zip(table, columns, strict=True))
        for columns in zip(*(np.split(v, cuts) for v in table.values()), strict=True)
    ]


class House:
    """Some owners with their tables, sealed or not; `source` makes each one's noise."""

    def __init__(self, study, tables, *, sealed, colluders=1, source=None, cap=CAP, run="run", members=None):
        names = [chr(ord("a") + i) for i in range(len(tables))]
        self.members = members or Consortium.among(names, colluders=colluders)
        self.ledgers, self.doors = [], []
        for i, (name, table) in enumerate(zip(names, tables, strict=True)):
            ledger, everybody = Ledger.in_memory(cap), Ledger.in_memory(cap)
            self.ledgers += [ledger, everybody]
            loaded = records.load(table, study.domain)
            how = engine.LocalEngine(loaded, study)
            keys = self.members[name].run(run, study.model.fingerprint(), how.n) if sealed else None
            account = everybody.account(run, cap) if sealed else None
            noise = None if source is None else (lambda scale, i=i: source(scale, i))
            desk = Desk(how, study, ledger.account(run, cap), source=noise, keys=keys, everybody=account)
            self.doors.append(LocalDoor(desk, facts_of(study, desk, name, 1.0, 1e-6, 1.0, "refuse", "float64", True)))
        self.sealing = Sealing(self.doors) if sealed else None

    def agree(self):
        """Everybody's key messages, agreed on by all; gives the keyset."""
        messages = [door.key_message() for door in self.doors]
        (keyset,) = {door.agree(messages) for door in self.doors}
        return keyset

    def close(self):
        for door in self.doors:
            door.close()
        for ledger in self.ledgers:
            ledger.close()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()


__all__ = ["CAP", "NAMES", "House", "KeysGone", "parts_of", "prepare_members"]


TABLE = """
[consortium]
name = "coast"
colluders = {colluders}
unsealed = {unsealed}

[consortium.members]
"""


def prepare_members(folder, tables, *, colluders=1, unsealed="false", **options):
    """Folders of nodes that are one consortium, each with its identity; gives name -> (folder, tokens)."""
    from node_helpers import prepare

    made = {
        name: (folder / name, prepare(folder / name, values=values, name=name, **options))
        for name, values in tables.items()
    }
    keys = {name: Identity.new(place / "identity.key").public for name, (place, _) in made.items()}
    text = TABLE.format(colluders=colluders, unsealed=unsealed) + "".join(f'"{n}" = "{k}"\n' for n, k in keys.items())
    for place, _ in made.values():
        with (place / "owner.toml").open("a") as file:
            file.write(text)
    return made
