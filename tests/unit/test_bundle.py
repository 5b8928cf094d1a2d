"""Bundles: the file, its checks, copies used once, runs from one and from several owners, the command line."""

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import sfumato as sf
from sfumato.cli import main
from sfumato.cli.bundle import parse_family
from sfumato.errors import BundleError, InvalidInput, PlanTooWeak
from sfumato.owners import bundle_file
from sfumato.owners.bundle import Copies, family_fingerprint
from sfumato.privacy.joint import JointStatement
from sfumato.run.copies import take

FAMILY = sf.families.Bernoulli()
Y = (np.random.default_rng(0).random(4000) < 0.3).astype(int)


def make(path=None, copies=400, family=FAMILY, y=Y, **options):
    return sf.release(family, {"y": y}, epsilon=4.0, delta=1e-5, copies=copies, path=path, **options)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.parquet"
    make(path)
    return path


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_bundle_comes_back_as_it_was_written(file, tmp_path):
    opened = sf.Bundle.open(file, FAMILY)
    assert (opened.n, opened.copies, opened.size, opened.left) == (4000, 400, 1, 400)
    assert opened.privacy.epsilon == opened.epsilon == 4.0
    assert opened.privacy.releases == 400
    assert "4,000 records" in str(opened.privacy)
    again = sf.Bundle.open(opened.save(tmp_path / "b.parquet"))
    assert again.id == opened.id
    assert np.array_equal(again.take(400), opened.take(400))


def test_it_is_an_ordinary_parquet_file_without_the_unnoised_sum(file):
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file)
    assert table.column_names == ["s_0"]
    assert not np.any(table["s_0"].to_numpy() == Y.sum())
    header = json.loads(table.schema.metadata[bundle_file.HEADER_KEY])
    assert header["sensitivity"] == pytest.approx(1.0, abs=1e-6)
    assert not {"sum", "total", "mean"} & set(header)
    assert list(file.parent.iterdir()) == [file]


