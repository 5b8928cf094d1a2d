"""An answer at every budget: the pilot spends all of it, and the posterior given what was released is the answer.

The road is that of `run.sampling`: the same parties, openings, terms and notes. In place of chains there is nothing: what a kept
release says is computed again when an estimate is resumed, and costs nothing.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from sfumato.analysis import local_normal, noise_aware
from sfumato.analysis.estimate import CHAINS, Estimate, drawn
from sfumato.domain import Domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Family
from sfumato.kernel import PublicStream
from sfumato.model import Model
from sfumato.owners.rounds import Rounds
from sfumato.planner import compiled, synthetic
from sfumato.planner.making import first_belief
from sfumato.planner.placing import Placed, place, plain
from sfumato.privacy.joint import join
from sfumato.run.holding import under_way
from sfumato.run.journal import Journal
from sfumato.run.opening import Opened, check_unchanged, domain_key, make_studies, open_parties
from sfumato.run.parties import BundleParty, Given, TableParty, as_parties
from sfumato.run.pilotlog import PilotLog
from sfumato.run.request import Request, make_request
from sfumato.run.settling import promised, set_shares, settle
from sfumato.run.terms import Terms, make_terms
from sfumato.study.target import Study
from sfumato.tools.progress import Tick, ticker
from sfumato.vault.ledger import Ledger

LABEL = (
    "An approximation, by local asymptotic normality: it rests on scores of many records adding up to a normal, on a log "
    "posterior that is nearly a parabola where the answer lies, and on no record having been cut."
)
LABEL_SUMS = (
    "An approximation, by the central limit theorem for the sum of statistics: it rests on many records, and on none having "
    "been cut."
)
LABEL_COUNTS = "By the exact law of the counts, up to Monte Carlo error: it rests on no record having been cut."
EXACT = (
    "The draws are no exact posterior of the records: they are the posterior given what was released, approximately."
)
_ROOM = 0.999  # of the budget that is asked for: charges are rounded up


def estimate(
    model: Model | Family | Callable[..., Any],
    data: Any,
    *,
    domain: Mapping[str, Domain] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    n: int | None = None,
    sensitivity: Any = "certify",
    outside: str = "refuse",
    draws: int = 1000,
    seed: int | None = None,
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    guess: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    precision: str = "float64",
    progress: bool | Tick | None = None,
) -> Estimate:
    """Give the posterior given what a budget can release: an answer with an honest interval at every (epsilon, delta).

    It is an approximation, and says so. Where `sample` can mix, its draws are exact; where it cannot, this is the answer.

    Parameters
    ----------
    model, data, domain, epsilon, delta, n, sensitivity, outside, ledger, checkpoint, columns, guess, example, precision, progress
        As in `sample`. Bundles have `noise_aware()` instead.
    draws
        Draws in each of four rows; `Estimate.more` gives others.
    seed
        Drives the draws only; noise is never seedable.

    Returns
    -------
    Estimate

    Raises
    ------
    CheckpointError
        The checkpoint folder has a run already, or another run holds it.
    Interrupted
        Ctrl-C: with a checkpoint it says what is kept, and how to go on.
    """
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise InvalidInput(f"draws must be a whole number of at least 1, got {draws!r}.")
    request = make_request(
        kernel="auto", truncate=None, iterations=(None,), sensitivity=sensitivity, chains=CHAINS, seed=seed, guess=guess,
        example=example,
    )  # fmt: skip
    parties = as_parties(
        data,
        Given(epsilon=epsilon, delta=delta, n=n, ledger=ledger, outside=outside, columns=columns, precision=precision),
    )
    if any(isinstance(party, BundleParty) for party in parties):
        raise InvalidInput(
            "an estimate is for owners who answer live, and there is a bundle; use bundle.noise_aware()."
        )
    for party in parties:
        if isinstance(party, TableParty):
            party.check_room()
    studies = make_studies(model, parties, domain, request)
    kept = Journal(checkpoint) if checkpoint is not None else None
    terms = make_terms(
        model, studies[0], parties, domain, request, run_id=secrets.token_hex(8),
        seed=PublicStream(request.seed, CHAINS).seed, kernel="auto", limit=int(draws), pilot_copies={},
        durable=kept is not None,
    )  # fmt: skip
    terms = msgspec.structs.replace(terms, estimate=True)
    with under_way(kept), ExitStack() as refused, ExitStack() as stack, ticker(progress) as tick:
        if kept is not None:
            kept.create(terms)
            refused.callback(kept.abandon)
        opened = open_parties(
            stack, model, parties, studies, run_id=terms.run_id, chains=CHAINS, pilot_copies={},
            folder=None if kept is None else kept.folder, tick=tick,
        )  # fmt: skip
        terms = settle(
            terms.with_facts(opened.access.facts), kept, **_first_terms(opened, terms, request, opened.access.n)
        )
        refused.pop_all()  # from here on something may be spent: the checkpoint stays, its ledger is the record of it
        return _finish(opened, terms, kept, tick)


def _first_terms(opened: Opened, terms: Terms, request: Request, n: int) -> dict[str, Any]:
    """What is settled before anything is spent: the start, and what all owners together have to spend."""
    access = opened.access
    mu = set_shares(opened, [1.0] * len(opened.live)) if isinstance(access, Rounds) else access.facts[0].mu
    belief = first_belief(opened.study, n, request.guess, request.example)
    centre = np.clip(belief.centre, -access.theta_bound, access.theta_bound)
    begun = {"mu": mu, "n": n, "centre": centre.tolist(), "covariance": belief.covariance.tolist()}
    owners = terms.with_facts(access.facts).owners
    return {"owners": owners, "first_plan": begun, "shares": list(access.shares)}


def go_on(
    model: Any, parties: list[Any], studies: list[Study], terms: Terms, kept: Journal, progress: bool | Tick | None
) -> Estimate:
    """Go on with an estimate that was stopped; one that was finished is made again from what is kept."""
    with ExitStack() as stack, ticker(progress) as tick:
        opened = open_parties(
            stack, model, parties, studies, run_id=terms.run_id, chains=CHAINS, pilot_copies={}, folder=kept.folder,
            tick=tick, shares=terms.shares, steps=0,
        )  # fmt: skip
        check_unchanged(opened, terms.facts, any(entry["answer"] for entry in kept.releases()))
        terms.check_computes(studies[0])
        return _finish(opened, terms, kept, tick)


def _finish(opened: Opened, terms: Terms, kept: Journal | None, tick: Tick) -> Estimate:
    """Ask for everything, or read what was answered, and say what it says."""
    access, study, begun = opened.access, opened.study, terms.first_plan or {}
    release = PilotLog(access.release, kept, access.pass_over)
    domains = {domain_key(other): other.domain for other in opened.studies}
    domains.pop(domain_key(study))
    tick(0, 1, "asking")
    with jax.enable_x64(True):
        placed = place(
            study.model, study.domain, begun["n"], np.array(begun["centre"]), _ROOM * begun["mu"] ** 2, release,
            known=study.knows_information, covariance=np.array(begun["covariance"]), bound=access.theta_bound,
            others=tuple(domains.values()),
        )  # fmt: skip
        access.forget()
        clamped = any(said.outside == "clamp" for said in access.facts)
        tick(1, 1, "computing")
        points, weight, label, about, of_prior = _answer(study, begun["n"], placed, clamped, terms.seed)
    several = len(opened.parties) > 1
    numbers = sum(len(one.answer) for one in placed.asked) + (0 if several else release.lost)
    privacy = join([promised(opened, i, numbers, EXACT) for i in range(len(opened.parties))])
    about |= {"surprise": placed.surprise, "limit": (begun["mu"] / placed.width) ** 2}
    chosen = drawn(weight, CHAINS * terms.limit, terms.seed % 2**32)
    return Estimate(
        draws={name: values[chosen].reshape(CHAINS, terms.limit, *values.shape[1:]) for name, values in points.items()},
        label=label, privacy=privacy, population=points, weight=weight, of_prior=of_prior, about=about,
        pilot={"releases": [plain(one) for one in placed.asked], "lost": release.lost}, seed=terms.seed,
    )  # fmt: skip


# -- what the releases say ------------------------------------------------------------------------------------------------


def _answer(study: Study, n: int, placed: Placed, clamped: bool, seed: int) -> tuple[Any, ...]:
    """Points by site, their weights, the label, what is told about it, and how much of the prior is left."""
    model, seed = study.model, seed % 2**32
    silent = synthetic.silent(model, study.domain, placed.asked[-1].theta)
    family = study.family
    if family is not None and _has_law(family):
        measurement = _measured(family, model, placed, n)
        found = noise_aware.sample_posterior(family, measurement, None, clamped=clamped, seed=seed)
        points = {name: values.reshape(-1, *values.shape[2:]) for name, values in found.draws.items()}
        theta = _unconstrained(model, points)
        weight = np.full(len(theta), 1 / len(theta))
        label = LABEL_COUNTS if found.label == noise_aware.LABEL_COUNTS else LABEL_SUMS
        # A law that is global does not care where the score was asked.
        return (
            points,
            weight,
            label,
            {"off": 0.0, "roughness": 0.0, "effective": float(len(theta))},
            _of_prior(model, theta, weight),
        )
    assumed = local_normal.assumed_information(model, study.domain, n, placed.asked[-1].theta)
    known = assumed if study.knows_information else None
    heard = local_normal.hear(placed.asked, silent, information=known, assumed=assumed)
    found_points = local_normal.answer(model, study.domain, n, heard, seed=seed)
    theta, weight = found_points.theta, found_points.weight
    with jax.enable_x64(True):
        sites = jax.jit(jax.vmap(model.constrain))(jnp.asarray(theta))
    points = {name: np.asarray(value) for name, value in sites.items()}
    mean = weight @ theta
    sd = np.sqrt(np.maximum(weight @ (theta - mean) ** 2, 1e-300))
    away = ((mean - placed.asked[-1].theta) / sd)[heard.loud]
    about = {
        "off": float(np.sqrt(np.mean(away**2))), "roughness": _relative_roughness(heard, found_points.apart),
        "effective": found_points.effective,
    }  # fmt: skip
    return points, weight, LABEL, about, _of_prior(model, theta, weight)


def _relative_roughness(heard: local_normal.Heard, apart: float) -> float:
    """Spectral noise of the information beside its own size, with what made-up records are off it."""
    return float(
        np.hypot(heard.roughness, apart)
        * (2 * len(heard.root)) ** 0.5
        / (np.trace(heard.information) / len(heard.root))
    )


def _has_law(family: Family) -> bool:
    """Whether the family's statistic has a law of its own."""
    try:
        noise_aware.require_moments(family)
    except Unsupported:
        return False
    return True


