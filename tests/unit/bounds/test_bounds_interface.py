"""The interface others rely on: transformations, degenerate inputs, stated ranges, the public function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog
from sensitivity_zoo import CASES, build, logit, pairs

from sfumato import families
from sfumato.bounds import Bounds, Clip, Lipschitz, Range, bounds_for, elementwise
from sfumato.bounds.arithmetic import unary
from sfumato.bounds.atoms import Atoms, Axis
from sfumato.bounds.interval import Interval
from sfumato.bounds.rules import RULES
from sfumato.domain import Ball, Binary, Box
from sfumato.errors import InvalidInput
from sfumato.study.certify import certify

CASE = CASES["logit-box-1"]


def test_it_runs_under_jit_vmap_and_scan() -> None:
    built = build(CASE.name)
    with jax.enable_x64(True):
        start = jnp.zeros((4, built.model.dim))
        moves = jnp.asarray(np.random.default_rng(0).normal(scale=0.01, size=(6, *start.shape)))

        def step(theta, move):
            return theta + move, jax.vmap(built.bounds.range)(theta, theta + move)

        _, (lo, hi) = jax.jit(lambda s: jax.lax.scan(step, s, moves))(start)
        assert lo.shape == hi.shape == (6, 4) and lo.dtype == jnp.float64
        assert np.all(np.isfinite(lo)) and np.all(hi > lo)


def test_no_step_has_no_width() -> None:
    built = build(CASE.name)
    with jax.enable_x64(True):
        theta, _ = pairs(built.model.dim, np.random.default_rng(0), 4, 1.0, 1.0)
        lo, hi = built.range(theta, theta)
        assert np.all(hi - lo < 1e-12) and np.all(lo <= 0) and np.all(hi >= 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_nonsense_gives_an_infinite_or_huge_width_never_nan(bad: float) -> None:
    built = build(CASE.name)
    with jax.enable_x64(True):
        theta = jnp.zeros((1, built.model.dim))
        lo, hi = built.range(theta, theta.at[0, 0].set(bad))
        assert not np.isnan(lo[0]) and not np.isnan(hi[0])
        assert hi[0] - lo[0] >= min(bad, 1e199) if np.isfinite(bad) else np.isinf(hi[0] - lo[0])


def test_a_wrong_slope_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    softplus = elementwise.FUNCTIONS["softplus"]
    lazy = softplus._replace(slope=lambda x: Interval(0.4 + 0 * x.lo, 0.6 + 0 * x.hi))
    monkeypatch.setitem(RULES, "softplus", lambda scope, params, value: unary(scope, value, "softplus", lazy))
    built = build(CASE.name)
    bounds = bounds_for(built.model, CASE.domain, "certify")
    with jax.enable_x64(True):
        theta, theta_prop = jnp.array([3.0, 0.0]), jnp.array([3.1, 0.0])
        records = {"x": jnp.array([[1.0], [-1.0]]), "y": jnp.array([0, 1])}
        f = built.ratio(theta, theta_prop, records)
        lo, hi = jax.jit(bounds.range)(theta, theta_prop)
        assert jnp.min(f) < lo or jnp.max(f) > hi


# -- linear functions on cells ----------------------------------------------------------------------------------------


def test_on_a_box_the_dual_bound_is_the_optimum() -> None:
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        for _ in range(20):
            q, u = rng.normal(size=(2, 4))
            cell = np.sort(rng.uniform(-1, 1, size=2)) * np.abs(u).sum()
            atoms = Atoms()
            atoms.add_box(Interval(-np.ones(4), np.ones(4)), Interval(-np.ones(4), np.ones(4)))
            atoms.axes = [Axis(jnp.asarray(u), Interval(*jnp.asarray(cell)))]
            best = linprog(-q, A_ub=[u, -u], b_ub=[cell[1], -cell[0]], bounds=[(-1, 1)] * 4)
            np.testing.assert_allclose(atoms.upper(jnp.asarray(q)), -best.fun, rtol=1e-8, atol=1e-9)


def test_on_a_ball_the_dual_bound_is_close_to_the_optimum() -> None:
    rng = np.random.default_rng(2)
    with jax.enable_x64(True):
        for _ in range(20):
            q, u = rng.normal(size=(2, 4))
            t = rng.uniform(-0.9, 0.9) * np.linalg.norm(u)
            atoms = Atoms()
            atoms.add_column(Ball(1.0, 4), Interval(-np.ones(4), np.ones(4)))
            atoms.axes = [Axis(jnp.asarray(u), Interval(jnp.asarray(t), jnp.asarray(t)))]
            along = q @ u / (u @ u)
            across = np.linalg.norm(q - along * u)
            truth = along * t + np.sqrt(1 - t**2 / (u @ u)) * across
            bound = float(atoms.upper(jnp.asarray(q)))
            assert truth - 1e-9 <= bound <= truth + 0.05 * across


# -- stated ranges ----------------------------------------------------------------------------------------------------


def stated(method: object) -> tuple[Bounds, float, float, float, float]:
    built = build(CASE.name)
    bounds = bounds_for(built.model, CASE.domain, method)
    with jax.enable_x64(True):
        theta, theta_prop = jnp.array([0.0, 1.0]), jnp.array([3.0, 5.0])
        there, back = bounds.range(theta, theta_prop), bounds.range(theta_prop, theta)
    return bounds, *(float(x) for x in (*there, *back))


@pytest.mark.parametrize(
    ("method", "reach", "kind"),
    [
        (Clip(bound=0.7), 0.7, "clipped"),
        (Clip(per_step=2.0), 10.0, "clipped"),
        (Lipschitz(2.0), 10.0, "declared"),
        (Lipschitz(2.0, norm=1), 14.0, "declared"),
        (Lipschitz(2.0, norm=float("inf")), 8.0, "declared"),
    ],
)
def test_stated_ranges(method: object, reach: float, kind: str) -> None:
    bounds, lo, hi, back_lo, back_hi = stated(method)
    np.testing.assert_allclose([lo, hi, back_lo, back_hi], [-reach, reach, -reach, reach])
    assert bounds.kind == kind and not bounds.proven and bounds.describe().endswith(".")


def test_a_users_range_is_made_symmetric() -> None:
    bounds, lo, hi, back_lo, back_hi = stated(Range(lambda a, b: (-1.0, b["alpha"] - a["alpha"] + 2.0)))
    assert (back_lo, back_hi) == (-hi, -lo)
    assert hi == 1.0 and bounds.kind == "declared"


@pytest.mark.parametrize(
    "wrong",
    [Clip, lambda: Clip(bound=1.0, per_step=1.0), lambda: Clip(bound=-1.0), lambda: Lipschitz(0.0)],
)
def test_stated_ranges_check_their_numbers(wrong) -> None:
    with pytest.raises(InvalidInput):
        wrong()


def test_other_methods_are_refused() -> None:
    with pytest.raises(InvalidInput, match="certify"):
        bounds_for(build(CASE.name).model, CASE.domain, "guess")
    with pytest.raises(InvalidInput, match="Range"):
        Range(3.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="norm"):
        Lipschitz(1.0, norm=3)


def test_a_column_without_a_domain_is_refused() -> None:
    with pytest.raises(InvalidInput, match="declare"):
        bounds_for(build(CASE.name).model, {"y": Binary()}, "certify")


# -- the public function ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [Box(-1, 1, shape=(2,)), Ball(1.0, 2)])
def test_certify_takes_a_numpyro_model_and_values_by_site(x: Box | Ball) -> None:
    here, there = {"beta": [0.0, 0.0], "alpha": 0.0}, {"beta": [0.1, 0.0], "alpha": 0.0}
    lo, hi = certify(logit, {"x": x, "y": Binary()}, here, there)
    assert isinstance(lo, float) and isinstance(hi, float)
    exact = np.log(2) - np.log1p(np.exp(-0.1))  # at a corner that agrees with the step
    assert exact <= hi <= 1.1 * exact and lo <= -(np.log1p(np.exp(0.1)) - np.log(2))


def test_certify_takes_a_family_and_uses_its_exact_range() -> None:
    lo, hi = certify(families.Bernoulli(), None, {"p": 0.3}, {"p": 0.31})
    np.testing.assert_allclose([lo, hi], np.log([0.69 / 0.7, 0.31 / 0.3]), rtol=1e-12)


@pytest.mark.parametrize(
    ("here", "there", "match"),
    [
        (0.3, {"p": 0.31}, "theta must map sites"),
        ({"p": 0.3}, {"p": 1.31}, "theta_prop must lie inside"),
        ({"p": -0.1}, {"p": 0.3}, "theta must lie inside"),
        ({"q": 0.3}, {"p": 0.3}, "theta must name the sites"),
    ],
)
def test_certify_refuses_values_that_are_no_parameter(here: object, there: object, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        certify(families.Bernoulli(), None, here, there)  # type: ignore[arg-type]


def test_a_certified_range_says_so() -> None:
    bounds = build(CASE.name).bounds
    assert bounds.kind == "certified" and bounds.proven and "proven" in bounds.describe()


def test_a_coin_has_an_exact_range() -> None:
    built = build("coin")
    assert built.bounds.kind == "exact" and built.bounds.proven
    with jax.enable_x64(True):
        lo, hi = built.range(jnp.array([[0.0]]), jnp.array([[1.0]]))
        p = 1 / (1 + np.exp(-1.0))
        np.testing.assert_allclose([lo[0], hi[0]], np.log([2 * (1 - p), 2 * p]), rtol=1e-9)
