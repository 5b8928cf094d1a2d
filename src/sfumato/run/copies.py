r"""Algorithm 3: the penalty chain on noisy copies of the sufficient statistic, anywhere, without the data.

One step uses one copy (of every owner), never to be used again:

.. math:: \hat d = n\log\tfrac{g(\theta')}{g(\theta)} + (\varphi' - \varphi)^\top\hat S^{(t)}, \qquad
          \sigma_t^2 = \lVert\varphi' - \varphi\rVert^2\,\xi, \qquad
          \alpha = \min\{1, e^{\hat d + \log r_0 - \sigma_t^2/2}\}

with r_0 the ratios of prior and proposal. :math:`\sigma_t` varies from step to step but is symmetric in (theta, theta'), so the
chain is exact. With N owners the statistics add and so do the noise variances, :math:`\xi = \sum_i \xi_i` (Algorithm 2 with
unequal noise). Nothing here sees a record: the guarantee is the one the bundles were released under.

References
----------
Yıldırım 2016, Algorithms 2 and 3, Corollary 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.access.questions import Facts
from sfumato.access.rounds import NoBlock
from sfumato.bundle import Bundle
from sfumato.errors import BundleError, InvalidInput
from sfumato.families.base import Family
from sfumato.kernel import Draw, Heard, Kernel, Move, State
from sfumato.kernel.loop import Priced, Transcript, compile_loop
from sfumato.model import Model
from sfumato.noise_aware import from_copies
from sfumato.planner import Plan
from sfumato.planner.bundles import Supply, picture_from_copies, plan_bundles, refuse_if_weak
from sfumato.privacy.joint import join
from sfumato.run.request import Request
from sfumato.study import Study

Array: TypeAlias = Any
BUNDLE_SHARE = 0.1
"""Share of the unused copies that finds start and scale; the chain does not see those."""
CHUNK = 1 << 16
"""Steps (of all chains together) per compiled call: a fraction of a second, so that progress moves and Ctrl-C is heard."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is computed, step after step.

    Attributes
    ----------
    n, xi
        Records and noise variance per coordinate, of all owners together.
    root_cost
        Root of what one copy cost the owner who paid most (mu of one copy).
    """

    family: Family
    model: Model
    kernel: Kernel
    n: int
    xi: float
    root_cost: float


class Natural(NamedTuple):
    """Natural parameter and log-normaliser at every chain's theta."""

    phi: Array
    log_g: Array


