"""What the pilot makes of its releases: post-processing, so anything may be tested with made-up noise."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.bounds import compiled, synthetic
from sfumato.bounds.compiled import prior_draws
from sfumato.bounds.reach import MARGIN, Search, diameter, enclosing_ball
from sfumato.kernel import PublicStream
from sfumato.model.derivatives import matrix_to_triangle, vector_function
from sfumato.model.trials import as_model_input
from sfumato.planner import pilot
from sfumato.planner.arrival import SURPRISING, is_noise, upper_limit
from sfumato.planner.belief import Belief
from sfumato.planner.centre import assumed_centre, summit
from sfumato.planner.guide import Answered, combine_scores, on_one_parabola, unwhiten_information
from sfumato.planner.pilot import FORGIVEN, run_pilot
from sfumato.study.target import make_study

REPEATS = 400


def noisy_scores(rng, mode, covariance, sigmas, starts):
    """Scores of a normal likelihood, with the noise a pilot has: whitened by the covariance."""
    root = np.linalg.cholesky(covariance)
    noise = np.linalg.inv(root).T
    slopes = [np.linalg.solve(covariance, mode - start) for start in starts]
    return [
        Answered(
            start, slope + noise @ (sigma * rng.standard_normal(len(mode))), sigma * noise, np.zeros((len(mode), 0))
        )
        for start, slope, sigma in zip(starts, slopes, sigmas, strict=True)
    ]


def test_all_scores_place_the_centre_together():
    rng = np.random.default_rng(0)
    covariance = np.array([[2.0, 0.9], [0.9, 1.0]])
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    mode, sigmas = np.array([1.0, -2.0]), (1.0, 0.5)
    starts = [mode + [1.0, 0.0], mode + [0.0, 0.5]]
    off, told = [], set()
    for _ in range(REPEATS):
        answered = noisy_scores(rng, mode, covariance, sigmas, starts)
        score, error = combine_scores(answered, starts[0], np.linalg.inv(covariance), covariance)
        off.append(white @ (starts[0] + covariance @ score - mode))
        told.add(round(error, 9))
    expected = sum(s**-2 for s in sigmas) ** -0.5
    assert told == {round(expected, 9)}
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(expected, rel=0.1)


def test_gradients_from_where_the_posterior_is_no_parabola_are_not_heard():
    rng = np.random.default_rng(0)
    mode = np.zeros(2)
    answers = noisy_scores(
        rng, mode, np.eye(2), (1.0, 1.0, 1.0, 1.0), [mode + 50.0, mode + 3.0, mode + 1.0, mode + 9.0]
    )
    far, bent, near, last = answers

    def bend(theta):
        return 0.05 * theta**2

    assert on_one_parabola(answers, mode, bend, np.eye(2)) == [near, last]
    assert on_one_parabola(answers, mode, np.zeros_like, np.eye(2)) == [bent, near, last]


def released(rng, truth, sigma):
    triangle = matrix_to_triangle(truth)
    return triangle + sigma * rng.standard_normal(len(triangle))


@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0])
def test_stein_never_makes_the_information_worse_nor_calls_it_better_than_it_is(spread):
    rng = np.random.default_rng(1)
    dim, sigma = 8, 0.02
    truth = np.eye(dim) + spread * np.diag(np.linspace(-0.5, 0.5, dim))
    losses, said, raw = [], [], sigma * (dim * (dim + 1) / 2) ** 0.5
    for _ in range(REPEATS):
        found, rough = unwhiten_information(released(rng, truth, sigma), np.eye(dim), sigma)
        losses.append(np.sum((found - truth) ** 2))
        said.append(rough**2)
    loss = np.mean(losses) ** 0.5
    assert loss < raw * (1.01 if spread == 1.0 else 0.9)
    assert 0.9 * loss < np.mean(said) ** 0.5 < 1.1 * raw
    if spread == 1.0:
        assert np.mean(said) ** 0.5 == pytest.approx(loss, rel=0.1)


def test_one_parameter_has_nothing_to_draw_together():
    found, rough = unwhiten_information(np.array([1.3]), np.eye(1), 0.1)
    assert found == pytest.approx(1.3)
    assert rough == pytest.approx(0.1)


@pytest.mark.parametrize("error", [0.0, 0.4, 0.9])
def test_starts_are_as_far_from_the_mode_as_draws(error):
    """Over pilots and starts together; about a centre that is off by `error`, starts with the whole covariance are not."""
    rng = np.random.default_rng(2)
    covariance = np.array([[2.0, 0.9], [0.9, 1.0]])
    root = np.linalg.cholesky(covariance)
    pictures = [Belief(root @ (error * rng.standard_normal(2)), covariance, "", error) for _ in range(4000)]
    starts = np.stack([PublicStream(i, 1).starts(p.centre, p.start)[0] for i, p in enumerate(pictures)])
    assert np.cov(starts.T) == pytest.approx(covariance, rel=0.12)


def test_chains_never_start_at_one_point():
    picture = Belief(np.zeros(1), np.eye(1), "", error=3.0)
    assert 0 < picture.start[0, 0] < 0.1


def test_however_small_the_budget_the_centre_stays_where_the_prior_believes():
    """Answers that are nothing but noise: no single one, nor all of them together, may carry the centre away."""
    rng = np.random.default_rng(3)
    family = sf.families.Bernoulli()
    model = family.to_model()

    def release(what, theta, matrix, radius, sigma, centre):
        return sigma * rng.standard_normal(1)

    with jax.enable_x64(True):
        found = run_pilot(model, family.domain, 1000, np.zeros(1), 1e-12, release, known=True)
    spread = np.diff(np.quantile(prior_draws(model), [0.16, 0.84]))[0] / 2
    assert np.abs(found.belief.centre).max() <= 3 * 6 * spread
    assert found.belief.error > 1e3
    assert not found.arrived and found.off_by > 1e3


def level(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_records_of_an_owner_with_a_wider_domain_are_not_cut_off():
    """The radius of every release covers what any owner's records may say."""
    narrow, wide = ({"y": sf.Interval(-b, b)} for b in (1.0, 2.0))
    model = make_study(level, narrow).model

    def first_radius(domain, others=()):
        seen = []

        def release(what, theta, root, radius, sigma, centre):
            seen.append(radius)
            return np.zeros(1)

        with jax.enable_x64(True):
            run_pilot(model, domain, 1000, np.zeros(1), 0.01, release, known=True, others=others)
        return seen[0]

    radii = first_radius(narrow), first_radius(narrow, (wide,)), first_radius(wide)
    assert radii[0] == pytest.approx(radii[1] / 2, rel=0.02) and radii[1] == pytest.approx(radii[2], rel=0.02)


