"""What a sealed answer was paid for stays what is said of it: rosters, colluders, and the cap against everybody."""

import dataclasses

import numpy as np
import pytest

import sfumato as sf
from sealed_helpers import prepare_members
from sfumato.errors import CheckpointError, InvalidInput
from sfumato.node.books import Books
from sfumato.node.config import read_owner
from sfumato.privacy.promise import epsilon_of, lattice_slack
from sfumato.vault.sealed.consortium import Consortium

TABLES = {name: {"y": (np.arange(n) % 10 < 3).astype(int)} for name, n in (("a", 4000), ("b", 3000), ("c", 3500))}
SETTINGS = {
    "epsilon": 4.0, "delta": 1e-6, "chains": 2, "seed": 3, "force": True, "pilot_share": 0.0, "guess": {"p": 0.3},
    "kernel": "langevin", "progress": False,
}  # fmt: skip


def owners(members, ledgers):
    return [
        sf.Owner(table, name=name, ledger=ledgers.get(name), consortium=members[name]) for name, table in TABLES.items()
    ]


def test_a_sealed_run_on_a_shared_ledger_goes_on_and_with_no_more_colluders(tmp_path):
    """The second account is in the checkpoint: without it the run was lost, and with a new one it would be paid for twice."""
    family, members = sf.families.Bernoulli(), Consortium.among(list(TABLES), colluders=1)
    with sf.Ledger(tmp_path / "shared.sqlite", epsilon=8.0, delta=1e-6) as shared:
        told = owners(members, {"a": shared})
        first = sf.sample(family, told, iterations=20, checkpoint=tmp_path / "run", **SETTINGS)
        again = sf.resume(tmp_path / "run", told, model=family, progress=False)
        assert np.array_equal(first.draws["p"], again.draws["p"])
        assert [o.sealed.spent_mu for o in again.privacy.owners] == [o.sealed.spent_mu for o in first.privacy.owners]
        assert "other sealed answers from the same records add to it" in str(again.privacy)
        more = {name: _with_colluders(one, 2) for name, one in members.items()}
        with pytest.raises(CheckpointError, match="colluders"):
            sf.resume(tmp_path / "run", owners(more, {"a": shared}), model=family, progress=False)


def _with_colluders(member, colluders):
    return Consortium(
        member.roster.name, members={one.name: one.key for one in member.roster.members}, me=member.me,
        identity=member._identity, colluders=colluders,
    )  # fmt: skip


def test_a_nodes_books_stay_with_the_coalition_they_were_begun_against(tmp_path):
    values = {name: table["y"] for name, table in TABLES.items()}
    place, _ = prepare_members(tmp_path, values)["a"]
    with (place / "owner.toml").open("a") as file:  # a stated cap, which stays as it is whoever may collude
        file.write("\n[consortium.everybody]\nepsilon = 12.0\ndelta = 1e-6\n")
    Books(read_owner(place / "owner.toml")).close()
    said = (place / "owner.toml").read_text()
    for change in ("colluders = 0", "colluders = 1"):  # fewer is fine, and so is what it was
        (place / "owner.toml").write_text(said.replace("colluders = 1", change))
        Books(read_owner(place / "owner.toml")).close()
    (place / "owner.toml").write_text(said.replace("colluders = 1", "colluders = 2"))
    with pytest.raises(InvalidInput, match="more colluders, needs new books"):
        Books(read_owner(place / "owner.toml"))


def test_the_second_promise_counts_the_lattice_at_its_own_epsilon():
    epsilon = epsilon_of(1.5, 1e-6)
    assert sf.gdp.delta(1.5, epsilon) + lattice_slack(epsilon) <= 1e-6 * (1 + 1e-9)
    assert epsilon_of(1.5, 1e-6) > sf.gdp.epsilon(1.5, 1e-6)
    assert epsilon_of(6.0, 1e-6) == float("inf")  # nothing that protects anybody


def test_a_statement_without_an_epsilon_says_mu_alone():
    family, members = sf.families.Bernoulli(), Consortium.among(list(TABLES), colluders=1)
    run = sf.sample(family, owners(members, {}), iterations=5, **SETTINGS)
    said = run.privacy.owners[0].sealed
    assert "that is (epsilon" in str(said)
    assert "that is (epsilon" not in str(dataclasses.replace(said, epsilon=float("inf")))
