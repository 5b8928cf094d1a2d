"""Langevin around a reference point is exact at every step size, however bad the point, and each of its parts is needed."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.kernel import PublicStream, ReferenceLangevin, State, penalty
from sfumato.paper import expected_acceptance
from sfumato.privacy.budget import QUANTA_PER_UNIT, cost_quanta
from sfumato.study.target import make_study
from sfumato.vault import blocks, lattice, records
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Ledger
from sfumato.vault.queries.remainder import Change, sum_change, sum_in_blocks
from sfumato.vault.queries.vector import score_sum
from sfumato.vault.vault import Vault
from statistical.harness import grid_posterior, moment_p_values, run_chains

N, CHAINS, STEPS = 60, 48, 1_000


def slope_only(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x * beta), obs=y)


def regression(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


RNG = np.random.default_rng(3)
X = RNG.uniform(-1, 1, N)
DATA = {"x": X, "y": (RNG.random(N) < 1 / (1 + np.exp(-1.5 * X))).astype(int)}
STUDY = make_study(slope_only, {"x": sf.Interval(-1, 1), "y": sf.Binary()})
POINTS, WEIGHT = grid_posterior(STUDY, DATA, -3.0, 7.0, 4_001)
MEAN = float(POINTS @ WEIGHT)
SD = float(np.sqrt((POINTS - MEAN) ** 2 @ WEIGHT))


def kernel_of(h):
    """A poor reference point: off by one standard deviation, J a third of what it should be, M a third too large."""
    j = np.array([[1 / SD**2 * 0.35]])
    return ReferenceLangevin(np.array([[1.15 * SD]]), h, STUDY.model.log_prior, np.array([MEAN + SD]), j, 12.0)


def p_values(h, sigma=0.5, steps=STEPS):
    draws = run_chains(STUDY, DATA, kernel_of(h), sigma=sigma, chains=CHAINS, steps=steps, start=np.array([MEAN]))
    return moment_p_values(draws[steps // 5 :, :, 0], POINTS, WEIGHT)


@pytest.mark.parametrize("h", [0.3, 1.0, 2.0])
def test_it_is_exact_at_every_step_size(h):
    assert min(p_values(h)) > FALSE_ALARM / 4


def test_without_the_second_query_it_is_not(monkeypatch):
    """The public part of the log ratio decides alone."""
    monkeypatch.setattr(penalty, "accepts", lambda draw, d, ratio, q, sigma: draw.log_u < ratio)
    assert min(p_values(1.0)) < 1e-9


def test_without_the_penalty_it_is_not(monkeypatch):
    monkeypatch.setattr(penalty, "accepts", lambda draw, d, ratio, q, sigma: draw.log_u < d + ratio)
    assert min(p_values(1.0, sigma=1.5)) < FALSE_ALARM / 4


def test_with_the_move_in_place_of_v_it_is_not(monkeypatch):
    real = ReferenceLangevin.known
    monkeypatch.setattr(ReferenceLangevin, "known", lambda self, a, b: real(self, a, b)._replace(along=b - a))
    assert min(p_values(1.0, steps=2 * STEPS)) < FALSE_ALARM / 4


def test_with_the_first_release_reused_in_the_decision_it_is_not(monkeypatch):
    """S_n' v taken from the released statistic, whose noise made the proposal, in place of the second query."""
    real = ReferenceLangevin.known

    def known(self, theta, theta_prop):
        honest = real(self, theta, theta_prop)
        root, h = jnp.asarray(self.matrix), self.step
        t_noisy = jnp.linalg.solve(root, (theta_prop - theta) * 2 / h) - root.T @ self.drift(theta)
        log_ratio = honest.log_ratio - t_noisy @ jnp.linalg.solve(root, honest.along)
        return honest._replace(log_ratio=log_ratio, along=0 * honest.along)

    monkeypatch.setattr(ReferenceLangevin, "known", known)
    assert min(p_values(0.3, steps=600)) < FALSE_ALARM / 4


# -- without sampling -------------------------------------------------------------------------------------------------