def _measured(family: Family, model: Model, placed: Placed, n: int) -> noise_aware.Measurement:
    r"""Every score as a linear measurement of :math:`S_n`: :math:`A^\top(D\varphi^\top S_n + n\nabla\log g)` plus noise."""
    slopes = jax.jit(jax.jacfwd(lambda t: family.natural(model.constrain(t))))
    public = jax.jit(jax.grad(lambda t: jnp.reshape(family.log_g(model.constrain(t)), ())))
    directions, answers, sigma = [], [], []
    for one in placed.asked:
        if one.what == "gradient":
            directions.append(one.matrix.T @ np.asarray(slopes(one.theta)).T)
            answers.append(one.answer - n * one.matrix.T @ np.asarray(public(one.theta)))
            sigma.append(np.full(len(one.answer), one.sigma))
    return noise_aware.from_answers(np.concatenate(directions), np.concatenate(answers), np.concatenate(sigma), n)


def _unconstrained(model: Model, points: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(model.unconstrain))({k: jnp.asarray(v) for k, v in points.items()}))


def _of_prior(model: Model, theta: np.ndarray, weight: np.ndarray) -> dict[str, float]:
    """Posterior over prior standard deviation, by coordinate; by quantiles, which heavy tails leave alone."""
    low, high = np.quantile(compiled.prior_draws(model), [0.16, 0.84], axis=0)
    points = theta[drawn(weight, 4000, 0)]
    lower, upper = np.quantile(points, [0.16, 0.84], axis=0)
    ratio = (upper - lower) / np.maximum(high - low, 1e-300)
    return dict(zip(model.coordinate_names(), ratio.tolist(), strict=True))
