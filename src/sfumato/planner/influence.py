"""What sets the price of a plan: two made-up records that one could be exchanged for the other; and what would lower it.

Everybody pays for how far one record could move the score. The search for the one-shot limit attains that with two records of the
domain. Here they are named, so that whoever plans sees whether anybody is like them. What would bring them closer together
is tried: an outcome cut where hardly any record of the model lies, covariates of half the width, and, where a plan is weak,
a likelihood of bounded influence (`sfumato.robust`). Nothing of it looks at a record that is private.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sfumato.bounds import synthetic
from sfumato.bounds.reach import Search
from sfumato.domain import Domain, Integers, Interval
from sfumato.errors import SfumatoError
from sfumato.model.robust import robustly
from sfumato.planner.belief import Belief, assumed_belief
from sfumato.planner.limit import limit_ess
from sfumato.study.target import Study

TAIL = 0.001
"""Share of the model's outcomes beyond either end of the narrower domain that is tried."""
BETA = 0.2
"""Of the density-power loss that is tried."""
WORTH = 1.25
"""Times the limit that a change must bring to be named."""
_SHOWN = 3  # numbers of a vector that a sentence shows


@dataclass(frozen=True)
class Way:
    """A change that would lower the price: what to do, and the effective draws that it would bring."""

    words: str
    draws: float


@dataclass(frozen=True)
class Influence:
    """Two made-up records that set the price, the furthest apart of all that were found, and what would lower it."""

    one: Mapping[str, Any]
    other: Mapping[str, Any]
    ways: tuple[Way, ...] = ()

    @property
    def price(self) -> str:
        """The pair, in words."""
        alike = [name for name in self.one if np.array_equal(self.one[name], self.other[name])]
        one, other, both = (
            ", ".join(f"{name} = {_short(record[name])}" for name in record if (name in alike) == same)
            for record, same in ((self.one, False), (self.other, False), (self.one, True))
        )
        return f"{one} in place of {other}" + (f", both with {both}" if both else "")

    @property
    def cure(self) -> str:
        """What would lower it, in words; empty where nothing would."""
        return "; ".join(f"{way.words}: about {way.draws:.3g} draws" for way in self.ways)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        records = [{name: np.asarray(value).tolist() for name, value in r.items()} for r in (self.one, self.other)]
        return {"one": records[0], "other": records[1], "ways": [[way.words, way.draws] for way in self.ways]}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> "Influence":
        """Inverse of `to_dict`."""
        return cls(written["one"], written["other"], tuple(Way(words, draws) for words, draws in written["ways"]))


def influence(
    study: Study, belief: Belief, n: int, mu: float, share: float, example: synthetic.Batch | None, *, weak: bool
) -> Influence | None:
    """The pair, and what would lower the price; None for a family, whose statistic is what it is. Call with 64 bits enabled.

    Parameters
    ----------
    mu
        Gaussian-DP parameter of the budget.
    share
        Of the limit that the plan gets: each way is taken to leave it as it is.
    example
        Public example records, if any.
    weak
        Whether more is tried than costs nothing.
    """
    if study.family is not None:
        return None
    model, domain = study.model, study.domain
    root = np.linalg.cholesky(belief.covariance)
    pair = Search(model, [domain]).pair("gradient", belief.centre, root)
    now = mu**2 / max(pair.distance**2, 1e-300)
    tried = [_way(words, partial(limit_ess, model, other, belief, mu)) for words, other in _narrower(study, belief)]
    if weak and model.loss is None:
        tried.append(_way(f"sf.robust at beta = {BETA:g}", lambda: _robust_limit(study, belief, n, mu, example)))
    ways = [Way(words, share * limit) for words, limit in tried if limit > WORTH * now]
    ways.sort(key=lambda way: -way.draws)
    return Influence(_labelled(domain, pair.one), _labelled(domain, pair.other), tuple(ways))


def _way(words: str, limit: Callable[[], float]) -> tuple[str, float]:
    try:
        return words, limit()
    except SfumatoError:
        return words, 0.0


def _narrower(study: Study, belief: Belief) -> list[tuple[str, dict[str, Domain]]]:
    """Domains with one column narrower: an outcome where all but few of the model's lie, a covariate about its middle."""
    model, domain = study.model, study.domain
    made_up = synthetic.uniform(model, domain, belief.centre)
    outcomes = synthetic.observed_columns(model, belief.centre, made_up)
    found = []
    for name, d in domain.items():
        if not d.separable or d.nominal or d.shape or d.at_most or float(d.hi - d.lo) <= 1:
            continue
        low, high = float(d.lo), float(d.hi)
        if name in outcomes:
            low, high = (float(end) for end in np.quantile(made_up[name], [TAIL, 1 - TAIL]))
            words = f"if {name} lies within [{{}}, {{}}], as all but {2 * TAIL:.1%} of the model's outcomes do"
        elif not d.discrete:
            low, high = (3 * low + high) / 4, (low + 3 * high) / 4
            words = f"if {name} lies within [{{}}, {{}}]"
        else:
            continue
        low, high = float(f"{low:.3g}"), float(f"{high:.3g}")
        if d.lo <= low < high <= d.hi and high - low < 0.9 * float(d.hi - d.lo):
            other = Integers(int(low), int(high)) if d.discrete else Interval(low, high)
            found.append((words.format(f"{low:g}", f"{high:g}"), domain | {name: other}))
    return found


def _robust_limit(study: Study, belief: Belief, n: int, mu: float, example: synthetic.Batch | None) -> float:
    model = robustly(study.model, study.domain, belief.centre, BETA)
    if model is None:
        return 0.0
    return limit_ess(model, study.domain, assumed_belief(model, study.domain, n, belief.centre, example, ""), mu)


def _labelled(domain: Mapping[str, Domain], record: Mapping[str, Any]) -> dict[str, Any]:
    """A made-up record as users write them: labels for codes."""
    return {name: domain[name].decode(np.asarray(value)[None])[0] for name, value in record.items()}


def _short(value: Any) -> str:
    array = np.asarray(value)
    if array.dtype.kind not in "bifu":
        return str(value)
    if array.ndim == 0:
        return f"{array.item() + 0:.3g}"
    shown = ", ".join(f"{x + 0:.3g}" for x in array.ravel()[:_SHOWN])
    return f"({shown}{', ...' if array.size > _SHOWN else ''})"
