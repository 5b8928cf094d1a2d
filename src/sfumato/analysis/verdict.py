"""Whether a run may be used: one judgement, from released values and the plan alone, that everything else follows."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import gammaincinv, ndtri

from sfumato.analysis import watch
from sfumato.kernel import asks_first
from sfumato.privacy.joint import JointStatement
from sfumato.privacy.statement import PERHAPS_CUT
from sfumato.privacy.target import Target
from sfumato.tools.notebook import card

if TYPE_CHECKING:
    from sfumato.analysis.diagnostics import Row
    from sfumato.analysis.result import Run

Level = Literal["good", "rough", "unusable"]

GOOD_R_HAT, FAIR_R_HAT = 1.05, 1.2
GOOD_ESS = 100.0
LEAST_ESS = 16.0
"""Effective draws, bulk, all chains together, below which even a mean is not known; or four a chain, if that is more."""
LEAST_ESS_A_CHAIN = 4.0
GRACE = 0.3
"""Planned posterior standard deviations by which a mean may miss the implied mode: posteriors are not quite normal."""
CURVED = 0.25
"""The same as a share of the implied mode's distance from the plan's centre: the log posterior is no parabola."""
PRIORS = 2.0
"""The same in a direction of which the prior alone knows: its slope is taken where the plan's centre is, and priors bend."""
NARROW = 0.25
"""Share of the planned width that a short chain must have seen."""
IMPLIED = 0.7
"""Share of the variance implied by the answers that the chains must have seen, beyond chance: posteriors are not quite normal."""
FEWER, MORE = 0.5, 1 / 3
"""Acceptance below this share of the planned one, rejections of a walk below that share of the planned ones: worth a word."""
BLOCKS = 10
_SHORTEST = 20  # draws a chain below which no transient can be told from chance


HEARD = "What was released says more than these draws do: run.noise_aware() gives the posterior given all of it."
"""The way on from an unusable run."""


@dataclass(frozen=True)
class Verdict:
    """What to make of a run.

    Attributes
    ----------
    level
        "good": nothing to object. "rough": means can be used to their Monte Carlo error, the ends of intervals are rough.
        "unusable": do not use the draws.
    reasons
        Sentences, the most important first.
    """

    level: Level
    reasons: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Verdict {self.level}: {self.reasons[0] if self.reasons else ''}>"

    def _repr_html_(self) -> str:
        words = {"good": "Good", "rough": "Rough", "unusable": "Do not use"}[self.level]
        return card(words, text=" ".join(self.reasons), mark=self.level)

    def __str__(self) -> str:
        words = {"good": "good", "rough": "rough", "unusable": "do not use"}[self.level]
        return f"{words}: {' '.join(self.reasons)}"

    @property
    def usable(self) -> bool:
        """Whether the draws mean anything."""
        return self.level != "unusable"


def judge(run: "Run") -> Verdict:
    """Judge a run by what it released.

    Every test of a mean or an acceptance cries falsely with chance `watch.FALSE_ALARM` at the most; the limits on R-hat and
    on effective draws are conventions.
    """
    from sfumato.analysis.diagnostics import posterior_rows

    found, target = _judged(run, posterior_rows(run)), _target(run)
    return found if target is None else Verdict(found.level, (target.sentence, *found.reasons))


def _target(run: "Run") -> Target | None:
    """What was sampled, where that is no posterior of a likelihood."""
    return Target.from_dict(run.planned["target"]) if run.planned.get("target") else None


def _judged(run: "Run", rows: "list[Row]") -> Verdict:
    against = _against_use(run, rows)
    if against:
        return Verdict("unusable", (*against, *([HEARD] if may_be_heard(run) else [])))
    doubts = _doubts(run, rows)
    if doubts:
        return Verdict("rough", (*doubts, _precision(rows), *_discarded(run)))
    return Verdict("good", (_agreement(rows), _precision(rows), *_discarded(run)))


def may_be_heard(run: "Run") -> bool:
    """Whether a run released something that `Run.noise_aware` can read: a pilot's answers, a statistic, copies."""
    statistics = "t_noisy" in run.transcript and not run.planned.get("trust")
    return any("matrix" in one for one in run.pilot.get("releases", ())) or "copies_mean" in run.pilot or statistics