# -- tables that nobody tuned on ------------------------------------------------------------------------------------------


class Table:
    """Records counted by kind, and a release over them with NumPy's noise: what a vault would answer, much faster."""

    def __init__(self, model, domain, columns, times=1, seed=0):
        self.study = make_study(model, domain)
        self.model, self.n, self.times = self.study.model, times * len(next(iter(columns.values()))), times
        self.columns = {k: as_model_input(self.study.domain[k], np.asarray(v, float)) for k, v in columns.items()}
        self.rng, self.spent, self.asked = np.random.default_rng(seed), 0.0, []
        self.mode, self.white = self._mode()

    def _mode(self):
        model = self.model

        def log_posterior(theta):
            each = jax.vmap(model.log_likelihood, (None, 0))(theta, self.columns)
            return self.times * each.sum() + model.log_prior(theta)

        value, slope, bend = (jax.jit(f(log_posterior)) for f in (lambda g: g, jax.grad, jax.hessian))
        theta = self.start
        for _ in range(100):
            values, vectors = np.linalg.eigh(-np.asarray(bend(theta)))
            step = vectors @ ((vectors.T @ np.asarray(slope(theta))) / np.maximum(np.abs(values), 1e-6 * values.max()))
            length = 1.0
            while length > 1e-9 and not value(theta + length * step) >= value(theta):
                length /= 2
            theta = theta + length * step
        return theta, np.linalg.cholesky(-np.asarray(bend(theta))).T

    @property
    def start(self):
        return assumed_centre(self.model, None)[0]

    def off(self, theta):
        return float(np.sqrt(np.mean((self.white @ (theta - self.mode)) ** 2)))

    def release(self, what, theta, matrix, radius, sigma, centre):
        def cut(record):
            value = vector_function(what, self.model, theta, matrix)(record) - centre
            return value * jnp.minimum(1.0, radius / jnp.maximum(jnp.linalg.norm(value), 1e-300))

        self.spent += (2 * radius / sigma) ** 2
        self.asked.append(what)
        total = self.times * np.asarray(jax.jit(jax.vmap(cut))(self.columns)).sum(axis=0) + self.n * centre
        return total + sigma * self.rng.standard_normal(len(total))

    def limit(self, mu_squared):
        root = np.linalg.inv(self.white)
        return mu_squared / diameter(Search(self.model, [self.study.domain]).vectors("gradient", self.mode, root)) ** 2

    def budget(self, limit):
        """Mu squared at which the one-shot limit is so many draws."""
        return limit / self.limit(1.0)

    def pilot(self, mu_squared, share=0.1, **options):
        with jax.enable_x64(True):
            return run_pilot(
                self.model, self.study.domain, self.n, self.start, share * mu_squared, self.release, **options
            )


