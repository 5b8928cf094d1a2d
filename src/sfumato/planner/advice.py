"""What to do about a weak plan, in words: what its columns look like, and numbers only where somebody could have them."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from sfumato.domain import Binary, Box, Categories, Domain
from sfumato.planner import synthetic
from sfumato.privacy.statement import careless

if TYPE_CHECKING:
    from sfumato.planner.plan import Plan
    from sfumato.study import Study

LARGE_REACH, SMALL_REACH = 10.0, 0.1
"""A covariate that reaches further than this, or not even as far, is not on the scale that priors are written for."""
MOST_EPSILON = 100.0
MOST_RECORDS = 10_000_000_000
"""More than there are people."""


def advice(study: "Study", plan: "Plan") -> str | None:
    """Name the covariates of a weak plan that want centring and scaling, with the numbers to do it by; None: there are none.

    The sensitivity of a coefficient grows with the largest value of its covariate, not with its spread: a year of birth costs a
    thousand times what the same year does, counted from the middle of its domain in units of half its width.
    """
    if not plan.weak or study.family is not None:
        return None
    wide = [(name, d) for name, d in study.domain.items() if _off_scale(d)]
    outcomes = _observed(study, plan) if wide else set()
    covariates = [_scaled(name, d) for name, d in wide if name not in outcomes]
    if not covariates:
        return None
    first = covariates[0][1]
    return f"First centre and scale {' and '.join(said for said, _ in covariates)}: write {first} in the model, for instance"


def _off_scale(d: Domain) -> bool:
    if not isinstance(d, Box) or isinstance(d, Binary | Categories) or np.all(d.lo == d.hi):
        return False
    reach = np.maximum(np.abs(d.lo), np.abs(d.hi))
    return bool(np.any(reach > LARGE_REACH) or np.all(reach < SMALL_REACH))


def _observed(study: "Study", plan: "Plan") -> set[str]:
    """Columns that are an observed site's value: an outcome is what it is."""
    with jax.enable_x64(True):
        return set(
            synthetic.observed_columns(study.model, plan.picture.centre, synthetic.extreme(study.domain, size=2))
        )


def _scaled(name: str, d: Domain) -> tuple[str, str]:
    """How a column is called, and the formula that scales it."""
    if d.shape:
        return f"the entries of {name} (its domain is {_ends(d)})", f"({name} - middle) / half, both public arrays,"
    middle, half = float(d.lo + d.hi) / 2, float(d.hi - d.lo) / 2
    moved = f"({name} {'-' if middle > 0 else '+'} {abs(middle):.4g})" if middle else name
    return f"{name} (its domain is {_ends(d)})", f"{moved} / {half:.4g}"


def _ends(d: Domain) -> str:
    return f"[{np.min(d.lo):.6g}, {np.max(d.hi):.6g}]"


def ways_out(epsilon: float, n: float, hint: str) -> str:
    """Ways out of a weak plan, in a sentence or two; an epsilon or a number of records only where somebody could have it."""
    would, would_not = _enough(epsilon, n)
    beginning = f"No {' and no '.join(would_not)} would do. " if would_not else ""
    ways = [
        *would,
        *([hint[:1].lower() + hint[1:]] if hint else []),
        "fewer chains, a simpler model or a tighter domain",
    ]
    return f"{beginning}Ways out: {'; '.join(ways)}."


def would_do(epsilon: float, n: float, hint: str) -> str:
    """The same in a line."""
    would, would_not = _enough(epsilon, n)
    words = f"{', or '.join(would)} would do" if would else f"no {' and no '.join(would_not)} would do"
    return words + (f". {hint}" if hint else "")


def _enough(epsilon: float, n: float) -> tuple[list[str], list[str]]:
    """What would do, and what nobody has."""
    would, would_not = [], []
    if epsilon <= MOST_EPSILON:
        would.append(f"epsilon of about {epsilon:.2g} on the same records")
    else:
        would_not.append("epsilon that protects anybody")
    if n <= MOST_RECORDS:
        would.append(f"about {int(n):,} records at the same epsilon")
    else:
        would_not.append("number of records that anybody has")
    return would, would_not


def careless_rows(plan: "Plan") -> list[tuple[str, str]]:
    """Lines of a plan that warn of a delta of 1/n or more, of any owner."""
    each = [(f"{owner['name']}: ", owner["delta"], owner["n"]) for owner in plan.owners] or [("", plan.delta, plan.n)]
    return [("WARNING", f"{whose}{words}") for whose, delta, n in each if (words := careless(delta, n))]
