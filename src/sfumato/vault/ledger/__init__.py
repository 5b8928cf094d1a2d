"""The ledger: a durable, shared, checkable account of what the records have paid.

>>> ledger = Ledger.in_memory(1000)
>>> run = ledger.account("run", 600)
>>> block = run.reserve(500)
>>> block.settle(350)
150
>>> ledger.spent, run.left
(350, 250)
>>> ledger.verify().ok
True
>>> ledger.close()
"""

from sfumato.vault.ledger.account import Account, Block
from sfumato.vault.ledger.answers import Answer
from sfumato.vault.ledger.book import AccountState, Ledger
from sfumato.vault.ledger.chain import Head
from sfumato.vault.ledger.journal import Journal, JournalledAccount
from sfumato.vault.ledger.verify import Verification

__all__ = [
    "Account",
    "AccountState",
    "Answer",
    "Block",
    "Head",
    "Journal",
    "JournalledAccount",
    "Ledger",
    "Verification",
]
