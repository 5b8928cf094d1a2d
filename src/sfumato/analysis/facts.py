"""What a reader must know beside the numbers: model, priors, domain, versions. All of it is public."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import msgspec
import numpy as np

from sfumato.analysis.wording import Words
from sfumato.bounds import compiled
from sfumato.model import Model
from sfumato.tools.version import __version__, versions

if TYPE_CHECKING:
    from sfumato.study.target import Study

PACKAGES = ("jax", "numpyro", "numpy", "opendp")
PRIOR = (0.05, 0.5, 0.95)
"""Quantiles of the prior: the ends of the same interval as the posterior's, and the middle."""


class Beside(msgspec.Struct, frozen=True):
    """What the releases say by themselves, beside the chain: rows of (name, mean, sd, low, high)."""

    label: str
    level: str
    rows: list[tuple[str, float, float, float, float]]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run or an estimate says of itself; empty where it was made without.

    Attributes
    ----------
    words
        The study in its own words.
    date
        The day on which it was made (UTC); the time of day is nobody's business.
    versions
        Of what computed it.
    fingerprint, model
        Of the model, and its text.
    domain
        By column, in words.
    prior
        5 %, 50 % and 95 % quantile of each parameter before the data.
    support
        Ends of each parameter's support; None where there is none.
    first_plan
        What was forecast before anything was spent.
    beside
        What the releases say by themselves; None where that is not told.
    """

    words: Words = Words()
    date: str = ""
    versions: dict[str, str] = {}
    fingerprint: str = ""
    model: str = ""
    domain: dict[str, str] = {}
    prior: dict[str, tuple[float, float, float]] = {}
    support: dict[str, tuple[float | None, float | None]] = {}
    first_plan: dict[str, Any] = {}
    beside: Beside | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(msgspec.to_builtins(self))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Facts":
        """Inverse of `to_dict`."""
        return msgspec.convert(plain, cls)


def made_today(study: "Study", first_plan: Mapping[str, Any] | None = None) -> Facts:
    """What costs nothing to say: day, versions, fingerprint, and the forecast before anything was spent."""
    told = ("forecast_ess", "limit_ess", "iterations", "kernel", "band")
    hoped = {name: value for name in told if (value := (first_plan or {}).get(name)) is not None}
    return Facts(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions=_versions(),
        fingerprint=study.model.fingerprint(),
        first_plan=hoped,
    )


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    return {"sfumato": __version__} | versions(PACKAGES)


def with_study(facts: Facts, study: "Study") -> Facts:
    """The same with model, domain and priors; computed once for every model."""
    text = study.model.source if study.family is None else repr(study.family)
    prior, support = _prior(study.model)
    domain = {name: _described(column.to_dict()) for name, column in study.domain.items()}
    return msgspec.structs.replace(facts, model=text, domain=domain, prior=prior, support=support)


def shown(draws: np.ndarray, scale: str) -> np.ndarray:
    """Values on the scale on which a parameter is shown: every scale is increasing, so quantiles stay quantiles."""
    values = np.asarray(draws, float)
    with np.errstate(over="ignore"):
        if scale == "exp":
            return np.exp(values)
        if scale == "expit":
            return 100 / (1 + np.exp(-values))
    return 100 * values if scale == "percent" else values


def scalars(site: str, values: np.ndarray, leading: int) -> dict[str, np.ndarray]:
    """Values of one site by scalar parameter, vectors as ``beta[2]``; `leading` axes are draws."""
    if values.ndim == leading:
        return {site: values}
    entries = np.ndindex(*values.shape[leading:])
    return {f"{site}[{', '.join(map(str, index))}]": values[(..., *index)] for index in entries}


Ends = tuple[float | None, float | None]
_FAR = (300.0, 600.0)  # unconstrained: where a bijection has arrived at the end of its support, if there is one


@lru_cache(maxsize=16)
def _prior(model: Model) -> tuple[dict[str, tuple[float, float, float]], dict[str, Ends]]:
    """The prior's quantiles and the ends of the support, by scalar parameter, on the parameter's own scale."""
    draws = compiled.prior_draws(model)
    corners = np.stack([np.full(model.dim, sign * far) for sign in (-1, 1) for far in _FAR])
    with jax.enable_x64(True):
        sites = jax.jit(jax.vmap(model.constrain))(jax.device_put(np.concatenate([draws, corners])))
    flat = {k: v for site, values in sites.items() for k, v in scalars(site, np.asarray(values, float), 1).items()}
    prior, support = {}, {}
    for name, values in flat.items():
        low, middle, high = (float(q) for q in np.quantile(values[: len(draws)], PRIOR))
        prior[name], ends = (low, middle, high), values[len(draws) :]
        support[name] = (_end(ends[:2]), _end(ends[2:]))
    return prior, support


def _end(pair: np.ndarray) -> float | None:
    """The end of a support, if two far places agree on it."""
    near, far = float(pair[0]), float(pair[1])
    return round(far, 12) if np.isfinite(far) and abs(near - far) < 1e-9 * max(1.0, abs(far)) else None


def _described(plain: Mapping[str, Any]) -> str:
    """A domain in words."""
    rest = {key: value for key, value in plain.items() if key != "kind"}
    said = ", ".join(f"{key} {_short(value)}" for key, value in rest.items())
    return f"{plain['kind']}, {said}" if said else str(plain["kind"])


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
