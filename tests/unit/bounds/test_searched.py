"""Searched bounds: balls that hold whatever comes, ranges that hold every record a search of our own can find, and saboteurs."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.bounds import climbing, searched
from sfumato.bounds.balls import Balls, Kinds, diameter, enclosing
from sfumato.bounds.climbing import mixed
from sfumato.bounds.searched import BestReference, SearchedReference
from sfumato.errors import Unsupported
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.engine import LocalEngine
from sfumato.vault.queries.vector import score_sum

GROUPS = 6


def effects(ward, x, y):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([GROUPS]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        logits = jnp.sinh(
            jnp.arcsinh(level[ward] + slope * x)
        )  # the sum itself; of asinh no second derivative is proven
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def choice(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ beta), obs=y)


def tails(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ beta, scale), obs=y)


def sharp(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Laplace(beta * x, 1.0), obs=y)


CASES = {
    "effects": (effects, {"ward": sf.Categories(GROUPS), "x": sf.Interval(-1, 1), "y": sf.Binary()}),
    "choice": (choice, {"x": sf.Ball(1.0, dim=2), "y": sf.Categories(3)}),
    "tails": (tails, {"x": sf.Box(-1, 1, shape=(3,)), "y": sf.Interval(-8, 8)}),
}


def place(model, n=50_000):
    """A reference point near one draw of the prior, and a matrix of about the right size."""
    with jax.enable_x64(True):
        theta = np.asarray(model.sample_prior(jax.random.key(3)), float) * 0.5
    return theta, np.eye(model.dim) * (4 / n) ** 0.5


def fresh_reference_of(name):
    study = make_study(*CASES[name])
    return study, SearchedReference(study.model, study.domain), *place(study.model)


reference_of = cache(fresh_reference_of)


def others(study, size=4_000, seed=11):
    return {
        name: jnp.asarray(column) for name, column in mixed(study.domain, np.random.default_rng(seed), size).items()
    }


def scalars(study, theta, theta_prop, vectors, along, records):
    each = jax.vmap(study.model.log_likelihood, (None, 0))
    return np.asarray(each(theta_prop, records) - each(theta, records) - vectors @ along)


def moves(theta, matrix, number=12, seed=5):
    rng = np.random.default_rng(seed)
    for i in range(number):
        size = (0.2, 1.0, 1.5)[i % 3]
        here = theta + matrix @ rng.standard_normal(len(theta))
        there = here + size * matrix @ rng.standard_normal(len(theta))
        yield here, there, 0.05 * (there - here) * rng.standard_normal()


def missed(study, found, theta, matrix):
    """How many of other made-up records lie outside of the ranges of some moves."""
    with jax.enable_x64(True):
        held, records = found.at(theta, matrix), others(study)
        vectors = jax.jit(jax.vmap(lambda record: found.vector(held.body, record)))(records)
        count, bounded = 0, jax.jit(found.range)
        for here, there, lag in moves(theta, matrix):
            low, high = bounded(held.anchor, here, there, lag)
            met = scalars(study, here, there, vectors, there - here - lag, records)
            count += int(np.sum((met < float(low)) | (met > float(high))))
    return count


@pytest.mark.parametrize("name", CASES)
def test_ranges_hold_records_that_the_search_has_not_seen(name):
    assert missed(*reference_of(name)) == 0


@pytest.mark.parametrize("name", ["choice", "tails"])
def test_half_a_range_does_not(name, monkeypatch):
    real = climbing.Climber.widest

    def half(self, *given):
        low, high = real(self, *given)
        return low / 2, high / 2

    monkeypatch.setattr(climbing.Climber, "widest", half)
    assert missed(*fresh_reference_of(name)) > 0


def test_the_range_of_the_swapped_pair_is_negated():
    study, found, theta, matrix = reference_of("effects")
    with jax.enable_x64(True):
        held = found.at(theta, matrix)
        for here, there, lag in moves(theta, matrix, 3):
            low, high = map(float, found.range(held.anchor, here, there, lag))
            back_low, back_high = map(float, found.range(held.anchor, there, here, -lag))
            assert (back_low, back_high) == pytest.approx((-high, -low), rel=1e-9)


# -- vectors ------------------------------------------------------------------------------------------------------------


def test_no_two_vectors_are_further_apart_than_is_charged_whatever_the_record():
    """Records far outside the domain, and gradients that are no number, are cut like any other."""
    study, found, theta, matrix = reference_of("tails")
    with jax.enable_x64(True):
        held = found.at(theta, matrix)
        wild = {
            "x": np.array([[1e9, -1e9, 1e9], [np.nan, 0, 0], [1, 1, 1], [-5, 5, 5]]),
            "y": np.array([1e12, 0, -8, np.inf]),
        }
        whitened = jax.vmap(lambda record: found.whitened(held.body, matrix, record))
        vectors = np.concatenate([np.asarray(whitened(wild)), np.asarray(whitened(others(study)))])
    assert np.isfinite(vectors).all()
    apart = np.linalg.norm(vectors[:4, None] - vectors[None], axis=2).max()
    assert apart <= held.gradients.diameter
    assert (vectors >= held.gradients.low).all() and (vectors <= held.gradients.high).all()


@pytest.mark.parametrize("name", CASES)
def test_no_record_of_the_domain_is_cut(name):
    study, found, theta, matrix = reference_of(name)
    with jax.enable_x64(True):
        body, records = found.at(theta, matrix).body, others(study)
        vectors = np.asarray(jax.vmap(lambda record: found.vector(body, record))(records))
        plain = np.asarray(jax.vmap(jax.grad(study.model.log_likelihood), (None, 0))(theta, records))
        white = np.asarray(jax.vmap(lambda record: found.whitened(body, matrix, record))(records))
    np.testing.assert_allclose(vectors, plain, atol=1e-9)
    np.testing.assert_allclose(white, plain @ matrix, atol=1e-9)


def test_a_ball_for_every_kind_of_record_is_narrower_than_one_for_all():
    """Six groups, outcomes of one in ten: the diameter of one ball would be charged up to sqrt(2) too much."""
    model, domain = CASES["effects"]
    study = make_study(model, domain | {"x": sf.Interval(-0.1, 0.1)})
    found, (_, matrix) = SearchedReference(study.model, study.domain), place(study.model)
    with jax.enable_x64(True):
        point = np.concatenate([np.full(GROUPS, -2.2), [0.3]])
        held = found.at(point, matrix)
        records = others(study)
        white = np.asarray(jax.vmap(jax.grad(study.model.log_likelihood), (None, 0))(point, records)) @ matrix
    _, radius = enclosing(white[None])
    square = (white**2).sum(1)
    true = np.sqrt((square[:, None] + square[None] - 2 * white @ white.T).max())
    assert true <= held.gradients.diameter < 1.15 * true
    assert 2 * radius[0] > 1.25 * true


def test_kinds_tell_records_apart_by_their_whole_numbered_columns():
    kinds = Kinds(
        {"y": sf.Binary(), "ward": sf.Categories(GROUPS), "x": sf.Interval(0, 1), "count": sf.Integers(0, 10_000)}
    )
    assert kinds.number == 2 * GROUPS
    values = kinds.values(1, np.random.default_rng(0))
    assert [int(kinds.of({k: v[i] for k, v in values.items()})) for i in range(kinds.number)] == list(range(12))
    assert int(kinds.of({"y": 5, "ward": 99})) == kinds.number - 1, "an index outside would be another record's ball"


def test_kinds_have_a_piece_of_every_real_column_where_all_are_single_numbers():
    domain = {"y": sf.Binary(), "ward": sf.Categories(GROUPS), "x": sf.Interval(-2, 6)}
    kinds = Kinds(domain)
    assert kinds.number == 2 * GROUPS * 16 and kinds.pieces == [("x", -2.0, 6.0, 16)]
    values = kinds.values(8, np.random.default_rng(0))
    number = np.repeat(np.arange(kinds.number), 8)
    low = -2 + 8 * (number % 16) / 16
    assert np.all((low <= values["x"]) & (values["x"] <= low + 0.5)), "no record of a kind is outside of its piece"
    assert np.all(values["x"].reshape(-1, 8)[:, 0] == low[::8]) and np.all(
        values["x"].reshape(-1, 8)[:, 1] == low[::8] + 0.5
    )
    with jax.enable_x64(True):
        told = np.asarray(jax.vmap(kinds.of)({name: column for name, column in values.items()}))
        inside = values["x"] < low + 0.5  # an end belongs to the next piece
        assert np.array_equal(told[inside], number[inside])
        assert int(kinds.of({"y": 1, "ward": GROUPS - 1, "x": 99.0})) == kinds.number - 1
    assert not Kinds(domain | {"z": sf.Box(-1, 1, shape=(2,))}).pieces
    assert Kinds(domain | {"z": sf.Interval(0, 1)}).number <= 1024


def test_the_diameter_of_balls_is_that_of_their_union():
    centres, radii = np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([1.0, 0.5])
    assert diameter(centres, radii) == pytest.approx(6.5, rel=1e-5) and diameter(centres, radii) >= 6.5
    assert diameter(centres[:1], radii[:1]) >= 2.0
    body = Balls(None, None, None, centres, radii)
    cut = np.asarray(body.cut(jnp.array([100.0, 0.0]), 0))
    np.testing.assert_allclose(cut, [1.0, 0.0], atol=1e-6)


# -- kinks --------------------------------------------------------------------------------------------------------------


def test_records_between_two_kinks_are_held_where_gradients_jump(monkeypatch):
    study = make_study(sharp, {"x": sf.Interval(-1, 1), "y": sf.Interval(-10, 10)})
    theta, matrix = np.array([0.4]), np.array([[0.01]])
    here, there = np.array([0.395]), np.array([0.41])
    between = {"x": jnp.ones(50), "y": jnp.linspace(0.39, 0.42, 50)}

    def outside():
        found = SearchedReference(study.model, study.domain)
        with jax.enable_x64(True):
            held = found.at(theta, matrix)
            vectors = jax.vmap(lambda record: found.vector(held.body, record))(between)
            low, high = map(float, found.range(held.anchor, here, there, np.zeros(1)))
            met = scalars(study, here, there, vectors, there - here, between)
        return float(held.anchor.jump), int(np.sum((met < low) | (met > high)))

    jump, count = outside()
    assert jump > 0 and count == 0
    monkeypatch.setattr(searched.SearchedReference, "_jump", lambda *given: 0.0)
    assert outside()[1] > 0, "a bank of made-up records has none between two kinks"


@pytest.mark.parametrize("name", CASES)
def test_a_smooth_program_has_no_jump(name):
    _, found, theta, matrix = reference_of(name)
    assert float(found.at(theta, matrix).anchor.jump) == 0


# -- the choice ---------------------------------------------------------------------------------------------------------


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def test_a_tight_proof_is_taken_and_a_missing_one_searched_for():
    proven = make_study(logistic, {"x": sf.Box(-1, 1, shape=(2,)), "y": sf.Binary()})
    assert not proven.reference_bounds.at(*place(proven.model)).searched
    found = make_study(*CASES["effects"])
    assert found.reference_bounds.at(*place(found.model)).searched
    insisting = make_study(*CASES["effects"], sensitivity="certify")
    assert not insisting.can_answer("remainder") and "asinh" in insisting.why_not("remainder")
    with pytest.raises(Unsupported, match="asinh"):
        make_study(*CASES["effects"], sensitivity="certify", kernel="langevin")


def test_a_loose_proof_gives_way_to_a_search(monkeypatch):
    study = make_study(logistic, {"x": sf.Box(-1, 1, shape=(2,)), "y": sf.Binary()})
    best = BestReference(study.model, study.domain)
    real = best._proven.at

    def loose(*given):
        proven = real(*given)
        return proven._replace(gradients=proven.gradients._replace(diameter=2 * proven.gradients.diameter))

    monkeypatch.setattr(best._proven, "at", loose)
    assert best.at(*place(study.model)).searched


def made_up_wards(n=40_000):
    rng = np.random.default_rng(2)
    ward, x = rng.integers(0, GROUPS, n), rng.uniform(-1, 1, n)
    return {"ward": ward, "x": x, "y": (rng.random(n) < 1 / (1 + np.exp(-(0.3 * ward - 1 + 0.5 * x)))).astype(int)}


@pytest.mark.parametrize("owners", [1, 2])
def test_a_run_says_that_it_rests_on_a_search(owners):
    """The owners say so: it is their bounds that were searched for, not those that the analyst would have."""
    model, domain = CASES["effects"]
    promise = {"epsilon": 8.0, "delta": 1e-6}
    data = made_up_wards()
    given = promise | {"domain": domain}
    if owners > 1:
        halves = [{name: column[i::2] for name, column in data.items()} for i in range(2)]
        data, given = [sf.Owner(half, name=f"half {i}", **promise) for i, half in enumerate(halves)], {"domain": domain}
    run = sf.sample(model, data, kernel="langevin", max_iterations=60, chains=2, progress=False, **given)
    said = run.privacy.owners if owners > 1 else [run.privacy]
    assert all("searched for over the declared domain" in one.sensitivity for one in said)
    assert all("unless a record of the domain reaches further" in one.exact for one in said)
    assert abs(run.draws["slope"].mean() - 0.5) < 0.3


# -- far from zero, on a cluster, over a wire -----------------------------------------------------------------------------


def level(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1e6))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e8])
def test_vectors_far_from_zero_are_charged_for_how_far_they_are_apart(offset):
    """An analyst chooses the reference point: far away all scores are long, and their squares would cancel."""
    study = make_study(level, {"y": sf.Integers(0, 1)})
    found, matrix = SearchedReference(study.model, study.domain), np.eye(1)
    with jax.enable_x64(True):
        held = found.at(np.array([-offset]), matrix)
        ends = {"y": jnp.array([0, 1])}
        vectors = np.asarray(jax.vmap(lambda record: found.whitened(held.body, matrix, record))(ends))
    assert held.gradients.diameter >= abs(vectors[1, 0] - vectors[0, 0]) >= 1 - 1e-6
    best = BestReference(study.model, study.domain).at(np.array([-offset]), matrix)
    assert best.gradients.diameter >= 1 - 1e-6


def test_a_part_of_a_table_that_is_told_balls_cuts_to_them():
    """On a cluster a part knows no bounds of its own: the body that it is told says how vectors are cut."""
    study, found, theta, matrix = reference_of("effects")
    rng = np.random.default_rng(0)
    data = {"ward": rng.integers(0, GROUPS, 300), "x": rng.uniform(-1, 1, 300), "y": rng.integers(0, 2, 300)}
    with jax.enable_x64(True):
        held = found.at(theta, matrix)
        table = records.load(data, study.domain, outside="refuse", columns=None)
        query = score_sum(held, matrix, 2.0**-40, 300)
        whole, part = (LocalEngine(table, s).sum(query) for s in (study, study.without_reference()))
    np.testing.assert_array_equal(whole, part)
    assert np.any(whole != 0)


def test_a_search_does_not_replace_a_proof_where_it_cannot_try_every_value():
    domain = {"x": sf.Binary(shape=(12,)), "y": sf.Binary()}

    def probit(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([12]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(probs=0.5 * (1 + jax.lax.erf(x @ beta / 2**0.5))), obs=y)

    model = make_study(probit, domain).model
    assert not SearchedReference(model, domain).thorough
    assert reference_of("effects")[1].thorough
