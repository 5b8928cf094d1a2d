"""The auditor: attacks sfumato's own guarantee on made-up records and reports a lower bound on what it lost."""

from sfumato.auditor.attack import audit
from sfumato.auditor.result import Attack, Audit

__all__ = ["Attack", "Audit", "audit"]
