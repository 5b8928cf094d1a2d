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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis.from_copies import belief_from_copies
from sfumato.analysis.noise_aware import from_copies
from sfumato.errors import BundleError, InvalidInput
from sfumato.families.base import Family
from sfumato.kernel import AUTO, Draw, Heard, Kernel, Langevin, Move, State, asks_first
from sfumato.kernel.base import as_tree
from sfumato.kernel.langevin import SplitCopy
from sfumato.kernel.loop import Priced, Transcript, compile_loop
from sfumato.model import Model
from sfumato.owners.bundle import Bundle
from sfumato.owners.rounds import NoBlock
from sfumato.planner import Plan
from sfumato.planner.belief import Belief
from sfumato.planner.bundles import Supply, plan_bundles, plan_langevin, refuse_if_weak
from sfumato.planner.making import pilot_fraction
from sfumato.privacy.joint import join
from sfumato.protocol.questions import Facts
from sfumato.run.request import Request
from sfumato.study.target import Study

Array: TypeAlias = Any
CHUNK = 1 << 16
"""Steps (of all chains together) per compiled call: a fraction of a second, so that progress moves and Ctrl-C is heard."""


@as_tree("kernel", "n", "xi", "root_cost")
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


@as_tree("question")
@dataclass(frozen=True, eq=False)
class Copies:
    """Copies for the compiled loop: `fresh` is one for each chain, `kept` the natural parameters. Nothing is charged here."""

    first: ClassVar[None] = None
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


class TwoCopies(NamedTuple):
    """What a Langevin step uses up, made from one average of copies: what moves the chain, and what decides."""

    first: Array
    second: Array


@as_tree("kernel", "root_cost")
@dataclass(frozen=True, eq=False)
class Corrections:
    """Copies for Langevin steps in the compiled loop; see `planner.bundles.plan_langevin`. Nothing is charged here."""

    kernel: Langevin
    root_cost: float

    def first(self, held: None, fresh: TwoCopies) -> tuple[Array, Array]:
        """The copy that moves each chain."""
        return fresh.first, jnp.zeros((), jnp.int64)

    def price(self, held: None, states: State, kept: Array, move: Move) -> Priced:
        """Noise of the corrections; a move that is not possible uses its copies up all the same."""
        sigma = self.kernel.copy_sigma * jnp.sqrt(jnp.sum(move.along**2, axis=1))
        usable = move.possible & jnp.isfinite(sigma)
        return Priced(jnp.where(usable, sigma * self.root_cost, 0.0), usable, jnp.zeros((), jnp.int64))

    def answer(
        self, held: None, states: State, kept: Array, move: Move, priced: Priced, fresh: TwoCopies
    ) -> tuple[Heard, Array]:
        """The corrections."""
        d_n_noisy, sigma = jax.vmap(self.kernel.correct)(move.along, fresh.second)
        return Heard(jnp.where(priced.answered, d_n_noisy, jnp.nan), sigma, priced.answered, fresh.second), kept


class Taken(NamedTuple):
    """Some steps on copies: see `sfumato.owners.base.Answers`."""

    states: State
    transcript: Transcript
    steps: int
    spent: int = 0
    needed: int = 0
    block: NoBlock = NoBlock()

    def settle(self) -> None:
        """Nothing was reserved."""