def readmission(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    with numpyro.plate("patients", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ slopes), obs=y)


def readmissions(seed=0):
    """Skewed, rare and ordinary columns, one patient in eight comes back: far from records uniform over the domain."""
    rng = np.random.default_rng(seed)
    size = 3000
    parts = (
        rng.normal(size=(size, 2)).clip(-4, 4),
        rng.random((size, 1)) < 0.05,
        rng.exponential(size=(size, 2)).clip(0, 8),
    )
    x = np.concatenate(parts, axis=1)
    y = rng.random(size) < 1 / (1 + np.exp(2.4 - x @ np.array([0.5, -0.4, 1.2, 0.2, -0.3])))
    lower, upper = np.array([-4, -4, 0, 0, 0]), np.array([4, 4, 1, 8, 8])
    domain = {"x": sf.Box(lower, upper, shape=(5,)), "y": sf.Binary()}
    return Table(readmission, domain, {"x": x, "y": y}, times=40, seed=seed)


@pytest.fixture(scope="module")
def patients():
    with jax.enable_x64(True):
        return readmissions()


def test_the_pilot_arrives_where_real_information_is_not_the_made_up_one(patients):
    """Undamped steps with the information of made-up records ended more than a hundred standard deviations off here."""
    with jax.enable_x64(True):
        assert patients.off(patients.start) > 50
        for _ in range(3):
            patients.spent, budget = 0.0, patients.budget(40.0)
            found = patients.pilot(budget)
            assert patients.spent <= 0.1 * budget
            assert found.spent == pytest.approx(patients.spent, rel=0.01)
            assert found.arrived
            assert patients.off(found.belief.centre) <= max(1.5, 2 * found.belief.error)
            assert patients.off(found.belief.centre) <= found.off_by


def test_a_pilot_on_too_small_a_budget_says_so(patients):
    with jax.enable_x64(True):
        found = patients.pilot(patients.budget(1.0))
    assert not found.arrived and found.off_by > FORGIVEN


def test_a_pilot_that_sees_a_hopeless_limit_keeps_most_of_its_share(patients):
    """Two draws are no chain: a tenth of the budget is too dear a price for learning it."""
    with jax.enable_x64(True):
        budget = patients.budget(2.0)
        patients.spent = 0.0
        found = patients.pilot(budget, widest=(budget / 20) ** 0.5)
        assert not found.arrived and patients.spent < 0.05 * budget
        assert 0.5 < budget / found.width**2 < 8  # the limit, as it sees it from there
        enough = patients.budget(40.0)
        assert patients.pilot(enough, widest=(enough / 20) ** 0.5).arrived


def test_a_pilot_takes_more_than_its_plan_only_if_it_must_and_may(patients):
    with jax.enable_x64(True):
        budget = patients.budget(40.0)
        patients.spent = 0.0
        patients.pilot(budget, share=0.03)
        assert patients.spent <= 0.03 * budget
        patients.spent = 0.0
        patients.pilot(budget, share=0.03, most=0.1 * budget)
        assert 0.05 * budget < patients.spent <= 0.1 * budget
        rich = patients.budget(4000.0)
        patients.spent = 0.0
        patients.pilot(rich, share=0.03, most=0.1 * rich)
        assert patients.spent <= 0.03 * rich


