"""The promise in plain words: for a nurse, a lawyer, a member of the public."""

import math
from typing import TYPE_CHECKING

from sfumato.privacy.statement import CLAMPED, careless

if TYPE_CHECKING:
    from sfumato.analysis.result import Run
    from sfumato.privacy.joint import JointStatement
    from sfumato.privacy.statement import Statement


def promise(privacy: "Statement | JointStatement") -> list[str]:
    """Say what anyone in the data may rely on, in a few short paragraphs."""
    return [
        (
            f"The numbers on this page were learnt from {privacy.n:,} records of people. No record left the "
            f"place where it is kept. What left were {privacy.releases:,} answers, each blurred by random noise "
            "before anyone saw it."
        ),
        (
            "Whoever reads this page, or has all of those answers, or even knows every other record, can tell "
            f"{_more(privacy.epsilon)} about any one person than if somebody else's record had stood in that place. Nothing "
            f"that could have come out became more than {_factor(privacy.epsilon)} times as likely because of that person "
            f"(epsilon = {privacy.epsilon:g}), give or take {_one_in(privacy.delta)} (delta = {privacy.delta:g}). Roughly: "
            f"{_suspicion(privacy.epsilon)}.{_careless(privacy)}"
        ),
        (
            "What can be learnt is what holds for the group as a whole. That is what the study is for, and it would "
            "have come out nearly the same without any one of these people."
        ),
        _scope(privacy),
        *(
            [f"As a rule, {CLAMPED}. What was learnt is about the records after that."]
            if privacy.outside == "clamp"
            else []
        ),
    ]


def _more(epsilon: float) -> str:
    """How much more can be told about a person: the word follows epsilon."""
    for bound, words in ((0.5, "hardly more"), (1.5, "only a little more"), (3.0, "somewhat more")):
        if epsilon <= bound:
            return words
    return "a good deal more (this is a weak promise)"


def _careless(privacy: "Statement | JointStatement") -> str:
    each = privacy.owners if hasattr(privacy, "owners") else (privacy,)
    return "".join(f" A warning: {warning}" for one in each if (warning := careless(one.delta, one.n)))


def _factor(epsilon: float) -> str:
    return f"{math.exp(min(epsilon, 700)):.3g}"


def _suspicion(epsilon: float) -> str:
    share = 1 / (1 + math.exp(-epsilon))
    text = f"{share:.0%} at the most" if share < 0.99 else "more than 99%"
    return f"a suspicion about somebody that stood at 50% before may rise to {text}"


def _one_in(delta: float) -> str:
    return f"1 in {1 / delta:,.0f}" if delta < 0.01 else f"{delta:.0%}"


def _scope(privacy: "Statement | JointStatement") -> str:
    if privacy.shared_ledger:
        return (
            "A ledger keeps the sum of everything that is released from these records, by this study and by others, "
            "under a cap that was fixed in advance. Somebody with several records among them is protected less."
        )
    return (
        "This counts this study alone. Other publications from the same records add to what can be learnt, and "
        "somebody with several records among them is protected less."
    )


def _left(run: "Run") -> str:
    share = max(1 - run.privacy.spent_mu**2 / run.privacy.mu**2, 0.0)
    return f"{share:.0%} of the budget is left, unspent."


def ending(run: "Run") -> str:
    """Why the run stopped."""
    whose = f" of {run.stop_owner}" if run.stop_owner else ""
    return {
        "FINISHED": "It ended because all planned iterations were drawn.",
        "BUDGET_SPENT": f"It ended, as planned, when the privacy budget{whose} was spent.",
        "INTERRUPTED": "It was interrupted. There are fewer draws than planned.",
        "OWNER_LOST": f"It ended because {run.stop_owner or 'an owner'} no longer answered. There are fewer draws "
        "than planned.",
        "NOT_MIXING": f"The chain stopped itself: it was not doing what was planned. {_left(run)} Do not go on with this run; "
        "start a new one, with guess= near the mode or a larger pilot_share, and with what is left.",
    }[run.stop_reason.name]