def test_every_flipped_byte_is_noticed(file):
    body = file.read_bytes()
    rng = np.random.default_rng(1)
    places = {4, 5, len(body) // 2, len(body) - 5, len(body) - 9} | set(rng.integers(0, len(body), 60).tolist())
    bad = file.with_name("bad.parquet")
    kept = sf.Bundle.open(file).take(400)
    for place in places:
        edited = bytearray(body)
        edited[place] ^= 0x40
        bad.write_bytes(edited)
        try:
            opened = sf.Bundle.open(bad)
        except BundleError:
            continue
        # A byte that Parquet itself does not use (padding, statistics): nothing that is read has changed.
        assert np.array_equal(opened.take(400), kept)
        assert opened._header == sf.Bundle.open(file)._header


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(file, share):
    body = file.read_bytes()
    file.write_bytes(body[: int(len(body) * share)])
    with pytest.raises(BundleError, match="truncated, edited or mixed up"):
        sf.Bundle.open(file)


def rewrite(source, target, *, rows=None, changes=None, checksum=None):
    """What a careless editor would do: other rows or another header, the old checksum."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(source)
    metadata = dict(pyarrow.parquet.read_metadata(source).metadata)
    header = json.loads(metadata[bundle_file.HEADER_KEY]) | (changes or {})
    metadata = {
        bundle_file.HEADER_KEY: json.dumps(header).encode(),
        bundle_file.CHECKSUM_KEY: metadata[bundle_file.CHECKSUM_KEY],
    }
    if checksum is not None:
        metadata[bundle_file.CHECKSUM_KEY] = checksum
    new = table if rows is None else rows(table)
    schema = pyarrow.schema([pyarrow.field(n, pyarrow.float64(), nullable=False) for n in new.column_names], metadata)
    pyarrow.parquet.write_table(pyarrow.table(new.columns, schema=schema), target)


@pytest.mark.parametrize(
    "edit",
    [
        {"changes": {"xi": 1.0}},
        {"changes": {"n": 5000}},
        {"changes": {"epsilon": 0.1}},
        {"changes": {"copies": 399}},
        {"rows": lambda t: t.slice(1)},
        {"rows": lambda t: t.take(list(range(399, -1, -1)))},
        {"checksum": b"0" * 64},
    ],
    ids=["xi", "n", "epsilon", "copies", "rows cut", "rows reversed", "checksum"],
)
def test_an_edited_bundle_is_refused(file, tmp_path, edit):
    target = tmp_path / "edited.parquet"
    rewrite(file, target, **edit)
    with pytest.raises(BundleError, match="truncated, edited or mixed up"):
        sf.Bundle.open(target)
    rewrite(file, target)
    assert sf.Bundle.open(target).copies == 400  # the tool itself does no harm


def test_headers_of_two_bundles_cannot_be_swapped(file, tmp_path):
    other = make(tmp_path / "other.parquet")
    rewrite(file, tmp_path / "mixed.parquet", changes=other._header)
    with pytest.raises(BundleError):
        sf.Bundle.open(tmp_path / "mixed.parquet")


def test_other_versions_other_files_and_missing_files_are_named(file, tmp_path):
    rewrite(file, tmp_path / "v.parquet", changes={"format": 99})
    with pytest.raises(BundleError, match="format 99"):
        sf.Bundle.open(tmp_path / "v.parquet")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"y": [1.0]}), tmp_path / "plain.parquet")
    with pytest.raises(BundleError, match="no bundle"):
        sf.Bundle.open(tmp_path / "plain.parquet")
    with pytest.raises(BundleError, match="no bundle at"):
        sf.Bundle.open(tmp_path / "nowhere.parquet")


def test_another_family_is_refused_and_another_prior_is_not(file):
    import numpyro.distributions as dist

    with pytest.raises(BundleError, match="Bernoulli"):
        sf.Bundle.open(file, sf.families.Poisson(3))
    prior = sf.families.Bernoulli(prior=dist.Beta(2.0, 5.0))
    assert sf.Bundle.open(file, prior).fingerprint == family_fingerprint(FAMILY)
    assert family_fingerprint(sf.families.Poisson(3)) != family_fingerprint(sf.families.Poisson(4))


def test_a_bundle_is_never_overwritten_and_nothing_is_spent_on_the_attempt(file, tmp_path):
    with sf.Ledger(tmp_path / "l.sqlite", epsilon=9.0, delta=1e-5) as ledger:
        with pytest.raises(InvalidInput, match="never overwritten"):
            make(file, ledger=ledger)
        assert ledger.spent == 0


def test_requests_that_make_no_sense_are_refused():
    for wrong in ({"copies": 0}, {"copies": 2.5}, {"copies": 10**9}, {"xi": -1.0}):
        with pytest.raises(InvalidInput):
            make(**wrong)
    with pytest.raises(InvalidInput, match="exponential family"):
        make(family=lambda y: None)


def test_memory_stays_flat_for_a_hundred_thousand_copies(tmp_path):
    code = (
        "import resource, sys, numpy as np, sfumato as sf\n"
        "family = sf.families.MultivariateNormal(np.eye(8).tolist(), sf.Ball(1.0, dim=8))\n"
        "y = sf.Ball(1.0, dim=8).extremes(np.random.default_rng(0), 2000)\n"
        "ticks = []\n"
        "make = lambda k, name: sf.release(family, {'y': y}, epsilon=1.0, delta=1e-6, copies=k, path=sys.argv[1] + name,\n"
        "                                  progress=lambda *t: ticks.append(t))\n"
        "make(10_000, 'small')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "make(100_000, 'large')\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, len(ticks))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, f"{tmp_path}/"], capture_output=True, text=True, check=True)
    grown, ticks = map(float, done.stdout.split())
    assert grown < 4  # megabytes; the copies themselves are 6.4
    assert ticks >= 12  # and somebody who watches sees it move


# -- copies are used once ---------------------------------------------------------------------------------------------


def test_copies_are_handed_out_once():
    values = np.arange(10.0)[:, None]
    copies = Copies(lambda: values, 10)
    taken = np.concatenate([copies.take(3), copies.take(4), copies.take(3)])
    assert np.array_equal(taken, values)
    assert copies.left == 0
    with pytest.raises(BundleError, match="used once"):
        copies.take(1)


def test_copies_and_bundles_cannot_be_duplicated():
    bundle = make()
    for thing in (bundle, bundle.supply):
        for act in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(BundleError):
                act(thing)
    with pytest.raises(ValueError, match="read-only"):
        bundle.take(1)[0] = 0.0


def test_threads_never_get_the_same_copy():
    from concurrent.futures import ThreadPoolExecutor

    copies = Copies(lambda: np.arange(3000.0)[:, None], 3000)
    with ThreadPoolExecutor(8) as pool:
        taken = np.concatenate(list(pool.map(lambda _: copies.take(3), range(1000))))
    assert len(np.unique(taken)) == 3000


def test_a_run_uses_copies_up_and_says_which(file):
    bundle = sf.Bundle.open(file, FAMILY)
    run = sf.sample(FAMILY, bundle, chains=2, iterations=50, seed=0, force=True)
    assert run.pilot["copies"] == [{"bundle": bundle.id, "first": 0, "used": 112, "of": 400}]  # 12 found the start
    assert bundle.left == 288
    second = sf.sample(FAMILY, bundle, chains=2, seed=0, force=True)
    assert second.pilot["copies"][0]["first"] == 112
    with pytest.raises(BundleError, match="used up"):
        sf.sample(FAMILY, bundle, force=True)
    assert sf.Bundle.open(file, used=390).left == 10


def test_each_copy_judges_one_step_of_one_chain():
    """Answers and copies correspond one to one: invert the answers and find every copy once, the pilot's never."""
    bundle = make()
    pilot, rest = np.split(bundle._all()[:, 0], [12])
    run = sf.sample(FAMILY, bundle, chains=3, seed=0, force=True)
    t = run.transcript
    before = np.concatenate([t["theta"][:, :1], t["theta"][:, :-1]], axis=1)[:, 1:, 0]
    after, answers = t["theta_prop"][:, 1:, 0], t["d_n_noisy"][:, 1:]
    shift = 4000 * (np.logaddexp(0, before) - np.logaddexp(0, after))
    found = (answers - shift) / (after - before)
    expected = rest[: len(rest) // 3 * 3].reshape(-1, 3).T[:, 1:]
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-4)
    assert np.allclose(t["sigma"][:, 1:], np.abs(after - before) * bundle.xi**0.5)
    assert not np.isin(np.round(found, 6), np.round(pilot, 6)).any()


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_from_a_bundle_is_an_ordinary_run(file, tmp_path):
    run = sf.sample(FAMILY, sf.Bundle.open(file), chains=2, seed=5, force=True)
    assert run.draws["p"].shape == (2, 194)
    assert run.privacy.epsilon == 4.0
    assert run.privacy.spent_mu <= run.privacy.mu
    spent = run.to_arviz().sample_stats["spent"].to_numpy()[:, -1].sum()
    assert spent == pytest.approx(run.privacy.spent_mu**2 * 388 / 400, rel=1e-9)
    assert sf.load(run.save(tmp_path / "r.npz")).privacy == run.privacy
    run.report(tmp_path / "r.html")
    again = sf.sample(FAMILY, sf.Bundle.open(file), chains=2, seed=5, force=True)
    assert np.array_equal(again.draws["p"], run.draws["p"])


def test_chunks_do_not_change_the_chain(file, monkeypatch):
    whole = sf.sample(FAMILY, sf.Bundle.open(file), chains=2, seed=5, force=True)
    monkeypatch.setattr("sfumato.run.copies.CHUNK", 100)
    cut = sf.sample(FAMILY, sf.Bundle.open(file), chains=2, seed=5, force=True)
    assert np.array_equal(cut.draws["p"], whole.draws["p"])


def test_several_owners(tmp_path):
    parts = [make(y=Y[:1000], copies=300), make(y=Y[1000:], copies=500)]
    run = sf.sample(FAMILY, parts, chains=2, seed=1, force=True)
    assert isinstance(run.privacy, JointStatement)
    assert run.privacy.n == 4000
    assert "Owner 2 (3,000 records)" in str(run.privacy)
    assert "mu squared adds up" in str(run.privacy)
    assert run.iterations == 145  # the owner with fewest copies decides
    loaded = sf.load(run.save(tmp_path / "r.npz"))
    assert loaded.privacy == run.privacy
    run.report(tmp_path / "r.html")
    run.to_arviz()


def test_bundles_that_do_not_belong_together_are_refused(file):
    first, same = sf.Bundle.open(file), sf.Bundle.open(file)
    with pytest.raises(BundleError, match="given twice"):
        sf.sample(FAMILY, [first, same])
    other = make(family=sf.families.Poisson(3))
    with pytest.raises(BundleError, match="released for Poisson"):
        sf.sample(FAMILY, [first, other])
    with pytest.raises(InvalidInput, match="holds sf.Owner, what sf.connect gives, or bundles"):
        sf.sample(FAMILY, [first, {"y": Y}])
    with pytest.raises(InvalidInput, match="leave out epsilon"):
        sf.sample(FAMILY, first, epsilon=1.0)
    with pytest.raises(InvalidInput, match="family they were released for"):
        sf.sample(FAMILY.to_model(), first)
    assert first.left == 400


def test_counts_that_do_not_fit_the_copies_are_refused():
    bundle = make(copies=20)
    with pytest.raises(BundleError, match="at most 4 iterations"):
        sf.sample(FAMILY, bundle, iterations=5)
    with pytest.raises(BundleError, match="need a copy each"):
        sf.sample(FAMILY, bundle, chains=30)
    for wrong in ({"chains": 0}, {"iterations": 0}, {"pilot_share": 1.0}, {"kernel": "langevin"}):
        with pytest.raises(InvalidInput):
            sf.sample(FAMILY, bundle, **wrong)


def test_a_weak_bundle_is_refused_with_the_way_out():
    bundle = sf.release(FAMILY, {"y": Y}, epsilon=0.1, delta=1e-6, copies=100)
    with pytest.raises(PlanTooWeak, match=r"noise_aware\(\)") as caught:
        sf.sample(FAMILY, bundle)
    assert caught.value.plan.forecast_ess < 1


def test_weak_plans_of_families_offer_an_estimate():
    plan = sf.plan(FAMILY, n=100, epsilon=0.1, delta=1e-6)
    with pytest.raises(PlanTooWeak, match=r"sf\.estimate answers at this budget: an error of"):
        plan.refuse_if_weak()


@pytest.mark.parametrize("kernel", ["guided", "componentwise", "random-walk"])
@pytest.mark.parametrize(
    ("family", "data"),
    [
        (sf.families.NormalMeanScale(-3, 3), {"y": np.random.default_rng(1).normal(0.5, 0.8, 30_000).clip(-3, 3)}),
        (
            sf.families.LinearRegression(sf.Box(-1, 1, shape=(1,)), sf.Interval(-3, 3)),
            {
                "x": np.linspace(-1, 1, 30_000)[:, None],
                "y": 0.7 * np.linspace(-1, 1, 30_000) + np.sin(np.arange(30_000)) / 2,
            },
        ),
    ],
    ids=["mean and scale", "regression"],
)
def test_start_and_scale_are_found_in_several_dimensions(family, data, kernel):
    bundle = sf.release(family, data, epsilon=20.0, delta=1e-3, copies=4000)
    run = sf.sample(family, bundle, kernel=kernel, seed=0, force=True)
    site, truth = ("mean", 0.5) if "mean" in run.draws else ("coefficients", 0.7)
    assert abs(run.draws[site].mean() - truth) < 0.05
    assert 0.1 < run.acceptance < 0.95


def test_owners_copies_are_added(file):
    a, b = make(copies=10), make(copies=10)
    expected = a._all() + b._all()
    assert np.array_equal(take([a, b], 10), expected)


# -- command line -----------------------------------------------------------------------------------------------------


def test_families_are_read_from_text_and_nothing_is_executed():
    assert repr(parse_family("Poisson(9)")) == repr(sf.families.Poisson(9))
    family = sf.families.LinearRegression(sf.Box(-1, 1, shape=(2,)), sf.Interval(-2, 2))
    assert family_fingerprint(parse_family(repr(family))) == family_fingerprint(family)
    for wrong in ("__import__('os')", "Poisson(9).size", "Poisson(open('x'))", "Interval(0, 1)", "Poisson(", "3"):
        with pytest.raises(InvalidInput):
            parse_family(wrong)


def test_a_bundle_of_the_statistic_as_it_was_before_is_refused(monkeypatch):
    family = sf.families.LinearRegression(sf.Box(0, 9, shape=(1,)), sf.Interval(0, 5))
    data = {"x": np.full((50, 1), 3.0), "y": np.full(50, 2.0)}
    with monkeypatch.context() as patch:
        patch.setattr(sf.families.LinearRegression, "form", "")
        old = sf.release(family, data, epsilon=1.0, delta=1e-3, copies=2)
    with pytest.raises(BundleError, match="released for"):
        old.noise_aware()


def test_release_and_sample_from_the_shell(tmp_path, capsys):
    for name, part in (("a", Y[:2000]), ("b", Y[2000:])):
        (tmp_path / f"{name}.csv").write_text("ill\n" + "\n".join(map(str, part)) + "\n")
        options = ["--family", "Bernoulli()", "--data", str(tmp_path / f"{name}.csv"), "--column", "y=ill"]
        options += ["--epsilon", "4", "--delta", "1e-5", "--copies", "300", "--out", str(tmp_path / f"{name}.parquet")]
        assert main(["release", *options, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["bundle"]["n"] == 2000
    both = ["--bundle", str(tmp_path / "a.parquet"), "--bundle", str(tmp_path / "b.parquet")]
    command = ["sample", *both, "--out", str(tmp_path / "out"), "--seed", "1", "--force", "--json"]
    assert main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["privacy"]["owners"]) == 2
    assert (tmp_path / "out" / "run.npz").exists()
    assert main(command) == 2  # never over a finished run
    capsys.readouterr()
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert main(["sample", *both, "--out", str(tmp_path / "out2"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "bundle"


def test_a_study_file_can_name_a_family(tmp_path, capsys):
    (tmp_path / "people.csv").write_text("y\n" + "\n".join(map(str, Y)) + "\n")
    (tmp_path / "model.py").write_text("import sfumato as sf\nfamily = sf.families.Bernoulli()\n")
    (tmp_path / "study.toml").write_text(
        '[study]\nmodel = "model.py:family"\nepsilon = 4.0\ndelta = 1e-5\n[data]\npath = "people.csv"\n'
        '[domain.y]\nkind = "binary"\n'
    )
    out = tmp_path / "b.parquet"
    assert main(["release", str(tmp_path / "study.toml"), "--copies", "50", "--out", str(out)]) == 0
    assert "differential privacy" in capsys.readouterr().out
    assert sf.Bundle.open(out, FAMILY).copies == 50
    assert main(["release", "--copies", "50", "--out", str(tmp_path / "c.parquet")]) == 2
