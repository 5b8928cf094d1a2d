"""`sfumato paper`: the paper's numbers at the command line. Parses, calls `sfumato.paper`, renders."""

import json
from dataclasses import asdict
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from sfumato.cli.options import Command, Group, flag
from sfumato.errors import InvalidInput

app = typer.Typer(
    cls=Group,
    help="The paper's results as numbers and pictures.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)

Json = Annotated[bool, flag("--json", help="Print one JSON object and nothing else.")]
Records = Annotated[float, typer.Option("--n", help="Number of records, at least 2.")]
Alpha = Annotated[float, typer.Option(help="Exponent of Assumption 1, in (0, 1/2].")]
C = Annotated[float, typer.Option("--c", help="Constant of Assumption 1: sensitivity at most c n^-alpha.")]

DEFAULT_SIGMA = 2.4
"""The best use of a budget for small steps of a random walk."""


@app.command(cls=Command)
def theorem1(  # noqa: PLR0917 (options, given by name)
    n: Records,
    alpha: Alpha = 0.5,
    beta: Annotated[float, typer.Option(help="Exponent of delta, about n^-beta.")] = 1.5,
    delta: Annotated[float | None, typer.Option(help="Target in place of --beta: sets beta so that it is met.")] = None,
    c: C = 1.0,
    k0: Annotated[float | None, typer.Option(help="Constant of the number of iterations.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise; left out, it is solved for from --epsilon.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target; asks for the missing sigma or k0.")] = None,
    route: Annotated[Literal["exact", "paper"], typer.Option(help="Account to solve with.")] = "exact",
    as_json: Json = False,
) -> None:
    """Evaluate Theorem 1, or solve it for the noise or the iterations that a target epsilon allows.

    With --sigma (and --k0, 1 if left out): evaluate. With --epsilon and no --sigma: the smallest sigma for k0.
    With --epsilon and --sigma but no --k0: the largest k0.
    """
    with _refusals(as_json):
        target = _Target(epsilon, delta, beta, route)
        solved = _solve(n=n, alpha=alpha, c=c, k0=k0, sigma=sigma, target=target)
    if as_json:
        typer.echo(json.dumps({"ok": True, **solved}))
        return
    _theorem1_table(solved)


@app.command(cls=Command)
def epsilon(  # noqa: PLR0917 (options, given by name)
    n: Records,
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise in every answer.")],
    iterations: Annotated[int, typer.Option(help="Number of iterations.")],
    delta: Annotated[float, typer.Option(help="In (0, 1).")],
    alpha: Alpha = 0.5,
    c: C = 1.0,
    as_json: Json = False,
) -> None:
    """Which epsilon a run has, by exact accounting and by the paper's theorems."""
    from sfumato import paper

    with _refusals(as_json):
        both = paper.epsilon_for(sigma=sigma, iterations=iterations, n=n, alpha=alpha, c=c, delta=delta)
    if as_json:
        typer.echo(json.dumps({"ok": True, **{name: _finite(value) for name, value in both._asdict().items()}}))
        return
    _table(
        f"{iterations} iterations at sigma = {sigma:g} on {n:g} records, delta = {delta:g}",
        [("exact account", f"{both.exact:.6g}"), ("the paper's theorems", f"{both.paper:.6g}")],
        "epsilon",
    )


@app.command(cls=Command)
def records(  # noqa: PLR0917 (options, given by name)
    epsilon: Annotated[float, typer.Option(help="Target.")],
    iterations: Annotated[int, typer.Option(help="Number of iterations wanted.")],
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise in every answer.")] = DEFAULT_SIGMA,
    alpha: Alpha = 0.5,
    c: C = 1.0,
    delta: Annotated[float | None, typer.Option(help="A fixed delta; or give --beta.")] = None,
    beta: Annotated[float | None, typer.Option(help="delta = n^-beta; or give --delta.")] = None,
    as_json: Json = False,
) -> None:
    """Which number of records makes a study feasible, by both accounts."""
    from sfumato import paper

    ask: dict[str, Any] = {"epsilon": epsilon, "sigma": sigma, "iterations": iterations, "alpha": alpha, "c": c}
    with _refusals(as_json):
        exact = paper.minimum_n(**ask, delta=delta, beta=beta)
        composed = paper.minimum_n(**ask, delta=delta, beta=beta, route="paper")
    if as_json:
        typer.echo(json.dumps({"ok": True, "exact": exact, "paper": composed}))
        return
    _table(
        f"{iterations} iterations at sigma = {sigma:g} within epsilon = {epsilon:g}",
        [("exact account", f"{exact:,}"), ("the paper's theorems", f"{composed:,}")],
        "records needed",
    )


@app.command(cls=Command)
def figures(
    out: Annotated[Path, typer.Option(help="Folder for the figures; made if missing.")],
    only: Annotated[list[str] | None, typer.Option(help="Name of a figure; repeat for several.")] = None,
    suffix: Annotated[Literal["png", "svg"], typer.Option(help="File format.")] = "png",
    as_json: Json = False,
) -> None:
    """Draw the pictures the paper does not have, from exact chains and real runs."""
    from sfumato.paper.figures import draw

    with _refusals(as_json):
        paths = draw(out, only, suffix)
    if as_json:
        typer.echo(json.dumps({"ok": True, "figures": [str(path) for path in paths]}))
        return
    for path in paths:
        typer.echo(str(path))


class _Target(NamedTuple):
    """What was asked for: epsilon perhaps, and delta itself or the exponent that sets it."""

    epsilon: float | None
    delta: float | None
    beta: float
    route: Literal["exact", "paper"]

    def stated_delta(self, n: float, k0: float) -> float:
        """Delta that Theorem 1 states, or the one asked for."""
        return self.delta if self.delta is not None else n**-self.beta * (1 + 1.25 * k0 / log(n))

    def exponent(self, n: float, k0: float) -> float:
        """Beta for which Theorem 1 states that delta."""
        return self.beta if self.delta is None else log((1 + 1.25 * k0 / log(n)) / self.delta) / log(n)


def _solve(
    *, n: float, alpha: float, c: float, k0: float | None, sigma: float | None, target: _Target
) -> dict[str, Any]:
    """Fill in whichever of sigma and k0 is missing, then evaluate the theorem at this n."""
    from sfumato import paper

    if sigma is None and target.epsilon is None:
        raise InvalidInput("theorem1 needs sigma or a target; got neither. Add --sigma, or --epsilon to solve for it.")
    asked: dict[str, Any] = {"epsilon": target.epsilon, "n": n, "alpha": alpha, "c": c, "route": target.route}
    _require_study(n, target.delta)
    solved_for = None
    if sigma is None:
        k0, solved_for = 1.0 if k0 is None else k0, "sigma"
        iterations = max(1, int(k0 * n ** (2 * alpha) / log(n)))
        sigma = paper.sigma_for(delta=target.stated_delta(n, k0), iterations=iterations, **asked)
    elif k0 is None and target.epsilon is not None:
        # The stated delta grows with k0 and is least at k0 = 0: solved there, the answer keeps the target.
        k0, solved_for = paper.k0_for(delta=target.stated_delta(n, 0.0), sigma=sigma, **asked), "k0"
    k0 = 1.0 if k0 is None else k0
    beta = target.exponent(n, k0)
    result = paper.theorem1(n, k0, alpha, beta, c, sigma, every_n=False)
    least = paper.minimum_sigma(alpha, beta, c)
    composed = paper.paper_epsilon(result.mu, max(result.iterations, 1), result.delta) if result.delta < 1 else 0.0
    given = {"n": n, "k0": k0, "alpha": alpha, "beta": beta, "c": c, "sigma": sigma, "epsilon_target": target.epsilon}
    extra = {"solved_for": solved_for, "minimum_sigma": least, "holds_for_every_n": sigma > least}
    numbers = {**asdict(result), "epsilon_paper": composed}
    return {**given, **extra, **{name: _finite(value) for name, value in numbers.items()}}


def _require_study(n: float, delta: float | None) -> None:
    if not n >= 2:
        raise InvalidInput(f"n must be at least 2: log n divides; got {n!r}. Add records.")
    if delta is not None and not 0 < delta < 1:
        raise InvalidInput(f"delta must lie in (0, 1); got {delta!r}. Choose one well below 1/n.")


def _theorem1_table(solved: dict[str, Any]) -> None:
    marked = {solved["solved_for"]: " (solved)"}
    settings = ", ".join(f"{name} = {solved[name]:.6g}{marked.get(name, '')}"
                         for name in ("n", "k0", "alpha", "beta", "c", "sigma"))  # fmt: skip
    rows = [
        ("iterations k(n)", f"{solved['iterations']:,}"),
        ("delta", f"{solved['delta']:.4g}"),
        ("epsilon, exact account", f"{solved['epsilon_exact']:.4f}"),
        ("epsilon, best split of delta by the paper's theorems", _shown(solved["epsilon_paper"])),
        ("epsilon, proof before its last step", f"{solved['epsilon_unsimplified']:.4f}"),
        ("epsilon, corrected for the lost sqrt(log n)", f"{solved['epsilon_corrected']:.4f}"),
        ("epsilon as printed: not what the proof gives", f"{solved['epsilon_printed']:.4f}"),
        ("mu of the whole run", f"{solved['mu']:.6g}"),
        ("epsilon and delta of one step (Theorem 2)", f"{solved['epsilon_step']:.4g}, {solved['delta_step']:.3g}"),
        ("sigma must exceed, to hold for every n", f"{solved['minimum_sigma']:.4f}"),
    ]
    _table(f"Theorem 1 at {settings}", rows, "value")
    if not solved["holds_for_every_n"]:
        typer.echo("This sigma is enough at this n, not for every n: see the last row.")


def _table(title: str, rows: list[tuple[str, str]], heading: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column(heading, justify="right")
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def _shown(value: float | None) -> str:
    return "not available" if value is None else f"{value:.4f}"


def _finite(value: Any) -> Any:
    """Give null for infinity, which JSON lacks."""
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


class _refusals:  # noqa: N801 (used like a function)
    """Turn a refused argument into one line on stderr (or a JSON object) and exit code 2."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidInput):
            self._leave(str(error))

    def _leave(self, message: str) -> NoReturn:
        if self.as_json:
            typer.echo(json.dumps({"ok": False, "code": "invalid-input", "error": message}))
        else:
            typer.echo(f"Error: {message}", err=True)
        raise typer.Exit(2)
