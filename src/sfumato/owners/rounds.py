r"""The analyst's own loop: one round a step for all chains, over any number of owners asked at once (Algorithm 2).

Each owner adds its own noise; the answers add up, and so do the variances: the penalty is :math:`\sum_i \sigma_i^2/2`
(Yıldırım 2016, Section 3.3, with unequal noise). For Langevin the noise of the proposal is shared out,
:math:`\sum_i \xi_i = 4/h`: its covariance is fixed, so giving each owner 4/h would make the acceptance ratio wrong. A bundle
lends a part that follows from its copies; owners who answer live share the rest.

Query ids follow from the run's id, the step and the kind: a run that reconnects or resumes asks again with the same ids and
gets the same bytes. Langevin's first query is asked for several steps together (`ahead`).
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.errors import BadAnswer, BudgetSpent, InvalidInput, OwnerError, OwnerLost, OwnerRefused
from sfumato.kernel import Draw, Heard, Kernel, Langevin, Move, ReferenceLangevin, State
from sfumato.kernel.langevin import asked_sigma
from sfumato.kernel.loop import Transcript
from sfumato.kernel.shared_programs import shared_program
from sfumato.kernel.step import decide_all, propose_all
from sfumato.model import Model, derivatives
from sfumato.owners.ahead import Statistics, Summed
from sfumato.owners.base import Door
from sfumato.owners.bundle_door import BundleDoor
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.frames import PASSING
from sfumato.protocol.questions import (
    LANGEVIN,
    WALK,
    Facts,
    Linear,
    Question,
    Ratio,
    Release,
    Remainder,
    Reply,
    Terms,
)
from sfumato.vault import lattice
from sfumato.vault.lattice import choose_gamma

Array: TypeAlias = Any
T = TypeVar("T")

RETRIES = 4
"""Times a silent owner is asked again, with the same query id, before it counts as lost."""
PAUSE = 0.25
"""Seconds before the first of them; doubled each time."""
LARGEST = 2**62


class NoBlock(NamedTuple):
    """Reservations are the owners' own affair here."""

    number: int = 0
    quanta: int = 0


class Steps(NamedTuple):
    """Some rounds, paid for by every owner: see `sfumato.owners.base.Answers`."""

    states: State
    transcript: Transcript
    steps: int
    spent: int
    needed: int = 0
    block: NoBlock = NoBlock()

    def settle(self) -> None:
        """Nothing to give back: each owner settles its own block."""


class Added(NamedTuple):
    """Answers of all owners to one question, added up."""

    numbers: np.ndarray
    answered: np.ndarray
    widths: np.ndarray
    extra_variance: np.ndarray