class CopiesAccess:
    """Bundles alone: everything is paid for, and the chains are one compiled loop. See `sfumato.owners.base.Access`."""

    theta_bound = math.inf
    unused = 0
    waited = 0.0
    rows = 1
    left = 2**62
    _averaged = 0

    def __init__(
        self, family: Family, model: Model, bundles: Sequence[Bundle], facts: Sequence[Facts], chains: int
    ) -> None:
        self._family, self._model, self._bundles, self._chains = family, model, list(bundles), chains
        self.facts, self.shares = list(facts), [0.0] * len(self._bundles)
        self._kernel: Kernel | None = None
        self._loop: Callable[..., Any] = lambda *_: None

    @property
    def n(self) -> int:
        """Records of all owners."""
        return sum(bundle.n for bundle in self._bundles)

    @property
    def longest(self) -> int:
        """Steps of a chunk at the most."""
        return max(1, CHUNK // (self._chains * max(self._averaged, 1)))

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
        xi = sum(bundle.xi for bundle in self._bundles)
        dearest = max(bundle.sensitivity / bundle.xi**0.5 for bundle in self._bundles)
        with jax.enable_x64(True):
            if kernel.first:
                own = cast(Langevin, kernel)
                langevin, self._averaged = Corrections(own, dearest), own.averaged
                self._split = SplitCopy(np.eye(len(own.matrix)) * xi / own.averaged, own.proposal_sigma**2)
                self._loop = compile_loop(langevin, self._model.log_prior, copies=True)
                self._carried: Any = jnp.zeros((len(states.theta), 0))
            else:
                walk = Copies(Question(self._family, self._model, kernel, self.n, xi, dearest))
                self._loop, self._averaged = compile_loop(walk, self._model.log_prior), 0
                self._carried = jax.jit(walk.natural)(states.theta)
        self._kernel = kernel

    def chunk(self, states: State, draws: Draw, limit: int, expected: int, at_least: int = 1) -> Taken:
        """Take up to `limit` steps, each on copies that no other step has seen."""
        if self._kernel is None:
            raise RuntimeError("CopiesAccess.begin must be called before CopiesAccess.chunk.")
        each, rows = max(self._averaged, 1), len(draws.log_u)
        copies = take(self._bundles, limit * self._chains * each).reshape(limit, self._chains, each, -1)
        fresh: Any = copies.mean(axis=2)
        if self._averaged:
            fresh = TwoCopies(*self._split(fresh, np.asarray(draws.normal)[:limit]))
        fresh = jax.tree.map(lambda part: _pad(part, rows), fresh)
        with jax.enable_x64(True):
            looped, self._carried = self._loop(None, self._kernel, states, self._carried, draws, fresh, limit, 0)
            transcript = jax.tree.map(partial(_first, limit), looped.transcript)
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
    share = pilot_fraction(study, request.pilot_share)
    if not 0 <= share < 1:
        raise InvalidInput(f"pilot_share must lie in [0, 1), got {share!r}.")
    chains = request.chains
    if isinstance(chains, bool) or not isinstance(chains, int | np.integer) or chains < 1:
        raise InvalidInput(f"chains must be a whole number of at least one, got {chains!r}.")
    left = _left(bundles)
    pilot_copies = max(1, int(left * share)) if share > 0 else 0
    _check_steps(chains, left, pilot_copies, request.iterations)
    pilot: dict[str, Any] = {"releases": [], "share": share, "first": [bundle.used for bundle in bundles]}
    n, xi = sum(b.n for b in bundles), sum(b.xi for b in bundles)
    if pilot_copies:
        mean, variance = take(bundles, pilot_copies).mean(axis=0), xi / pilot_copies
        pilot["copies_mean"] = {"mean": mean.tolist(), "variance": variance, "copies": pilot_copies}
    else:  # nothing but the prior: as if measured with no precision at all
        mean, variance = np.zeros(family.size), 1e12 * (n * max(b.sensitivity for b in bundles)) ** 2
    clamped = any(b.outside == "clamp" for b in bundles)
    belief = belief_from_copies(family, study.model, from_copies(mean, variance, n), request.guess, clamped)
    joined = join([b.privacy for b in bundles])
    supply = Supply(left - pilot_copies, xi, n, joined.epsilon, joined.delta, joined.mu, request.iterations)
    plan = _plan(study, belief, supply, request, share)
    if not request.force:
        refuse_if_weak(plan)
    return plan, pilot, plan.iterations


def used_copies(bundles: Sequence[Bundle], pilot: dict[str, Any]) -> dict[str, Any]:
    """What was found, with the copies that the run has used up."""
    first = pilot.pop("first")
    used = [{"bundle": b.id, "first": at, "used": b.used, "of": b.copies} for b, at in zip(bundles, first, strict=True)]
    return pilot | {"copies": used}


def _plan(study: Study, belief: Belief, supply: Supply, request: Request, share: float) -> Plan:
    """Langevin where the family is studied in its natural parameter and there are copies enough; else a walk."""
    langevin = (
        plan_langevin(belief, supply, chains=request.chains, pilot_share=share) if study.can_answer("linear") else None
    )
    if request.kernel != AUTO and asks_first(request.kernel):
        if langevin is None:
            raise InvalidInput(
                "kernel='langevin' averages copies until their noise is that of a short step, and here one copy alone makes a "
                "step that is too long, or the family has no such step; ask its owner for more copies (each is noisier, for the "
                "same budget), or use kernel='guided'."
            )
        return langevin
    walk = plan_bundles(
        study, belief, supply, kernel=request.kernel, chains=request.chains, pilot_share=share,
        truncate=request.truncate,
    )  # fmt: skip
    both = [plan for plan in (langevin, walk) if plan is not None]
    best = max(both, key=lambda plan: plan.forecast_ess)
    shares = sorted(((plan.kernel, plan.share_of_limit) for plan in both), key=lambda pair: -pair[1])
    return replace(best, considered=tuple(shares)) if len(both) > 1 else best


def _left(bundles: Sequence[Bundle]) -> int:
    """Copies of the owner who has fewest left."""
    left = min(bundle.left for bundle in bundles)
    if left == 0:
        raise BundleError(
            "every copy of this bundle is used up; a copy is used once. Ask its owner for another bundle. (A file that is "
            "opened anew can be analysed anew, with another prior for instance; but two runs on the same copies share "
            "their noise and must not be pooled.)"
        )
    return left


def _check_steps(chains: int, left: int, pilot: int, asked: int | None) -> None:
    """Refuse more steps than there are copies for, one to a step; a plan may take fewer steps on more copies each."""
    most = (left - pilot) // chains
    if asked is not None and asked > most:
        raise BundleError(
            f"{asked:,} iterations of {chains} chains need {asked * chains:,} copies beside {pilot:,} for the start, and "
            f"{left:,} are left; ask for at most {most:,} iterations."
        )
    if most < 1:
        raise BundleError(f"{chains} chains need a copy each beside {pilot} for the start, and {left} are left.")


def take(bundles: Sequence[Bundle], count: int) -> np.ndarray:
    """Fresh copies of every owner, added up."""
    if len(bundles) == 1:
        return bundles[0].take(count)
    return np.sum([bundle.take(count) for bundle in bundles], axis=0)
