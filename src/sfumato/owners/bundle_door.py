r"""A bundle among live owners: its copies answer for it, with the noise they were released with.

A round uses one copy per chain, never again. The answer to a ratio follows from the copy alone,
:math:`\hat d = n[\log g' - \log g] + (\varphi' - \varphi)^\top\hat S`, with noise
:math:`\sigma_t = \lVert\varphi' - \varphi\rVert\sqrt\xi`, symmetric in the pair. Nothing here is charged: it was paid for when
the bundle was released.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.errors import BudgetSpent, InvalidInput
from sfumato.families.base import Family
from sfumato.model import Model
from sfumato.model.derivatives import matrix_to_triangle
from sfumato.owners.bundle import Bundle
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import WALK, Agreed, Facts, Question, Ratio, Release, Reply, Terms

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
        Copies a round uses.
    pilot_copies
        Copies at the beginning that the pilot may average; the chain does not see them.
    skip
        Rounds that were taken before, when a run goes on.
    """

    def __init__(
        self, bundle: Bundle, family: Family, model: Model, *, name: str, chains: int, pilot_copies: int, skip: int = 0
    ) -> None:
        self._bundle, self._chains = bundle, chains
        self._at = skip
        self._last: Reply | None = None
        self._gamma = GAMMA
        mean = bundle.take(pilot_copies).mean(axis=0) if pilot_copies else None
        self.pilot_mean = mean
        if skip:
            bundle.take(skip * chains)
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

    def begin(self, terms: Terms) -> Agreed:
        """Take note of the lattice that the live owners agreed on."""
        if terms.kernel != WALK:
            raise InvalidInput("a bundle answers for walks; leave the kernel to the plan, or ask for 'guided'.")
        self._gamma = terms.gamma
        return Agreed()

    def ask(self, query_id: str, question: Question) -> Reply:
        """Answer from the next copies; the same id again gives the same answer."""
        if isinstance(question, Release):
            return self._release(query_id, question)
        if not isinstance(question, Ratio):
            raise InvalidInput(f"a bundle answers for walks, got a {type(question).__name__}.")
        if self._last is not None and self._last.id == query_id:
            return self._last
        rounds = int(query_id.split("/")[-2]) + 1
        count = (rounds - self._at) * self._chains
        if count > self._bundle.left:
            cost = self._bundle.sensitivity**2 / self._bundle.xi
            raise BudgetSpent(
                f"a copy is used once, and {self._bundle.left:,} of bundle {self.name!r} are left where a round needs "
                f"{self._chains}; ask its owner for another bundle, or stop here.",
                needed=self._chains * cost,
                left=self._bundle.left * cost,
            )
        copies = self._bundle.take(count)[-self._chains :]
        self._at = rounds
        with jax.enable_x64(True):
            value, sigma = (
                np.asarray(part)
                for part in self._ratio(*(jnp.asarray(p) for p in (question.theta, question.theta_prop, copies)))
            )
        answered = np.array(question.asked) & np.isfinite(value) & np.isfinite(sigma) & (sigma > 0)
        answered &= np.abs(np.where(answered, value, 0.0)) < 2.0**61 * self._gamma
        numbers = np.rint(np.where(answered, value, 0.0) / self._gamma).astype(np.int64)
        shown = np.where(answered, sigma, 0.0)
        widths = shown * self._bundle.sensitivity / self._bundle.xi**0.5
        self._last = Reply(
            id=query_id, gamma=self._gamma, numbers=numbers.tolist(), widths=widths.tolist(), answered=answered.tolist(),
            quanta=0, sigma=shown.tolist(),
        )  # fmt: skip
        return self._last

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
