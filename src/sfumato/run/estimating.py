"""An answer at every budget: the pilot spends all of it, and the posterior given what was released is the answer.

The road is that of `run.sampling`: the same parties, openings, terms and notes. In place of chains there is nothing: what a kept
release says is computed again when an estimate is resumed, and costs nothing.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from sfumato.analysis import from_releases, noise_aware
from sfumato.analysis.estimate import CHAINS, EXACT, LABEL, LABEL_COUNTS, LABEL_SUMS, Estimate, drawn
from sfumato.analysis.facts import made_today, with_study
from sfumato.analysis.from_copies import belief_by_law
from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.families.measurement import Measurement
from sfumato.kernel import PublicStream
from sfumato.model import Model
from sfumato.model.derivatives import vector_function
from sfumato.model.robust import target_of
from sfumato.owners.rounds import Rounds
from sfumato.planner.advice import advice
from sfumato.planner.belief import Belief
from sfumato.planner.making import first_belief
from sfumato.planner.placing import Asked, Placed, place, plain
from sfumato.planner.shape import coordinate_weights
from sfumato.privacy.joint import join
from sfumato.run.holding import under_way
from sfumato.run.journal import Journal
from sfumato.run.opening import Opened, check_unchanged, domain_key, make_studies, open_parties, seals_of
from sfumato.run.parties import BundleParty, Given, TableParty, as_parties, seated
from sfumato.run.pilotlog import PilotLog
from sfumato.run.request import Request, make_request
from sfumato.run.settling import promised, set_shares, settle
from sfumato.run.terms import Terms, make_terms
from sfumato.study.target import Study
from sfumato.tools.kept_programs import kept_programs
from sfumato.tools.progress import Tick, stage, ticker
from sfumato.vault.ledger import Ledger

_ROOM = 0.999  # of the budget that is asked for: charges are rounded up


@kept_programs()
def estimate(
    model: Model | Family | Callable[..., Any],
    data: Any,
    *,
    domain: Mapping[str, Domain] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    n: int | None = None,
    sensitivity: Any = "auto",
    outside: str = "refuse",
    draws: int = 1000,
    seed: int | None = None,
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    guess: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    focus: Sequence[str] | None = None,
    precision: str = "float64",
    sealed: bool | None = None,
    progress: bool | Tick | None = None,
) -> Estimate:
    """Give the posterior given what a budget can release: an answer with an honest interval at every (epsilon, delta).

    It is an approximation, and says so. Where `sample` can mix, its draws are exact; where it cannot, this is the answer.

    Parameters
    ----------
    model, data, domain, epsilon, delta, n, sensitivity, outside, ledger, checkpoint, columns, guess, example, precision, progress
        As in `sample`. Bundles have `noise_aware()` instead.
    focus
        Names of sites, or of coordinates such as "beta[2]": the noise is shaped so that their error is lowest. By default all
        parameters count alike.
    draws
        Draws in each of four rows; `Estimate.more` gives others.
    seed
        Drives the draws only; noise is never seedable.
    sealed
        As in `sample`.

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
    given = Given(
        epsilon=epsilon, delta=delta, n=n, ledger=ledger, outside=outside, columns=columns, precision=precision
    )
    parties, sealing = seated(as_parties(data, given), sealed)
    if any(isinstance(party, BundleParty) for party in parties):
        raise InvalidInput(
            "an estimate is for owners who answer live, and there is a bundle; use bundle.noise_aware()."
        )
    for party in parties:
        if isinstance(party, TableParty):
            party.check_room()
    stage("checking the model, and proving how far one record reaches")
    studies = make_studies(model, parties, domain, request)
    focus = _checked_focus(studies[0].model, focus)
    kept = Journal(checkpoint) if checkpoint is not None else None
    terms = make_terms(
        model, studies[0], parties, domain, request, run_id=f"estimate-{secrets.token_hex(8)}",
        seed=PublicStream(request.seed, CHAINS).seed, kernel="auto", limit=int(draws), pilot_copies={},
        durable=kept is not None, sealed=sealing,
    )  # fmt: skip
    terms = msgspec.structs.replace(terms, estimate=True)
    with under_way(kept), ExitStack() as refused, ExitStack() as stack, ticker(progress) as tick:
        if kept is not None:
            kept.create(terms)
            refused.callback(kept.abandon)
        stage("reading the records")
        opened = open_parties(
            stack, model, parties, studies, run_id=terms.run_id, chains=CHAINS, pilot_copies={},
            folder=None if kept is None else kept.folder, tick=tick, seals=seals_of(terms, kept),
        )  # fmt: skip
        terms = settle(
            terms.with_facts(opened.access.facts), kept, **_first_terms(opened, terms, request, opened.access.n, focus)
        )
        refused.pop_all()  # from here on something may be spent: the checkpoint stays, its ledger is the record of it
        return _finish(opened, terms, kept, tick)


