"""For the record: the statement in full, everything the pilot released, how the budget was spent, what to cite. Folded."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.analysis.report import html, svg
from sfumato.tools.version import __version__

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

CITATIONS = (
    "S. Yıldırım (2016). On the use of penalty MCMC for differential privacy.",
    "D. M. Ceperley and M. Dewing (1999). The penalty method for random walks with uncertain energies. "
    "Journal of Chemical Physics 110, 9812.",
    "J. Dong, A. Roth and W. J. Su (2022). Gaussian differential privacy. Journal of the Royal Statistical Society "
    "B 84, 3-37.",
)
PILOT = (
    "A few noisy answers, paid from the same budget, found where to start and how far to step. They are released values too; "
    "the draws do "
    "not depend on their being accurate."
)
RELEASES = (
    "All noisy answers, in order. The last gradient and the last information are what the intervals rest on, with the noise "
    "that is stated "
    "here; those before found the place where they were asked."
)


def of_run(run: "Run") -> str:
    """Everything that few people read, of a run."""
    parts = [_statement(run), _spending(run), _released(run, "What the pilot released", PILOT), _cite()]
    return html.section("record", "For the record", "".join(parts))


def of_estimate(estimate: "Estimate") -> str:
    """The same of an estimate."""
    parts = [_statement(estimate), _released(estimate, "What was released", RELEASES), _cite()]
    return html.section("record", "For the record", "".join(parts))


def _statement(run: "Run | Estimate") -> str:
    return html.folded("The privacy statement in full", f"<p>{escape(str(run.privacy))}</p>")


def _spending(run: "Run") -> str:
    steps = np.asarray(run.transcript["mu_squared"]).sum(axis=0)
    before = max(run.privacy.spent_mu**2 - float(steps.sum()), 0.0)
    total, cap = before + np.concatenate([[0.0], np.cumsum(steps)]), run.privacy.mu**2
    text = "Every answer costs a part of the privacy budget. The cap was fixed before the first answer and cannot be passed."
    figure = f'<figure class="wide">{svg.spending(total, cap)}<figcaption>mu² spent, by iteration</figcaption></figure>'
    used = f"{run.privacy.spent_mu**2 / cap:.1%} of the cap, {before / cap:.1%} before the chain (pilot)"
    told = html.facts([("cap", f"mu² = {cap:.4g}"), ("used", used)])
    return html.folded("How the budget was spent", f"<p>{text}</p>{figure}{told}")


def _released(run: "Run | Estimate", heading: str, text: str) -> str:
    found = run.pilot.get("releases", [])
    if not found:
        return ""
    lines = [
        (str(i), escape(str(r["what"])), str(len(r["answer"])), f"{r['sigma']:.4g}", _values(r["answer"]))
        for i, r in enumerate(found, 1)
    ]
    shown = html.table(("number", "release", "size", "noise sd", "released values"), lines, words=True)
    return html.folded(heading, f"<p>{text}</p>{shown}")


def _values(answer: Sequence[Any]) -> str:
    shown = ", ".join(f"{float(v):.3g}" for v in answer[:6])
    return escape((shown + (", …" if len(answer) > 6 else "")).replace("-", "\N{MINUS SIGN}"))


def _cite() -> str:
    works = "".join(f"<li>{escape(work)}</li>" for work in CITATIONS)
    cite = f"sfumato, version {__version__}: exact Bayesian inference under differential privacy. With:"
    return html.folded("How to cite", f"<p>{cite}</p><ul>{works}</ul>")
