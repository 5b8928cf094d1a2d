"""Proven ranges hold for every record, and are not much wider than they must be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sensitivity_zoo import BATCH, CASES, Case, brute_force, build, draw, pairs


def excess(name: str, shrink: float = 0.0) -> float:
    """Largest violation of the range over parameters near and far, steps small and large, and many records."""
    case, built, rng = CASES[name], build(name), np.random.default_rng(7)
    worst = -np.inf
    with jax.enable_x64(True):
        records = draw(case.domain, rng, BATCH)
        for scale, step in ((0.3, 1e-3), (1.5, 1e-3), (0.5, 0.1), (1.0, 1.0)):
            theta, theta_prop = pairs(built.model.dim, rng, 5, scale, step)
            lo, hi = built.range(theta, theta_prop)
            middle, half = (lo + hi) / 2, (hi - lo) / 2 * (1 - shrink)
            for i in range(5):
                f = built.ratio(theta[i], theta_prop[i], records)
                tolerance = 1e-10 * (1 + jnp.max(jnp.abs(f)))  # of evaluating f itself
                outside = jnp.abs(f - middle[i]) - half[i] if np.isfinite(half[i]) else jnp.full_like(f, -np.inf)
                worst = max(worst, float(jnp.max(outside - tolerance)))
    return worst


@pytest.fixture(scope="module", params=CASES)  # module scope: all tests of one model run together
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_record_is_inside(name: str) -> None:
    assert excess(name) <= 0


def test_a_range_a_third_too_small_is_caught(name: str) -> None:
    if name in ("logit-box-5", "logit-ball-5", "poisson-box", "normal", "beta"):
        assert excess(name, shrink=1 / 3) > 0


def test_small_steps_have_finite_symmetric_ranges(name: str) -> None:
    built, rng = build(name), np.random.default_rng(3)
    with jax.enable_x64(True):
        theta, theta_prop = pairs(built.model.dim, rng, 5, 0.5, 1e-3)
        lo, hi = built.range(theta, theta_prop)
        back_lo, back_hi = built.range(theta_prop, theta)
        assert np.all(np.isfinite(lo)) and np.all(np.isfinite(hi)) and np.all(lo < hi)
        np.testing.assert_allclose(back_lo, -hi, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(back_hi, -lo, rtol=1e-9, atol=1e-12)


def ratios(case: Case, scale: float, norm: float | None) -> list[float]:
    built, rng = build(case.name), np.random.default_rng(11)
    out = []
    with jax.enable_x64(True):
        theta, theta_prop = pairs(built.model.dim, rng, 5, scale, 1e-3)
        if norm is not None:
            moved = theta / jnp.linalg.norm(theta, axis=1, keepdims=True) * norm
            theta, theta_prop = moved, moved + (theta_prop - theta)
        lo, hi = built.range(theta, theta_prop)
        for i in range(len(theta)):
            out.append(float(hi[i] - lo[i]) / brute_force(case, built, theta[i], theta_prop[i], rng))
    return out


def test_small_steps_are_tight(name: str) -> None:
    case = CASES[name]
    if case.limit is None:
        return
    near = ratios(case, 0.3, None)
    far = ratios(case, 1.0, 3.0) if case.limit == 1.5 else ratios(case, 0.8, None)
    assert max(near + far) <= case.limit
    assert min(near + far) >= 1 - 1e-9, "a brute-force width beyond the certified one would be a hole in the proof"