def _checked_focus(model: Model, focus: Sequence[str] | None) -> list[str] | None:
    """The names in focus, each of a site or a coordinate of the model."""
    if focus is None:
        return None
    named = [focus] if isinstance(focus, str) else list(focus)
    coordinates = model.coordinate_names()
    known = {*coordinates, *(name.split("[")[0] for name in coordinates)}
    unknown = [one for one in named if one not in known]
    if not named or unknown:
        raise InvalidInput(
            f"focus must name sites or coordinates of the model, such as {coordinates[0]!r}, got {unknown or named!r}; the "
            f"sites are {', '.join(sorted({name.split('[')[0] for name in coordinates}))}."
        )
    return named


def _first_terms(opened: Opened, terms: Terms, request: Request, n: int, focus: Sequence[str] | None) -> dict[str, Any]:
    """What is settled before anything is spent: the start, and what all owners together have to spend."""
    access = opened.access
    mu = set_shares(opened, [1.0] * len(opened.live)) if isinstance(access, Rounds) else access.facts[0].mu
    belief = first_belief(opened.study, n, request.guess, request.example)
    centre = np.clip(belief.centre, -access.theta_bound, access.theta_bound)
    begun = {"mu": mu, "n": n, "centre": centre.tolist(), "covariance": belief.covariance.tolist()}
    begun["focus"] = focus
    owners = terms.with_facts(access.facts).owners
    return {"owners": owners, "first_plan": begun, "shares": list(access.shares)}