# -- do not use -------------------------------------------------------------------------------------------------------


def _against_use(run: "Run", rows: "list[Row]") -> list[str]:
    found = []
    if not run.pilot.get("arrived", True):
        found.append(_not_arrived(run))
    if run.stop_reason.name == "NOT_MIXING":
        found.append("The chain stopped itself, with budget left, because it does not do what was planned.")
    if "belief" in run.planned and run.iterations:
        found += watch.alarms(run.transcript, run.planned, watch.FALSE_ALARM)
    return found + _not_mixed(run, rows) + _not_there(run, rows) + _away_from_the_pilot(run, rows)


def _not_arrived(run: "Run") -> str:
    off = run.pilot.get("off_by")
    how_far = "" if off is None else f" (it may be {off:.1f} posterior sds off, root mean square)"
    return f"The pilot did not arrive at the mode{how_far}, and the chains were forced to start there."


def _not_mixed(run: "Run", rows: "list[Row]") -> list[str]:
    found = []
    draws = np.concatenate(
        [np.asarray(d, float).reshape(*d.shape[:2], int(np.prod(d.shape[2:]))) for d in run.draws.values()], axis=2
    )
    chains, steps = draws.shape[:2]
    if steps > 1 and (np.ptp(draws, axis=1).max(axis=1) == 0).any():
        found.append("A chain never moved.")
    worst, least = _worst_r_hat(rows), _least_ess(rows)
    if math.isnan(least) or (chains > 1 and math.isnan(worst)):
        found.append(
            f"{steps:,} draws a chain are too few to tell whether the chains have mixed."
            if steps < _SHORTEST
            else "The diagnostics cannot be computed: draws of a chain are all alike, or not finite."
        )
        return found
    if worst > FAIR_R_HAT:
        found.append(
            f"The chains do not agree (largest R-hat {worst:.2f}; {FAIR_R_HAT:g} is the most that can be used)."
        )
    if least < (wanted := max(LEAST_ESS, LEAST_ESS_A_CHAIN * chains)):
        found.append(f"The draws are worth {least:.0f} independent ones; {wanted:.0f} is the least that can be used.")
    return found


def _not_there(run: "Run", rows: "list[Row]") -> list[str]:
    """The chains' mean against the mode that the answers imply, and their width against the planned one."""
    x = kept_white(run)
    if x is None or math.isnan(least := _least_ess(rows)):
        return []
    found, spread = [], x.std(axis=(0, 1))
    if (narrowest := float(spread.min())) < NARROW and least < GOOD_ESS:
        found.append(
            f"The chains saw {narrowest:.0%} of the planned posterior's width in some direction: too short to mix."
        )
    if least < GOOD_ESS and (seen := _share_of_implied(run, least)) < 1:
        found.append(
            f"The chains saw {seen:.0%} of the width that the released answers imply in some direction: too short to mix."
        )
    mode = watch.implied_mode(run.transcript, run.planned)
    if not np.linalg.eigvalsh(mode.precision)[0] > 0:
        return found
    error = np.sqrt(np.diag(np.linalg.inv(mode.precision)) + spread**2 / least)
    noise = -float(ndtri(watch.FALSE_ALARM / 2 / len(error)))
    curved = CURVED * float(np.sqrt(np.mean(mode.offset**2)))
    chance = GRACE + curved + PRIORS * np.asarray(run.planned["prior_share"]) + noise * error
    away = _distance(x, mode.offset, "t_noisy" in run.transcript)
    worst = int(np.argmax(away - chance))
    if away[worst] > chance[worst]:
        found.append(
            f"The chains' mean is {away[worst]:.1f} planned posterior sds from where the released answers put the mode; "
            f"{chance[worst]:.1f} could be chance."
        )
    return found


