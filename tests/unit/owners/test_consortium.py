"""Several owners, one theta: separate noise, separate accounts, and every ending named after whom it is due to."""

import hashlib
import json

import msgspec
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import brentq

import sfumato as sf
from sfumato.errors import BadAnswer, BudgetSpent, CheckpointError, InvalidInput
from sfumato.owners import rounds as rounds_module
from sfumato.planner import budget_mu
from sfumato.planner.owners import share_out
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import Reply
from sfumato.run import opening, parties

RNG = np.random.default_rng(0)
SIZES = (20_000, 30_000, 10_000)
TABLES = [{"y": (RNG.random(n) < 0.3).astype(int)} for n in SIZES]
DOMAIN = {"y": sf.Binary()}
QUIET = {"domain": DOMAIN, "seed": 1, "chains": 2, "kernel": "guided", "force": True, "progress": False}
SHORT = QUIET | {"pilot_share": 0.0, "guess": {"p": 0.3}}
FAMILY = sf.families.Bernoulli()


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(rounds_module, "PAUSE", 0.001)
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


def owners(epsilons=(1.0, 2.0, 1.0), **options):
    return [
        sf.Owner(table, name=name, epsilon=epsilon, delta=1e-6, **options)
        for table, name, epsilon in zip(TABLES, ("amber", "birch", "cedar"), epsilons, strict=True)
    ]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Three owners, each with a ledger of its own, until the budgets end; and what was told of it on the way."""
    folder = tmp_path_factory.mktemp("ledgers")
    three = owners()
    for owner in three:
        owner.ledger = sf.Ledger(folder / f"{owner.name}.sqlite", epsilon=4.0, delta=1e-6)
    told = []
    drawn = sf.sample(coin, three, **QUIET | {"progress": lambda *words: told.append(words)})
    spent = {owner.name: owner.ledger.spent / QUANTA_PER_UNIT for owner in three}
    assert all(owner.ledger.verify().ok for owner in three)
    for owner in three:
        owner.ledger.close()
    return drawn, spent, told


@pytest.fixture(scope="module")
def run(watched):
    return watched[:2]


def test_progress_is_told_every_few_rounds(watched):
    drawn, _, told = watched
    steps = [done for done, _, text in told if text == "sampling"]
    assert steps[-1] == drawn.iterations > 200
    assert (
        np.max(np.diff([0, *steps])) <= 64
    )  # also how long Ctrl-C waits, and what a crash of the analyst's side costs


def test_the_posterior_is_that_of_all_records(run):
    drawn, _ = run
    y = np.concatenate([table["y"] for table in TABLES])
    sd = np.sqrt(y.mean() * (1 - y.mean()) / len(y))
    assert abs(drawn.draws["p"].mean() - y.mean()) < 6 * sd  # few effective draws: this finds blunders, not bias
    assert drawn.privacy.n == len(y)


def test_each_owner_pays_from_its_own_account_and_never_passes_its_cap(run):
    drawn, spent = run
    for statement in drawn.privacy.owners:
        assert spent[statement.owner] == pytest.approx(statement.spent_mu**2)
        assert statement.spent_mu <= statement.mu
        assert statement.spent_mu > 0.98 * statement.mu  # all budgets end together: nobody's is left unused
    widths, sigma = drawn.transcript["widths"], drawn.transcript["sigma"][..., None]
    shares = np.array([owner["share"] for owner in drawn.planned["owners"]])
    realised = ((widths / sigma) ** 2 / shares).sum(axis=(0, 1))
    assert all(realised <= np.array(list(spent.values())) * (1 + 1e-9))


def test_the_ending_names_the_owner_whose_budget_ended(run):
    drawn, _ = run
    assert drawn.stop_reason is sf.StopReason.BUDGET_SPENT
    assert drawn.stop_owner in ("amber", "birch", "cedar")


def test_the_statement_says_who_promised_what_to_whom(run):
    drawn, _ = run
    text = str(drawn.privacy)
    for name, n in zip(("amber", "birch", "cedar"), SIZES, strict=True):
        assert f"{name} ({n:,} records) promises to everyone whose record it holds" in text
    assert "against the other owners and the analyst together" in text
    assert "mu^2 = mu_1^2 + mu_2^2" in text
    a, b, c = (owner.mu for owner in drawn.privacy.owners)
    assert drawn.privacy.together_mu == pytest.approx((a**2 + b**2 + c**2) ** 0.5)


def test_a_run_over_owners_is_saved_and_loaded(run, tmp_path):
    drawn, _ = run
    again = sf.load(drawn.save(tmp_path / "run.npz"))
    assert again.stop_owner == drawn.stop_owner
    assert again.privacy == drawn.privacy
    assert np.array_equal(again.transcript["widths"], drawn.transcript["widths"])
    drawn.report(tmp_path / "report.html")
    assert "amber" in (tmp_path / "report.html").read_text()


def test_shares_let_all_budgets_end_at_the_same_step():
    shares, mu = share_out([0.05, 0.2, 0.01], [1.0, 1.0, 4.0])
    assert sum(shares) == pytest.approx(1)
    lasts = [b / (w / r) for b, w, r in zip([0.05, 0.2, 0.01], [1.0, 1.0, 4.0], shares, strict=True)]
    assert lasts == pytest.approx([mu**2] * 3)
    assert share_out([0.3], [1.0]) == ([1.0], pytest.approx(0.3**0.5))


# -- owners that fail -------------------------------------------------------------------------------------------------


class Wrapped:
    """A door that does something else after some answers."""

    quick = True

    def __init__(self, door, change, after):
        self._door, self._change, self._after, self.asked = door, change, after, 0
        self.name, self.facts = door.name, door.facts

    def __getattr__(self, name):
        return getattr(self._door, name)

    def ask(self, query_id, question):
        self.asked += 1
        if self.asked <= self._after:
            return self._door.ask(query_id, question)
        return self._change(self._door, query_id, question)


@pytest.fixture
def failing(monkeypatch):
    """Make one owner's door fail after so many answers; gives the doors that were opened."""
    opened = []

    def arrange(change, name="birch", after=30):
        real = parties.open_door

        def open_door(*arguments, **options):
            door = real(*arguments, **options)
            opened.append(Wrapped(door, change, after) if options["name"] == name else door)
            return opened[-1]

        monkeypatch.setattr(parties, "open_door", open_door)
        return opened

    return arrange


