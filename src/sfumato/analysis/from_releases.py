r"""The posterior given releases, whoever made them: an estimate's own, or those of a chain that was run for its draws.

A chain pays for more than its draws. Langevin around a reference point asks in every step for the noisy score there: with the
same noise every time, so their average :math:`\bar S` is one score with the noise :math:`V = \sigma_1^2/N`. The information
is the pilot's. Both together are what `analysis.local_normal` hears, and the answer holds whether or not the chain has mixed.
Of a walk the pilot's releases are all that is used: an answer of its chain is a difference of log-likelihoods between two
places, which tells of the score only as far as the bend between them is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis import local_normal, noise_aware
from sfumato.analysis.estimate import CHAINS, EXACT, LABEL_COUNTS, LABEL_SUMS, RESTS_ON, Estimate, drawn
from sfumato.analysis.facts import with_study
from sfumato.bounds import compiled, synthetic
from sfumato.domain import Domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Family
from sfumato.model import Model
from sfumato.planner.arrival import is_noise
from sfumato.planner.pilot import FORGIVEN
from sfumato.planner.placing import Asked, plain
from sfumato.privacy.joint import JointStatement
from sfumato.privacy.statement import Statement
from sfumato.study.target import Study, make_study

if TYPE_CHECKING:
    from sfumato.analysis.result import Run

BESIDE = "It uses the run's own releases: it is no independent evidence to pool with the chain."
LABEL_CHAIN = (
    "An approximation, by local asymptotic normality, from the average of the noisy scores that the chain asked for and the "
    f"pilot's information: {RESTS_ON} {BESIDE}"
)
LABEL_PILOT = (
    "An approximation, by local asymptotic normality, from the pilot's releases alone, a small share of the budget (the answers "
    f"to a walk's moves are not used): {RESTS_ON} {BESIDE}"
)


class Answer(NamedTuple):
    """What releases say: points by site and unconstrained, their weights, what is told of them, how much of the prior is left."""

    points: dict[str, np.ndarray]
    theta: np.ndarray
    weight: np.ndarray
    about: dict[str, float]
    of_prior: dict[str, float]


# -- from releases to an answer -------------------------------------------------------------------------------------------


def by_scores(
    model: Model, domain: Mapping[str, Domain], n: int, asked: Sequence[Asked], *, known: bool = False, seed: int = 0,
    straight: bool = False,
) -> Answer:  # fmt: skip
    """What the last score and the last information say; `known`: the information needs no records; `straight`: see `answer`."""
    theta_star = asked[-1].theta
    silent = synthetic.silent(model, domain, theta_star)
    assumed = local_normal.assumed_information(model, domain, n, theta_star)
    heard = local_normal.hear(asked, silent, information=assumed if known else None, assumed=assumed)
    found = local_normal.answer(model, domain, n, heard, seed=seed, straight=straight)
    theta, weight = found.theta, found.weight
    with jax.enable_x64(True):
        sites = _sites(model)(jnp.asarray(theta))
    mean = weight @ theta
    sd = np.sqrt(np.maximum(weight @ (theta - mean) ** 2, 1e-300))
    away = ((mean - theta_star) / sd)[heard.loud]
    about = {
        "off": float(np.sqrt(np.mean(away**2))), "roughness": _relative_roughness(heard, found.apart),
        "effective": found.effective,
    }  # fmt: skip
    points = {name: np.asarray(value) for name, value in sites.items()}
    return Answer(points, theta, weight, about, share_of_prior(model, theta, weight))


def by_law(model: Model, found: noise_aware.NoiseAware) -> Answer:
    """What the law of a family's sums says. A law that is global does not care where the score was asked."""
    points = {name: values.reshape(-1, *values.shape[2:]) for name, values in found.draws.items()}
    with jax.enable_x64(True):
        sites = {name: jnp.asarray(values) for name, values in points.items()}
        theta = np.asarray(_unconstrained(model)(sites))
    weight = np.full(len(theta), 1 / len(theta))
    about = {"off": 0.0, "roughness": 0.0, "effective": float(len(theta)), "law": 1.0}
    return Answer(points, theta, weight, about, share_of_prior(model, theta, weight))


@lru_cache(maxsize=16)
def _sites(model: Model) -> Callable[[Any], dict[str, Any]]:
    """Compile points -> values by site."""
    return jax.jit(jax.vmap(model.constrain))


@lru_cache(maxsize=16)
def _unconstrained(model: Model) -> Callable[[dict[str, Any]], Any]:
    """Compile values by site -> points."""
    return jax.jit(jax.vmap(model.unconstrain))


def has_law(family: Family) -> bool:
    """Whether the family's statistic has a law of its own."""
    try:
        noise_aware.require_moments(family)
    except Unsupported:
        return False
    return True


def share_of_prior(model: Model, theta: np.ndarray, weight: np.ndarray) -> dict[str, float]:
    """Posterior over prior standard deviation, by coordinate; by quantiles, which heavy tails leave alone."""
    low, high = np.quantile(compiled.prior_draws(model), [0.16, 0.84], axis=0)
    points = theta[drawn(weight, 4000, 0)]
    lower, upper = np.quantile(points, [0.16, 0.84], axis=0)
    ratio = (upper - lower) / np.maximum(high - low, 1e-300)
    return dict(zip(model.coordinate_names(), ratio.tolist(), strict=True))


