"""What a sampler asks of a vault, wherever it stands."""

from typing import Any, Protocol

import numpy as np

from sfumato.access.questions import Agreed, Facts, Question, Reply, Terms
from sfumato.kernel import Draw, Kernel, State


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


class Access(Protocol):
    """The door: in process it is the vault itself; over a wire, a client with the same four words."""

    @property
    def n(self) -> int:
        """Number of records: public."""
        ...

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

    def release(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray | None = None
    ) -> np.ndarray:  # fmt: skip
        """Noisy sum of vectors, for a pilot."""
        ...

    def begin(self, kernel: Kernel, sigma: float, states: State) -> None:
        """Settle kernel and noise."""
        ...

    def chunk(self, states: State, draws: Draw, limit: int, expected: int, at_least: int = 1) -> Answers:
        """Steps of all chains."""
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

    # A door may also have `spent` (quanta, with what a crash forfeited), `waited` (seconds, for noise), and `send`: to send a
    # question ahead, whose answer `ask` then only waits for; it says whether it was sent.

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
