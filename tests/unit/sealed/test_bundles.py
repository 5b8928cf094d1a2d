"""Sealed bundles: files of three owners that only add up together."""

import dataclasses

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.errors import BundleError, InvalidInput, LedgerError
from sfumato.owners.sealed_bundle import gathered
from sfumato.vault.sealed.consortium import Consortium
from sfumato.vault.sealed.identity import Identity

FAMILY = sf.families.Bernoulli()
SIZES = {"a": 3000, "b": 3500, "c": 2500}
TABLES = {name: {"y": (np.arange(n) % 10 < 3).astype(int)} for name, n in SIZES.items()}
YES = sum(int(table["y"].sum()) for table in TABLES.values())


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    identities = {name: Identity.new() for name in SIZES}
    keys = {name: identity.public for name, identity in identities.items()}
    return {
        name: Consortium("coast", members=keys, me=name, identity=identities[name], colluders=1, book=folder / name)
        for name in SIZES
    }


def released(members, name, release_id, **changes):
    given = {"epsilon": 2.0, "delta": 1e-6, "copies": 4000, "records": sum(SIZES.values())} | changes
    family = given.pop("family", FAMILY)
    return sf.release(family, TABLES[name], consortium=members[name], release_id=release_id, progress=False, **given)


@pytest.fixture(scope="module")
def files(members, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return [released(members, name, "spring", path=folder / f"{name}.bundle").path for name in SIZES]


def opened(files):
    return [sf.Bundle.open(path) for path in files]


def test_all_together_are_one_bundle_of_the_sum(files, members):
    (whole,) = gathered(opened(files))
    assert whole.n == sum(SIZES.values()) and whole.left == 4000
    noise = (whole.mean()[0] - YES) / (whole.xi / whole.copies) ** 0.5
    assert abs(noise) < stats.norm.isf(FALSE_ALARM / 2)
    spread = np.var(whole.take(4000)[:, 0]) * 3999 / whole.xi
    assert stats.chi2.isf(1 - FALSE_ALARM / 2, 3999) < spread < stats.chi2.isf(FALSE_ALARM / 2, 3999)
    mu = float(sf.gdp.mu(2.0, 1e-6))
    for one in opened(files):
        assert one.privacy.spent_mu <= mu and one.privacy.sealed.mu == pytest.approx(mu * 2**0.5, rel=1e-3)
        # Half of the noise of three owners who each release a copy of their own: 3/2 of one owner's.
        assert one.xi == pytest.approx(1.5 * 4000 / mu**2, rel=1e-2)


def test_a_chain_runs_on_them_whatever_their_order(files):
    bundles = opened(files)
    run = sf.sample(FAMILY, [bundles[1], bundles[2], bundles[0]], seed=1)
    assert abs(run.draws["p"].mean() - 0.3) < 0.05
    assert {owner.owner for owner in run.privacy.owners} == set(SIZES)
    assert "noise, or hands its keys over" in str(run.privacy)
    assert abs(run.draws["p"].mean() - sf.sample(FAMILY, opened(files), seed=2).draws["p"].mean()) < 0.05


def test_noise_is_all_that_fewer_bundles_give(files):
    bundles = opened(files)
    for some, words in (
        (bundles[:2], "c is missing"), ([bundles[0]], "b, c is missing"), ([bundles[0], *bundles], "given twice"),
        ([bundles[0], bundles[1], bundles[1]], "c is missing"),
    ):  # fmt: skip
        with pytest.raises(BundleError, match=words):
            sf.sample(FAMILY, some)
    for use in (lambda b: b.mean(), lambda b: b.take(3), lambda b: b.noise_aware(FAMILY)):
        with pytest.raises(BundleError, match="noise by itself|missing"):
            use(bundles[0])
    rows = [bundle.masked_rows().view(np.uint64) for bundle in bundles]
    for sum_ in (rows[0], rows[0] + rows[1], rows[1] + rows[2], rows[2] - rows[0]):
        bits = np.unpackbits(sum_.view(np.uint8))
        assert abs(bits.mean() - 0.5) < stats.norm.isf(FALSE_ALARM / 8) * 0.5 / bits.size**0.5


def test_an_id_is_used_once_whatever_becomes_of_it(files, members, tmp_path):
    with pytest.raises(LedgerError, match="used once"):
        released(members, "a", "spring")
    again = Consortium(
        "coast", members={m.name: m.key for m in members["b"].roster.members}, me="b", colluders=1,
        identity=members["b"]._identity, book=members["b"].book._path,
    )  # fmt: skip
    with pytest.raises(LedgerError, match="used once"):
        released({"b": again}, "b", "spring", copies=10)


def test_owners_who_released_something_else_open_nothing(members):
    one = released(members, "a", "summer")
    for i, changes in enumerate(
        ({"copies": 4001}, {"xi": 1e6}, {"records": 9001}, {"shares": [0.4, 0.3, 0.3]}, {"epsilon": 1.9})
    ):
        other = released(members, "b", f"summer{i}", **changes)
        for bundle in (one, other):  # as if they had agreed on the name
            bundle.sealed["release"] = "summer"
        with pytest.raises(BundleError, match="other terms"):
            gathered([one, other])


def test_a_file_that_was_exchanged_does_not_open(files, members):
    """Masks of another release under the names of this one: whoever edits headers gains noise."""
    bundles = opened(files)
    other = released(members, "c", "autumn")
    other.sealed |= {"release": "spring", "tag": bundles[0].sealed["tag"]}
    with pytest.raises(BundleError, match="do not cancel"):
        gathered([*bundles[:2], other])


def test_the_prior_is_the_analysts_own(members):
    other = dataclasses.replace(FAMILY, prior={"p": dist.Beta(2.0, 2.0)})
    families = {"a": FAMILY, "b": other, "c": FAMILY}
    bundles = [released(members, name, "prior", copies=50, family=family) for name, family in families.items()]
    assert len(gathered(bundles)) == 1


def test_what_was_not_agreed_on_is_refused_before_anything_is_spent(members, tmp_path):
    with sf.Ledger(tmp_path / "l", epsilon=2.0, delta=1e-6) as ledger:
        for changes in (
            {"release_id": ""}, {"records": None}, {"records": 3000}, {"shares": [0.5, 0.5]}, {"shares": [0.9, 0.1, 0.0]},
            {"xi": 1.0}, {"consortium": Consortium.among("abc", colluders=1)["a"]}, {"consortium": None},
        ):  # fmt: skip
            given = {"consortium": members["a"], "release_id": "never", "records": 9000, "copies": 100} | changes
            with pytest.raises(InvalidInput):
                sf.release(FAMILY, TABLES["a"], epsilon=2.0, delta=1e-6, ledger=ledger, progress=False, **given)
        assert ledger.spent == 0
    assert "never" not in members["a"].book._path.read_text()


def test_an_owner_that_answers_live_cannot_be_mixed_in(files):
    live = sf.Owner(TABLES["a"], name="d", epsilon=1.0, delta=1e-6)
    with pytest.raises((BundleError, InvalidInput), match="among themselves"):
        sf.sample(FAMILY, [*opened(files), live])
