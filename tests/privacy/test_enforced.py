"""What is charged is what one record can do, also at the edges of floating point, where derivatives jump and sums wrap."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.bounds import bounds_for
from sfumato.bounds.reference import Reference
from sfumato.bounds.remainder import Remainder
from sfumato.errors import InvalidInput
from sfumato.kernel import PublicStream, ReferenceLangevin, State
from sfumato.model import from_numpyro
from sfumato.privacy.budget import QUANTA_PER_UNIT, cost_quanta
from sfumato.protocol.questions import Release
from sfumato.study.target import Study, make_study
from sfumato.vault import lattice, records
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Ledger
from sfumato.vault.queries.vector import PilotSum, pilot_sum, score_sum
from sfumato.vault.vault import Vault


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def hurdle(x, y):
    """A branch that the record decides, and a function of the record."""
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with numpyro.plate("records", y.shape[0]):
        mean = jnp.where(y > 0, a * x[:, 0], b * x[:, 1] ** 2)
        numpyro.sample("z", dist.Normal(mean, 1.0), obs=x[:, 0] * x[:, 1])


BALL = {"x": sf.Ball(1.0, dim=2), "y": sf.Binary()}
BOX = {"x": sf.Box(-1.0, 1.0, shape=(2,)), "y": sf.Binary()}


# -- Langevin's first query -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [(0.0, 0.0), (0.25, 0.5)])
def test_at_a_logit_of_zero_one_record_moves_the_sum_of_gradients_by_no_more_than_is_charged(theta):
    """NumPyro's formula is in two pieces there, and automatic differentiation takes the slope of one: 0 or 1, not 1/2."""
    study, centre, gamma = make_study(logistic, BALL), np.array(theta), 2.0**-40
    across = np.array([theta[1], -theta[0]]) if any(theta) else np.array([1.0, 0.0])
    across /= 2 ** np.ceil(np.log2(np.linalg.norm(across)))  # a power of two: x' theta stays exactly zero
    assert across @ centre == 0.0
    with jax.enable_x64(True):
        scores = score_sum(study.reference_bounds.at(centre, np.eye(2)), np.eye(2), gamma, 2)
        totals = []
        for x in (across, -across):
            for y in (0, 1):
                engine = LocalEngine(records.load({"x": np.array([x, x]), "y": np.array([y, y])}, BALL), study)
                totals.append(engine.sum(scores) / 2 * gamma)
                assert totals[-1] == pytest.approx((y - 0.5) * x, abs=1e-9)
        wrong = jax.grad(study.model.log_likelihood)(
            jnp.asarray(centre), {"x": jnp.asarray(across), "y": jnp.asarray(1)}
        )
    moved = max(float(np.linalg.norm(a - b)) for a in totals for b in totals)
    assert moved <= (cost_quanta(scores.moved**2) / QUANTA_PER_UNIT) ** 0.5
    assert float(np.linalg.norm(np.asarray(wrong))) > 0.6 * float(np.linalg.norm(across))  # what the vault must not sum


@pytest.mark.parametrize(("model", "domain"), [(logistic, BALL), (hurdle, BOX)])
def test_gradients_by_the_proven_program_are_those_of_the_model(model, domain):
    study, rng = make_study(model, domain), np.random.default_rng(0)
    x, y = (domain[name].sample(rng, 500) for name in ("x", "y"))
    with jax.enable_x64(True):
        table = {"x": jnp.asarray(x), "y": jnp.asarray(y).astype(int)}
        theta = jnp.asarray(rng.normal(size=study.model.dim))
        body = study.reference_bounds.at(theta, np.eye(study.model.dim)).body
        ours = jax.jit(jax.vmap(study.reference_bounds.vector, (None, 0)))(body, table)
        theirs = jax.vmap(jax.grad(study.model.log_likelihood), (None, 0))(theta, table)
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert np.abs(theirs).max() > 0.1


def worst_of(vectors):
    return max(float(np.linalg.norm(a - b)) for a in vectors for b in vectors)