def _share_of_implied(run: "Run", least: float) -> float:
    """Share of the width that the curvature in the released answers implies which the chains saw; 1 if all, up to chance.

    Where the planned width is too small, the steps are, too: chains may agree with each other long before they have seen all.
    """
    x, kept = kept_white(run), {name: values[:, run.discarded :] for name, values in run.transcript.items()}
    curvature = None if x is None else watch.implied_curvature(kept, run.planned)
    if x is None or curvature is None:
        return 1.0
    dim = x.shape[2]
    own, prior = np.atleast_2d(np.cov(x.reshape(-1, dim), rowvar=False)), np.asarray(run.planned["prior_share"])
    noise, chance = (
        -float(ndtri(watch.FALSE_ALARM / dim)),
        2 * float(gammaincinv(least / 2, watch.FALSE_ALARM / dim)) / least,
    )
    seen = []
    for axis in np.linalg.eigh(curvature.matrix)[1].T:
        value, error = curvature.along(axis)
        most = max(value + noise * error, 0.0) + (1 + PRIORS) * float(axis**2 @ prior)
        seen.append(float(axis @ own @ axis) * most)
    return 1.0 if min(seen) >= IMPLIED * chance else math.sqrt(min(seen))


def _away_from_the_pilot(run: "Run", rows: "list[Row]") -> list[str]:
    """The chains' mean against the pilot's centre, where terms may have been cut: the answers agree with the cut posterior."""
    x = kept_white(run)
    if x is None or not _perhaps_cut(run) or math.isnan(least := _least_ess(rows)):
        return []
    mean, spread = np.abs(x.mean(axis=(0, 1))), x.std(axis=(0, 1))
    noise = -float(ndtri(watch.FALSE_ALARM / 2 / len(mean)))
    error = np.sqrt(run.planned["belief"]["error"] ** 2 + spread**2 / least)
    chance = GRACE + PRIORS * np.asarray(run.planned["prior_share"]) + noise * error
    worst = int(np.argmax(mean - chance))
    if mean[worst] <= chance[worst]:
        return []
    return [
        f"The chains' mean is {mean[worst]:.1f} planned posterior sds from the pilot's centre, where {chance[worst]:.1f} could "
        "be chance: the stated range of a record's term cuts too much."
    ]


def _perhaps_cut(run: "Run") -> bool:
    """Whether the range of one record's term was stated and not proven: by Clip, Lipschitz or Range."""
    each = run.privacy.owners if isinstance(run.privacy, JointStatement) else (run.privacy,)
    return any(PERHAPS_CUT in one.exact for one in each)


def _distance(x: np.ndarray, offset: np.ndarray, statistics: bool) -> np.ndarray:
    """How far the draws' mean is from the implied mode, coordinate by coordinate.

    Langevin's statistics give the slope at the plan's centre. Where the planned covariance is off, the mode is the draws' own
    covariance times that slope; of the two answers, the nearer one counts.
    """
    mean, modes = x.mean(axis=(0, 1)), [offset]
    if statistics:
        covariance = np.atleast_2d(np.cov(x.reshape(-1, x.shape[2]), rowvar=False))
        modes.append(covariance @ offset)
    return min((np.abs(mean - mode) for mode in modes), key=np.max)


def kept_white(run: "Run") -> np.ndarray | None:
    """The kept draws in the plan's coordinates, (chain, draw, d); None where there is nothing to compare."""
    if "belief" not in run.planned or run.iterations - run.discarded < 2:
        return None
    return watch.whiten(run.transcript["theta"][:, run.discarded :], run.planned)


# -- rough ------------------------------------------------------------------------------------------------------------


def _doubts(run: "Run", rows: "list[Row]") -> list[str]:
    found = []
    worst, least, tail = _worst_r_hat(rows), _least_ess(rows), _least_tail(rows)
    if run.transcript["accepted"].shape[0] == 1:
        found.append("One chain cannot be compared with others (R-hat needs two): use chains=2 or more.")
    elif round(worst, 2) > GOOD_R_HAT:
        found.append(f"The chains agree roughly (largest R-hat {worst:.2f}; up to {GOOD_R_HAT:g} is good).")
    if least < GOOD_ESS or not tail >= GOOD_ESS:
        shown = "unknown" if math.isnan(tail) else f"{math.floor(tail)}"
        found.append(f"Few effective draws: bulk {math.floor(least)}, tail {shown} ({GOOD_ESS:.0f} of each are good).")
    if least >= GOOD_ESS and (seen := _share_of_implied(run, least)) < 1:
        found.append(
            f"The chains saw {seen:.0%} of the width that the released answers imply in some direction: they are too short, "
            "or the posterior is cut off by the trust region, or far from normal."
        )
    if _perhaps_cut(run):
        found.append(
            "The range of a record's term was stated, not proven: if terms were cut, the means are off by more than is said, "
            'and nothing released tells how far (sensitivity="certify" needs no such range).'
        )
    target = _target(run)
    found += [target.uncalibrated] if target is not None and target.uncalibrated else []
    return found + _odd_acceptance(run)


