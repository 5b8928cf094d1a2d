"""The shape of the package, kept by reading every module's syntax tree: who may import whom, and what is nobody else's."""

import ast
from pathlib import Path

import pytest

import sfumato

SOURCE = Path(sfumato.__file__).parent
MODULES = {
    ".".join(("sfumato", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
ORDER = (
    "errors", "tools", "domain", "privacy", "paper", "protocol", "model", "bounds", "families", "kernel", "study", "vault",
    "planner", "analysis", "owners", "files", "run", "auditor", "node", "demo", "cli",
)  # fmt: skip
"""Rooms from the ground up: each may import those before it. An import inside a function, or for types alone, counts too."""
ALONE = {"errors": set(), "protocol": {"errors"}, "kernel": {"errors"}}
"""What the innermost rooms may import at the most."""


def room(module: str) -> str:
    return module.split(".")[1]


def imported(tree: ast.AST) -> set[str]:
    """Every module of the package that a tree imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {
                full if (full := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names
            }
    return {name for name in names if name in MODULES and name != "sfumato"}


INSIDE = [name for name in MODULES if name != "sfumato"]


@pytest.mark.parametrize("name", INSIDE)
def test_imports_flow_one_way(name):
    above = {other for other in imported(TREES[name]) if ORDER.index(room(other)) > ORDER.index(room(name))}
    assert not above


@pytest.mark.parametrize("name", [name for name in INSIDE if room(name) in ALONE])
def test_the_innermost_rooms_know_of_nobody(name):
    assert {room(other) for other in imported(TREES[name])} <= ALONE[room(name)] | {room(name)}


@pytest.mark.parametrize("name", INSIDE)
def test_nobody_imports_the_package_as_a_whole(name):
    """`import sfumato` inside the package would tie every room to every other one."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            assert "sfumato" not in {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "sfumato":
            assert all(f"sfumato.{alias.name}" in MODULES for alias in node.names), ast.unparse(node)


@pytest.mark.parametrize("name", INSIDE)
def test_no_function_of_another_module_is_called_by_its_underscore(name):
    tree = TREES[name]
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if f"{node.module}.{alias.name}" in MODULES
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sfumato"):
            assert not [a.name for a in node.names if a.name.startswith("_") and not a.name.startswith("__")]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert node.attr.startswith("__") or not node.attr.startswith("_"), f"{node.value.id}.{node.attr}"


def test_the_root_holds_public_names_alone():
    loose = {path.stem for path in SOURCE.glob("*.py")}
    assert loose == {"__init__", "domain", "errors"}


def test_every_room_is_in_the_order():
    assert {room(name) for name in INSIDE} == set(ORDER)


def test_the_decision_is_made_in_one_place():
    """`accepts`, the penalty rule, is called once; there is one `resume`, and one `sample`."""
    calls = [
        (name, node.lineno)
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "accepts"
    ]
    assert [name for name, _ in calls] == ["sfumato.kernel.penalty"]
    functions = [node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions.count("resume") <= 2  # the library's, and the command
    assert sum("sample" == node for node in functions) <= 2