class Rounds:
    """Access to a list of owners.

    Parameters
    ----------
    model
        The model that is sampled: its prior is public.
    doors
        The owners.
    run_id
        Names the run; query ids are made from it.
    shares
        Share of the noise variance that each owner adds; they sum to one. Equal ones by default. Zero for a bundle, whose
        noise was added when it was released and is told with each answer.
    step
        Steps taken before, when a run goes on.
    ahead
        Step up to which Langevin's statistics are asked for several steps at a time; the same when a run goes on.
    """

    def __init__(
        self,
        model: Model,
        doors: Sequence[Door],
        *,
        run_id: str,
        shares: Sequence[float] | None = None,
        step: int = 0,
        ahead: int = 0,
    ) -> None:
        if not doors:
            raise InvalidInput("a run needs at least one owner, got none.")
        self._model, self._doors, self._run_id = model, list(doors), run_id
        self.shares = list(shares) if shares is not None else [1.0 / len(self._doors)] * len(self._doors)
        self.step = step
        self._released = 0
        self._spent = [0] * len(self._doors)
        self._threads = ThreadPoolExecutor(len(self._doors), thread_name_prefix="sfumato-owner")
        self._chain: _Step | _CopyStep | None = None
        self.searched: list[bool] = []  # who searched for the range of the last query, and did not prove it
        self._failure: Exception | None = None
        self._left = 0
        self._statistics: Statistics | None = None
        self.ahead = ahead

    @property
    def doors(self) -> list[Door]:
        """The owners, in order."""
        return self._doors

    @property
    def facts(self) -> list[Facts]:
        """What each owner says about itself."""
        return [door.facts for door in self._doors]

    def budgets(self) -> list[float]:
        """Mu squared that each owner who answers live has left."""
        live = [door for door in self._doors if not getattr(door, "prepaid", False)]
        return [max(min(door.left, door.facts.cap), 1) / QUANTA_PER_UNIT for door in live]

    def spent(self, number: int) -> int:
        """Quanta that an owner has spent; of one that is lost, the whole cap that it promised."""
        door = self._doors[number]
        try:
            spent = getattr(door, "spent", None)
            return int(spent if spent is not None else max(door.facts.cap - door.left, 0))
        except (OSError, OwnerError):
            return door.facts.cap

    @property
    def n(self) -> int:
        """Records of all owners."""
        return sum(door.facts.n for door in self._doors)

    @property
    def rows(self) -> int:
        """Rows the busiest owner evaluates a round: they work at the same time."""
        return max(door.facts.rows for door in self._doors)

    @property
    def longest(self) -> int:
        """Rounds of a chunk at the most: each waits for the slowest owner, a few milliseconds or many."""
        return 64

    @property
    def left(self) -> int:
        """Quanta left with the owner who has least; of one that does not answer, what it last said."""
        if self._failure is None:
            with suppress(OSError, OwnerError):  # whoever is lost is missed at the next question
                self._left = min(door.left for door in self._doors)
        return self._left

    @property
    def theta_bound(self) -> float:
        """The smallest of the boxes that the owners answer for; infinite where none has one."""
        return min(door.facts.theta_bound for door in self._doors)

    def may_ask(self, theta_prop: Array, possible: Array) -> np.ndarray:
        """Which proposals are asked about: those that are possible and in every owner's box.

        The others are rejected unasked. The box is public and the same in both directions of a step, so the chain's target is
        the posterior restricted to it.
        """
        there = np.asarray(theta_prop)
        return np.asarray(possible) & np.all(np.abs(there) <= self.theta_bound, axis=-1)

    # -- asking ---------------------------------------------------------------------------------------------------

    def each(self, call: Callable[[Door, int], T], asked: Sequence[bool] | None = None) -> list[T]:
        """Do something with every owner at once; each failure names its owner, and the others finish first.

        `asked` says who has its question already, and works on it: its answer is waited for last, and in this thread.
        """
        ahead = asked or [False] * len(self._doors)
        # Whom one has to wait for is asked in a thread; the others cost less than handing the question over.
        slow = [not (getattr(door, "quick", False) or sent) for door, sent in zip(self._doors, ahead, strict=True)]
        work = [partial(self._patiently, door, partial(call, door, i)) for i, door in enumerate(self._doors)]
        apart = {i: self._threads.submit(work[i]) for i, waits in enumerate(slow) if waits and sum(slow) > 1}
        found: dict[int, T] = {}
        failures: list[Exception] = []
        for i in sorted(range(len(work)), key=lambda i: (i in apart, ahead[i])):
            try:
                found[i] = apart[i].result() if i in apart else work[i]()
            except Exception as error:
                failures.append(error)
        if failures:
            # A bad answer is the gravest, a lost owner can come back, a spent budget is an ordinary ending.
            raise min(failures, key=_gravity)
        return [found[i] for i in range(len(work))]

    def _patiently(self, door: Door, call: Callable[[], T]) -> T:
        for attempt in range(RETRIES + 1):
            try:
                return call()
            except BudgetSpent as error:
                raise BudgetSpent(str(error), needed=error.needed, left=error.left, owner=door.name) from None
            except OwnerRefused as error:
                if error.code not in PASSING:
                    raise
                raise _lost(door.name, f"but refused as long as it was asked ({error.code})") from None
            except (TimeoutError, ConnectionError) as error:
                if attempt == RETRIES:
                    raise _lost(door.name, f"in {attempt + 1} tries ({type(error).__name__})") from None
            time.sleep(PAUSE * 2**attempt)
        raise AssertionError("unreachable")

    def ask_step(self, kind: str, question: Question, size: int, gamma: float) -> Added:
        """Ask all owners about the step under way, and add their answers."""
        mark = self._statistics.mark if self._statistics is not None else ""
        return self.add(f"{self.step}/{kind}{mark}", question, size, gamma)

    def add(self, name: str, question: Question, size: int, gamma: float) -> Added:
        """Ask all owners one question and add their answers."""
        query_id = f"{self._run_id}/{name}"
        rows = len(question.asked) if isinstance(question, Ratio | Linear | Remainder) else 1

        def ask(door: Door, number: int) -> Reply:
            return checked(door.name, query_id, door.ask(query_id, question), size, rows, gamma)

        sent = [hasattr(door, "send") and door.send(query_id, question) for door in self._doors]
        replies = self.each(ask, sent)
        self._spent = [now + reply.quanta for now, reply in zip(self._spent, replies, strict=True)]
        extra = [np.square(r.sigma) for r in replies if r.sigma]
        return Added(
            np.array([r.numbers for r in replies], np.int64).sum(axis=0),
            np.logical_and.reduce([r.answered for r in replies]),
            np.array([r.widths for r in replies], float).T,
            np.sum(extra, axis=0) if extra else np.zeros(rows),
        )

    @property
    def unused(self) -> int:
        """Numbers of every owner's that were asked for ahead and that no step has used yet."""
        return self._statistics.unused(self.step) if self._statistics is not None else 0

    def statistics(self) -> Summed:
        """Langevin's noisy statistics of the step under way, a row for each chain."""
        if self._statistics is None:
            raise RuntimeError("only Langevin asks for statistics.")
        return Summed(self._statistics.at(self.step), self._statistics.widths)

    # -- the pilot ------------------------------------------------------------------------------------------------

    def release(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray | None = None
    ) -> np.ndarray:  # fmt: skip
        """Noisy sum of vectors over all owners, with noise sigma in all; each owner adds its share."""
        query_id, self._released = f"{self._run_id}/pilot/{self._released}", self._released + 1
        middle = np.zeros(derivatives.size(what, self._model.dim)) if centre is None else np.asarray(centre, float)

        def ask(door: Door, number: int) -> np.ndarray:
            question = Release(
                what=what,
                theta=np.asarray(theta, float).tolist(),
                matrix=np.asarray(matrix, float).tolist(),
                radius=float(radius),
                sigma=float(sigma * self.shares[number] ** 0.5),
                centre=middle.tolist(),
            )
            reply = checked(door.name, query_id, door.ask(query_id, question), len(middle), 1, None)
            return np.array(reply.numbers, np.int64).astype(np.float64) * reply.gamma

        return np.asarray(np.sum(self.each(ask), axis=0) + self.n * middle)

    def pass_over(self) -> None:
        """One release of the pilot is known already: the next one has the next query id."""
        self._released += 1

    def forget(self) -> None:
        """Owners see to their own memory."""

    # -- the chain ------------------------------------------------------------------------------------------------

    def expect(self, steps: int) -> None:
        """Ask for Langevin's statistics of so many steps several at a time; the same when a run goes on."""
        self.ahead = steps

    def settle(self, block: int, reserved: int, spent: int) -> None:
        """Each owner settles its own blocks."""

    def begin(self, kernel: Kernel, sigma: float, states: State) -> None:
        """Settle the terms with every owner: sigma is the noise of all of them together."""
        self._failure = None
        self._spent = [0] * len(self._doors)
        if kernel.free is not None:  # paid moves keep to the owners' box, so free ones must as well
            kernel = replace(kernel, free=replace(kernel.free, bound=self.theta_bound))  # type: ignore[type-var]
        chains = len(states.theta)
        sigmas = [sigma * share**0.5 for share in self.shares]
        gamma = min(choose_gamma(each, self.n) for each in sigmas if each > 0)
        terms = [Terms(kernel=WALK, chains=chains, sigma=each, gamma=gamma) for each in sigmas]
        if kernel.first:
            firsts = self._first_noise(kernel)
            first_gamma = min(choose_gamma(each, self.n) for each in firsts if each > 0)
            if kernel.copy_sigma:
                sigmas = [kernel.copy_sigma * share**0.5 for share in self.shares]
                gamma = first_gamma = min(first_gamma, *(choose_gamma(each, self.n) for each in sigmas if each > 0))
            terms = [
                Terms(
                    kernel=LANGEVIN, chains=chains, sigma=each, gamma=gamma, proposal_sigma=first,
                    proposal_gamma=first_gamma, matrix=np.asarray(kernel.matrix, float).tolist(),
                    centre=np.asarray(kernel.centre, float).tolist() if isinstance(kernel, ReferenceLangevin) else [],
                    copies=bool(kernel.copy_sigma),
                )
                for each, first in zip(sigmas, firsts, strict=True)
            ]  # fmt: skip
        agreed = self.each(lambda door, i: door.begin(terms[i]))
        wanted = len(terms[0].matrix)
        for door, answer in zip(self._doors, agreed, strict=True):
            if len(answer.middle) != wanted or answer.middle != agreed[0].middle:
                raise BadAnswer(
                    f"owners must agree on the family and its domain, and {door.name!r} has another one than "
                    f"{self._doors[0].name!r}; nothing was asked of the chain.",
                    owner=door.name,
                )
        self.searched = [answer.searched for answer in agreed]
        self._statistics = None
        if kernel.first:

            def ask(name: str, question: Question, size: int) -> Summed:
                added = self.add(name, question, size, first_gamma)
                return Summed(added.numbers, added.widths[0])

            rows = 2 if kernel.copy_sigma else 1
            self._statistics = Statistics(ask, chains, rows * len(kernel.matrix), self.ahead)
        with jax.enable_x64(True):
            first = None
            if kernel.first:
                middle = np.array(agreed[0].middle, np.int64).astype(np.float64)
                first = _Statistic(first_gamma, jnp.asarray(self.n * middle * first_gamma) if middle.any() else None)
            log_prior = self._model.log_prior
            if kernel.copy_sigma and first is not None:
                self._chain = _CopyStep(self, log_prior, cast(Langevin, kernel), first)
            else:
                self._chain = _Step(self, log_prior, kernel, sigma, gamma, first)

    def _first_noise(self, kernel: Kernel) -> list[float]:
        """Noise of each owner's statistic: bundles lend some, in proportion to their copies' own, and the others add the rest."""
        asked, bundles = asked_sigma(kernel), [door for door in self._doors if isinstance(door, BundleDoor)]
        if not bundles:
            return [asked * share**0.5 for share in self.shares]
        if not (isinstance(kernel, Langevin) and kernel.lent and kernel.averaged):
            raise InvalidInput(
                "Langevin beside a bundle must know what its copies bring to a step; give Langevin averaged= and lent=."
            )
        for bundle in bundles:
            bundle.average(kernel.averaged)
        lent = kernel.lent / sum(bundle.xi for bundle in bundles)
        return [
            (lent * door.xi) ** 0.5 if isinstance(door, BundleDoor) else asked * share**0.5
            for door, share in zip(self._doors, self.shares, strict=True)
        ]

    def chunk(self, states: State, draws: Draw, limit: int, expected: int, at_least: int = 1) -> Steps:
        """Take up to `limit` rounds. A failure after the first of them is kept for the next call, so nothing paid is lost."""
        if self._chain is None:
            raise RuntimeError("Rounds.begin must be called before Rounds.chunk.")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        rows: list[Transcript] = []
        self._spent = [0] * len(self._doors)
        paid = list(self._spent)
        with jax.enable_x64(True):
            for i in range(limit):
                draw = Draw(*(np.asarray(part)[i] for part in draws))
                try:
                    states, row = self._chain.step(states, draw)
                except (BudgetSpent, OwnerError) as error:
                    if not rows:
                        raise
                    self._failure = error
                    break
                rows.append(row)
                paid = list(self._spent)
                self.step += 1
        columns = zip(*rows, strict=True)
        joined = Transcript(*(None if parts[0] is None else np.stack(parts) for parts in columns))
        return Steps(states, joined, len(rows), max(paid))

    @property
    def waited(self) -> float:
        """Seconds that owners in this process waited for noise."""
        return sum(getattr(door, "waited", 0.0) for door in self._doors)

    def close(self) -> None:
        """Close every door."""
        for door in self._doors:
            door.close()
        self._threads.shutdown(wait=False)


