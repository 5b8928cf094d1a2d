"""Likelihoods of bounded influence: what they do to the price, and whether their intervals cover.

    python benchmarks/robust.py [--limits] [--coverage] [--repeats 1000] [--records 1000]

*Limits*: the one-shot limit at epsilon = 2 of six models of `zoo_models.py`, with the likelihood as it is and with `sf.robust` at
beta = 0.2, at the truth.

*Coverage*: 90 % intervals of the generalised posterior without privacy (normal about its mode, with its own curvature), for
tables drawn from the model and for tables of which 5 % of the outcomes are ten standard deviations off, to either side.
Wanted: 88 to 92 % under the model, 80 to 95 % with outliers, all parameters together.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from zoo_models import ZOO

import sfumato as sf
from sfumato.model import from_numpyro
from sfumato.model.robust import robustly
from sfumato.planner.belief import assumed_belief
from sfumato.planner.centre import assumed_centre
from sfumato.planner.limit import limit_ess
from sfumato.privacy.promise import budget_mu
from sfumato.study.target import make_study

MODELS = ("lin_known", "lin_halfcauchy", "poisson_exposure", "negbin2", "gamma_reg", "zip")
BETA, QUANTILE = 0.2, 1.6449
OUTLIERS, AWAY = 0.05, 10.0
BETAS = np.array([0.5, -0.3])
DOMAIN = {"x": sf.Box(-3, 3, shape=(2,)), "y": sf.Interval(-30, 30)}


def limits() -> None:
    mu = budget_mu(2.0, 1e-6)
    print(f"{'model':<20}{'limit':>10}{'robust':>10}", flush=True)
    for name in MODELS:
        known = ZOO[name]
        study, example = make_study(known.model, known.domain), known.data(np.random.default_rng(11), 4_000)  # type: ignore[misc]
        with jax.enable_x64(True):
            centre, _ = assumed_centre(study.model, known.truth)
            found = []
            for model in (study.model, robustly(study.model, study.domain, centre, BETA)):
                assert model is not None
                belief = assumed_belief(model, study.domain, known.n, centre, example, "")
                found.append(limit_ess(model, study.domain, belief, mu))
        print(f"{name:<20}{found[0]:>10.3g}{found[1]:>10.3g}", flush=True)


def line(scale_known: bool) -> Callable[..., None]:
    def model(x, y):
        alpha = numpyro.sample("alpha", dist.Normal(0, 1))
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        sigma = 1.0 if scale_known else numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", sf.robust(dist.Normal(alpha + x @ beta, sigma), beta=BETA), obs=y)

    return model


def coverage(scale_known: bool, repeats: int, n: int, outliers: float) -> np.ndarray:
    """Share of intervals that hold the truth, for each coordinate of theta."""
    built, rng = from_numpyro(line(scale_known), DOMAIN), np.random.default_rng(3)
    truth = {"alpha": 0.3, "beta": BETAS} | ({} if scale_known else {"sigma": 1.0})
    with jax.enable_x64(True):
        start = jnp.asarray(built.unconstrain(truth))

        def log_posterior(theta: Any, table: Any) -> Any:
            return built.log_prior(theta) + jax.vmap(built.log_likelihood, (None, 0))(theta, table).sum()

        def held(table: Any) -> Any:
            def step(_: Any, theta: Any) -> Any:
                slope, bend = jax.grad(log_posterior)(theta, table), jax.hessian(log_posterior)(theta, table)
                return theta - jnp.linalg.solve(bend, slope)

            mode = jax.lax.fori_loop(0, 8, step, start)
            spread = jnp.sqrt(jnp.diag(jnp.linalg.inv(-jax.hessian(log_posterior)(mode, table))))
            return jnp.abs(mode - start) <= QUANTILE * spread

        x = np.clip(rng.standard_normal((repeats, n, 2)), -3, 3)
        off = AWAY * rng.choice([-1.0, 1.0], (repeats, n)) * (rng.random((repeats, n)) < outliers)
        y = np.clip(0.3 + x @ BETAS + rng.standard_normal((repeats, n)) + off, -30, 30)
        return np.asarray(jax.jit(lambda t: jax.lax.map(held, t))({"x": x, "y": y})).mean(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limits", action="store_true", help="only the limits")
    parser.add_argument("--coverage", action="store_true", help="only the coverage")
    parser.add_argument("--repeats", type=int, default=1_000)
    parser.add_argument("--records", type=int, default=1_000)
    args = parser.parse_args()
    both = args.limits == args.coverage
    if both or args.limits:
        limits()
    missed = 0
    if both or args.coverage:
        for scale_known in (True, False):
            for outliers, low, high in ((0.0, 0.88, 0.92), (OUTLIERS, 0.80, 0.95)):
                found = coverage(scale_known, args.repeats, args.records, outliers)
                kept = low <= float(found.mean()) <= high
                missed += not kept
                what = f"scale {'known' if scale_known else 'unknown'}, {outliers:.0%} outliers"
                each = ", ".join(f"{share:.1%}" for share in found)
                print(f"{'ok    ' if kept else 'MISSED'} {what}: {found.mean():.1%} ({each})", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
