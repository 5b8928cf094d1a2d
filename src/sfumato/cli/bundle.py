"""``sfumato release`` and ``sample``: records in, a bundle out; bundles in, a run out."""

import ast
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import endings
from sfumato.cli.study import AsJson, Force, OutFolder, following, hand_over
from sfumato.errors import InvalidInput
from sfumato.tools.progress import watching

if TYPE_CHECKING:
    from sfumato.families import Family
    from sfumato.owners.bundle import Bundle

FamilyText = Annotated[
    str | None, typer.Option("--family", help="The family, as in Python: 'Poisson(9)', 'Normal(1.0, -3, 3)'.")
]


def release(
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle's file (.parquet); never overwritten.")],
    copies: Annotated[int, typer.Option("--copies", "-k", help="Noisy copies: one per iteration of any chain.")],
    study: Annotated[
        Path | None, typer.Argument(metavar="[STUDY]", help="A study file whose model is a family.", show_default=False)
    ] = None,
    family: FamilyText = None,
    data: Annotated[Path | None, typer.Option("--data", help="Parquet or CSV file, if there is no study.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Of the whole bundle.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Of the whole bundle.")] = None,
    outside: Annotated[
        str | None, typer.Option("--outside", help="refuse or clamp records outside the domain.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="name=raw column (or raw,raw,...), if they differ; repeat.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="An existing ledger that pays.")] = None,
    as_json: AsJson = False,
) -> None:
    """Release noisy copies of a family's sufficient statistic, once: a bundle that anyone may sample from, offline.

    The whole cost is reserved before the first copy is drawn.
    """
    given = _request(study, family, data, epsilon, delta, outside, column)
    with watching("opening the ledger and the records"), _ledger(study, ledger) as opened:
        from sfumato.owners.bundle import release as make

        made = make(
            given["family"], given["data"], epsilon=given["epsilon"], delta=given["delta"], copies=copies, path=out,
            outside=given["outside"], columns=given["columns"], ledger=opened,
        )  # fmt: skip
    if as_json:
        facts = {"id": made.id, "family": made.description, "n": made.n, "copies": made.copies, "xi": made.xi}
        privacy = {"privacy": made.privacy.to_dict(), "statement": str(made.privacy)}
        endings.write_json({"ok": True, "file": str(out), "bundle": facts} | privacy)
        return
    from sfumato.cli import show

    show.heading(f"Bundle: {show.short(out)}")
    show.facts(_rows(made))
    show.heading("Privacy")
    show.paragraph(str(made.privacy))


