"""A kernel is one file: this one defines a walk that the library does not know, and has it planned, run, resumed and reported.

The two-speed walk moves along one direction at a time. Most steps are short; one in five is three times as long, which takes it
out of a corner. Lengths are symmetric about zero, so the proposal is.
"""

from dataclasses import dataclass
from typing import ClassVar
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.analysis import watch
from sfumato.errors import InvalidInput
from sfumato.kernel import KINDS, Draw, Guided, State, Streams, log_alpha, register
from sfumato.kernel.base import as_tree
from sfumato.kernel.walks import Walk
from sfumato.paper import expected_acceptance
from sfumato.planner import efficiency
from sfumato.run.journal import Journal

LONG, OFTEN = 3.0, 0.2


@as_tree("matrix")
@dataclass(frozen=True)
class TwoSpeed(Walk):
    r"""One direction at a time: :math:`\theta' = \theta + s b z D_j`, j uniform, z normal, b = 3 one time in five, else 1."""

    name: ClassVar[str] = "two-speed"
    matrix: np.ndarray
    step: float

    def draw(self, rng, size):
        index = rng.directions.integers(0, self.matrix.shape[1], size).astype(np.int32)
        speed = np.where(rng.directions.random(size) < OFTEN, LONG, 1.0)
        return Draw(np.zeros((size, 0)), index, speed * rng.steps.standard_normal(size), rng.log_u(size))

    def propose(self, state, draw, first=None):
        return state.theta + self.step * draw.length * jnp.asarray(self.matrix)[:, draw.index]

    @classmethod
    def lengths(cls):
        z, weight = Walk.lengths()
        return np.concatenate([z, LONG * z]), np.concatenate([(1 - OFTEN) * weight, OFTEN * weight])

    @classmethod
    def unit_moves(cls, matrix, rng, size=256):
        mean_square = 1 - OFTEN + OFTEN * LONG**2
        signs = rng.choice([-1.0, 1.0], size) * np.sqrt(mean_square)
        return matrix.T[np.arange(size) % matrix.shape[1]] * signs[:, None]

    @classmethod
    def log_ratio_variance(cls, steps, roughness):
        return float(np.mean(steps**2) * (1 - OFTEN + OFTEN * LONG**2))


RNG = np.random.default_rng(5)
TABLES = [{"y": (RNG.random(n) < 0.3).astype(int)} for n in (30_000, 20_000)]
DOMAIN = {"y": sf.Binary()}
STATED = {"domain": DOMAIN, "epsilon": 1.0, "delta": 1e-6}
ASKED = {"kernel": "two-speed", "guess": {"p": 0.3}, "seed": 3, "chains": 2, "force": True, "progress": False}


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    with patch.dict(KINDS):
        register(TwoSpeed)
        yield


# -- detailed balance, without sampling -----------------------------------------------------------------------------------


def test_a_draw_and_its_mirror_image_undo_each_other_and_are_as_likely():
    with jax.enable_x64(True):
        walk = TwoSpeed(np.array([[1.0, 0.0], [0.4, 0.7]]), 0.5)
        draw = Draw(*(jnp.asarray(part[0]) for part in walk.draw(Streams(np.random.SeedSequence(3)), 1)[:4]))
        here = State(jnp.array([0.2, -0.1]), jnp.zeros(()), jnp.ones(2))
        there = walk.propose(here, draw)
        assert np.allclose(walk.propose(here._replace(theta=there), draw._replace(length=-draw.length)), here.theta)
    lengths, weight = TwoSpeed.lengths()
    for part in np.split(np.arange(len(lengths)), 2):  # the density of a length is that of its negative
        assert np.allclose(lengths[part], -lengths[part][::-1]) and np.allclose(weight[part], weight[part][::-1])
    assert weight.sum() == pytest.approx(1)


def imbalance(moves):
    """Invariance on a ring of seven states, noise integrated out; `moves` are the probabilities of steps of -3..3 states."""
    log_pi, sigma = np.array([0.0, 0.7, -0.4, 1.1, 0.2, -0.9, 0.5]), 1.3
    pi = np.exp(log_pi) / np.exp(log_pi).sum()
    noise = np.linspace(-12, 12, 24_001)
    weight = np.exp(-(noise**2) / 2) / np.exp(-(noise**2) / 2).sum()
    transition = np.zeros((7, 7))
    for x in range(7):
        for away, chance in zip(range(-3, 4), moves, strict=True):
            ratio = log_pi[(x + away) % 7] - log_pi[x]
            with jax.enable_x64(True):
                alpha = float(
                    np.asarray(jnp.exp(log_alpha(ratio + sigma * jnp.asarray(noise), 0.0, 0.0, sigma))) @ weight
                )
            assert alpha == pytest.approx(float(expected_acceptance(ratio, sigma)), abs=1e-6)
            transition[x, (x + away) % 7] += chance * alpha
            transition[x, x] += chance * (1 - alpha)
    return np.abs(pi @ transition - pi).max()


