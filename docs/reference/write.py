"""Write the pages of this folder: the keys of a study file and of an owner's file, as the code declares them.

Run it with `make reference` after a key was added, or its default or sentence changed.
"""

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from sfumato.files.owners import PLACES
from sfumato.files.schema import REST, Key, keys
from sfumato.files.study import StudyTables
from sfumato.node.config import OwnerTables

HEAD = "| key | what it takes | default | meaning |\n|---|---|---|---|\n"
STUDY = """# The keys of a study file

`sfumato plan`, `run`, `estimate` and `resume` read it. A complete one is `examples/01_coin/study.toml`; several owners are
explained in [several owners](../owners.md#in-a-study-file), nodes in [the data owner's node](../node.md#the-analyst). Paths
start from the folder of the file.
"""
OWNER = """# The keys of an owner's file

`sfumato serve` reads it, `sfumato init` writes one with every key. How a node is run: [the data owner's node](../node.md). Paths
start from the folder of the file.
"""
FOOT = "\nA key that is not known is an error. (`python docs/reference/write.py` wrote this page from the code.)\n"


def page(head: str, top: dict[str, type[msgspec.Struct]]) -> str:
    """Every table once, under all the names it has in the file."""
    names: dict[type[msgspec.Struct], list[str]] = {}
    for where, kind in top.items():
        collect(kind, where, names)
    return head + "".join(section(kind, ", ".join(filter(None, found))) for kind, found in names.items()) + FOOT


def collect(kind: type[msgspec.Struct], where: str, names: dict[type[msgspec.Struct], list[str]]) -> None:
    """A table and those in it, with the names they have in the file."""
    names.setdefault(kind, []).append(f"`{where}`" if where else "")
    for key in keys(kind).values():
        if key.table is not None:
            name = f"{key.name}.NAME" if key.named else key.name
            inner = f"{where[:-1]}.{name}]" if where.endswith("]") else f"{name} of {where}" if where else f"[{name}]"
            collect(key.table, inner, names)


def section(kind: type[msgspec.Struct], where: str) -> str:
    """The keys of one table."""
    said = " ".join(cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    heading = f"## {where}\n\n" if where else ""
    return f"\n{heading}{said}\n\n{HEAD}{''.join(map(row, keys(kind).values()))}"


def row(key: Key) -> str:
    """One key."""
    plain = key.default is not None and not key.table and key.default not in ([], {})
    default = "must be stated" if key.required else f"`{toml(key.default)}`" if plain else ""
    name, words = ("others", "") if key.name == REST else (f"`{key.name}`", key.words)
    return f"| {name} | {words} | {default} | {key.meaning} |\n"


def toml(value: Any) -> str:
    """A default as the file would state it."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def pages() -> dict[str, str]:
    """Every page by its name."""
    owners = {f"[[owners]] with {place}": kind for place, kind in PLACES.items()}
    return {
        "study-file.md": page(STUDY, {"": StudyTables, **owners}),
        "owner-file.md": page(OWNER, {"": OwnerTables}),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")
