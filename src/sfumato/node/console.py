"""What the owner's console shows: the ledger's figures and counts of what was released, in an owner's words."""

from collections.abc import Mapping
from datetime import datetime
from time import time
from typing import Any

from sfumato.node import tokens
from sfumato.node.catalogue import CATALOGUE
from sfumato.node.state import Node
from sfumato.privacy.budget import mu_squared
from sfumato.tools.version import __version__

SHOWN_EVENTS = 100
SHOWN_RUNS = 100
CURVE_POINTS = 400
MARKS = ("sealed",)
"""Public facts of a run's account that the console shows as a mark beside its state."""


def state(node: Node, who: str) -> dict[str, Any]:
    """Everything the console shows to an owner's token."""
    accounts = node.books.accounts()
    total = node.books.total()
    runs = [state for state in accounts if state.get("kind") == "run"]
    analysts = {state["analyst"]: state["budget"] for state in accounts if state.get("kind") == "analyst"}
    budget = node.file.budgets.total
    return {
        "ok": True,
        "name": node.name,
        "version": __version__,
        "now": int(time()),
        "n": node.n,
        "paused": node.paused,
        "connections": node.turnstile.inside,
        "studies": _studies(node, accounts),
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta, **_amount(total)},
        "curve": _curve(node),
        "rates": node.metrics.per_second(),
        "answers": sum(state["answers"] for state in accounts),
        "analysts": len(node.books.answered(accounts)),
        "runs": [_run(node, run) for run in reversed(runs[-SHOWN_RUNS:])],
        "tokens": [
            {"name": line.name, "kind": line.kind, "expires": line.expires, "state": line.state(tokens.now())}
            | {"self": line.name == who}
            | {"budget": _amount(analysts[line.name]) if line.name in analysts else None}
            for line in node.tokens.all().values()
        ],
        "statement": node.books.statement(node.name, node.n),
        "consortium": _members(node),
        "head": str(node.books.ledger.head()),
        "log": [shown(line) for line in list(node.log.recent)[: -SHOWN_EVENTS - 1 : -1]],
    }


def _run(node: Node, run: Mapping[str, Any]) -> dict[str, Any]:
    standing = node.standing(run["name"], _pays_no_more(run))
    told = {key: run[key] for key in ("study", "analyst", "run", "opened", "answers", "epsilon", "delta")}
    return told | {
        "budget": _amount(run["budget"]),
        "state": standing.state,
        "since": standing.since,
        "marks": [mark for mark in MARKS if run.get(mark)],
    }


def _members(node: Node) -> dict[str, Any] | None:
    """The roster, with fingerprints to compare by telephone; None where sums are not sealed."""
    house = node.consortium
    if house is None:
        return None
    members = [
        {"name": name, "fingerprint": printed, "self": name == house.me} for name, printed in house.fingerprints.items()
    ]
    about = {"name": house.roster.name, "study": house.roster.study}
    assumed = {"colluders": house.colluders, "unsealed": house.unsealed}
    return about | assumed | {"members": members, "everybody": _amount(node.books.total_against_everybody())}


def _pays_no_more(run: Mapping[str, Any]) -> bool:
    """Whether what is left of a run does not pay for one more answer like those it had: how most runs end."""
    cap, spent = run["budget"]
    return bool(run["answers"]) and cap - spent < spent / run["answers"]


def _studies(node: Node, accounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Approved studies: the cap of a run, and the largest epsilon that each analyst may still ask for."""
    known = {
        line.name
        for line in node.tokens.all().values()
        if line.kind == "analyst" and line.state(tokens.now()) == "valid"
    }
    known |= {state["analyst"] for state in accounts if state.get("kind") == "analyst"}
    spent = {state["name"]: state["budget"].spent for state in accounts}
    found = []
    for name, study in node.studies.items():
        cap = node.books.possible(None, name, {})
        each = {analyst: node.books.possible(analyst, name, spent) for analyst in sorted(known)}
        left = [
            {"analyst": analyst, "epsilon": part.epsilon_left, "delta": part.delta} for analyst, part in each.items()
        ]
        found.append({"name": name, "n": study.n, "epsilon": cap.epsilon, "delta": cap.delta, "possible": left})
    return found


def _amount(amount: Any) -> dict[str, float]:
    return {"cap": amount.cap, "spent": amount.spent}


def _curve(node: Node) -> list[tuple[int, float]]:
    """When the budget was spent: whole seconds, thinned out; the last point stays."""
    points = [
        (int(datetime.fromisoformat(at).timestamp()), mu_squared(spent)) for at, spent in node.books.ledger.spending()
    ]
    step = max(1, len(points) // CURVE_POINTS)
    return points[::step] + (points[-1:] if points and (len(points) - 1) % step else [])


# -- the log ------------------------------------------------------------------------------------------------------------

EVENTS = {
    "start": "The node started",
    "stop": "The node stopped",
    "open": "Opened a run",
    "begin": "Settled terms, and may ask now",
    "keys": "Agreed on keys",
    "spent": "Asked for more than the run's budget: the run is over",
    "pause": "Paused all answers",
    "resume": "Let answers go on",
    "revoke": "Revoked a token",
    "closed": "Was disconnected by the node",
    "left-out": "Caused more lines of one kind",
    "unexpected": "Something failed inside the node; the log file says where",
}
"""Each kind of event, as an owner would say it."""


def shown(line: Mapping[str, Any]) -> dict[str, str]:
    """A line of the log in an owner's words: what happened, to whom, and the details; a refusal with its public sentence."""
    code, kind = str(line.get("code", "")), str(line["event"])
    refused = f"Refused: {CATALOGUE[code].sentence}" if code in CATALOGUE else "Refused"
    words = refused if kind == "refused" else EVENTS.get(kind, kind)
    if kind == "closed" and code in CATALOGUE:
        words = f"{words}: {CATALOGUE[code].sentence}"
    return {
        "at": line["at"],
        "event": kind,
        "words": words.rstrip("."),
        "who": str(line.get("who", "")),
        "what": ": ".join(part for part in (code, str(line.get("what", ""))) if part),
    }
