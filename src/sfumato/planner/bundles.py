r"""Planning on bundles: the copies are paid for, what is left to choose is the walk and its step.

The picture of the posterior comes from a declared share of the copies, which the chain does not see again: their mean is a
noisy :math:`S_n`, the centre is the mode given it, the covariance is :math:`(n J^\top C J + \text{prior precision})^{-1}` with
:math:`J = \partial\varphi/\partial\theta`. All of it is post-processing.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis import noise_aware
from sfumato.errors import InvalidInput, PlanTooWeak, Unsupported
from sfumato.families.base import Family
from sfumato.kernel import Langevin
from sfumato.model import Model
from sfumato.model.base import theta_of
from sfumato.planner import efficiency, forecast, proportional, truncated
from sfumato.planner.plan import ENOUGH, Plan
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any


MOST_AVERAGED = 256
"""Copies that a proposal averages, at the most."""
RATIOS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Noise variance of the copy that decides, over that of the copy that moves."""
ENOUGH_COPIES = 0.995
"""Of the best forecast: among plans that promise as much, the one with the fewest steps is taken."""


class Supply(NamedTuple):
    """What chains on bundles have: copies for all of them, noise of one (summed) copy, records, weakest promise, most steps."""

    copies: int
    xi: float
    n: int
    epsilon: float
    delta: float
    mu: float
    limit: int | None = None

    def steps(self, chains: int, copies_a_step: int = 1) -> int:
        """Steps per chain."""
        steps = self.copies // (chains * copies_a_step)
        return steps if self.limit is None else min(steps, self.limit)


def picture_from_copies(
    family: Family, model: Model, measurement: noise_aware.Measurement, guess: Mapping[str, Any] | None, clamped: bool
) -> forecast.Picture:
    """Centre and covariance of the posterior, from an average of noisy copies."""
    with jax.enable_x64(True):
        start = None if guess is None else theta_of(model, guess, "guess")
        starts = noise_aware.prior_starts(model, start)
        try:
            noise_aware.require_moments(family)
            density = noise_aware.log_density(family, model, measurement, clamped=clamped)
            centre, _ = noise_aware.find_mode(density, starts)
            information = _expected(family, model, measurement.n, centre)
        except Unsupported:
            centre, information = _plug_in(family, model, measurement, starts)
        covariance = forecast.safe_inverse(information + forecast.prior_precision(model, centre))
    return forecast.Picture(centre, covariance, "the mean of some copies, which the chain does not use")


def _expected(family: Family, model: Model, n: int, centre: np.ndarray) -> np.ndarray:
    covariance = quick_jit(lambda t: family.covariance(model.constrain(t)))(jax.device_put(centre))
    jacobian = natural_jacobian(family, model, centre)
    return forecast.positive(n * jacobian.T @ np.asarray(covariance) @ jacobian)


