"""Write the pages of this folder that the code declares: keys of both kinds of file, commands, public Python names.

Run it with `make reference` after a key, a command or a public name was added, or its sentence changed.
"""

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec
from typer.main import get_command

import sfumato
from sfumato.cli import EPILOG, app
from sfumato.files.owners import PLACES
from sfumato.files.schema import REST, Key, keys
from sfumato.files.study import StudyTables
from sfumato.node.config import OwnerTables

HEAD = "| key | what it takes | default | meaning |\n|---|---|---|---|\n"
STUDY = """# The keys of a study file

`sfumato plan`, `run`, `estimate` and `resume` read it. A complete one is `examples/01_coin/study.toml`. Several owners are
explained in [several owners](../how-to/several-owners.md#in-a-study-file), nodes in
[run a node](../how-to/run-a-node.md#the-analyst). Paths start from the folder of the file.
"""
OWNER = """# The keys of an owner's file

`sfumato serve` reads it, `sfumato init` writes one with every key. How a node is run:
[run a node](../how-to/run-a-node.md). Paths start from the folder of the file.
"""
FOOT = "\nA key that is not known is an error. (`python docs/reference/write.py` wrote this page from the code.)\n"

COMMANDS = """# Commands

`sfumato COMMAND --help` says the same in a terminal. Options in **bold** must be given.
"""
PYTHON = """# Python

`import sfumato as sf`: every name below is `sf.NAME`. A name is loaded when it is first used.
"""
NAMES = {
    "Ask": ["plan", "sample", "resume", "estimate", "audit", "certify"],
    "What comes back": ["Run", "StopReason", "Estimate", "Plan", "Audit", "load"],
    "Records and who holds them": ["Owner", "connect", "RayTable", "Bundle", "release", "Ledger"],
    "Where a record lives": ["Binary", "Interval", "Integers", "Categories", "Box", "Ball"],
    "Models": ["Model", "from_pymc", "robust"],
    "How far a record can move an answer": ["Clip", "Lipschitz", "Range"],
}
"""The public names in the order in which they are met."""
MODULES = {
    "families": "Exponential families",
    "errors": "Errors",
    "gdp": "Privacy accounting",
    "kernel": "Kernels",
    "paper": "The paper's results",
}
"""The public modules: each has a page."""


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


def commands(command: Any, path: tuple[str, ...] = ("sfumato",)) -> str:
    """One command with its arguments and options, then those below it."""
    inner = getattr(command, "commands", {})
    said = cleandoc(command.help or "")
    text = f"\n## `{' '.join(path)}`\n\n{said}\n" if len(path) > 1 else ""
    rows = "".join(option(given) for given in command.params if not given.hidden and len(path) > 1 and not inner)
    if rows:
        text += f"\n| argument or option | default | meaning |\n|---|---|---|\n{rows}"
    return text + "".join(commands(one, (*path, name)) for name, one in inner.items())


def option(given: Any) -> str:
    """One argument or option."""
    positional = given.param_type_name == "argument"
    name = given.name.upper() if positional else ", ".join([*given.opts, *given.secondary_opts])
    plain = given.default not in (None, False, [], ()) and not callable(given.default)
    default = f"`{given.default}`" if plain else ""
    return f"| {'**' if given.required else ''}`{name}`{'**' if given.required else ''} | {default} | {given.help} |\n"


def documented(name: str, home: Any) -> str:
    """The directive that takes a name's docstring into the page."""
    kind = getattr(home, name)
    if isinstance(kind, type):
        what = "autoexception" if issubclass(kind, BaseException) else "autoclass"
        return f".. {what}:: {home.__name__}.{name}\n   :members:\n"
    return f".. {'autofunction' if callable(kind) else 'autodata'}:: {home.__name__}.{name}\n"


def directives(names: list[str], home: Any) -> str:
    """Names of one module, for Sphinx."""
    return "\n```{eval-rst}\n" + "\n".join(documented(name, home) for name in names) + "```\n"


def public(module: Any) -> list[str]:
    """What a module offers: its `__all__`, or what it defines itself."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    names = getattr(module, "__all__", own)
    return [name for name in names if not name.startswith("_") and callable(getattr(module, name))]


def python() -> dict[str, str]:
    """The pages of public Python names."""
    listed = {name for names in NAMES.values() for name in names} | set(MODULES) | {"__version__"}
    if listed != set(sfumato.__all__):
        raise SystemExit(f"NAMES and MODULES must list what is public; they differ in {listed ^ set(sfumato.__all__)}.")
    index = PYTHON + "".join(f"\n## {head}\n{directives(names, sfumato)}" for head, names in NAMES.items())
    index += (
        "\n## Modules\n\n```{toctree}\n:maxdepth: 1\n\n" + "\n".join(f"python-{name}" for name in MODULES) + "\n```\n"
    )
    made = {"python.md": index}
    for name, head in MODULES.items():
        module = getattr(sfumato, name)
        said = f"\n```{{eval-rst}}\n.. automodule:: {module.__name__}\n```\n"
        made[f"python-{name}.md"] = f"# {head}: `sf.{name}`\n{said}{directives(public(module), module)}"
    return made


def pages() -> dict[str, str]:
    """Every page by its name."""
    owners = {f"[[owners]] with {place}": kind for place, kind in PLACES.items()}
    return {
        **python(),
        "commands.md": f"{COMMANDS}{commands(get_command(app))}\n## Exit codes\n\n{EPILOG}\n",
        "study-file.md": page(STUDY, {"": StudyTables, **owners}),
        "owner-file.md": page(OWNER, {"": OwnerTables}),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")
