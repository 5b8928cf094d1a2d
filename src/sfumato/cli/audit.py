"""``sfumato audit``: attack the promise of a study on made-up records."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import endings
from sfumato.cli.study import AsJson, StudyPath
from sfumato.errors import InvalidInput
from sfumato.tools.progress import Tick, by_tenths, stage, watching

if TYPE_CHECKING:
    from sfumato.auditor import Audit

OPTIONS = ("kernel", "chains", "pilot_share")


def audit(
    study: StudyPath,
    trials: Annotated[
        int, typer.Option("--trials", help="Runs on each made-up table; more make the bound sharper.")
    ] = 1000,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the bound.")] = 0.99,
    n: Annotated[
        int | None, typer.Option("--n", help="Made-up records; by default as many as the study has, up to 20 000.")
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="Attack this kernel, not the one the study would use.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="For proposals and decisions; the noise has no seed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack the promise of a study on made-up records and report a lower bound on the epsilon it really has.

    Spends nobody's budget and never opens the study's data. Exit code 7 if the promise is refuted.
    """
    tick = None if sys.stderr.isatty() or as_json else by_tenths(lambda line: typer.echo(line, err=True))
    with watching(f"reading {study.name}"):
        found, name = _attacked(study, trials, confidence, n, kernel, seed, tick)
    if as_json:
        endings.write_json({"ok": found.passed, "study": name, "audit": found.to_dict()})
    else:
        from sfumato.cli import show

        show.audit(found, name)
    raise typer.Exit(endings.FINE if found.passed else endings.REFUTED)


def _attacked(
    study: Path, trials: int, confidence: float, n: int | None, kernel: str | None, seed: int | None, tick: Tick | None
) -> "tuple[Audit, str]":
    """Read the study and attack its promise."""
    from sfumato.files.study import read_study

    file = read_study(study)
    stage("starting JAX")
    model, domain = file.model(), file.domain()  # in this order: the model's file may define a domain of its own
    if domain is None:
        raise InvalidInput(
            "an audit asks no node, and this study leaves the domain to its node; state it in [domain.*] tables."
        )
    epsilon, delta = file.settings.epsilon, file.settings.delta
    if epsilon is None or delta is None:
        raise InvalidInput("an audit attacks one promise, and this study leaves it to each owner; state it in [study].")
    options: dict[str, Any] = file.options(OPTIONS)
    given = {"n": file.n if n is None else n, "kernel": kernel}
    options |= {name: value for name, value in given.items() if value is not None}
    from sfumato.auditor import audit as attack

    stage("planning, and looking for the two records that are furthest apart")
    found = attack(
        model, domain, epsilon=epsilon, delta=delta,
        sensitivity=file.sensitivity(), guess=file.guess, trials=trials, confidence=confidence, seed=seed, progress=tick,
        **options,
    )  # fmt: skip
    return found, file.name