def flow(sigma_of, h=1.0, shorter=1.0, wider=0.0):
    """Largest relative gap between the flows a -> b and b -> a, from the kernel's formulas and the vault's own sums.

    `shorter` cuts every record's vector to a part of the longest one, `wider` adds to the second query's range.
    """
    kernel = kernel_of(h)
    with jax.enable_x64(True):
        table = LocalEngine(records.load(DATA, STUDY.domain), STUDY)
        rows, how, gamma = table.records, table.how, lattice.choose_gamma(0.5, N)
        near = STUDY.reference_bounds
        proven = near.at(kernel.centre, kernel.matrix)
        short = {name: shorter * getattr(proven.body, name) for name in ("slope_low", "slope_high")}
        vectors = table.vectors_at(proven.body._replace(**short))
        s_n = vectors.sum(0)

        def log_posterior(t):
            return STUDY.model.log_prior(t) + how.terms(rows, t).sum()

        @jax.jit
        def known_and_scalar(a, b):
            known = kernel.known(a, b)
            lo, hi = near.range(proven.anchor, a, b, b - a - known.along)
            clamp = lattice.clamp_for(lo - wider, hi + wider, gamma, N)
            change = Change(a, how.terms(rows, a), b, known.along, clamp)
            total, _ = sum_change(how, rows, change, vectors, gamma)
            m = kernel.matrix @ kernel.matrix.T
            mean = a + h / 2 * m @ (s_n + kernel.drift(a))
            log_q = jax.scipy.stats.norm.logpdf(b[0], mean[0], jnp.sqrt(h * (1 - h / 4) * m[0, 0]))
            return known.log_ratio + total * gamma, log_posterior(a) + log_q, hi - lo

        gaps = []
        for a, b in np.random.default_rng(0).normal(MEAN, 1.5 * SD, size=(40, 2)):
            flows = []
            for one, other in ((a, b), (b, a)):
                ratio, log_density, width = (float(v) for v in known_and_scalar(jnp.array([one]), jnp.array([other])))
                sigma = sigma_of(one, other, width)
                flows.append(log_density + np.log(expected_acceptance(ratio, sigma)))
            gaps.append(abs(flows[0] - flows[1]))
        return max(gaps)


def test_detailed_balance_holds_pair_by_pair():
    """pi(a) q(b|a) alpha(a, b) = pi(b) q(a|b) alpha(b, a), with real integer sums: no sampling, no seed."""
    for h in (0.1, 1.0, 2.0):
        assert flow(lambda a, b, width: 0.5, h) < 1e-6


def test_any_vector_will_do_if_the_second_range_pays_for_what_a_cut_removes():
    """Vectors cut to 0.7 of the longest: with the range of uncut ones balance is lost, with a wider one it is not."""
    assert flow(lambda a, b, width: 0.5, shorter=0.7) > 0.1
    assert flow(lambda a, b, width: 0.5, shorter=0.7, wider=4.0) < 1e-6


def test_the_proven_width_is_symmetric_so_sigma_could_be_tied_to_it():
    assert flow(lambda a, b, width: 3 * width) < 1e-6


def test_sigma_tied_to_an_asymmetric_bound_breaks_detailed_balance():
    """The textbook bound: gradient width times |delta - v| plus H |delta| (|theta - theta*| + |delta|/2)."""

    def tied(a, b, width):
        return 0.5 * abs(b - a) * (abs(a - (MEAN + SD)) + abs(b - a) / 2) + 0.05

    assert flow(tied) > 0.01