@pytest.mark.parametrize("sds", [5.0, 20.0, 100.0])
def test_a_pilot_that_ends_beside_the_mode_is_told_by_its_last_gradient(patients, monkeypatch, sds):
    """Saboteur: the climb ends, and somebody moves the point before the last gradient is asked."""
    moved = []

    def sabotaged(asker, guide, point):
        honest = climb(asker, guide, point)
        away = honest.root @ np.full(len(honest.theta), sds)
        moved.append(1)
        return guide.at(honest.theta + away, honest.information, honest.roughness, honest.reached)

    climb = pilot._climb
    monkeypatch.setattr(pilot, "_climb", sabotaged)
    with jax.enable_x64(True):
        found = patients.pilot(patients.budget(40.0))
    assert moved and not found.arrived


def waiting(y):
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    middle = numpyro.sample("middle", dist.Normal(0.0, 5.0))
    with numpyro.plate("visits", y.shape[0]):
        numpyro.sample("y", dist.Laplace(middle, scale), obs=y)


def test_where_second_derivatives_tell_nothing_outer_products_do():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        table = Table(
            waiting, {"y": sf.Interval(-10.0, 10.0)}, {"y": rng.laplace(2.0, 0.5, 2000).clip(-10, 10)}, times=20
        )
        found = table.pilot(table.budget(60.0))
        assert set(table.asked) == {"gradient", "outer"}
        assert found.arrived
        # The mode of a Laplace is a median: one posterior sd is what outer products say, not the Hessian, which is flat.
        precision = np.linalg.inv(found.belief.covariance)
        score = jax.vmap(jax.grad(table.model.log_likelihood), (None, 0))(found.belief.centre, table.columns)
        assert np.diag(precision) == pytest.approx(20 * np.diag(np.asarray(score.T @ score)), rel=0.2)


# -- how far a record reaches -----------------------------------------------------------------------------------------------