def test_two_speeds_keep_the_posterior_and_a_lopsided_one_does_not():
    short, long = (1 - OFTEN) / 2, OFTEN / 2
    assert imbalance([long, 0, short, 0, short, 0, long]) < 1e-6
    assert imbalance([0, 0, short, 0, short, 0, 2 * long]) > 1e-3


# -- planned ----------------------------------------------------------------------------------------------------------


def test_it_is_worth_what_a_simulation_says():
    step, sigma, chains, steps = 0.6, 1.5, 3000, 2000
    rng = np.random.default_rng(0)
    x, total = rng.standard_normal(chains), np.zeros(chains)
    for _ in range(steps):
        y = x + step * rng.standard_normal(chains) * np.where(rng.random(chains) < OFTEN, LONG, 1.0)
        noisy = (x**2 - y**2) / 2 + sigma * rng.standard_normal(chains) - sigma**2 / 2
        x = np.where(np.log(rng.random(chains)) < noisy, y, x)
        total += x
    assert 1 / (steps * np.var(total / steps)) == pytest.approx(efficiency.worth(TwoSpeed, step, (sigma,))[0], rel=0.12)


def test_it_is_planned_by_its_name_and_listed_where_the_planner_has_the_choice():
    plan = sf.plan(coin, n=50_000, kernel="two-speed", guess={"p": 0.3}, **STATED)
    assert plan.kernel == "two-speed" and plan.forecast_ess > 1 and "two-speed, step" in plan.table()
    auto = sf.plan(coin, n=50_000, guess={"p": 0.3}, **STATED)
    assert {"two-speed", Guided.name, "langevin"} <= {name for name, _ in auto.considered}
    because = dict(auto.rows())["because"]
    assert "two-speed" in because
    with pytest.raises(InvalidInput, match="is taken"):
        register(TwoSpeed)
    with pytest.raises(InvalidInput, match="one of auto, .*two-speed, got 'three-speed'"):
        sf.plan(coin, n=50_000, kernel="three-speed", **STATED)


# -- run --------------------------------------------------------------------------------------------------------------


def test_it_samples_a_table_and_is_in_the_transcript_the_statement_and_the_report(tmp_path):
    run = sf.sample(coin, TABLES[0], **STATED, **ASKED, iterations=400)
    assert run.planned["kernel"] == "two-speed" and run.transcript["d_n_noisy"].shape == (2, 400)
    moved = np.abs(np.diff(run.transcript["theta"][..., 0])) > 0
    assert np.array_equal(moved, run.transcript["accepted"][:, 1:])
    assert "exact posterior" in run.privacy.exact and run.privacy.releases > 800
    assert run.acceptance == pytest.approx(watch.planned_acceptance(run.planned), abs=0.12)
    assert "two-speed, step" in run.report(tmp_path / "report.html").read_text()
    assert abs(run.draws["p"].mean() - TABLES[0]["y"].mean()) < 0.02


def test_a_run_loaded_where_nobody_registered_it_is_still_a_run(tmp_path):
    path = sf.sample(coin, TABLES[0], **STATED, **ASKED, iterations=40, pilot_share=0.0).save(tmp_path / "run.npz")
    KINDS.pop("two-speed")
    again = sf.load(path)
    assert np.isnan(watch.planned_acceptance(again.planned)) and again.verdict.level


def test_it_samples_over_two_owners():
    owners = [sf.Owner(t, name=n, epsilon=1.0, delta=1e-6) for t, n in zip(TABLES, ("amber", "birch"), strict=True)]
    run = sf.sample(coin, owners, domain=DOMAIN, **ASKED, iterations=40, pilot_share=0.0)
    assert run.planned["kernel"] == "two-speed" and 20 < run.iterations <= 40  # as many as the budgets buy
    assert run.transcript["widths"].shape == (2, run.iterations, 2) and (run.transcript["widths"] > 0).any()
    assert [said.owner for said in run.privacy.owners] == ["amber", "birch"]
    assert all("exact posterior" in said.exact for said in run.privacy.owners)


def test_it_goes_on_from_a_checkpoint(tmp_path):
    sf.sample(coin, TABLES[0], **STATED, **ASKED, iterations=400, checkpoint=tmp_path / "run")
    chunks = sorted((tmp_path / "run").glob("chunk-*.npz"))
    assert len(chunks) > 1
    chunks[-1].unlink()  # as if it had been killed before its last chunk was durable
    kept = np.swapaxes(np.concatenate([saved.transcript["theta"] for saved in Journal(tmp_path / "run").read()]), 0, 1)
    again = sf.resume(tmp_path / "run", TABLES[0], model=coin, progress=False)
    assert again.planned["kernel"] == "two-speed" and again.iterations > kept.shape[1] > 0
    assert np.array_equal(again.transcript["theta"][:, : kept.shape[1]], kept)
    KINDS.pop("two-speed")
    with pytest.raises(InvalidInput, match="import the file that registers it"):
        sf.resume(tmp_path / "run", TABLES[0], model=coin, progress=False)
