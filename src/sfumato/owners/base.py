"""What a sampler asks of a vault, wherever it stands."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sfumato.domain import Domain
from sfumato.kernel import Draw, Kernel, State
from sfumato.protocol.questions import Agreed, Facts, Question, Reply, Terms
from sfumato.study.target import Study


class Answers(Protocol):
    """Some paid steps: see `sfumato.vault.vault.Chunk`."""

    @property
    def states(self) -> State:
        """Where the chains are now."""
        ...

    @property
    def transcript(self) -> Any:
        """What was released."""
        ...

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        ...

    @property
    def spent(self) -> int:
        """Quanta they cost."""
        ...

    @property
    def needed(self) -> int:
        """Quanta the next step needs, if it did not fit."""
        ...

    @property
    def block(self) -> Any:
        """The reservation that paid."""
        ...

    def settle(self) -> None:
        """Give the unspent rest of the reservation back."""
        ...


class Chunks(Protocol):
    """Paid steps of chains that have begun, some at a time: what the loop of a run needs."""

    @property
    def rows(self) -> int:
        """Rows evaluated a step: public, and how long a step takes."""
        ...

    @property
    def longest(self) -> int:
        """Steps of a chunk at the most: progress, checkpoints and Ctrl-C wait for its end."""
        ...

    @property
    def left(self) -> int:
        """Quanta left."""
        ...

    def chunk(self, states: State, draws: Draw, limit: int, expected: int, at_least: int = 1) -> Answers:
        """Steps of all chains."""
        ...


class Access(Chunks, Protocol):
    """Everyone who holds records of a run, opened: one table in this process, any number of owners, bundles alone."""

    @property
    def facts(self) -> Sequence[Facts]:
        """What each owner says about itself."""
        ...

    @property
    def shares(self) -> Sequence[float]:
        """Share of the noise variance that each owner adds; zero for a bundle."""
        ...

    @property
    def theta_bound(self) -> float:
        """No coordinate of a parameter that is asked about may be larger."""
        ...

    @property
    def unused(self) -> int:
        """Numbers of every owner's that were asked for ahead and that no step has used."""
        ...

    @property
    def waited(self) -> float:
        """Seconds that were spent waiting for noise."""
        ...

    def budgets(self) -> list[float]:
        """Mu squared that each owner who answers live has left."""
        ...

    def spent(self, number: int) -> int:
        """Quanta that an owner has spent, with what a crash forfeited."""
        ...

    @property
    def n(self) -> int:
        """Number of records: public."""
        ...

    def release(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray | None = None
    ) -> np.ndarray:  # fmt: skip
        """Noisy sum of vectors, for a pilot."""
        ...

    def pass_over(self) -> None:
        """A release of the pilot is known already: the next question is the one after it."""
        ...

    def forget(self) -> None:
        """Drop what was compiled for the pilot."""
        ...

    def expect(self, steps: int) -> None:
        """So many steps will surely be taken: what they need may be asked for ahead."""
        ...

    def begin(self, kernel: Kernel, sigma: float, states: State) -> None:
        """Settle kernel and noise."""
        ...

    def settle(self, block: int, reserved: int, spent: int) -> None:
        """Close the reservation of a chunk that was kept before the process ended."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Door(Protocol):
    """One owner, asked a round at a time: a desk in this process, a node over a wire, a bundle."""

    @property
    def name(self) -> str:
        """What the owner is called in messages and statements."""
        ...

    @property
    def facts(self) -> Facts:
        """What the owner says about itself: model, records, domain, budget."""
        ...

    @property
    def left(self) -> int:
        """Quanta left."""
        ...

    # A door may also have `prepaid` (its answers were paid for before: a bundle's), `spent` (quanta, with what a crash
    # forfeited), `waited` (seconds, for noise), and `send`: to send a question ahead, whose answer `ask` then only waits for; it
    # says whether it was sent. One whose answers are sealed has `key_message()`, its key for the run, and `agree(messages)`,
    # which takes those of all members and gives the digest of the keyset; and `left_for_everybody`, `spent_for_everybody`.

    def begin(self, terms: Terms) -> Agreed:
        """Settle the terms of a chain."""
        ...

    def ask(self, query_id: str, question: Question) -> Reply:
        """Ask; asking again with the same id gives the same answer and costs nothing.

        Raises
        ------
        BudgetSpent
            This owner's budget does not reach.
        ConnectionError, TimeoutError
            Nobody answered; the same question may be asked again.
        """
        ...

    def close(self) -> None:
        """Let go."""
        ...


class AnsweringOwner(Protocol):
    """An owner who is asked over a line of its own: what `sfumato.connect` gives, or anything else that has these three.

    `sfumato.sample` and `sfumato.plan` take one wherever they take data, alone or in a list. `docs/developer/owner.md` has a
    skeleton.
    """

    @property
    def name(self) -> str:
        """What the owner is called; different for every owner of a run."""
        ...

    def study(
        self, model: Any, domain: Mapping[str, Domain] | None, sensitivity: Any, kernel: str
    ) -> tuple[str, Study, int]:
        """Find what the owner has approved for this model: its name there, the study, and the number of records."""
        ...

    def door(self, approved: str, fingerprint: str, *, epsilon: float, delta: float, run_id: str) -> Door:
        """Open a run of an approved study under this promise. The same `run_id` again goes on with the same account."""
        ...