def silent(door, query_id, question):
    raise TimeoutError


def test_a_silent_owner_is_asked_again_with_the_same_id_then_given_up(failing, tmp_path, monkeypatch):
    tried = []

    def note(door, query_id, question):
        tried.append(query_id)
        raise TimeoutError

    opened = failing(note)
    drawn = sf.sample(coin, owners(), max_iterations=60, checkpoint=tmp_path / "c", **SHORT)
    assert (drawn.stop_reason, drawn.stop_owner) == (sf.StopReason.OWNER_LOST, "birch")
    assert 0 < drawn.iterations < 60
    assert len(tried) == rounds_module.RETRIES + 1
    assert len(set(tried)) == 1
    assert opened[1].asked == 30 + len(tried)
    monkeypatch.undo()
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    whole = sf.resume(tmp_path / "c", owners(), model=coin)
    assert whole.iterations == 60
    assert np.array_equal(whole.transcript["theta"][:, : drawn.iterations], drawn.transcript["theta"])
    for statement in whole.privacy.owners:
        assert statement.spent_mu <= statement.mu


def test_an_owner_that_comes_back_in_time_changes_nothing(failing):
    """It misses every other question once."""
    missed = set()

    def sometimes(door, query_id, question):
        if query_id not in missed and len(missed) < 5:
            missed.add(query_id)
            raise ConnectionError
        return door.ask(query_id, question)

    failing(sometimes)
    drawn = sf.sample(coin, owners(), max_iterations=60, **SHORT)
    assert drawn.stop_reason is sf.StopReason.FINISHED
    assert len(missed) == 5