def test_the_log_ratio_is_that_of_the_proposal_as_a_normal_density():
    """The kernel's lambda equals log [pi' q(theta|theta') / pi q(theta'|theta)] in three dimensions, preconditioned."""
    rng = np.random.default_rng(1)
    domain = {"x": sf.Ball(1.0, dim=2), "y": sf.Interval(-3, 3)}
    study = make_study(regression, domain)
    data = {"x": jnp.asarray(domain["x"].sample(rng, 30)), "y": jnp.asarray(rng.normal(size=30))}
    root = np.linalg.cholesky(np.cov(rng.normal(size=(3, 30))) * 0.01)
    with jax.enable_x64(True):
        likelihood = jax.jit(jax.vmap(study.model.log_likelihood, (None, 0)))
        log_prior, slope = jax.jit(study.model.log_prior), jax.jit(jax.grad(lambda t: likelihood(t, data).sum()))
        for h in (0.2, 2.0):
            centre = rng.normal(size=3) * 0.2
            kernel = ReferenceLangevin(root, h, study.model.log_prior, centre, np.eye(3) * 40.0 + 3.0, 9.0)
            s_n, drift, weigh = np.asarray(slope(centre)), jax.jit(kernel.drift), jax.jit(kernel.known)
            covariance = h * (1 - h / 4) * root @ root.T

            def log_q(there, here, drift=drift, s_n=s_n, h=h, covariance=covariance):
                mean = here + h / 2 * root @ root.T @ (np.asarray(drift(here)) + s_n)
                return stats.multivariate_normal(mean, covariance).logpdf(there)

            for _ in range(3):
                a, b = rng.normal(size=(2, 3)) * 0.3
                known = weigh(a, b)
                change = float((likelihood(b, data) - likelihood(a, data)).sum())
                ours = float(known.log_ratio) + change - float(s_n @ known.along)
                prior = float(log_prior(b) - log_prior(a))
                assert ours == pytest.approx(prior + change + log_q(a, b) - log_q(b, a), rel=1e-8, abs=1e-6)


def test_chains_may_have_a_reference_point_each_with_a_region_of_its_own():
    """Many runs at once, as an audit and the benchmarks make them: each chain keeps to its own trust region."""
    near, far = kernel_of(0.5), replace(kernel_of(0.5), centre=np.array([MEAN - SD]), trust=9.0)
    with jax.enable_x64(True):
        theta = jnp.full((2, 1), MEAN)
        log_prior = jax.jit(jax.vmap(STUDY.model.log_prior))(theta)
        states = State(theta, log_prior, jnp.ones((2, 1)), jnp.full((2, 1), jnp.nan))
    with Ledger.in_memory(2**60) as ledger:
        vault = Vault(
            records.load(DATA, STUDY.domain), STUDY, ledger.account("a", 2**60),
        )  # fmt: skip
        vault.begin_each([near, far], 0.5, states)
        chunk = vault.chunk(states, PublicStream(0, 2).peek(near, 200), 200, 2**58)
        vault.close()
    assert chunk.steps == 200
    away = np.abs(chunk.transcript.theta[..., 0] - [near.centre[0], far.centre[0]]) / near.matrix[0, 0]
    assert (away <= [near.trust, far.trust]).all() and chunk.transcript.accepted.mean() > 0.3


# -- what is paid -----------------------------------------------------------------------------------------------------


def small_vault(ledger, cap, h=0.5, sigma=0.4, chains=2):
    vault = Vault(
        records.load(DATA, STUDY.domain), STUDY, ledger.account("a", cap),
    )  # fmt: skip
    with jax.enable_x64(True):
        theta = jnp.full((chains, 1), MEAN)
        states = State(
            theta,
            jax.jit(jax.vmap(STUDY.model.log_prior))(theta),
            jnp.ones((chains, 1)),
            jnp.full((chains, 1), jnp.nan),
        )
    kernel = kernel_of(h)
    vault.begin(kernel, sigma, states)
    return vault, PublicStream(0, chains), states, kernel


def first_cost(kernel, chains=2):
    proven = STUDY.reference_bounds.at(kernel.centre, kernel.matrix)
    scores = score_sum(proven, kernel.matrix, lattice.choose_gamma(kernel.proposal_sigma, N), N)
    return chains * cost_quanta((scores.moved / kernel.proposal_sigma) ** 2)


def test_every_step_is_charged_for_both_queries_and_the_cap_holds():
    cap = 4 * QUANTA_PER_UNIT
    with Ledger.in_memory(cap) as ledger:
        vault, stream, states, kernel = small_vault(ledger, cap)
        chunk = vault.chunk(states, stream.peek(kernel, 200), 200, cap)
        assert 0 < chunk.steps < 200
        diameter = STUDY.reference_bounds.at(kernel.centre, kernel.matrix).gradients.diameter
        realised = 2 * chunk.steps * (diameter / kernel.proposal_sigma) ** 2
        realised += ((chunk.transcript.sensitivity / 0.4) ** 2).sum()
        one_more = first_cost(kernel) / QUANTA_PER_UNIT
        assert realised <= chunk.spent / QUANTA_PER_UNIT <= realised * (1 + 1e-6) + one_more * 1.000001
        assert ledger.spent <= cap
        vault.close()