def _lost(name: str, how: str) -> OwnerLost:
    return OwnerLost(
        f"every owner must answer every round, and {name!r} did not {how}; what was drawn is kept. Go on with sf.resume when "
        "it is back.",
        owner=name,
    )


def _gravity(error: BaseException) -> int:
    order = (BadAnswer, OwnerLost, BudgetSpent)
    return next((i + 1 for i, kind in enumerate(order) if isinstance(error, kind)), 0)


def checked(name: str, query_id: str, reply: Reply, size: int, rows: int, gamma: float | None) -> Reply:
    """Refuse what cannot be an answer to this question, and say whose it was."""
    what = ""
    if not isinstance(reply, Reply) or reply.id != query_id:
        what = "an answer to another query"
    elif gamma is not None and reply.gamma != gamma:
        what = "an answer on another lattice"
    elif not (isfinite(reply.gamma) and reply.gamma > 0) or not _whole_numbers(reply.numbers, size):
        what = "something that is not the numbers asked for"
    elif not (len(reply.widths) == len(reply.answered) == rows and len(reply.sigma) in (0, rows)):
        what = "an answer for another number of chains"
    elif not all(isfinite(x) and x >= 0 for x in (*reply.widths, *reply.sigma)) or reply.quanta < 0:
        what = "widths or noise that are no positive numbers"
    if what:
        raise BadAnswer(
            f"an owner must answer the question asked, and {name!r} sent {what}; nothing of it is used. Ask its owner to "
            "look at the node's log.",
            owner=name,
        )
    return reply


