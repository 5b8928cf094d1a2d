"""Compiled loops use a row of noise once: no step is taken that has none of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream, RandomWalk, ReferenceLangevin, State
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.ledger import Ledger
from sfumato.vault.vault import Vault


def compiled_loops():
    """The four loops of a vault: over records, over a family's sum, Langevin on it, Langevin around a reference point."""
    rng = np.random.default_rng(0)
    logits = {"x": rng.uniform(-1, 1, (60, 1)), "y": rng.integers(0, 2, 60)}
    study = make_study(ill, {"x": sf.Box(-1, 1, shape=(1,)), "y": sf.Binary()})
    coins, family = {"y": rng.integers(0, 2, 60)}, sf.families.Bernoulli()
    natural = make_study(family, kernel="langevin")
    near = ReferenceLangevin(np.eye(1) * 0.2, 0.5, study.model.log_prior, np.zeros(1), np.eye(1) * 15.0, 14.0)
    return {
        "scan": (study, logits, RandomWalk(np.eye(1), 0.3)),
        "sufficient": (make_study(family, kernel="guided"), coins, RandomWalk(np.eye(1), 0.3)),
        "langevin": (natural, coins, Langevin(np.eye(1) * 0.2, 0.5, public_part(family, natural.model, 60))),
        "reference": (study, logits, near),
    }


def ill(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


@pytest.mark.parametrize("loop", ["scan", "sufficient", "langevin", "reference"])
def test_no_compiled_loop_goes_on_after_its_last_row_of_noise(loop):
    """It would read the last row again and again, and the difference of two answers would be exact."""
    study, table, kernel = compiled_loops()[loop]
    rows, chains, cap = 5, 2, 2**60
    with Ledger.in_memory(cap) as ledger:
        vault = Vault(
            records.load(table, study.domain), study.model, study.domain, study.bounds, ledger.account("a", cap),
            family=study.family, near=study.reference_bounds,
        )  # fmt: skip
        stream = PublicStream(1, chains)
        with jax.enable_x64(True):
            theta = jnp.zeros((chains, 1))
            log_prior = jax.vmap(study.model.log_prior)(theta)
            pending = jnp.full(theta.shape, jnp.nan) if isinstance(kernel, Langevin) else None
            states = State(theta, log_prior, jnp.asarray(stream.directions(1)), pending)
        vault.begin(kernel, 1.0, states)
        draws = stream.peek(kernel, rows)
        first, again = (vault.chunk(states, draws, 1000, 2**58) for _ in range(2))
        vault.close()
    for chunk in (first, again):
        assert chunk.steps == rows == len(chunk.transcript.accepted)
    # The same steps once more: other noise, and charged again.
    assert 0 < first.spent and 0 < again.spent
    assert not np.any(first.transcript.d_n_noisy == again.transcript.d_n_noisy)