def test_a_step_whose_second_query_does_not_fit_goes_on_where_it_stopped():
    """The released proposal is kept, not drawn anew: drawing anew would favour cheap moves."""
    cap = 10 * QUANTA_PER_UNIT
    with Ledger.in_memory(cap) as ledger:
        vault, stream, states, kernel = small_vault(ledger, cap)
        first = first_cost(kernel)
        stopped = vault.chunk(states, stream.peek(kernel, 10), 10, first + 1, first + 1)
        assert (stopped.steps, stopped.spent) == (0, first)
        pending = np.asarray(stopped.states.pending)
        assert np.isfinite(pending).all()
        went_on = vault.chunk(stopped.states, stream.peek(kernel, 10), 1, cap // 2, stopped.needed)
        assert went_on.steps == 1
        assert np.array_equal(went_on.transcript.t_noisy[0], pending)
        assert went_on.spent == stopped.needed
        assert np.isnan(np.asarray(went_on.states.pending)).all()
        vault.close()


def test_proposals_outside_the_trust_region_are_rejected_and_not_asked():
    cap = 4_000 * QUANTA_PER_UNIT
    with Ledger.in_memory(cap) as ledger:
        vault, stream, states, kernel = small_vault(ledger, cap)
        kernel = ReferenceLangevin(
            kernel.matrix, 2.0, kernel.public, np.array([MEAN]), kernel.information, 0.8
        )  # most proposals leave it
        vault.begin(kernel, 0.4, states)
        row = vault.chunk(states, stream.peek(kernel, 100), 100, cap // 2).transcript
        away = np.abs(row.theta_prop[..., 0] - MEAN) > 0.8 * kernel.matrix[0, 0]
        assert away.any() and not away.all()
        assert (
            not row.accepted[away].any() and (row.sensitivity[away] == 0).all() and np.isnan(row.d_n_noisy[away]).all()
        )
        assert (row.sensitivity[~away] > 0).all()
        vault.close()


def test_blocks_of_records_and_counts_give_the_same_sums(monkeypatch):
    """Kept terms or not, one row a person or one with a count: the same integers."""
    kernel = kernel_of(1.0)
    with jax.enable_x64(True):
        gamma, proven = lattice.choose_gamma(0.5, N), STUDY.reference_bounds.at(kernel.centre, kernel.matrix)
        scores = score_sum(proven, kernel.matrix, gamma, N)
        doubled = {k: np.concatenate([v[:30], v[:30]]) for k, v in DATA.items()}
        plain = records.load(doubled, STUDY.domain)
        counted = records.Records({k: v[:30] for k, v in plain.columns.items()}, N, np.full(30, 2))
        monkeypatch.setattr(blocks, "BLOCK", 7)
        a, b = jnp.array([MEAN]), jnp.array([MEAN + 0.4])
        known = jax.jit(kernel.known)(a, b)
        lo, hi = jax.jit(STUDY.reference_bounds.range)(proven.anchor, a, b, b - a - known.along)
        clamp = lattice.clamp_for(lo, hi, gamma, N)
        totals, scalars = [], []
        for table in (LocalEngine(part, STUDY) for part in (plain, counted)):
            totals.append(table.sum(scores))
            change = Change(a, table.terms(a[None])[0], b, known.along, clamp)
            kept = jax.jit(lambda r, c, v, how=table.how: sum_change(how, r, c, v, gamma)[0])
            scalars.append(int(kept(table.records, change, table.vectors_at(proven.body))))
            all_chains = jax.tree.map(lambda part: jnp.asarray(part)[None], change)
            anew = jax.jit(lambda r, c, b, how=table.how: sum_in_blocks(how, STUDY.reference_bounds, r, c, b, gamma))
            scalars.append(int(anew(table.records, all_chains, proven.body)[0]))
        assert np.array_equal(*totals)
        # Block by block the derivative along v is taken another way, so the last bit of a term may differ.
        assert max(scalars) - min(scalars) <= N
        assert scalars[0] == scalars[2]