def _whole_numbers(numbers: Sequence[int], size: int) -> bool:
    return len(numbers) == size and all(isinstance(x, int) and abs(x) <= LARGEST for x in numbers)


class _Step:
    """One step of all chains over all owners: propose, ask, decide."""

    def __init__(
        self, rounds: Rounds, log_prior: Callable[[Array], Array], kernel: Kernel, sigma: float, gamma: float,
        first: "_Statistic | None",
    ) -> None:  # fmt: skip
        self._rounds, self._sigma, self._gamma, self._first = rounds, sigma, gamma, first
        self._ask = QUESTIONS[kernel.second]
        self._kernel = jax.tree.map(lambda part: jnp.asarray(part, jnp.float64), kernel)
        self._propose, self._decide = _proposing(log_prior), _deciding(log_prior)

    def step(self, states: State, draw: Draw) -> tuple[State, Transcript]:
        """Take one; whoever cannot answer raises, and nothing has moved."""
        rounds, chains = self._rounds, len(states.theta)
        numbers = None if self._first is None else rounds.statistics().numbers
        t_noisy, move = self._propose(self._kernel, states, draw, self._first, numbers)
        asked = rounds.may_ask(move.theta_prop, move.possible)
        answer = _nothing(chains, len(rounds.doors))
        if asked.any():
            answer = rounds.ask_step(*self._ask(np.asarray(states.theta), move, asked), chains, self._gamma)
        sigma = _total_sigma(self._sigma, answer.extra_variance)
        moved, accepted, d_n_noisy = self._decide(
            self._kernel, states, draw, move, self._first, self._gamma, answer.numbers, answer.answered, sigma
        )
        row = Transcript(
            theta=np.asarray(moved.theta),
            theta_prop=np.asarray(move.theta_prop),
            d_n_noisy=np.asarray(d_n_noisy),
            sensitivity=answer.widths.max(axis=-1),
            accepted=np.asarray(accepted),
            sigma=sigma,
            t_noisy=None if t_noisy is None else np.asarray(t_noisy),
            widths=answer.widths,
        )
        return moved, row