GARBAGE = {
    "wrong id": lambda r: msgspec.structs.replace(r, id="another"),
    "too few": lambda r: msgspec.structs.replace(r, numbers=r.numbers[:-1]),
    "not a number": lambda r: msgspec.structs.replace(r, numbers=[float("nan")] * len(r.numbers)),
    "text": lambda r: msgspec.structs.replace(r, numbers=["1"] * len(r.numbers)),
    "huge": lambda r: msgspec.structs.replace(r, numbers=[2**63] * len(r.numbers)),
    "other lattice": lambda r: msgspec.structs.replace(r, gamma=r.gamma * 2),
    "endless width": lambda r: msgspec.structs.replace(r, widths=[float("inf")] * len(r.widths)),
    "nothing": lambda r: None,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused_and_its_owner_named(kind):
    good = Reply(id="r/0/ratio", gamma=2.0**-36, numbers=[5, -7], widths=[0.1, 0.2], answered=[True, True], quanta=3)
    assert rounds_module.checked("birch", "r/0/ratio", good, 2, 2, 2.0**-36) is good
    with pytest.raises(BadAnswer, match="birch"):
        rounds_module.checked("birch", "r/0/ratio", GARBAGE[kind](good), 2, 2, 2.0**-36)


def test_garbage_ends_the_run_with_what_was_drawn_before(failing):
    failing(lambda door, query_id, question: GARBAGE["wrong id"](door.ask(query_id, question)), after=12)
    with pytest.raises(BadAnswer, match="birch") as caught:
        sf.sample(coin, owners(), max_iterations=60, **SHORT)
    assert caught.value.owner == "birch"
    assert caught.value.run.iterations == 12
    assert np.isfinite(caught.value.run.transcript["d_n_noisy"]).all()


DIFFERENCES = [
    ("model", "0" * 64, "another model"),
    ("coordinates", ["q"], "other parameters"),
    ("protocol", 0, "version"),
]


def test_owners_who_mean_something_else_are_found_before_anyone_spends(failing, monkeypatch):
    opened = failing(silent)
    real, spent = opening.check_agree, []

    def changed(facts, study):
        for field, value, words in DIFFERENCES:
            other = [*facts[:2], msgspec.structs.replace(facts[2], **{field: value})]
            with pytest.raises(InvalidInput, match=f"(?s)cedar.*{words}"):
                real(other, study)
        spent.extend(door.spent for door in opened)
        real(other, study)

    monkeypatch.setattr(opening, "check_agree", changed)
    with pytest.raises(InvalidInput, match="cedar"):
        sf.sample(coin, owners(), **SHORT)
    assert spent == [0, 0, 0]


# -- what is refused --------------------------------------------------------------------------------------------------


def test_lists_that_make_no_sense_are_refused(tmp_path):
    two = owners()[:2]
    with pytest.raises(InvalidInput, match="a name of its own"):
        sf.sample(coin, [two[0], two[0]], **SHORT)
    with pytest.raises(InvalidInput, match=r"wrap a table as sf\.Owner"):
        sf.sample(coin, [two[0], TABLES[1]], **SHORT)
    with (
        sf.Ledger(tmp_path / "l.sqlite", epsilon=1.0, delta=1e-6) as ledger,
        pytest.raises(InvalidInput, match="ledger"),
    ):
        sf.sample(coin, two, ledger=ledger, **SHORT)
    with pytest.raises(InvalidInput, match="epsilon and delta"):
        sf.sample(coin, [sf.Owner(TABLES[0], name="a")], **SHORT)
    with pytest.raises(InvalidInput, match="name"):
        sf.Owner(TABLES[0], name="a/b", epsilon=1.0, delta=1e-6)
    assert "closed" in repr(two[0])


def test_an_owner_whose_ledger_has_no_room_is_named(tmp_path):
    with sf.Ledger(tmp_path / "l.sqlite", epsilon=0.5, delta=1e-6) as ledger:
        three = owners()
        three[1].ledger = ledger
        with pytest.raises(BudgetSpent, match="birch") as caught:
            sf.sample(coin, three, **SHORT)
        assert caught.value.owner == "birch"
        assert ledger.spent == 0


def test_a_run_goes_on_with_the_same_owners_in_the_same_order(tmp_path):
    sf.sample(coin, owners()[:2], max_iterations=5, checkpoint=tmp_path / "c", **SHORT)
    with pytest.raises(CheckpointError, match="in that order"):
        sf.resume(tmp_path / "c", owners()[1::-1], model=coin)
    with pytest.raises(InvalidInput, match="list of them"):
        sf.resume(tmp_path / "c", TABLES[0], model=coin)
    with (
        sf.Ledger(tmp_path / "l.sqlite", epsilon=4.0, delta=1e-6) as ledger,
        pytest.raises(InvalidInput, match="'birch' differ: pass the same ledger"),
    ):  # it would find a new budget there
        other = owners()[:2]
        other[1].ledger = ledger
        sf.resume(tmp_path / "c", other, model=coin)
    with sf.Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.accounts() == []
    (own,) = (tmp_path / "c").glob("*amber*.sqlite")
    own.rename(tmp_path / "kept")
    with pytest.raises(CheckpointError, match="the ledger that it paid from"):
        sf.resume(tmp_path / "c", owners()[:2], model=coin)
    assert not own.exists()  # nor was a new one made
    (tmp_path / "kept").replace(own)
    other = owners()[:2]
    other[1].data = {"y": 1 - TABLES[1]["y"]}
    with pytest.raises(CheckpointError, match="not the records"):
        sf.resume(tmp_path / "c", other, model=coin)
    promising = owners(epsilons=(1.0, 0.5, 1.0))[:2]
    with pytest.raises(CheckpointError, match="promise it was started with"):
        sf.resume(tmp_path / "c", promising, model=coin)


def normal_mean(x):
    m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(m, 1.0), obs=x)


