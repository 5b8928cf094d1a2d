r"""A bundle among live owners: its copies answer for it, with the noise they were released with.

A step uses its copies once, never again. The answer to a ratio follows from one copy alone,
:math:`\hat d = n[\log g' - \log g] + (\varphi' - \varphi)^\top\hat S`, with noise
:math:`\sigma_t = \lVert\varphi' - \varphi\rVert\sqrt\xi`, symmetric in the pair. For Langevin the mean of some copies,
whitened, is split in two by public noise (`kernel.langevin.SplitCopy`): the first half answers for the statistic, with the
variance that the terms ask for, and the second makes the correction. Nothing here is charged: it was paid for when the bundle
was released.
"""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.errors import BudgetSpent, InvalidInput
from sfumato.families.base import Family
from sfumato.kernel.langevin import SplitCopy
from sfumato.kernel.stream import split_noise
from sfumato.model import Model
from sfumato.model.derivatives import matrix_to_triangle
from sfumato.owners.bundle import Bundle
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import WALK, Agreed, Facts, Linear, Question, Ratio, Release, Reply, Statistic, Terms
from sfumato.vault.lattice import SUM_LIMIT, box_of

Array: TypeAlias = Any
GAMMA = 2.0**-40
"""Lattice of the pilot's answers: far finer than their noise."""


