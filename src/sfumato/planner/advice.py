"""What to do about a weak plan, in words: what its columns look like, and numbers only where somebody could have them."""

import math
from collections.abc import Set
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from sfumato.bounds import synthetic
from sfumato.domain import Domain, joined
from sfumato.model.base import input_spec
from sfumato.planner.forecast import EstimateForecast
from sfumato.privacy import gdp
from sfumato.privacy.statement import careless

if TYPE_CHECKING:
    from sfumato.planner.plan import Plan
    from sfumato.study.target import Study

LARGE_REACH, SMALL_REACH = 10.0, 0.1
"""A covariate that reaches further than this, or not even as far, is not on the scale that priors are written for."""
MOST_EPSILON = 100.0
MOST_RECORDS = 10_000_000_000
"""More than there are people."""


def advice(study: "Study", centre: np.ndarray) -> str | None:
    """Name the covariates that want centring and scaling, with the numbers to do it by; None: there are none.

    The sensitivity of a coefficient grows with the largest value of its covariate, not with its spread: a year of birth costs a
    thousand times what the same year does, counted from the middle of its domain in units of half its width.
    """
    if study.family is not None:
        return None
    wide = {name: d for name, d in study.domain.items() if _off_scale(d)}
    outcomes = _observed(study, centre) if wide else set()
    raw = _times_a_parameter(study, wide.keys() - outcomes)
    covariates = [_scaled(name, d) for name, d in wide.items() if name in raw]
    if not covariates:
        return None
    first = covariates[0][1]
    return f"First centre and scale {' and '.join(said for said, _ in covariates)}: write {first} in the model, for instance"


def _off_scale(d: Domain) -> bool:
    if not d.separable or d.nominal or np.all(d.lo == d.hi):
        return False
    reach = np.maximum(np.abs(d.lo), np.abs(d.hi))
    return bool(np.any(reach > LARGE_REACH) or np.all(reach < SMALL_REACH))


def _observed(study: "Study", centre: np.ndarray) -> set[str]:
    """Columns that are an observed site's value: an outcome is what it is."""
    with jax.enable_x64(True):
        records = joined(study.domain, synthetic.extreme(study.domain, size=2))
        return set(synthetic.observed_columns(study.model, centre, records))


def _times_a_parameter(study: "Study", names: Set[str]) -> set[str]:
    """Columns that a parameter multiplies as they stand, and that nothing else is done to: those that a model scales are not."""
    if not names:
        return set()
    with jax.enable_x64(True):
        program = jax.make_jaxpr(study.model.log_likelihood)(*input_spec(study.model.dim, study.domain)).jaxpr
    uses: dict[str, set[str]] = {name: set() for name in names}
    columns = {v: name for v, name in zip(program.invars[1:], sorted(study.domain), strict=True) if name in names}
    _follow(program, columns, {program.invars[0]}, uses)
    return {name for name, found in uses.items() if found and found <= {_PARAMETER, *_POWERS}}


_PARAMETER = "times a parameter"
_POWERS = ("integer_pow", "square")  # beside the column itself, in a polynomial
_SAME = ("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "transpose", "copy", "slice")
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def _follow(program: Any, columns: dict[Any, str], moved: set[Any], uses: dict[str, set[str]]) -> None:
    """Note what is done to each column, in a program and those inside it; `moved` is what depends on the parameters."""
    for equation in program.eqns:
        given = [v for v in equation.invars if not hasattr(v, "val")]
        inner = next((equation.params[key] for key in _INNER if key in equation.params), None)
        inner = getattr(inner, "jaxpr", inner)
        if inner is not None and len(inner.invars) == len(equation.invars):
            pairs = [(a, b) for a, b in zip(inner.invars, equation.invars, strict=True) if not hasattr(b, "val")]
            within = {a: columns[b] for a, b in pairs if b in columns}
            _follow(inner, within, {a for a, b in pairs if b in moved}, uses)
        elif equation.primitive.name in _SAME and given and given[0] in columns:
            columns[equation.outvars[0]] = columns[given[0]]
        else:
            times = equation.primitive.name in ("mul", "dot_general") and any(v in moved for v in given)
            for v in given:
                if v in columns:
                    uses[columns[v]].add(_PARAMETER if times else equation.primitive.name)
        if any(v in moved for v in given):
            moved.update(equation.outvars)


def _scaled(name: str, d: Domain) -> tuple[str, str]:
    """How a column is called, and the formula that scales it."""
    if d.shape:
        return f"the entries of {name} (its domain is {_ends(d)})", f"({name} - middle) / half, both public arrays,"
    middle, half = float(d.lo + d.hi) / 2, float(d.hi - d.lo) / 2
    moved = f"({name} {'-' if middle > 0 else '+'} {abs(middle):.4g})" if middle else name
    return f"{name} (its domain is {_ends(d)})", f"{moved} / {half:.4g}"


def _ends(d: Domain) -> str:
    return f"[{np.min(d.lo):.6g}, {np.max(d.hi):.6g}]"


def ways_out(epsilon: float, n: float, hint: str, *, fewer_chains: bool, guess: str = "", cure: str = "") -> str:
    """Ways out of a weak plan, in a sentence or two; an epsilon or a number of records only where somebody could have it."""
    would, would_not = _enough(epsilon, n)
    beginning = f"No {' and no '.join(would_not)} would do. " if would_not else ""
    ways = [
        *would,
        *([hint[:1].lower() + hint[1:]] if hint else []),
        *([guess] if guess else []),
        *([cure] if cure else []),
        *(["fewer chains"] if fewer_chains else []),
        "a simpler model or a tighter domain",
    ]
    return f"{beginning}Ways out: {'; '.join(ways)}."


def instead(estimate: EstimateForecast | None, mu_left: float | None = None, delta: float | None = None) -> str:
    """What `sf.estimate` would give in place of chains, as a sentence with a space behind it; empty where nobody knows.

    Parameters
    ----------
    estimate
        The forecast.
    mu_left, delta
        Of one owner's budget of which a part is spent: what is left, and the promise's delta. An estimate may promise the rest.
    """
    if estimate is None:
        return ""
    if mu_left is None:
        return f"sf.estimate answers at this budget: {estimate}. "
    rest = "" if delta is None else f" (epsilon={_rounded_down(float(gdp.epsilon(mu_left, delta)))} at the same delta)"
    return f"sf.estimate answers with what is left{rest}: {estimate}. "


def as_commands(text: str, estimate: str = "sfumato estimate", run: str = "sfumato run") -> str:
    """Ways out for whoever sits at a terminal: commands in place of Python."""
    return text.replace("sf.estimate answers", f"`{estimate}` answers").replace(
        "force=True samples", f"`{run} --force` samples"
    )


def _rounded_down(value: float) -> str:
    """Three digits, none of them too large: charges are rounded up."""
    power = 10.0 ** (math.floor(math.log10(max(value, 1e-12))) - 2)
    return f"{math.floor(0.999 * value / power) * power:.3g}"


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
