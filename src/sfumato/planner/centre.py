"""Where a plan takes the posterior to be before anything was paid for: the guess, or a point of the prior."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from sfumato.bounds import compiled
from sfumato.model import Model
from sfumato.model.base import theta_of

GUESSED = "the guess given"
"""What a plan with a guess rests on."""
_CLIMB_STEPS = 100  # to the top of a parabola plus the log prior


def assumed_centre(model: Model, guess: Mapping[str, Any] | None) -> tuple[np.ndarray, str]:
    """The centre, and what it is in words."""
    draws = compiled.prior_draws(model)
    # Log-densities may have a kink at round values such as zero, where a derivative is only formally defined.
    nudge = 1e-4 * np.std(draws, axis=0)
    if guess is not None:
        return theta_of(model, guess, "guess") + nudge, GUESSED
    median = _settled(model, np.median(draws, axis=0), np.std(draws, axis=0))
    density = compiled.prior_density(model)
    if density(jax.device_put(median)) >= np.median([density(jax.device_put(draw)) for draw in draws[::20]]):
        return median + nudge, "the prior's median"
    # Where parameters hang together (a banana, a simplex) no draw need be near the vector of their medians.
    scale = np.maximum(np.std(draws, axis=0), 1e-300)
    far = np.abs(draws[:, None] - draws[None, ::10]) / scale
    middle = draws[int(np.argmin(far.mean(axis=(1, 2))))]
    top = summit(model, middle, np.zeros(model.dim), np.zeros((model.dim, model.dim)))
    low, high = np.quantile(draws, [0.005, 0.995], axis=0)
    if np.all(
        (low < top) & (top < high)
    ):  # a hierarchy has no top: its density grows without end as a scale goes to zero
        return top + nudge, "the prior's mode"
    return middle + nudge, "a point in the middle of the prior"


def _settled(model: Model, median: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The median of a thousand draws without their chance, where the prior's own slope tells: of a normal, its mean.

    A hundredth of a prior standard deviation is nothing for the prior and may be much for a column in raw units.
    """
    slope, bend = (np.asarray(part) for part in compiled.prior_derivatives(model)(jax.device_put(median)))
    if not (np.all(np.isfinite(bend)) and np.linalg.eigvalsh(-bend)[0] > 0):
        return median
    step = np.linalg.solve(-bend, slope)
    return median + step if np.all(np.abs(step) <= 0.2 * spread) else median


def summit(model: Model, theta: np.ndarray, score: np.ndarray, information: np.ndarray) -> np.ndarray:
    """The top of a parabola plus the log prior, by damped Newton steps from theta: public arithmetic, it costs nothing."""

    def height(there: np.ndarray) -> float:
        away = there - theta
        return float(score @ away - away @ information @ away / 2 + compiled.prior_density(model)(there))

    here, high = theta, height(theta)
    for _ in range(_CLIMB_STEPS):
        slope, bend = (np.asarray(part) for part in compiled.prior_derivatives(model)(here))
        values, vectors = np.linalg.eigh(information - np.nan_to_num(bend))
        total = score - information @ (here - theta) + np.nan_to_num(slope)
        step = vectors @ ((vectors.T @ total) / np.maximum(np.abs(values), 1e-9 * np.abs(values).max()))
        gain = float(total @ step)
        length = 1.0
        while length > 1e-6 and not height(here + length * step) >= high + 0.1 * length * gain:
            length /= 2
        if length <= 1e-6 or gain < 1e-6:
            break
        here = here + length * step
        high = height(here)
    return here