class BundleDoor:
    """The door of a bundle.

    Parameters
    ----------
    bundle
        Its unused copies are used up.
    family, model
        The family it was released for, and the model that is sampled.
    chains
        Every step uses a copy for each, or the mean of some (`average`).
    pilot_copies
        Copies at the beginning that the pilot may average; the chain does not see them.
    seed, position
        What the public noise that splits copies is drawn from: the run's seed, and the bundle's place in the list.
    """

    def __init__(
        self, bundle: Bundle, family: Family, model: Model, *, name: str, chains: int, pilot_copies: int, seed: int = 0,
        position: int = 0,
    ) -> None:  # fmt: skip
        self._bundle, self._family, self._chains, self._seed, self._position = bundle, family, chains, seed, position
        self._steps, self._averaged = 0, 1
        self._last: Reply | None = None
        self._gamma = GAMMA
        self._halves: _Halves | None = None
        mean = bundle.take(pilot_copies).mean(axis=0) if pilot_copies else None
        self.pilot_mean = mean
        said = bundle.privacy
        self.facts = Facts(
            name=name, n=bundle.n, rows=1, model=model.fingerprint(), coordinates=model.coordinate_names(),
            domain={key: column.to_dict() for key, column in family.domain.items()}, outside=bundle.outside,
            precision="float64", sensitivity=said.sensitivity, proven=bundle.outside == "refuse", epsilon=bundle.epsilon,
            delta=bundle.delta, mu=bundle.mu, cap=max(1, int(bundle.mu**2 * QUANTA_PER_UNIT)), shared_ledger=said.shared_ledger,
        )  # fmt: skip
        n = bundle.n

        def given(theta: Array, total: Array) -> Array:
            values = model.constrain(theta)
            return n * family.log_g(values) + family.natural(values) @ total

        @jax.jit
        def ratio(theta: Array, theta_prop: Array, copy: Array) -> Any:
            here, there = model.constrain(theta), model.constrain(theta_prop)
            move = family.natural(there) - family.natural(here)
            value = n * (family.log_g(there) - family.log_g(here)) + move @ copy
            return value, jnp.sqrt(bundle.xi * jnp.sum(move**2))

        self._ratio = jax.jit(jax.vmap(ratio))
        self._gradient, self._hessian = jax.jit(jax.grad(given)), jax.jit(jax.hessian(given))

    quick = prepaid = True

    @property
    def name(self) -> str:
        """What the owner is called."""
        return self.facts.name

    @property
    def left(self) -> int:
        """Quanta behind the copies that are left: for showing, they are all paid for."""
        return int(self.facts.cap * self._bundle.left / self._bundle.copies)

    @property
    def spent(self) -> int:
        """The whole bundle was paid for when it was released."""
        return self.facts.cap

    @property
    def xi(self) -> float:
        """Noise variance in each coordinate of a copy."""
        return self._bundle.xi

    def average(self, copies: int) -> None:
        """Answer Langevin's questions from the mean of so many copies."""
        self._averaged = copies

    def begin(self, terms: Terms) -> Agreed:
        """Take note of the lattice that the live owners agreed on, and for Langevin of the noise that is asked for."""
        self._gamma, self._halves = terms.gamma, None
        if terms.kernel == WALK:
            self._averaged = 1
            return Agreed()
        if terms.copies or terms.centre:
            raise InvalidInput(
                "a bundle answers for walks and for Langevin on a family, whose corrections are asked for as scalars; leave the "
                "kernel to the plan."
            )
        matrix = np.array(terms.matrix)
        box = box_of(
            *self._family.known_ranges(matrix.T), terms.proposal_gamma
        )  # as live owners take it off every record
        split = SplitCopy(self.xi / self._averaged * matrix.T @ matrix, terms.proposal_sigma**2)
        self._halves = _Halves(matrix, terms.proposal_gamma, self._bundle.n * box.middle, split)
        return Agreed(middle=box.middle.tolist())

    def ask(self, query_id: str, question: Question) -> Reply:
        """Answer from the next copies; the same id again gives the same answer."""
        if isinstance(question, Release):
            return self._release(query_id, question)
        step = int(query_id.split("/")[-2])
        if self._halves is not None and isinstance(question, Statistic):
            return self._statistic(query_id, step, question.steps, self._halves)
        if self._halves is not None and isinstance(question, Linear):
            return self._linear(query_id, step, question, self._halves)
        if self._halves is None and isinstance(question, Ratio):
            return self._log_ratio(query_id, step, question)
        raise InvalidInput(f"a bundle answers what its chain was begun for, got a {type(question).__name__}.")

    def _means(self, step: int, count: int) -> np.ndarray:
        """What the copies of some steps say of the sum of statistics, (step, chain, d). Those of steps before are lost."""
        each = self._chains * self._averaged
        wanted = (step + count - self._steps) * each
        if step < self._steps:
            raise InvalidInput(f"a copy is used once, and those of step {step} are used; ask for step {self._steps}.")
        if wanted > self._bundle.left:
            cost = self._bundle.sensitivity**2 / self._bundle.xi
            raise BudgetSpent(
                f"a copy is used once, and {self._bundle.left:,} of bundle {self.name!r} are left where a step needs "
                f"{each}; ask its owner for another bundle, or stop here.",
                needed=each * cost,
                left=self._bundle.left * cost,
            )
        self._steps = step + count
        copies = self._bundle.take(wanted)[-count * each :]
        return np.asarray(copies.reshape(count, self._chains, self._averaged, -1).mean(axis=2))

    def _log_ratio(self, query_id: str, step: int, question: Ratio) -> Reply:
        if self._last is not None and self._last.id == query_id:
            return self._last
        copies = self._means(step, 1)[0]
        with jax.enable_x64(True):
            value, sigma = (
                np.asarray(part)
                for part in self._ratio(*(jnp.asarray(p) for p in (question.theta, question.theta_prop, copies)))
            )
        widths = sigma * self._bundle.sensitivity / self._bundle.xi**0.5
        self._last = self._scalars(query_id, question.asked, value, sigma, widths)
        return self._last

    def _statistic(self, query_id: str, step: int, count: int, halves: "_Halves") -> Reply:
        """First halves, as live owners give statistics: whole numbers, less the middle of every record's range."""
        if not halves.have(step, count):
            whitened = self._means(step, count) @ halves.matrix
            public = [split_noise(self._seed, self._position, step + i, whitened.shape[1:]) for i in range(count)]
            first, second = halves.split(whitened, np.stack(public))
            halves = self._halves = halves._replace(step=step, first=first, second=second)
        first = halves.first[step - halves.step :][:count]
        numbers = np.rint(first / halves.gamma).astype(np.int64) - halves.shift
        width = float(np.linalg.norm(halves.matrix, 2)) * self._bundle.sensitivity
        return Reply(
            id=query_id, gamma=halves.gamma, numbers=numbers.ravel().tolist(), widths=[width], answered=[True], quanta=0
        )

    def _linear(self, query_id: str, step: int, question: Linear, halves: "_Halves") -> Reply:
        """Corrections by the second halves of the step's copies; their noise is the same for the opposite direction."""
        if not halves.have(step, 1):
            raise InvalidInput(f"a correction follows its step's statistic, and that of step {step} was not asked for.")
        along = np.array(question.direction)
        value = -np.sum(along * (halves.second[step - halves.step] - halves.shift * halves.gamma), axis=1)
        sigma = np.sqrt(np.einsum("ci,ij,cj->c", along, halves.split.second_covariance, along))
        widths = np.linalg.norm(along @ halves.matrix.T, axis=1) * self._bundle.sensitivity
        return self._scalars(query_id, question.asked, value, sigma, widths)

    def _scalars(self, query_id: str, asked: list[bool], value: Array, sigma: Array, widths: Array) -> Reply:
        """Scalars on the lattice, where they are finite and fit; both rules are the same for the swapped pair."""
        answered = np.array(asked) & np.isfinite(value) & np.isfinite(sigma) & (sigma > 0)
        answered &= np.abs(np.where(answered, value, 0.0)) < SUM_LIMIT * self._gamma
        numbers = np.rint(np.where(answered, value, 0.0) / self._gamma).astype(np.int64)
        return Reply(
            id=query_id, gamma=self._gamma, numbers=numbers.tolist(), widths=np.where(answered, widths, 0.0).tolist(),
            answered=answered.tolist(), quanta=0, sigma=np.where(answered, sigma, 0.0).tolist(),
        )  # fmt: skip

    def _release(self, query_id: str, asked: Release) -> Reply:
        """Gradient or information of the bundle's part, from the mean of the pilot's copies: post-processing."""
        if self.pilot_mean is None:
            raise InvalidInput("no copies of this bundle were set aside for the pilot.")
        with jax.enable_x64(True):
            theta, total, matrix = (jnp.asarray(x) for x in (asked.theta, self.pilot_mean, asked.matrix))
            if asked.what == "gradient":
                vector = matrix.T @ self._gradient(theta, total)
            elif asked.what == "information":
                vector = matrix_to_triangle(np.asarray(-matrix.T @ self._hessian(theta, total) @ matrix))
            else:
                raise InvalidInput(f"a bundle answers for gradient and information, got {asked.what!r}.")
            less = self.facts.n * np.asarray(asked.centre) if asked.centre else 0.0
            values = np.nan_to_num(np.clip(np.asarray(vector) - less, -1e6, 1e6))
        numbers = np.rint(values / GAMMA).astype(np.int64)
        return Reply(id=query_id, gamma=GAMMA, numbers=numbers.tolist(), widths=[0.0], answered=[True], quanta=0)

    def close(self) -> None:
        """Nothing to let go of."""


class _Halves(NamedTuple):
    """How Langevin's copies are whitened, shifted and split, and both halves of those of some steps from `step` on."""

    matrix: np.ndarray
    gamma: float
    shift: np.ndarray
    split: SplitCopy
    step: int = 0
    first: np.ndarray = np.zeros((0, 0, 0))
    second: np.ndarray = np.zeros((0, 0, 0))

    def have(self, step: int, count: int) -> bool:
        """Whether those of all these steps are here."""
        return self.step <= step and step + count <= self.step + len(self.first)