def _plug_in(
    family: Family, model: Model, measurement: noise_aware.Measurement, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mode and curvature as if the mean of the copies were S_n: for families whose S has no law of its own."""
    total, n = jnp.asarray(measurement.basis @ measurement.value), measurement.n

    def given(theta: Array) -> Array:
        values = model.constrain(theta)
        return n * family.log_g(values) + family.natural(values) @ total

    def density(theta: Array) -> Array:
        value = model.log_prior(theta) + given(theta)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    centre, _ = noise_aware.find_mode(density, starts)
    curvature = -np.nan_to_num(np.asarray(quick_jit(jax.hessian(given))(jax.device_put(centre))))
    return centre, forecast.positive(curvature)


def natural_jacobian(family: Family, model: Model, theta: np.ndarray) -> np.ndarray:
    """Derivative of the natural parameter in theta, shape (k, d)."""
    return np.asarray(quick_jit(jax.jacfwd(lambda t: family.natural(model.constrain(t))))(jax.device_put(theta)))


def plan_bundles(
    family: Family,
    model: Model,
    picture: forecast.Picture,
    supply: Supply,
    *,
    kernel: str,
    chains: int,
    pilot_share: float,
    truncate: float | None = None,
) -> Plan:
    """Choose walk, step matrix and step, and forecast what the copies will buy."""
    with jax.enable_x64(True):
        jacobian = natural_jacobian(family, model, picture.centre)
    dim, kernel = len(picture.centre), truncated.check(truncate, kernel)
    names = ["guided", "componentwise", "random-walk"] if kernel == "auto" else [kernel]
    if any(name not in forecast.KERNELS for name in names):
        raise InvalidInput(f"kernel must be auto or one of {', '.join(forecast.KERNELS)} on bundles, got {kernel!r}.")
    roots = _roots(picture.covariance) if truncate is None else [truncated.step_matrix(picture.covariance)]
    noise, matrix = min((_column_noise(jacobian, root, supply.xi), index) for index, root in enumerate(roots))
    root = roots[matrix]
    if truncate is None:
        options = [(*proportional.best_step(name, noise, dim), name) for name in names]
        step, value, name = max(options, key=lambda option: option[1])
    else:
        (step, value), name = truncated.best_step(picture.covariance, root, truncate, noise), kernel
    steps = supply.steps(chains)
    strongest = float(np.linalg.norm(jacobian @ root, ord=2)) ** 2 * supply.xi
    return Plan(
        kernel=name, sigma=step * noise, step=step, iterations=steps, chains=chains, n=supply.n, epsilon=supply.epsilon,
        delta=supply.delta, mu=supply.mu, pilot_share=pilot_share, forecast_ess=steps * chains * value,
        limit_ess=supply.copies / strongest, picture=picture, matrix=root,
        assumptions=(picture.origin, "a posterior close to normal", "sigma grows with the step: shown is a typical one"),
        truncate=truncate,
    )  # fmt: skip


LARGEST_STEP = 1.5
"""Of Langevin on copies, in units of the narrowest direction's variance: beyond, proposals overshoot."""


def plan_langevin(picture: forecast.Picture, supply: Supply, *, chains: int, pilot_share: float) -> Plan | None:
    r"""Plan Langevin in the natural parameter on copies, or None where even one copy makes too long a step.

    The average of m copies is split by public noise (`kernel.langevin.split_copy`) into one with the noise
    :math:`\xi_1 = \tfrac\xi m(1 + \tfrac1r)`, which is that of a Langevin proposal with the step :math:`\eta = 4/\xi_1` and no
    preconditioner, and another with :math:`\xi_2 = r\xi_1`, which makes the correction :math:`-u^\top\check S`,
    :math:`u = \tfrac\eta4(b' - b)`. Its noise :math:`\lVert u\rVert\sqrt{\xi_2}` is the same for the swapped pair, so the
    chain is exact. A direction of posterior variance :math:`1/\lambda` moves as by :math:`h = \eta\lambda`, and the mean square
    of the correction's noise is :math:`\tfrac r4\sum_i h_i^2(1 + h_i/4)`. All steps together use every copy once: small steps
    cost compute and no privacy.
    """
    precisions = np.linalg.eigvalsh(forecast.safe_inverse(picture.covariance))
    options = []
    for averaged in sorted({int(m) for m in np.geomspace(1, MOST_AVERAGED, 40)}):
        for ratio in RATIOS:
            step = 4 * averaged / (supply.xi * (1 + 1 / ratio))
            if step * precisions[-1] > LARGEST_STEP:
                continue
            each = step * precisions
            sigma = float(np.sqrt(ratio / 4 * np.sum(each**2 * (1 + each / 4))))
            others = float(np.sum(each**3 / 16 + each**6 / 512))
            worth = efficiency.autoregression(float(each[0]), float(np.hypot(sigma, others**0.5)))
            iterations = supply.steps(chains, averaged)
            options.append(_Option(chains * iterations * worth, averaged, ratio, step, sigma, iterations))
    if not options:
        return None
    top = max(option.ess for option in options)
    best = max((o for o in options if o.ess >= ENOUGH_COPIES * top), key=lambda o: (o.averaged, o.ess))
    return Plan(
        kernel=Langevin.name, sigma=best.sigma, step=best.step, iterations=best.iterations, chains=chains, n=supply.n,
        epsilon=supply.epsilon, delta=supply.delta, mu=supply.mu, pilot_share=pilot_share, forecast_ess=best.ess,
        limit_ess=supply.copies * float(precisions[0]) / supply.xi, picture=picture, matrix=np.eye(len(precisions)),
        assumptions=(picture.origin, "a posterior close to normal"), copy_sigma=float(np.sqrt(4 * best.ratio / best.step)),
        averaged=best.averaged,
    )  # fmt: skip


class _Option(NamedTuple):
    ess: float
    averaged: int
    ratio: float
    step: float
    sigma: float
    iterations: int


def _roots(covariance: np.ndarray) -> list[np.ndarray]:
    return forecast.step_matrices(covariance) if len(covariance) > 1 else forecast.step_matrices(covariance)[:1]


def _column_noise(jacobian: np.ndarray, root: np.ndarray, xi: float) -> float:
    """Noise per posterior sd along the noisiest column of the step matrix."""
    return float(np.sqrt(xi) * np.max(np.linalg.norm(jacobian @ root, axis=0)))


def refuse_if_weak(plan: Plan) -> None:
    """Raise `PlanTooWeak` with ways out that fit a bundle."""
    if not plan.weak:
        return
    fewer = "fewer chains; " if plan.fewer_chains_would_do else ""
    raise PlanTooWeak(
        f"a plan must promise {plan.enough_ess:g} effective draws in all ({ENOUGH}); these copies "
        f"(epsilon={plan.epsilon:g}, delta={plan.delta:g}, n={plan.n:,}) promise {plan.forecast_ess:.2g}. Ways out: "
        f"bundle.noise_aware(), which is calibrated where a chain cannot mix; {fewer}a bundle with a larger epsilon or more "
        "copies. force=True samples all the same.",
        plan=plan,
    )