def go_on(
    model: Any, parties: list[Any], studies: list[Study], terms: Terms, kept: Journal, progress: bool | Tick | None
) -> Estimate:
    """Go on with an estimate that was stopped; one that was finished is made again from what is kept."""
    with ExitStack() as stack, ticker(progress) as tick:
        opened = open_parties(
            stack, model, parties, studies, run_id=terms.run_id, chains=CHAINS, pilot_copies={}, folder=kept.folder,
            tick=tick, shares=terms.shares, steps=0, seals=seals_of(terms, kept),
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
    clamped = any(said.outside == "clamp" for said in access.facts)
    with jax.enable_x64(True):
        placed = place(
            study.model, study.domain, begun["n"], np.array(begun["centre"]), _ROOM * begun["mu"] ** 2, release,
            known=study.knows_information, covariance=np.array(begun["covariance"]), bound=access.theta_bound,
            others=tuple(domains.values()), locate=_located(study, begun["n"], clamped),
            weight=coordinate_weights(study.model.coordinate_names(), begun["focus"]),
        )  # fmt: skip
        access.forget()
        tick(1, 1, "computing")
        points, weight, label, about, of_prior = _answer(study, begun["n"], placed, clamped, terms.seed)
    several = len(opened.parties) > 1
    numbers = sum(len(one.answer) for one in placed.asked) + (0 if several else release.lost)
    target = target_of(study.model, study.domain, placed.asked[-1].theta, "the place of the answer")
    privacy = join([promised(opened, i, numbers, EXACT, target) for i in range(len(opened.parties))])
    about |= {"hint": advice(study, placed.asked[-1].theta) or ""}
    about |= {"target": target.to_dict()} if target is not None else {}
    about |= {"surprise": placed.surprise, "limit": (begun["mu"] / placed.width) ** 2}
    chosen = drawn(weight, CHAINS * terms.limit, terms.seed % 2**32)
    return Estimate(
        draws={name: values[chosen].reshape(CHAINS, terms.limit, *values.shape[1:]) for name, values in points.items()},
        label=label, privacy=privacy, population=points, weight=weight, of_prior=of_prior, about=about,
        pilot={"releases": [plain(one) for one in placed.asked], "lost": release.lost}, seed=terms.seed,
        facts=with_study(made_today(study), study),
    )  # fmt: skip


# -- what the releases say ------------------------------------------------------------------------------------------------


def _answer(study: Study, n: int, placed: Placed, clamped: bool, seed: int) -> tuple[Any, ...]:
    """Points by site, their weights, the label, what is told about it, and how much of the prior is left."""
    model, seed = study.model, seed % 2**32
    family = study.family
    if family is not None and from_releases.has_law(family):
        measurement = _measured(family, model, placed.asked, n)
        found = noise_aware.sample_posterior(family, measurement, None, clamped=clamped, seed=seed)
        answer = from_releases.by_law(model, found)
        label = LABEL_COUNTS if found.label == noise_aware.LABEL_COUNTS else LABEL_SUMS
    else:
        known = study.knows_information
        answer = from_releases.by_scores(model, study.domain, n, placed.asked, known=known, seed=seed)
        label = LABEL
    return answer.points, answer.weight, label, answer.about, answer.of_prior


def _located(study: Study, n: int, clamped: bool) -> Callable[[list[Asked]], Belief] | None:
    """Where all releases so far place the posterior: for a family with a law, whose information has to be asked for."""
    family, model = study.family, study.model
    if family is None or study.knows_information or not from_releases.has_law(family):
        return None

    def locate(asked: list[Asked]) -> Belief:
        measurement = _measured(family, model, asked, n)
        centre, covariance = belief_by_law(family, model, measurement, noise_aware.prior_starts(model), clamped)
        return Belief(centre, covariance, "all releases so far")

    return locate


def _measured(family: Family, model: Model, asked: Sequence[Asked], n: int) -> Measurement:
    r"""Every score and Hessian as a linear measurement of :math:`S_n`.

    A score is :math:`A^\top(D\varphi^\top S_n + n\nabla\log g)` plus noise, and second derivatives are as linear.
    """
    functions = {what: _linear(family, model, what) for what in ("gradient", "information")}
    directions, answers, sigma = [], [], []
    for one in asked:
        if one.what in functions:
            slopes, public = functions[one.what](one.theta, one.matrix)
            directions.append(np.asarray(slopes))
            answers.append(one.answer - n * np.asarray(public))
            sigma.append(np.full(len(one.answer), one.sigma))
    return noise_aware.from_answers(np.concatenate(directions), np.concatenate(answers), np.concatenate(sigma), n)


@lru_cache(maxsize=16)
def _linear(family: Family, model: Model, what: str) -> Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]:
    """Function (theta, matrix) -> slopes and constant of what a release sums, as a function of one record's S."""

    def vector(statistic: Any, theta: Any, matrix: Any) -> Any:
        def log_likelihood(at: Any, record: Any) -> Any:
            values = model.constrain(at)
            return family.natural(values) @ record["statistic"] + jnp.reshape(family.log_g(values), ())

        summed = replace(model, log_likelihood=log_likelihood)
        return vector_function(what, summed, theta, matrix)({"statistic": statistic})

    def both(theta: Any, matrix: Any) -> tuple[Any, Any]:
        nothing = jnp.zeros(family.size)
        return jax.jacrev(vector)(nothing, theta, matrix), vector(nothing, theta, matrix)

    return jax.jit(both)
