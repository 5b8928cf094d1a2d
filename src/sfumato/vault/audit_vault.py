"""A vault to be attacked: made-up tables behind the real wall, one run after another.

An audit needs thousands of runs on two neighbouring tables, each with an account of its own. Everything that protects a record
is inherited from `Vault` unchanged: the clamped sums, the noise, the charge before the answer. What is added is that the table
and the account can be exchanged between runs, so that nothing is compiled twice. Only the auditor opens one, and it has no
private record to put in.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from sfumato.kernel import State
from sfumato.protocol.questions import Release
from sfumato.study.target import Study
from sfumato.vault import records
from sfumato.vault.ledger import Account, Ledger
from sfumato.vault.noise import Source
from sfumato.vault.vault import Vault


class AuditVault(Vault):
    """A vault whose table and account are exchanged between runs.

    Parameters
    ----------
    study
        Public: model, domain, bounds.
    table
        Made-up records.
    cap
        Quanta that every run may spend.
    source
        scale -> noise source. For tests alone.

    Attributes
    ----------
    asked
        The pilot's questions so far.
    """

    def __init__(
        self, study: Study, table: Mapping[str, Any], cap: int, *, source: Callable[[float], Source] | None = None
    ) -> None:
        self._cap, self._ledger = cap, Ledger.in_memory(cap)
        self.asked: list[Release] = []
        super().__init__(records.load(table, study.domain), study, self._ledger.account("run", cap), source=source)

    def show(self, table: Mapping[str, Any]) -> None:
        """Put another table of as many made-up records behind the wall."""
        loaded = records.load(table, self._study.domain)
        if loaded.n != self.n:
            raise ValueError(f"tables of one audit have one size, {self.n}, got {loaded.n}.")
        self._engine.load(loaded)

    def open_account(self) -> Account:
        """Open a ledger and an account for the next run."""
        self._ledger.close()
        self._ledger = Ledger.in_memory(self._cap)
        self._account = self._ledger.account("run", self._cap)
        return self._account

    def _answer(self, asked: Release) -> np.ndarray:
        """As every vault does, and note the question."""
        self.asked.append(asked)
        return super()._answer(asked)

    def again(self, states: State) -> None:
        """Start the chain that `begin` settled once more."""
        with jax.enable_x64(True):
            self._start_over(states)

    def leave(self) -> None:
        """Stop drawing noise, forget the tables, close the ledger."""
        self.close()
        self._ledger.close()
