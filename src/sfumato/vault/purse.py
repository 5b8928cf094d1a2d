"""A purse: budget of one account in blocks, a durable commit for each and not for every answer."""

from sfumato.errors import BudgetSpent
from sfumato.privacy.budget import mu_squared
from sfumato.vault.ledger import Account, Block, JournalledAccount
from sfumato.vault.ledger.account import MAX_CAP

ROUNDS_PER_BLOCK = 32
"""Rounds a reservation is made for: a durable commit takes milliseconds, and a crash forfeits at most so many rounds."""
BLOCKS_PER_CAP = 512
"""A block may always be this part of the cap: where rounds are cheap, one commit serves many of them."""


class Purse:
    """An account, the block that is open in it, and what is left of that.

    Parameters
    ----------
    account
        Where every answer is paid for.
    journal
        Where answers wait before they are in the ledger: they must be there before their block is closed.
    """

    def __init__(self, account: Account, journal: JournalledAccount | None = None) -> None:
        self.account, self._journal = account, journal
        self._block: Block | None = None
        self.rest = 0

    @property
    def left(self) -> int:
        """Quanta that can still be spent: the account's, and the rest of the open block."""
        return self.account.left + self.rest

    @property
    def spent(self) -> int:
        """Quanta spent on answers, with what a crash forfeited."""
        return self.account.spent - self.rest

    def reserve(self, quanta: int) -> Block:
        """A block with room for this answer; its rest, if it has none, goes back first."""
        if quanta > MAX_CAP:
            raise BudgetSpent(
                f"no answer may pass a cap, and this one needs mu squared {mu_squared(quanta):.3g}, more than any account has; "
                "use a larger sigma or a smaller step.",
                needed=mu_squared(quanta),
                left=mu_squared(self.account.left),
            )
        if self._block is None or self.rest < quanta:
            self.settle()
            ahead = max(ROUNDS_PER_BLOCK * quanta, self.account.cap // BLOCKS_PER_CAP)
            # Never more than a sixteenth of the cap ahead: that much could be forfeited.
            self._block = self.account.reserve_up_to(max(quanta, min(ahead, self.account.cap // 16)), quanta)
            self.rest = self._block.quanta
        return self._block

    def take(self, quanta: int) -> None:
        """So much of the open block is used up."""
        self.rest -= quanta

    def settle(self) -> None:
        """Close the open block; its rest goes back."""
        if self._block is not None:
            if self._journal is not None:
                self._journal.fold()
            self._block.settle(self._block.quanta - self.rest)
            self._block, self.rest = None, 0