def sample(
    bundle: Annotated[list[Path], typer.Option("--bundle", "-b", help="A bundle's file; repeat for several owners.")],
    out: OutFolder = Path("sfumato-output"),
    family: FamilyText = None,
    study: Annotated[
        Path | None, typer.Option("--study", help="A study file whose model is the family, with its prior.")
    ] = None,
    kernel: Annotated[str, typer.Option("--kernel", help="auto, guided, componentwise or random-walk.")] = "auto",
    chains: Annotated[int, typer.Option("--chains", help="Chains; they share the copies.")] = 4,
    iterations: Annotated[
        int | None, typer.Option("--iterations", help="Steps per chain; by default all copies are used.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="For proposals and decisions.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw from the posterior given the bundles of one or several owners. Needs no data, and costs no privacy.

    The family is the one the bundles name, with its default prior, unless --family or --study says otherwise.
    """
    if any((out / name).exists() for name in ("run.npz", "estimate.npz")):
        raise InvalidInput(f"the folder {out} already holds a finished run or estimate; choose another --out.")
    title = ", ".join(path.stem for path in bundle)
    with following(as_json, title, force):
        from sfumato.owners.bundle import Bundle
        from sfumato.run.sampling import sample as draw

        opened = [Bundle.open(path) for path in bundle]
        chosen = _stated_family(study, family)
        drawn = draw(
            chosen if chosen is not None else _named_family(opened[0]), opened, kernel=kernel, chains=chains, seed=seed,
            iterations=iterations, force=force,
        )  # fmt: skip
    hand_over(drawn, None, out, title, as_json)


# -- what was asked ---------------------------------------------------------------------------------------------------


def _request(
    study: Path | None, family: str | None, data: Path | None, epsilon: float | None, delta: float | None,
    outside: str | None, column: list[str] | None,
) -> dict[str, Any]:  # fmt: skip
    """Options over the study's settings; what neither says is missing."""
    given: dict[str, Any] = {"family": _stated_family(study, family), "data": data, "epsilon": epsilon, "delta": delta}
    given |= {"outside": outside, "columns": _columns(column or [])}
    if study is not None:
        from sfumato.files.study import read_study

        file = read_study(study)
        stated = {"data": file.data_path, "columns": file.columns or None}
        stated |= {name: getattr(file.settings, name) for name in ("epsilon", "delta", "outside")}
        given |= {name: value for name, value in stated.items() if given[name] is None}
    missing = [f"--{name}" for name in ("family", "data", "epsilon", "delta") if given[name] is None]
    if missing:
        raise InvalidInput(f"a release needs a study file, or {', '.join(missing)}.")
    return given | {"outside": given["outside"] or "refuse"}


def _columns(pairs: list[str]) -> dict[str, Any] | None:
    out: dict[str, Any] = {}
    for pair in pairs:
        name, _, raw = pair.partition("=")
        if not name or not raw:
            raise InvalidInput(f"--column must be name=raw column, got {pair!r}.")
        out[name] = raw.split(",") if "," in raw else raw
    return out or None


def _ledger(study: Path | None, path: Path | None) -> Any:
    if path is not None:
        from sfumato.vault.ledger import Ledger

        return Ledger(path)
    if study is not None:
        from sfumato.files.study import read_study

        return read_study(study).open_ledger() or nullcontext()
    return nullcontext()


def _stated_family(study: Path | None, text: str | None) -> "Family | None":
    from sfumato.families.base import Family

    if text is not None:
        return parse_family(text)
    if study is None:
        return None
    from sfumato.files.study import read_study

    model = read_study(study).model()
    if not isinstance(model, Family):
        raise InvalidInput("bundles exist for exponential families; let the study's model name one, such as a "
                           "variable family = sf.families.Bernoulli().")  # fmt: skip
    return model


def _named_family(bundle: "Bundle") -> "Family":
    """Build the family a bundle was released for from its own description; the fingerprint is checked when sampling."""
    try:
        return parse_family(bundle.description)
    except InvalidInput:
        raise InvalidInput(
            f"this bundle is of {bundle.description}, which cannot be built from its name; pass --family or --study."
        ) from None


def parse_family(text: str) -> "Family":
    """Read a family written as in Python: names of families and domains, literals, nothing else is evaluated."""
    from sfumato.families.base import Family

    try:
        built = _build(ast.parse(text.strip(), mode="eval").body)
    except InvalidInput:
        raise
    except (SyntaxError, ValueError, TypeError) as error:
        raise InvalidInput(f"{text!r} cannot be read as a family ({error}); write it like 'Poisson(9)'.") from None
    if not isinstance(built, Family):
        raise InvalidInput(f"{text!r} is not a family; write it like 'Poisson(9)'.")
    return built


def _build(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    from sfumato import families
    from sfumato.domain import known_kinds

    known = {name: getattr(families, name) for name in families.__all__ if name[0].isupper()}
    known |= {cls.__name__: cls for cls in known_kinds().values()}
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in known:
        raise InvalidInput(
            f"{ast.unparse(node.func)!r} is neither a family nor a domain; known are {', '.join(known)}."
        )
    return known[name](*map(_build, node.args), **{str(k.arg): _build(k.value) for k in node.keywords})


def _rows(made: "Bundle") -> list[tuple[str, str]]:
    return [
        ("id", made.id),
        ("family", made.description),
        ("records", f"{made.n:,}"),
        ("copies", f"{made.copies:,}, each with noise of variance xi = {made.xi:.6g} per coordinate"),
        ("budget", f"epsilon = {made.epsilon:g}, delta = {made.delta:g} (mu = {made.mu:.4g})"),
    ]