@shared_program
def _proposing(log_prior: Callable[[Array], Array]) -> Callable[..., tuple[Array, Move]]:
    """Compile a proposal: a second run on the same model, with other numbers, compiles nothing."""

    def run(
        kernel: Kernel, states: State, draw: Draw, first: "_Statistic | None", numbers: Array
    ) -> tuple[Array, Move]:
        t_noisy = None if first is None else first.read(numbers)
        return t_noisy, propose_all(kernel, log_prior, states, draw, t_noisy)

    return jax.jit(run)


@shared_program
def _deciding(log_prior: Callable[[Array], Array]) -> Callable[..., tuple[State, Array, Array]]:
    """Compile a decision."""

    def run(
        kernel: Kernel, states: State, draw: Draw, move: Move, first: "_Statistic | None", gamma: Array, numbers: Array,
        answered: Array, sigma: Array,
    ) -> tuple[State, Array, Array]:  # fmt: skip
        heard = lattice.heard(numbers, answered, gamma, sigma)
        if first is not None and first.shift is not None:
            heard = lattice.shifted(heard, move.along, first.shift)
        moved, accepted = decide_all(kernel, log_prior, states, draw, move, heard)
        return moved, accepted, heard.d_n_noisy

    return jax.jit(run)


class _CopyStep:
    """The same with two copies of the statistic: one moves, the other decides. Both were asked ahead, so it asks for nothing."""

    def __init__(
        self, rounds: Rounds, log_prior: Callable[[Array], Array], kernel: Langevin, first: "_Statistic"
    ) -> None:
        self._rounds, bound = rounds, rounds.theta_bound
        self._kernel = jax.tree.map(lambda part: jnp.asarray(part, jnp.float64), kernel)

        @jax.jit
        def step(
            kernel: Langevin, states: State, draw: Draw, numbers: Array, widths: Array
        ) -> tuple[State, Transcript]:
            chains, dim = states.theta.shape
            copies = first.read(numbers.reshape(chains, 2, dim))
            t_noisy, copy_noisy = copies[:, 0], copies[:, 1]
            move = propose_all(kernel, log_prior, states, draw, t_noisy)
            d_n_noisy, sigma = jax.vmap(kernel.correct)(move.along, copy_noisy)
            # Public, and the same in both directions of a step (`Rounds.may_ask`).
            possible = move.possible & jnp.isfinite(d_n_noisy) & jnp.all(jnp.abs(move.theta_prop) <= bound, axis=-1)
            heard = Heard(jnp.where(possible, d_n_noisy, jnp.nan), sigma, possible)
            moved, accepted = decide_all(kernel, log_prior, states, draw, move, heard)
            row = Transcript(
                theta=moved.theta,
                theta_prop=move.theta_prop,
                d_n_noisy=heard.d_n_noisy,
                # How far a record can move d_n_noisy; what was charged is for the copy it was made from.
                sensitivity=jnp.where(possible, widths.max() * sigma / kernel.copy_sigma, 0.0),
                accepted=accepted,
                sigma=sigma,
                t_noisy=t_noisy,
                copy_noisy=copy_noisy,
                widths=jnp.broadcast_to(widths, (chains, len(widths))),
            )
            return moved, row

        self._step = step

    def step(self, states: State, draw: Draw) -> tuple[State, Transcript]:
        """Take one."""
        moved, row = self._step(self._kernel, states, draw, *self._rounds.statistics())
        return moved, jax.tree.map(np.asarray, row)


