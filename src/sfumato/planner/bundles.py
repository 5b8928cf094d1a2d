r"""Planning on bundles: the copies are paid for, what is left to choose is the walk and its step.

What is believed of the posterior comes from a declared share of the copies, which the chain does not see again
(`analysis.from_copies`). All of it is post-processing.
"""

from typing import NamedTuple

import jax
import numpy as np

from sfumato.errors import InvalidInput, PlanTooWeak
from sfumato.kernel import AUTO, Langevin, kinds
from sfumato.kernel.reference import autoregression_worth
from sfumato.planner import efficiency, truncated
from sfumato.planner.belief import Belief, safe_inverse
from sfumato.planner.plan import ENOUGH, Plan
from sfumato.planner.walks import step_matrices
from sfumato.study.target import Study

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


def plan_bundles(
    study: Study,
    belief: Belief,
    supply: Supply,
    *,
    kernel: str,
    chains: int,
    pilot_share: float,
    truncate: float | None = None,
) -> Plan:
    """Choose walk, step matrix and step, and forecast what the copies will buy."""
    with jax.enable_x64(True):
        jacobian = study.natural_jacobian(belief.centre)
    dim, kernel = len(belief.centre), truncated.check(truncate, kernel)
    walks = [kind for kind in kinds(kernel) if kind.second == "ratio"]
    if not walks:
        known = ", ".join(kind.name for kind in kinds() if kind.second == "ratio")
        raise InvalidInput(f"kernel must be {AUTO} or one of {known} on bundles, got {kernel!r}.")
    roots = step_matrices(belief.covariance) if truncate is None else [truncated.step_matrix(belief.covariance)]
    noise, matrix = min((_column_noise(jacobian, root, supply.xi), index) for index, root in enumerate(roots))
    root = roots[matrix]
    if truncate is None:
        options = [(*efficiency.best_step_on_copies(kind, noise, dim), kind.name) for kind in walks]
        step, value, name = max(options, key=lambda option: option[1])
    else:
        (step, value), name = truncated.best_step(belief.covariance, root, truncate, noise), kernel
    steps = supply.steps(chains)
    strongest = float(np.linalg.norm(jacobian @ root, ord=2)) ** 2 * supply.xi
    return Plan(
        kernel=name, sigma=step * noise, step=step, iterations=steps, chains=chains, n=supply.n, epsilon=supply.epsilon,
        delta=supply.delta, mu=supply.mu, pilot_share=pilot_share, forecast_ess=steps * chains * value,
        limit_ess=supply.copies / strongest, belief=belief, matrix=root,
        assumptions=(belief.origin, "a posterior close to normal", "sigma grows with the step: shown is a typical one"),
        truncate=truncate,
    )  # fmt: skip


LARGEST_STEP = 1.5
"""Of Langevin on copies, in units of the narrowest direction's variance: beyond, proposals overshoot."""


def plan_langevin(belief: Belief, supply: Supply, *, chains: int, pilot_share: float) -> Plan | None:
    r"""Plan Langevin in the natural parameter on copies, or None where even one copy makes too long a step.

    The average of m copies is split by public noise (`kernel.langevin.SplitCopy`) into one with the noise
    :math:`\xi_1 = \tfrac\xi m(1 + \tfrac1r)`, which is that of a Langevin proposal with the step :math:`\eta = 4/\xi_1` and no
    preconditioner, and another with :math:`\xi_2 = r\xi_1`, which makes the correction :math:`-u^\top\check S`,
    :math:`u = \tfrac\eta4(b' - b)`. Its noise :math:`\lVert u\rVert\sqrt{\xi_2}` is the same for the swapped pair, so the
    chain is exact. A direction of posterior variance :math:`1/\lambda` moves as by :math:`h = \eta\lambda`, and the mean square
    of the correction's noise is :math:`\tfrac r4\sum_i h_i^2(1 + h_i/4)`. All steps together use every copy once: small steps
    cost compute and no privacy.
    """
    precisions = np.linalg.eigvalsh(safe_inverse(belief.covariance))
    options = []
    for averaged in sorted({int(m) for m in np.geomspace(1, MOST_AVERAGED, 40)}):
        for ratio in RATIOS:
            step = 4 * averaged / (supply.xi * (1 + 1 / ratio))
            if step * precisions[-1] > LARGEST_STEP:
                continue
            each = step * precisions
            sigma = float(np.sqrt(ratio / 4 * np.sum(each**2 * (1 + each / 4))))
            others = float(np.sum(each**3 / 16 + each**6 / 512))
            worth = autoregression_worth(float(each[0]), float(np.hypot(sigma, others**0.5)))
            iterations = supply.steps(chains, averaged)
            options.append(_Option(chains * iterations * worth, averaged, ratio, step, sigma, iterations))
    if not options:
        return None
    top = max(option.ess for option in options)
    best = max((o for o in options if o.ess >= ENOUGH_COPIES * top), key=lambda o: (o.averaged, o.ess))
    return Plan(
        kernel=Langevin.name, sigma=best.sigma, step=best.step, iterations=best.iterations, chains=chains, n=supply.n,
        epsilon=supply.epsilon, delta=supply.delta, mu=supply.mu, pilot_share=pilot_share, forecast_ess=best.ess,
        limit_ess=supply.copies * float(precisions[0]) / supply.xi, belief=belief, matrix=np.eye(len(precisions)),
        assumptions=(belief.origin, "a posterior close to normal"), copy_sigma=float(np.sqrt(4 * best.ratio / best.step)),
        averaged=best.averaged,
    )  # fmt: skip


class _Option(NamedTuple):
    ess: float
    averaged: int
    ratio: float
    step: float
    sigma: float
    iterations: int


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