class Judged(NamedTuple):
    """What is public about a proposed pair: the same at the proposal, and noise and direction of the copy's log ratio."""

    there: Natural
    move: Array
    sigma: Array


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies for the compiled loop: `fresh` is one for each chain, `kept` the natural parameters. Nothing is charged here."""

    question: Question

    def natural(self, theta: Array) -> Natural:
        """Natural parameters of all chains."""
        family, model = self.question.family, self.question.model

        def one(theta: Array) -> Natural:
            values = model.constrain(theta)
            return Natural(family.natural(values), family.log_g(values))

        found: Natural = jax.vmap(one)(theta)
        return found

    def price(self, held: None, states: State, kept: Natural, move: Move) -> Priced:
        """Noise of the log ratios. A copy that cannot judge (no prior there, beyond floating point) is spent all the same."""
        there = self.natural(move.theta_prop)
        away = there.phi - kept.phi
        sigma = jnp.sqrt(self.question.xi * jnp.sum(away**2, axis=1))
        usable = move.possible & jnp.isfinite(sigma) & jnp.isfinite(there.log_g - kept.log_g) & (sigma > 0)
        shown = jnp.where(usable, sigma, 1.0)
        widths = jnp.where(usable, shown * self.question.root_cost, 0.0)
        return Priced(widths, usable, jnp.zeros((), jnp.int64), Judged(there, away, shown))

    def answer(
        self, held: None, states: State, kept: Natural, move: Move, priced: Priced, fresh: Array
    ) -> tuple[Heard, Natural]:
        """The noisy log ratio of every chain, by its copy."""
        there, away, sigma = priced.clamp
        d_n_noisy = self.question.n * (there.log_g - kept.log_g) + jnp.sum(away * fresh, axis=1)
        return Heard(jnp.where(priced.answered, d_n_noisy, jnp.nan), sigma, priced.answered), there


class Taken(NamedTuple):
    """Some steps on copies: see `sfumato.access.base.Answers`."""

    states: State
    transcript: Transcript
    steps: int
    spent: int = 0
    needed: int = 0
    block: NoBlock = NoBlock()

    def settle(self) -> None:
        """Nothing was reserved."""


class CopiesAccess:
    """Bundles alone: everything is paid for, and the chains are one compiled loop. See `sfumato.access.base.Access`."""

    theta_bound = math.inf
    unused = 0
    waited = 0.0
    rows = 1
    left = 2**62

    def __init__(
        self, family: Family, model: Model, bundles: Sequence[Bundle], facts: Sequence[Facts], chains: int
    ) -> None:
        self._family, self._model, self._bundles, self._chains = family, model, list(bundles), chains
        self.facts, self.shares = list(facts), [0.0] * len(self._bundles)
        self._chain: tuple[Question, Callable[..., Any], Natural] | None = None

    @property
    def n(self) -> int:
        """Records of all owners."""
        return sum(bundle.n for bundle in self._bundles)

    @property
    def longest(self) -> int:
        """Steps of a chunk at the most."""
        return max(1, CHUNK // self._chains)

    def budgets(self) -> list[float]:
        """Nobody answers live."""
        return []

    def spent(self, number: int) -> int:
        """The whole bundle was paid for when it was released."""
        return self.facts[number].cap

    def release(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray | None = None
    ) -> np.ndarray:  # fmt: skip
        """Copies are averaged instead (`prepare`)."""
        raise InvalidInput("bundles alone have no pilot to answer for: their copies are averaged.")

    def pass_over(self) -> None:
        """There is no pilot."""

    def forget(self) -> None:
        """There is no pilot."""

    def expect(self, steps: int) -> None:
        """Everything is at hand."""

    def settle(self, block: int, reserved: int, spent: int) -> None:
        """Nothing is reserved."""

    def begin(self, kernel: Kernel, sigma: float, states: State) -> None:
        """Settle the kernel; each copy has the noise that it was released with."""
        n, xi = self.n, sum(bundle.xi for bundle in self._bundles)
        dearest = max(bundle.sensitivity / bundle.xi**0.5 for bundle in self._bundles)
        question = Question(self._family, self._model, kernel, n, xi, dearest)
        with jax.enable_x64(True):
            source = Copies(question)
            loop = compile_loop(source, self._model.log_prior)
            self._chain = question, loop, jax.jit(source.natural)(states.theta)

    def chunk(self, states: State, draws: Draw, limit: int, expected: int, at_least: int = 1) -> Taken:
        """Take up to `limit` steps, each on copies that no other step has seen."""
        if self._chain is None:
            raise RuntimeError("CopiesAccess.begin must be called before CopiesAccess.chunk.")
        question, loop, kept = self._chain
        copies = take(self._bundles, limit * self._chains).reshape(limit, self._chains, -1)
        with jax.enable_x64(True):
            padded = _pad(copies, len(draws.log_u))
            looped, kept = loop(None, question.kernel, states, kept, draws, padded, limit, 0)
            transcript = jax.tree.map(partial(_first, limit), looped.transcript)
        self._chain = question, loop, kept
        return Taken(looped.states, transcript, limit)

    def close(self) -> None:
        """Nothing to let go of."""


def _first(count: int, rows: Array) -> np.ndarray:
    return np.asarray(rows)[:count]


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
    """Fill the last chunk up, so that one compiled loop serves all; the filling is no step's."""
    missing = size - len(rows)
    return rows if missing == 0 else np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])


