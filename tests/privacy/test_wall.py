"""The wall: only `vault/` can reach a record or draw secret noise. Kept by reading every module's syntax tree."""

import ast
import inspect
from pathlib import Path

import pytest

import sfumato
import sfumato.run.sampling

SOURCE = Path(sfumato.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
OUTSIDE = [path for path in MODULES if "vault" not in path.relative_to(SOURCE).parts]
OPEN_MODULES = ("ledger", "lattice", "noise", "memory", "ray_table", "sealed")
"""Of `vault/`, what others may import: none of these sees a record. Whatever else is in it, or will be, is private."""
ALSO = {
    "cli/doctor.py": ("gaussian",),  # it draws from the noise sources to test them
    "node/state.py": ("table",),  # a node gives the path of its table to a closed one
    "auditor/attack.py": ("audit_vault",),  # the auditor attacks a vault with made-up records
    "auditor/trials.py": ("audit_vault",),
}
DOOR = {"owners/local.py"}
"""The one module outside that hands data in (it loads them into the vault and keeps no reference)."""
ENTROPY = {"SystemRandom", "urandom", "getrandom", "opendp"}
DATA_READERS = {"pyarrow", "read_csv", "read_parquet", "ParquetFile"}


def imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def private_imports(tree: ast.AST, allowed: tuple[str, ...] = OPEN_MODULES) -> set[str]:
    reached = {name for name in imports(tree) if name.startswith("sfumato.vault.")}
    return {name for name in reached if name.split(".")[2] not in allowed}


def words(tree: ast.AST) -> set[str]:
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {part for name in imports(tree) for part in name.split(".")}


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_outside_reaches_the_private_ones(path):
    where = str(path.relative_to(SOURCE))
    if where in DOOR:
        return
    assert not private_imports(ast.parse(path.read_text()), (*OPEN_MODULES, *ALSO.get(where, ())))


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_outside_draws_secret_noise_or_reads_tables(path):
    found = words(ast.parse(path.read_text()))
    allowed = {
        "cli/doctor.py",
        "demo/census.py",
    }  # doctor tests the noise source; the demo's data are public and are passed in
    if str(path.relative_to(SOURCE)) in allowed:
        return
    assert not found & ENTROPY
    if path.name != "bundle_file.py":  # bundles hold released values, never records
        assert not found & DATA_READERS


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_outside_touches_a_vaults_private_attributes(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"_records", "_kept", "_pool"}, ast.dump(node)


def test_only_the_auditor_opens_a_vault_whose_account_can_be_exchanged():
    users = {
        path.relative_to(SOURCE)
        for path in MODULES
        if "sfumato.vault.audit_vault" in imports(ast.parse(path.read_text()))
    }
    assert users == {Path("owners/local.py"), Path("auditor/attack.py"), Path("auditor/trials.py")}
    callers = {path.relative_to(SOURCE) for path in MODULES if "open_audit_vault" in words(ast.parse(path.read_text()))}
    assert callers == {Path("auditor/attack.py")}


def test_the_audit_takes_no_data():
    names = set(inspect.signature(sfumato.audit).parameters)
    assert not names & {"data", "ledger", "columns", "outside", "owner"}


def test_the_walls_tests_can_fail():
    tree = ast.parse("from sfumato.vault.records import load\nimport os\nx = os.urandom(3)\nvault._records")
    assert private_imports(tree) == {"sfumato.vault.records", "sfumato.vault.records.load"}
    assert words(tree) & ENTROPY


def test_public_functions_offer_no_way_to_choose_or_silence_the_noise():
    public = (
        sfumato.run.sampling.sample,
        sfumato.run.sampling.resume,
        sfumato.run.sampling.plan,
        sfumato.release,
        sfumato.audit,
    )
    for function in public:
        names = set(inspect.signature(function).parameters)
        assert not names & {"source", "noise", "noise_seed", "rng", "key", "sigma"}


def test_no_module_of_the_vault_uses_a_seeded_generator():
    for path in MODULES:
        if path not in OUTSIDE:
            found = words(ast.parse(path.read_text()))
            assert not found & {"default_rng", "PRNGKey", "RandomState", "Generator"}, path