def _relative_roughness(heard: local_normal.Heard, apart: float) -> float:
    """Spectral noise of the information beside its own size, with what made-up records are off it."""
    size = np.trace(heard.information) / len(heard.root)
    return float(np.hypot(heard.roughness, apart) * (2 * len(heard.root)) ** 0.5 / size)


# -- from a run -------------------------------------------------------------------------------------------------------------


def from_run(run: "Run", study: Study, *, draws: int = 1000, seed: int = 0) -> Estimate:
    """The posterior given what a run released, for any model, any kernel and any number of owners; it costs nothing.

    Raises
    ------
    InvalidInput
        The run released nothing that tells of the parameters by itself: it had no pilot, and its chain was no Langevin chain
        of a family.
    """
    family = study.family
    with jax.enable_x64(True):
        if family is not None and has_law(family):
            found = noise_aware.from_run(run, family, seed=seed)
            answer, label = by_law(study.model, found), _label(found)
            about, released = {"surprise": False}, list(run.pilot.get("releases", ()))
        else:
            asked = _asked(run)
            answer = by_scores(study.model, study.domain, run.privacy.n, asked, seed=seed)
            label = LABEL_CHAIN if _moved_by_scores(run) else LABEL_PILOT
            about, released = {"surprise": _surprised(run, study, asked)}, [plain(one) for one in asked]
    chosen = drawn(answer.weight, CHAINS * draws, seed)
    return Estimate(
        draws={k: values[chosen].reshape(CHAINS, draws, *values.shape[1:]) for k, values in answer.points.items()},
        label=label, privacy=_promised(run.privacy), population=answer.points, weight=answer.weight,
        of_prior=answer.of_prior, about=answer.about | about | {"limit": float(run.planned["limit_ess"])},
        pilot={"releases": released, "lost": run.pilot.get("lost", 0)}, seed=seed,
        facts=with_study(run.facts, study),
    )  # fmt: skip


def study_of(run: "Run", model: Any = None, domain: Mapping[str, Domain] | None = None) -> Study:
    """The study of a run: its own, or, of a run that was loaded from a file, that of the model it was made with."""
    if model is None and run.study is None:
        raise InvalidInput(
            "a run that was loaded from a file does not know its model; pass the model and its domain=..., or the family."
        )
    study = run.study if model is None else make_study(model, domain)
    if tuple(study.model.coordinate_names()) != run.coordinates:
        raise InvalidInput(
            f"a run is read with the model it was made with, whose parameters are {', '.join(run.coordinates)}; got "
            f"{', '.join(study.model.coordinate_names())}. Pass that model."
        )
    return study


def _label(found: noise_aware.NoiseAware) -> str:
    first = LABEL_COUNTS if found.label == noise_aware.LABEL_COUNTS else LABEL_SUMS
    notes = "".join(f" {note[:1].upper()}{note[1:]}." for note in found.notes)
    return f"{first}{notes} {BESIDE}"


def _promised(privacy: Statement | JointStatement) -> Statement | JointStatement:
    """The run's promise, without what it says of the chain's draws."""
    if isinstance(privacy, JointStatement):
        return JointStatement(tuple(replace(owner, exact=EXACT) for owner in privacy.owners))
    return replace(privacy, exact=EXACT)


def _moved_by_scores(run: "Run") -> bool:
    """Whether the chain was Langevin around a reference point, and has begun."""
    return bool(run.planned.get("trust")) and "t_noisy" in run.transcript and run.transcript["t_noisy"].size > 0


def _asked(run: "Run") -> list[Asked]:
    """The pilot's releases, and the average of a Langevin chain's scores."""
    releases = [release for release in run.pilot.get("releases", ()) if "matrix" in release]
    if not any(release["what"] != "gradient" for release in releases):
        raise InvalidInput(
            "what a run released is read with its pilot's information, and this run's pilot released none (pilot_share=0, or a "
            "run that an earlier version saved); use sf.estimate, on a budget of its own."
        )
    asked = [
        Asked(r["what"], np.array(r["theta"]), np.array(r["matrix"]), float(r["sigma"]), np.array(r["answer"]))
        for r in releases
    ]
    return [*asked, _average(run)] if _moved_by_scores(run) else asked


def _average(run: "Run") -> Asked:
    r"""Noise :math:`\sqrt{4/h - 1}` in every score (`kernel.reference`), independent from step to step and chain to chain."""
    scores = np.asarray(run.transcript["t_noisy"])
    scores = scores.reshape(-1, scores.shape[-1])
    scores = scores[np.isfinite(scores).all(axis=1)]
    sigma = float(np.sqrt((4 / run.planned["step"] - 1) / len(scores)))
    centre, matrix = np.array(run.planned["belief"]["centre"]), np.array(run.planned["matrix"])
    return Asked("gradient", centre, matrix, sigma, scores.mean(axis=0))


def _surprised(run: "Run", study: Study, asked: Sequence[Asked]) -> bool:
    """Whether the chain's average score, or else the pilot's last, is longer than noise and the pilot's error explain."""
    off_by = run.pilot.get("off_by", np.inf)
    if not _moved_by_scores(run):
        return not run.pilot.get("arrived", True) and off_by <= FORGIVEN
    last, dim = asked[-1], len(asked[-1].theta)
    slope = np.nan_to_num(np.asarray(compiled.prior_derivatives(study.model)(last.theta)[0]))
    way = last.answer + last.matrix.T @ slope
    free = int(np.sum(~synthetic.silent(study.model, study.domain, last.theta)))
    return not is_noise(float(way @ way), off_by**2 * dim / max(free, 1) + last.sigma**2, free)