# -- before the chain -------------------------------------------------------------------------------------------------


def prepare(
    family: Family, study: Study, bundles: Sequence[Bundle], request: Request
) -> tuple[Plan, dict[str, Any], int]:
    """Find start and scale from some copies, then plan: the plan, what was found, and steps per chain."""
    share = BUNDLE_SHARE if request.pilot_share is None else request.pilot_share
    if not 0 <= share < 1:
        raise InvalidInput(f"pilot_share must lie in [0, 1), got {share!r}.")
    chains = request.chains
    if isinstance(chains, bool) or not isinstance(chains, int | np.integer) or chains < 1:
        raise InvalidInput(f"chains must be a whole number of at least one, got {chains!r}.")
    pilot_copies, steps = _share_out(bundles, chains, request.iterations, share)
    pilot: dict[str, Any] = {"releases": [], "share": share, "first": [bundle.used for bundle in bundles]}
    n, xi = sum(b.n for b in bundles), sum(b.xi for b in bundles)
    if pilot_copies:
        mean, variance = take(bundles, pilot_copies).mean(axis=0), xi / pilot_copies
        pilot["copies_mean"] = {"mean": mean.tolist(), "variance": variance, "copies": pilot_copies}
    else:  # nothing but the prior: as if measured with no precision at all
        mean, variance = np.zeros(family.size), 1e12 * (n * max(b.sensitivity for b in bundles)) ** 2
    clamped = any(b.outside == "clamp" for b in bundles)
    picture = picture_from_copies(family, study.model, from_copies(mean, variance, n), request.guess, clamped)
    joined = join([b.privacy for b in bundles])
    supply = Supply(steps * chains, xi, n, joined.epsilon, joined.delta, joined.mu)
    plan = plan_bundles(
        family, study.model, picture, supply, kernel=request.kernel, chains=chains, pilot_share=share,
        truncate=request.truncate,
    )  # fmt: skip
    if not request.force:
        refuse_if_weak(plan)
    return plan, pilot, steps


def used_copies(bundles: Sequence[Bundle], pilot: dict[str, Any]) -> dict[str, Any]:
    """What was found, with the copies that the run has used up."""
    first = pilot.pop("first")
    used = [{"bundle": b.id, "first": at, "used": b.used, "of": b.copies} for b, at in zip(bundles, first, strict=True)]
    return pilot | {"copies": used}


def _share_out(bundles: Sequence[Bundle], chains: int, iterations: int | None, share: float) -> tuple[int, int]:
    """Copies for the pilot and steps per chain, from the owner who has fewest copies left."""
    left = min(bundle.left for bundle in bundles)
    if left == 0:
        raise BundleError(
            "every copy of this bundle is used up; a copy is used once. Ask its owner for another bundle. (A file that is "
            "opened anew can be analysed anew, with another prior for instance; but two runs on the same copies share "
            "their noise and must not be pooled.)"
        )
    pilot = max(1, int(left * share)) if share > 0 else 0
    steps = (left - pilot) // chains
    if iterations is not None:
        if isinstance(iterations, bool) or not isinstance(iterations, int | np.integer) or iterations < 1:
            raise InvalidInput(f"iterations must be a whole number of at least one, got {iterations!r}.")
        if iterations > steps:
            raise BundleError(
                f"{iterations:,} iterations of {chains} chains need {iterations * chains:,} copies beside {pilot:,} for the "
                f"start, and {left:,} are left; ask for at most {steps:,} iterations."
            )
        steps = int(iterations)
    if steps < 1:
        raise BundleError(f"{chains} chains need a copy each beside {pilot} for the start, and {left} are left.")
    return pilot, steps


def take(bundles: Sequence[Bundle], count: int) -> np.ndarray:
    """Fresh copies of every owner, added up."""
    if len(bundles) == 1:
        return bundles[0].take(count)
    return np.sum([bundle.take(count) for bundle in bundles], axis=0)