def test_with_a_wrong_proof_a_replaced_record_moves_the_sum_by_no_more_than_is_charged(monkeypatch):
    """Slopes "proven" to be a third of what they are: the charge falls with them, and so does what leaves."""
    real = Remainder.anchor

    def wrong(self, *point, **cells):
        anchor = real(self, *point, **cells)
        return anchor._replace(slope_low=anchor.slope_low / 3, slope_high=anchor.slope_high / 3)

    monkeypatch.setattr(Remainder, "anchor", wrong)
    domain, gamma, rng = {"x": sf.Ball(1.0, dim=5), "y": sf.Binary()}, 2.0**-40, np.random.default_rng(0)
    model = from_numpyro(logistic, domain)
    study = Study(model, domain, bounds_for(model, domain), reference_bounds=Reference(model, domain))
    centre, root = rng.normal(size=5) / 3, np.linalg.cholesky(np.cov(rng.normal(size=(5, 40))))
    corners = np.array(list(product((-1, 1), repeat=5))) / 5**0.5
    x = np.concatenate([domain["x"].extremes(rng, 8), corners])
    with jax.enable_x64(True):
        proven = study.reference_bounds.at(centre, root)
        gradients, scores = proven.gradients, score_sum(proven, root, gamma, 2)
        uncut = jax.jit(jax.vmap(jax.grad(model.log_likelihood), (None, 0)))
        sums, open_ones = [], []
        for y in (0, 1):
            table = {"x": jnp.asarray(x), "y": jnp.full(len(x), y)}
            open_ones += list(np.asarray(uncut(jnp.asarray(centre), table)) @ root)
            for one in x:
                data = {"x": np.array([one, x[0]]), "y": np.array([y, 0])}
                engine = LocalEngine(records.load(data, domain), study)
                sums.append(engine.sum(scores) * gamma)
    charged = (cost_quanta(scores.moved**2) / QUANTA_PER_UNIT) ** 0.5
    assert 0.9 * charged <= worst_of(sums) <= charged
    assert worst_of(open_ones) > 2 * charged  # without a cut
    assert (
        worst_of([np.clip(v, gradients.low, gradients.high) for v in open_ones]) > 1.5 * charged
    )  # or coordinate by coordinate


# -- sums beyond 64 bits ----------------------------------------------------------------------------------------------


def test_a_second_query_dearer_than_64_bits_is_not_released():
    """Its cost is the largest integer: added to the first query's it would wrap round and look free."""
    study, rng = make_study(logistic, BOX), np.random.default_rng(0)
    data = {"x": rng.uniform(-1, 1, (500, 2)), "y": (rng.random(500) < 0.5).astype(int)}
    sigma, chains, cap = 3e-5, 4, QUANTA_PER_UNIT
    with Ledger.in_memory(cap) as ledger:
        vault = Vault(records.load(data, BOX), study, ledger.account("a", cap))
        stream = PublicStream(1, chains)
        with jax.enable_x64(True):
            kernel = ReferenceLangevin(np.eye(2), 0.01, study.model.log_prior, np.zeros(2), np.eye(2), 1e6)
            theta = jnp.zeros((chains, 2))
            states = State(
                theta,
                jax.jit(jax.vmap(study.model.log_prior))(theta),
                jnp.ones((chains, 2)),
                jnp.full(theta.shape, jnp.nan),
            )
        vault.begin(kernel, sigma, states)
        chunk = vault.chunk(states, stream.peek(kernel, 8), 8, cap)
        vault.close()
    assert chunk.needed > cap and chunk.steps == 0
    assert 0 < chunk.spent <= cap  # the first query, which was affordable


def test_first_queries_that_no_account_could_pay_for_are_refused():
    assert lattice.first_of_all(7, 6) == 42
    with pytest.raises(InvalidInput, match="affordable"):
        lattice.first_of_all(2**61, 4)


# -- vectors for the pilot --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-170, 1.0, 1e150])
def test_however_small_or_large_the_matrix_no_record_moves_a_release_by_more_than_is_charged(scale):
    """The length of a tiny vector underflows: shortened by it, nothing would be."""
    study, radius, gamma = make_study(logistic, BALL), 1e-20, 2.0**-105
    centre = radius * np.array([0.3, -0.4])
    query = PilotSum("gradient", np.full(2, 0.1), scale * np.eye(2), centre, radius, gamma)
    limit = query.moved
    with jax.enable_x64(True):
        totals = []
        for x in ([0.6, 0.8], [-0.8, 0.6], [0.0, 1.0], [-0.6, -0.8]):
            table = records.load({"x": np.array([x, [0.0, 0.0]]), "y": np.array([1, 1])}, BALL)
            totals.append(LocalEngine(table, study).sum(query) * gamma)
    assert max(float(np.linalg.norm((a - b) * 1e20)) for a in totals for b in totals) <= limit * 1e20
    if scale >= 1:
        assert max(float(np.abs(t).max()) for t in totals) > radius / 4  # they did leave: this can fail


@pytest.mark.parametrize(
    ("radius", "sigma"), [(1e-176, 1e-174), (1.0, 1e-40), (0.0, 1.0), (1.0, float("nan")), (1e40, 1e42)]
)
def test_releases_at_the_edge_of_floating_point_are_refused(radius, sigma):
    with pytest.raises(InvalidInput, match="must lie between"):
        pilot_sum(Release(what="gradient", theta=[0.0], matrix=[[1.0]], radius=radius, sigma=sigma), 10, 1)