def test_a_run_goes_on_under_the_sensitivity_and_the_domains_it_was_begun_with(tmp_path):
    """Clipped first and certified afterwards, the chain would be stated exact, and is not."""
    x = {"x": np.linspace(-1, 1, 2000)}

    def two(first):
        return [sf.Owner(x, name="amber", domain={"x": sf.Box(-1, first)}), sf.Owner(x, name="birch")]

    sf.sample(
        normal_mean, two(1), domain={"x": sf.Box(-2, 2)}, epsilon=1.0, delta=1e-6, sensitivity=sf.Clip(per_step=1.0),
        seed=1, chains=2, kernel="guided", force=True, progress=False, pilot_share=0.0, guess={"m": 0.0},
        max_iterations=5, checkpoint=tmp_path / "c",
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=r"sensitivity it was started with, Clip\(bound=None, per_step=1.0\)"):
        sf.resume(tmp_path / "c", two(1), model=normal_mean)
    with pytest.raises(InvalidInput, match="sensitivity it was started with"):
        sf.resume(tmp_path / "c", two(1), model=normal_mean, sensitivity=sf.Clip(per_step=2.0))
    with pytest.raises(CheckpointError, match="'amber' now has domain"):
        sf.resume(tmp_path / "c", two(2), model=normal_mean, sensitivity=sf.Clip(per_step=1.0))
    run = sf.resume(tmp_path / "c", two(1), model=normal_mean, sensitivity=sf.Clip(per_step=1.0), progress=False)
    assert run.iterations == 5
    assert all("exact only as far as no record's term was cut" in each.exact for each in run.privacy.owners)


def test_a_promise_of_the_same_mu_is_another_promise(tmp_path):
    """The ledger enforces mu alone; the statement tells epsilon and delta, and they are those the run began with."""
    sf.sample(coin, owners()[:2], max_iterations=5, checkpoint=tmp_path / "c", **SHORT)
    other = owners()[:2]
    mu = budget_mu(other[0].epsilon, other[0].delta)
    other[0].delta = 1e-3
    other[0].epsilon = brentq(lambda e: budget_mu(e, 1e-3) - mu, 1e-3, 1.0, xtol=1e-15)
    with pytest.raises(CheckpointError, match="promise it was started with, and 'amber'"):
        sf.resume(tmp_path / "c", other, model=coin)
    file = json.loads((tmp_path / "c" / "run.json").read_text())
    file["terms"]["owners"][0]["promise"][0] = 0.01
    file["digest"] = hashlib.sha256(json.dumps(file["terms"], sort_keys=True).encode()).hexdigest()
    (tmp_path / "c" / "run.json").write_text(json.dumps(file))
    with pytest.raises(CheckpointError, match="those of its cap"):
        sf.resume(tmp_path / "c", owners()[:2], model=coin)


# -- bundles in the list ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "cedar.sfb"
    sf.release(FAMILY, TABLES[2], epsilon=1.0, delta=1e-6, copies=600, path=path)
    return path


def test_a_bundle_answers_beside_live_owners_and_its_copies_end_the_run(bundle_path):
    bundle = sf.Bundle.open(bundle_path)
    drawn = sf.sample(FAMILY, [bundle, *owners()[:2]], **QUIET)
    pilot = int(600 * drawn.pilot["share"])
    assert pilot > 0
    assert (drawn.stop_reason, drawn.iterations) == (sf.StopReason.BUDGET_SPENT, (600 - pilot) // 2)
    assert drawn.stop_owner == f"bundle {bundle.id}"
    assert bundle.left == 0
    live = drawn.planned["sigma"]
    assert (drawn.transcript["sigma"] > live).all()  # the bundle's noise comes on top, step by step
    assert [owner.owner for owner in drawn.privacy.owners] == [f"bundle {bundle.id}", "amber", "birch"]


def test_a_mixed_chain_goes_on_where_it_stopped(bundle_path, tmp_path):
    live = owners()[:1]
    settings = QUIET | {"checkpoint": tmp_path / "c"}
    part = sf.sample(FAMILY, [sf.Bundle.open(bundle_path), *live], max_iterations=40, **settings)
    again = sf.resume(tmp_path / "c", [sf.Bundle.open(bundle_path), *live], model=FAMILY)
    assert np.array_equal(again.transcript["theta"], part.transcript["theta"])


def test_plain_models_are_not_for_bundles(bundle_path):
    with pytest.raises(InvalidInput, match="the family they were released for"):
        sf.sample(coin, [sf.Bundle.open(bundle_path), *owners()[:1]], **QUIET)
