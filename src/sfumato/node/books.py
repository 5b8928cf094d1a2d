"""Who may spend how much: the nested accounts of one node in its ledger.

The tree is: the ledger, the node (everything that ever leaves), an analyst, a study of that analyst, a run. A reservation
must fit under every cap above it, so the owner's guarantee holds for all analysts together, also if they collude.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from sfumato.errors import InvalidInput, LedgerError
from sfumato.node.catalogue import Refusal
from sfumato.node.config import Budget, ConsortiumTable, OwnerFile, check_name
from sfumato.owners.local import floor_to
from sfumato.privacy import gdp
from sfumato.privacy.budget import MAX_MU, MAX_RELEASES, RELATIVE_LOG2, cap_quanta, mu_squared
from sfumato.privacy.statement import NEIGHBOURS
from sfumato.protocol.frames import Allowance, OwnBudget
from sfumato.vault.ledger import Account, Journal, Ledger

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,79}")
SMALLEST_RUN = 10_000
"""A run's cap is at least this part of the node's, so that (a run releases at most `MAX_RELEASES` numbers, each priced at a
share of its cap) the node releases at most `MAX_NUMBERS` in all."""
MAX_NUMBERS = SMALLEST_RUN * MAX_RELEASES
NODE = "node"
ASSUMED = "assumed"
"""Account without spending that remembers what coalition the books are kept against."""
MOST_EPSILON = 60.0
"""Beyond this a guarantee is none, and its arithmetic overflows."""


class Amount(NamedTuple):
    """Cap and spending in units of mu squared."""

    cap: float
    spent: float


def _check_assumed(ledger: Ledger, stated: ConsortiumTable) -> None:
    """What was answered was paid for against a coalition: the books stay with its roster, and with no more colluders."""
    pinned = hashlib.sha256(json.dumps(list(stated.members.items())).encode()).hexdigest()
    now = {"kind": ASSUMED, "roster": pinned, "members": len(stated.members), "colluders": stated.colluders}
    then = ledger.account(ASSUMED, ledger.cap, about=now).about  # what was said first stays
    if then["roster"] != pinned or stated.colluders > then["colluders"]:
        raise InvalidInput(
            f"what these books paid for holds against {then['colluders']} colluders on a roster of {then['members']}; another "
            "roster, or more colluders, needs new books (another `ledger` in [consortium]), and an honest sum of both."
        )


class Books:
    """The node's view of its ledger.

    Parameters
    ----------
    file
        The owner's file: budgets and the ledger's place. The ledger is made at the first start.
    """

    def __init__(self, file: OwnerFile) -> None:
        total = file.budgets.total
        self._budgets, self._lock, self._house = file.budgets, threading.Lock(), file.consortium
        self.ledger = Ledger(file.place(file.ledger), epsilon=total.epsilon, delta=total.delta)
        self.slack = float(gdp.lattice_slack(MAX_NUMBERS, total.epsilon, 2.0**RELATIVE_LOG2))
        if self.slack > total.delta / 2:
            raise InvalidInput(
                f"delta of the total must exceed twice the lattice slack, {self.slack:.2g} at epsilon = {total.epsilon:g}; "
                f"got {total.delta:g}. Choose a smaller epsilon or a larger delta."
            )
        self.mu = float(gdp.mu(total.epsilon, total.delta - self.slack))
        self.journal = Journal(self.ledger)
        try:
            self.everybody = None if file.consortium is None else self._against_everybody(file, file.consortium)
        except BaseException:
            self.journal.close()
            self.ledger.close()
            raise
        self.node = self.ledger.account(NODE, cap_quanta(self.mu), about={"kind": NODE, "name": file.name})

    def _against_everybody(self, file: OwnerFile, stated: ConsortiumTable) -> Ledger:
        """The book of the promise that holds if all other members are against this owner."""
        if stated.everybody is not None:
            epsilon, delta = stated.everybody.epsilon, stated.everybody.delta
            slack = float(gdp.lattice_slack(MAX_NUMBERS, epsilon, 2.0**RELATIVE_LOG2))
            if slack > delta / 2:
                raise InvalidInput(
                    f"delta against everybody must exceed twice the lattice slack, {slack:.2g} at epsilon = {epsilon:g}; got "
                    f"{delta:g}. Choose a smaller epsilon or a larger delta."
                )
            mu = float(gdp.mu(epsilon, delta - slack))
        else:
            mu = min(self.mu * (len(stated.members) - stated.colluders) ** 0.5, MAX_MU)
        ledger = Ledger.with_cap(file.place(stated.ledger), cap_quanta(mu))
        try:
            _check_assumed(ledger, stated)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Fold the journal and close the ledgers."""
        try:
            self.journal.close()
        finally:
            self.ledger.close()
            if self.everybody is not None:
                self.everybody.close()

    def total_against_everybody(self) -> Amount:
        """Cap and spending of the promise that holds if all other members are against this owner."""
        if self.everybody is None:
            return Amount(0.0, 0.0)
        return Amount(mu_squared(self.everybody.cap), mu_squared(self.everybody.spent))

    def run_against_everybody(self, name: str, mu: float) -> Account:
        """The second account of a sealed run."""
        if self.everybody is None:
            raise Refusal("not-sealed", name)
        return self.everybody.account(name, min(cap_quanta(mu), self.everybody.cap), about={"kind": "run"})

    # -- opening --------------------------------------------------------------------------------------------------

    def analyst(self, name: str) -> Account:
        """The account of one analyst."""
        budgets = self._budgets
        budget = budgets.analysts.get(check_name(name), budgets.per_analyst)
        return self.ledger.account(
            f"analyst {name}", self._cap(budget), parent=self.node, about={"kind": "analyst", "analyst": name}
        )

    def run(
        self, analyst: str, study: str, run: str, epsilon: float, delta: float, model: str, sealed: bool = False
    ) -> tuple[Account, float]:
        """Open the account of a run, or come back to it; with the mu of its guarantee.

        Raises
        ------
        Refusal
            The budget is too small, or less than that is left, or the run was opened with other terms.
        """
        if not RUN.fullmatch(run):
            raise Refusal("bad-request", "the name of a run has letters, digits and _ . : - only")
        mu = self._run_mu(epsilon, delta)
        asked = cap_quanta(mu)
        if asked > 1.001 * self.node.cap:  # less than that is the room the node keeps for the slack of its lattice
            raise Refusal(
                "budget-spent", f"run {run}: epsilon {epsilon:g}, delta {delta:g} is more than the node's own"
            )
        cap = min(asked, self.node.cap)
        if cap * SMALLEST_RUN < self.node.cap:
            raise Refusal("run-too-small", f"cap {cap} of {self.node.cap} quanta")
        name = f"run {analyst}/{run}"
        with self._lock:  # two connections of one analyst may open the same run
            above = self._study(analyst, study)
            known = self.ledger.existing(name)
            if known is None and above.left < cap:
                left = mu_squared(above.left)
                raise Refusal(
                    "budget-spent", f"run {run}: asks for mu squared {mu_squared(cap):.4g}, {left:.4g} is left"
                )
            about: dict[str, Any] = {"kind": "run", "analyst": analyst, "study": study, "run": run, "model": model}
            about |= {"epsilon": epsilon, "delta": delta, "opened": datetime.now(UTC).isoformat(timespec="seconds")}
            about |= {"sealed": True} if sealed else {}
            if known is not None and known.about.get("model") != model:
                raise Refusal("other-terms", f"run {run}: another model")
            if known is not None and known.about.get("sealed", False) != sealed:
                raise Refusal("other-terms", f"run {run}: sealed and unsealed")
            try:
                return self.ledger.account(name, cap, parent=above, about=about), mu
            except LedgerError as error:
                raise Refusal("other-terms", str(error)) from None

    def _study(self, analyst: str, study: str) -> Account:
        about = {"kind": "study", "analyst": analyst, "study": study}
        cap = self._cap(self._budgets.per_study)
        return self.ledger.account(f"study {analyst}/{study}", cap, parent=self.analyst(analyst), about=about)

    def _cap(self, budget: Budget | None) -> int:
        """Quanta of a budget; the node's own cap bounds them all."""
        if budget is None:
            return self.node.cap
        from sfumato.planner import budget_mu

        return min(cap_quanta(budget_mu(budget.epsilon, budget.delta)), self.node.cap)

    def _run_mu(self, epsilon: float, delta: float) -> float:
        from sfumato.planner import budget_mu

        if not 0 < epsilon <= MOST_EPSILON:
            raise Refusal("bad-number", f"epsilon {epsilon:g} is no number that promises anything")
        try:
            return budget_mu(epsilon, delta)
        except InvalidInput as error:
            raise Refusal("bad-number", str(error)) from None

    # -- looking --------------------------------------------------------------------------------------------------

    def budget(self, analyst: str, studies: Iterable[str]) -> OwnBudget:
        """What an analyst may still spend, by their own spending alone; see `OwnBudget`."""
        mine = self.analyst(analyst)
        left = mine.cap - mine.spent
        whole = self._allowance(self._budgets.analysts.get(analyst, self._budgets.per_analyst), left)
        parts = {name: self._part(analyst, name, whole, left) for name in studies}
        return OwnBudget(**msgspec.structs.asdict(whole), studies=parts, limited=self.node.left < left)

    def _part(self, analyst: str, study: str, whole: Allowance, left: int) -> Allowance:
        """What one study may take of an analyst's budget; its account is not opened, for nobody has asked yet."""
        cap, known = self._cap(self._budgets.per_study), self.ledger.existing(f"study {analyst}/{study}")
        if mu_squared(cap) >= whole.cap:
            return whole
        return self._allowance(self._budgets.per_study, min(left, cap - (0 if known is None else known.spent)))

    def _allowance(self, budget: Budget | None, left: int) -> Allowance:
        """A budget, or the node's own where that is smaller, with what is left of it."""
        cap = self._cap(budget)
        stated = budget if budget is not None and cap < self.node.cap else self._budgets.total
        fits = floor_to(float(gdp.epsilon(mu_squared(left) ** 0.5, stated.delta)), 3)
        return Allowance(
            epsilon=stated.epsilon, delta=stated.delta, epsilon_left=stated.epsilon if left >= cap else fits,
            cap=mu_squared(cap), left=mu_squared(left),
        )  # fmt: skip

    def possible(self, analyst: str | None, study: str, spent: Mapping[str, float]) -> Allowance:
        """The largest run that may still be opened on a study, under every cap above it; opens no account.

        Parameters
        ----------
        analyst
            Who would ask; None for anybody without an exception.
        spent
            Mu squared spent by account.
        """
        budgets = self._budgets
        own = budgets.per_analyst if analyst is None else budgets.analysts.get(analyst, budgets.per_analyst)
        names = ((budgets.total, NODE), (own, f"analyst {analyst}"), (budgets.per_study, f"study {analyst}/{study}"))
        caps = [
            (budget, mu_squared(self._cap(budget)), spent.get(name, 0.0))
            for budget, name in names
            if budget is not None
        ]
        stated, cap, _ = min(caps, key=lambda one: one[1])
        left = max(min(cap - used for _, cap, used in caps), 0.0)
        whole = left >= cap * (1 - 1e-12)
        fits = (
            stated.epsilon if whole else floor_to(float(gdp.epsilon(left**0.5, stated.delta)), 3) if left > 0 else 0.0
        )
        return Allowance(epsilon=stated.epsilon, delta=stated.delta, epsilon_left=fits, cap=cap, left=left)

    def total(self) -> Amount:
        """Cap and spending of the whole node."""
        return Amount(mu_squared(self.node.cap), mu_squared(self.node.spent))

    def accounts(self) -> list[dict[str, Any]]:
        """Every account with its public facts."""
        return [
            {
                "name": state.name,
                "answers": state.answers,
                "budget": Amount(mu_squared(state.cap), mu_squared(state.spent)),
                **state.about,
            }
            for state in self.ledger.accounts()
        ]

    @staticmethod
    def answered(states: Iterable[Mapping[str, Any]]) -> set[str]:
        """Analysts who got an answer: an account is opened for whoever looks in, also for who is then refused."""
        return {state["analyst"] for state in states if state.get("kind") == "run" and state["answers"]}

    def statement(self, name: str, n: int) -> str:
        """The guarantee for everything that ever left, as a paragraph."""
        total, (cap, spent) = self._budgets.total, self.total()
        states = self.accounts()
        answers = sum(state["answers"] for state in states)
        analysts = len(self.answered(states))
        return (
            f"Everything {name} has released through this node ({answers:,} answers to {analysts} "
            f"analyst{'' if analysts == 1 else 's'} on {n:,} records) and everything it will release under the same ledger "
            f"satisfies ({total.epsilon:g}, {total.delta:g})-differential privacy with respect to {NEIGHBOURS}; against all "
            f"analysts together. The guarantee is that of the cap fixed in advance (Gaussian DP with mu = {self.mu:.4g}, "
            f"mu squared = {cap:.4g}); {spent:.4g} of it is spent, reservations under way in full, which is bookkeeping and "
            f"not a smaller epsilon. Delta includes {self.slack:.1e} for the lattice of the noise. Releases from the same "
            "records that did not pass through this ledger add to it (their mu squared add up)." + self._against_whom()
        )

    def _against_whom(self) -> str:
        """What the statement rests on where sums are sealed, and what is left of it if more members than assumed collude."""
        if self._house is None or self.everybody is None:
            return ""
        others, (cap, spent) = len(self._house.members) - 1, self.total_against_everybody()
        return (
            f" Sums are sealed in the consortium {self._house.name!r}: for them the guarantee holds against the analysts "
            f"together with up to {self._house.colluders} of the other {others} members. If all {others} work with them, another "
            f"cap holds for what was sealed (mu = {cap**0.5:.4g}, mu squared = {cap:.4g}; {spent:.4g} of it is spent); answers "
            "that were not sealed add to it, within the cap above."
        )