class _Statistic(NamedTuple):
    """How to read the owners' statistics: their lattice, and what they were shifted by in all (None where by nothing)."""

    gamma: float
    shift: Array = None

    def read(self, numbers: Array) -> Array:
        """From whole numbers to what they stand for."""
        value = numbers.astype(jnp.float64) * self.gamma
        return value if self.shift is None else value + self.shift


def _ratio(theta: np.ndarray, move: Move, asked: np.ndarray) -> tuple[str, Question]:
    there = np.where(asked[:, None], move.theta_prop, theta)
    return "ratio", Ratio(theta=theta.tolist(), theta_prop=there.tolist(), asked=asked.tolist())


def _linear(theta: np.ndarray, move: Move, asked: np.ndarray) -> tuple[str, Question]:
    along = np.where(asked[:, None], move.along, 0.0)
    return "linear", Linear(direction=along.tolist(), asked=asked.tolist())


def _remainder(theta: np.ndarray, move: Move, asked: np.ndarray) -> tuple[str, Question]:
    there, along = (np.where(asked[:, None], *pair) for pair in ((move.theta_prop, theta), (move.along, 0.0)))
    asked_there = {"theta_prop": there.tolist(), "slope": along.tolist()}
    return "remainder", Remainder(theta=theta.tolist(), asked=asked.tolist(), **asked_there)


QUESTIONS: dict[str, Callable[[np.ndarray, Move, np.ndarray], tuple[str, Question]]] = {
    "ratio": _ratio, "linear": _linear, "remainder": _remainder,
}  # fmt: skip
"""What a kernel's `second` query is, as it is asked: its name, and the question."""


def _nothing(chains: int, owners: int) -> Added:
    """The answer where nobody was asked."""
    zero = np.zeros(chains)
    return Added(zero.astype(np.int64), zero.astype(bool), np.zeros((chains, owners)), zero)


def _total_sigma(sigma: float, extra_variance: np.ndarray) -> np.ndarray:
    """Noise of all owners together; exactly the agreed one where no answer says otherwise."""
    return np.where(extra_variance > 0, np.sqrt(sigma**2 + extra_variance), sigma)