def test_the_search_finds_the_furthest_record():
    """Logistic on a box: the longest whitened score is at a corner, one of 2^12, which a thousand draws hardly hit."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        model = make_study(wide, {"x": sf.Box(-1, 1, shape=(12,)), "y": sf.Binary()}).model
        theta, root = rng.normal(size=12), np.tril(rng.normal(size=(12, 12)))
        corners = np.array(list(product((-1.0, 1.0), repeat=12)))
        every = {"x": np.repeat(corners, 2, axis=0), "y": np.tile([0, 1], len(corners))}
        longest = np.linalg.norm(np.asarray(compiled.vectors(model, "gradient")(theta, root, every)), axis=1).max()
        found = Search(model, [{"x": sf.Box(-1, 1, shape=(12,)), "y": sf.Binary()}]).vectors("gradient", theta, root)
    assert np.linalg.norm(found, axis=1).max() >= 0.98 * longest


def wide(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([12]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)


def test_the_ball_holds_every_point_and_is_nearly_the_smallest():
    rng = np.random.default_rng(4)
    for points in (rng.normal(size=(500, 3)), np.eye(6), np.array([[1.0], [4.0], [2.0]])):
        ball = enclosing_ball(points)
        assert np.linalg.norm(points - ball.centre, axis=1).max() <= ball.radius
    assert enclosing_ball(np.array([[1.0], [4.0]])).radius == pytest.approx(1.5 * MARGIN)
    simplex = np.sqrt(1 - 1 / 6)
    assert enclosing_ball(np.eye(6)).radius <= 1.05 * MARGIN * simplex
    assert diameter(np.eye(6)) == pytest.approx(np.sqrt(2))


# -- the test of arrival -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 4, 30])
@pytest.mark.parametrize("distance", [0.0, 1.0, 20.0])
def test_the_upper_limit_of_a_distance_covers_it(dim, distance):
    rng = np.random.default_rng(5)
    sigma, centre = 0.7, distance * np.ones(dim) / dim**0.5
    seen = centre + sigma * rng.standard_normal((2000, dim))
    covered = [upper_limit(float(s @ s), sigma, dim) >= distance for s in seen[:400]]
    assert np.mean(covered) >= 0.96
    if distance:
        assert np.median([upper_limit(float(s @ s), sigma, dim) for s in seen[:100]]) < distance + 5 * sigma * dim**0.25


def test_noise_is_taken_for_noise_as_often_as_declared():
    rng = np.random.default_rng(6)
    squares = (2.0 * rng.standard_normal((20_000, 5)) ** 2).sum(axis=1)
    assert 1 - np.mean([is_noise(s, 2.0, 5) for s in squares[:5000]]) <= 5 * SURPRISING


@pytest.mark.parametrize(("noise", "arrives"), [(0.0, True), (12.0, True), (25.0, False)])
def test_chance_alone_turns_nobody_away(noise, arrives):
    """One fine pilot in a thousand sees such a last gradient: all of its length is forgiven. What chance never makes is not."""
    family, records = sf.families.Bernoulli(), {"y": (np.arange(20_000) % 10 < 3).astype(float)}
    model = family.to_model()

    def place(last):
        asked, vectors = [], compiled.vectors(model, "gradient")

        def release(what, theta, matrix, radius, sigma, centre):
            asked.append(sigma)
            return np.sum(vectors(theta, matrix, records), axis=0) + sigma * noise * (len(asked) == last)

        with jax.enable_x64(True):
            return run_pilot(model, family.domain, 20_000, np.zeros(1), 0.0056, release, known=True), len(asked)

    _, last = place(last=0)
    found, asked = place(last)
    assert asked == last and found.arrived is arrives
    assert found.off_by > 1 or not noise


# -- the start -----------------------------------------------------------------------------------------------------------


def banana(x):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("b", dist.Normal(20.0 * a**2, 0.01))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(a, 1.0), obs=x)


def test_a_start_is_a_point_of_the_prior():
    """The vector of medians of a banana is no such point: its log density is thousands below that of any draw."""
    with jax.enable_x64(True):
        model = make_study(banana, {"x": sf.Interval(-5.0, 5.0)}).model
        theta, origin = assumed_centre(model, None)
        typical = np.median([model.log_prior(draw) for draw in prior_draws(model)[:50]])
        assert model.log_prior(np.median(prior_draws(model), axis=0)) < typical - 1000
        assert model.log_prior(theta) > typical - 20
    assert origin == "the prior's mode"


def pooled(group, y):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    rates = numpyro.sample("rates", dist.Normal(0.0, spread).expand([8]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=rates[group]), obs=y)


def test_a_prior_without_a_top_is_entered_in_its_middle():
    """The density of a hierarchy grows without end as its scale goes to zero: no pilot starts there."""
    with jax.enable_x64(True):
        model = make_study(pooled, {"group": sf.Categories(8), "y": sf.Binary()}).model
        theta, _ = assumed_centre(model, None)
        low, high = np.quantile(prior_draws(model), [0.05, 0.95], axis=0)
    assert np.all((low < theta) & (theta < high))


def test_a_curved_prior_is_followed_to_the_top():
    """The parabola knows a alone; b follows a along the banana's ridge, which no Newton step for both would."""
    with jax.enable_x64(True):
        model = make_study(banana, {"x": sf.Interval(-5.0, 5.0)}).model
        information = np.diag([1e4, 0.0])
        top = summit(model, np.array([0.3, 1.8]), information @ np.array([0.9, 0.0]), information)
    assert top[0] == pytest.approx(1.2, rel=1e-3)
    assert top[1] == pytest.approx(20.0 * top[0] ** 2, rel=1e-3)


# -- directions that no record speaks of ----------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [2, 3, 10, 600])
def test_an_intercept_beside_an_effect_for_every_group_has_one_silent_direction(groups):
    """Also where a group is so rare that no made-up table of two thousand records need have it."""

    def model(ward, y):
        base = numpyro.sample("base", dist.Normal(0.0, 3.0))
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([groups]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=base + effect[ward]), obs=y)

    study = make_study(model, {"ward": sf.Categories(groups), "y": sf.Binary()})
    with jax.enable_x64(True):
        silent = synthetic.silent_directions(study.model, study.domain, np.full(groups + 1, 0.1))
    assert silent.shape == (groups + 1, 1)
    along = np.concatenate([[-1.0], np.ones(groups)]) / (groups + 1) ** 0.5
    assert abs(along @ silent[:, 0]) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("far", [0.0, 1e6, 1e8])
def test_a_column_far_from_zero_leaves_no_direction_silent(far):
    def model(x, y):
        base, slope = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("base", "slope"))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(base + slope * x, 1.0), obs=y)

    study = make_study(model, {"x": sf.Interval(far, far + 1), "y": sf.Interval(-5, 5)})
    with jax.enable_x64(True):
        assert synthetic.silent_directions(study.model, study.domain, np.zeros(2)).shape == (2, 0)
