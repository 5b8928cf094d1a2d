"""What runs and estimates settle alike: terms, shares of the noise, and what each owner promised."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from sfumato.owners.rounds import Rounds
from sfumato.planner import lattice_slack
from sfumato.planner.owners import share_out, share_sealed
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.privacy.promise import epsilon_of
from sfumato.privacy.statement import SealedPromise, Statement
from sfumato.privacy.target import Target
from sfumato.run.journal import Journal
from sfumato.run.opening import Opened
from sfumato.run.parties import BundleParty
from sfumato.run.terms import Terms


def settle(terms: Terms, kept: Journal | None, **changes: Any) -> Terms:
    """Settle more of the terms, durably if there is a checkpoint."""
    if kept is not None:
        return kept.update_terms(**changes)
    return msgspec.structs.replace(terms, **changes)


def set_shares(opened: Opened, widths: Sequence[float]) -> float:
    """Give each live owner its share of the noise; returns mu of the owner that all together are worth."""
    access = opened.access
    if isinstance(access, Rounds) and opened.sealed:
        colluders = [facts.colluders for facts in access.facts]
        access.shares, mu = share_sealed(access.budgets(), access.budgets_for_everybody(), widths, colluders)
        return mu
    live, mu = share_out(access.budgets(), widths)
    shares = [0.0] * len(opened.parties)
    for position, share in zip(opened.live, live, strict=True):
        shares[position] = share
    if isinstance(access, Rounds):
        access.shares = shares
    return mu


def promised(opened: Opened, i: int, releases: int, exact: str, target: Target | None = None) -> Statement:
    """What one owner promised for so many numbers; `exact` says what may be thought of the draws, `target` what they are of."""
    party, facts, access = opened.parties[i], opened.access.facts[i], opened.access
    if isinstance(party, BundleParty):
        said = party.bundle.privacy
        return replace(said, owner=facts.name, exact=said.exact + box(opened)) if opened.live else said
    return Statement(
        epsilon=facts.epsilon,
        delta=facts.delta,
        mu=facts.mu,
        releases=releases,
        spent_mu=float(np.sqrt(access.spent(i) / QUANTA_PER_UNIT)),
        n=facts.n,
        lattice_slack=lattice_slack(facts.epsilon),
        sensitivity=facts.sensitivity,
        exact=exact,
        precision=facts.precision,
        shared_ledger=facts.shared_ledger,
        owner=facts.name if len(opened.parties) > 1 else "",
        outside=facts.outside,
        target="" if target is None else target.paragraph,
        sealed=None if not (isinstance(access, Rounds) and opened.sealed) else _sealed(access, party, i),
    )


def _sealed(access: Rounds, party: Any, i: int) -> SealedPromise:
    """Against whom an owner is protected where sums are sealed, and what is left if more are against it."""
    facts, seat = access.facts[i], party.seat
    mu = float(np.sqrt(facts.everybody / QUANTA_PER_UNIT))
    return SealedPromise(
        consortium=seat.consortium, members=tuple(seat.members), colluders=facts.colluders, mu=mu,
        epsilon=epsilon_of(mu, facts.delta), delta=facts.delta,
        spent_mu=float(np.sqrt(access.spent_for_everybody(i) / QUANTA_PER_UNIT)),
    )  # fmt: skip


def box(opened: Opened) -> str:
    """What the owners' box does to the target, in a sentence; nothing where there is none."""
    bound = opened.access.theta_bound
    if not np.isfinite(bound):
        return ""
    return (
        f" The posterior is restricted to parameters with no coordinate beyond {bound:g} on the unconstrained scale: a proposal "
        "outside the box that the owners answer for is rejected unasked."
    )