def _odd_acceptance(run: "Run") -> list[str]:
    if "belief" not in run.planned:
        return []
    planned, met = watch.planned_acceptance(run.planned), run.acceptance
    words = f"{met:.0%} of the proposals were accepted, the plan expected about {planned:.0%}"
    if met < FEWER * planned:
        return [f"{words}: the plan's picture of the posterior is poor."]
    if not asks_first(run.planned["kernel"]) and 1 - met < MORE * (1 - planned):
        return [f"{words}: steps are short for this posterior."]
    return []


# -- words ------------------------------------------------------------------------------------------------------------


def _discarded(run: "Run") -> list[str]:
    if not run.discarded:
        return []
    return [f"The first {run.discarded:,} draws of every chain are left out: the chains were still on their way."]


def _agreement(rows: "list[Row]") -> str:
    return f"The chains agree with each other (largest R-hat {_worst_r_hat(rows):.2f})."


def _precision(rows: "list[Row]") -> str:
    least = _least_ess(rows)
    ends = "" if least >= GOOD_ESS else "; the ends of intervals are rough"
    return f"Each mean is known to {least**-0.5:.0%} of its sd ({least:.0f} effective draws){ends}."


def _worst_r_hat(rows: "list[Row]") -> float:
    """Largest R-hat; NaN if any is."""
    return max((row.r_hat for row in _varying(rows)), key=_nan_first, default=math.nan)


def _least_ess(rows: "list[Row]") -> float:
    """Smallest bulk ESS; NaN if any is."""
    return -max((-row.ess for row in _varying(rows)), key=_nan_first, default=math.nan)


def _least_tail(rows: "list[Row]") -> float:
    """Smallest tail ESS; NaN if any is."""
    return -max((-row.ess_tail for row in _varying(rows)), key=_nan_first, default=math.nan)


def _varying(rows: "list[Row]") -> "list[Row]":
    """Without parameters that are constant by construction, such as the first entry of a Cholesky factor."""
    return [row for row in rows if row.sd > 0 or math.isnan(row.sd)]


def _nan_first(value: float) -> float:
    return math.inf if math.isnan(value) else value


# -- the start --------------------------------------------------------------------------------------------------------


def visible_transient(theta: np.ndarray) -> int:
    r"""Draws at the start of every chain during which the chains were visibly on their way.

    The rule, fixed beforehand: of each tenth of the chains, from the first to the fifth, ask whether its mean differs from that
    of the last half by more than chance allows, in any coordinate, at `watch.FALSE_ALARM` for all of them together; discard all
    up to the first tenth that does not. Chance is :math:`v(1/e_1 + 1/e_2)`, v the variance of the last half, e the effective
    draws of the two parts (at least one a chain).

    Parameters
    ----------
    theta
        Unconstrained draws (chain, draw, d).
    """
    from sfumato.analysis.diagnostics import effective_draws

    chains, steps, dim = theta.shape
    if steps < _SHORTEST:
        return 0
    settled, tenth = theta[:, steps // 2 :], steps // BLOCKS
    worth = np.array([effective_draws(settled[..., j]) for j in range(dim)]) / settled[..., 0].size
    ends, mean = np.maximum(worth * settled[..., 0].size, chains), settled.mean(axis=(0, 1))
    chance = np.sqrt(settled.var(axis=(0, 1)) * (1 / np.maximum(worth * tenth * chains, chains) + 1 / ends))
    limit = -ndtri(watch.FALSE_ALARM / 2 / (BLOCKS // 2) / dim)
    for block in range(BLOCKS // 2):
        part = theta[:, block * tenth : (block + 1) * tenth].mean(axis=(0, 1))
        if not np.any(np.abs(part - mean) > limit * chance):
            return block * tenth
    return BLOCKS // 2 * tenth
