"""``sfumato plan``, ``run`` and ``resume``: a study file in, a plan or a run out."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import endings
from sfumato.errors import CheckpointError, Interrupted, InvalidInput, NotArrived

if TYPE_CHECKING:
    from sfumato.analysis.result import Run
    from sfumato.files.study import StudyFile

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output and nothing else.")]
Force = Annotated[bool, typer.Option("--force", help="Sample even if the plan says that the chain cannot mix.")]
NO_WAY_ON = "Without a checkpoint there is nothing to go on with; what was paid for, if anything, stays spent."
OutFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder for everything the run leaves; made if missing.")]


def plan(
    study: StudyPath,
    n: Annotated[int | None, typer.Option("--n", help="Number of records, if the study does not say.")] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast what the budget of a study will buy. Spends nothing and reads no record.

    Exit code 3 if the plan is too weak: `run` would refuse it.
    """
    from sfumato.files.study import PLAN_OPTIONS, read_study

    file = read_study(study)
    answered = file.remote or bool(file.owners)
    records = n if n is not None or answered else file.records()
    from sfumato.run.sampling import plan as make_plan

    with file.source() if answered else nullcontext() as source:
        made = make_plan(
            file.model(), source, n=records, domain=file.domain(), epsilon=file.settings.epsilon,
            delta=file.settings.delta, sensitivity=file.sensitivity(), guess=file.guess, example=file.example(),
            **file.options(PLAN_OPTIONS),
        )  # fmt: skip
    if as_json:
        endings.write_json({"ok": not made.hopeless, "study": file.name, "plan": made.to_dict()})
    else:
        from sfumato.cli import show

        show.plan(made, file.name)
    raise typer.Exit(endings.TOO_WEAK if made.hopeless else endings.FINE)


def run(
    study: StudyPath,
    out: OutFolder = Path("sfumato-output"),
    seed: Annotated[
        int | None, typer.Option("--seed", help="For proposals and decisions; the noise has no seed.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a study: plan, pilot, chains; then leave draws, report and privacy statement in the output folder.

    Every answer of the pilot and every chunk is saved before the next is asked for: Ctrl-C keeps what was paid for,
    `sfumato resume` goes on. Exit code 8 if the verdict on the run is "do not use".
    """
    from sfumato.files.study import SAMPLE_OPTIONS, read_study

    file = read_study(study)
    checkpoint = _prepare(file, out)
    options = file.options(SAMPLE_OPTIONS)
    options |= {"seed": seed} if seed is not None else {}
    options |= {"force": True} if force else {}
    from sfumato.run.sampling import sample

    options |= {} if file.owners else {"columns": file.columns or None}  # owners have their own
    options |= {"n": file.n} if file.n is not None and not file.remote else {}
    telling = _telling_the_way_on(checkpoint, out, as_json)
    with telling, file.open_ledger() or nullcontext() as ledger, file.source() as source:
        drawn = _keeping(
            out, sample, file.model(), source, domain=file.domain(), epsilon=file.settings.epsilon,
            delta=file.settings.delta, sensitivity=file.sensitivity(), guess=file.guess,
            example=file.example(), ledger=ledger, checkpoint=checkpoint, **options,
        )  # fmt: skip
    hand_over(drawn, checkpoint, out, file.name, as_json)


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The checkpoint folder, or the output folder with it.")
    ],
    study: Annotated[
        Path | None, typer.Option("--study", help="The study file; by default the copy in the output folder.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output folder; by default the one that holds the checkpoint.")
    ] = None,
    pilot_share: Annotated[
        float | None,
        typer.Option("--pilot-share", help="If the pilot did not arrive: run another, for this share of the budget."),
    ] = None,
    from_guess: Annotated[
        bool, typer.Option("--from-guess", help="If the pilot did not arrive: run another, from the study's [guess].")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was interrupted or killed, or whose pilot did not arrive.

    What was drawn is kept, and nothing goes uncounted.
    """
    from sfumato.files.study import read_study

    checkpoint = folder / "checkpoint" if (folder / "checkpoint" / "run.json").exists() else folder
    if not (checkpoint / "run.json").exists():
        raise CheckpointError(
            f"{folder} holds no run; give the output folder of `sfumato run`, or its checkpoint folder."
        )
    home = checkpoint.parent if out is None else out
    file = read_study(_find_study(checkpoint, study))
    from sfumato.run.sampling import resume as go_on

    home.mkdir(parents=True, exist_ok=True)
    telling = _telling_the_way_on(checkpoint, home, as_json)
    with telling, file.open_ledger() or nullcontext() as ledger, file.source() as source:
        drawn = _keeping(
            home, go_on, checkpoint, source, model=file.model(), ledger=ledger, sensitivity=file.sensitivity(),
            guess=file.guess if from_guess else None, pilot_share=pilot_share, force=force,
        )  # fmt: skip
    hand_over(drawn, checkpoint, home, file.name, as_json)


# -- folders ----------------------------------------------------------------------------------------------------------


def _prepare(file: "StudyFile", out: Path) -> Path | None:
    """Make the output folder, never over an earlier run: its draws were paid for."""
    if (out / "run.npz").exists():
        raise InvalidInput(
            f"the folder {out} already holds a finished run, which is never overwritten; choose another --out."
        )
    stated = file.settings.checkpoint
    checkpoint = None if stated is False else out / "checkpoint" if stated is None else file.base / str(stated)
    if checkpoint is not None and (checkpoint / "run.json").exists():
        raise CheckpointError(
            f"{checkpoint} already holds a run; go on with `sfumato resume {checkpoint}`, or choose another --out."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        file.copy_to(out)
    except OSError as error:
        raise InvalidInput(
            f"the output folder {out} cannot be written ({error.strerror}); choose another with --out."
        ) from None
    return checkpoint


def _find_study(checkpoint: Path, stated: Path | None) -> Path:
    if stated is not None:
        return stated
    for folder in (checkpoint.parent, checkpoint):
        if (folder / "study.toml").exists():
            return folder / "study.toml"
    raise InvalidInput(f"no study.toml beside {checkpoint}; name the study that was run with --study.")


def _way_on(checkpoint: Path, out: Path) -> str:
    """The command that goes on with a run."""
    from sfumato.cli.show import short

    words = ["sfumato", "resume", short(out)]
    if checkpoint.resolve() != (out / "checkpoint").resolve():  # then neither the study nor the outputs are beside it
        words = ["sfumato", "resume", short(checkpoint), "--study", short(out / "study.toml"), "--out", short(out)]
    return shlex.join(words)


# -- results ----------------------------------------------------------------------------------------------------------


@contextmanager
def _telling_the_way_on(checkpoint: Path | None, out: Path, as_json: bool) -> Iterator[None]:
    """End a command that stopped before there were draws in words: what is paid for, and how to go on."""
    try:
        yield
    except NotArrived as error:
        if checkpoint is None:
            raise
        raise NotArrived(
            error.so_far,
            f"Go on with: {_way_on(checkpoint, out)} --pilot-share 0.2. Or write roughly where the parameters are into [guess] "
            "of the study file beside it, and add --from-guess.",
            off_by=error.off_by,
            spent=error.spent,
            left=error.left,
        ) from None
    except KeyboardInterrupt as stop:
        if checkpoint is None:
            message = NO_WAY_ON
        elif isinstance(stop, Interrupted):
            message = f"{stop.so_far} Go on with: {_way_on(checkpoint, out)}"
        elif (checkpoint / "run.json").exists():
            message = f"Go on with: {_way_on(checkpoint, out)}"
        else:
            message = "The run had not begun, and nothing was spent."
        raise typer.Exit(endings.interrupted(message, as_json)) from None


def _keeping(out: Path, draw: Any, *arguments: Any, **options: Any) -> "Run":
    """Draw; if a checkpoint fails on the way, what was drawn so far is saved beside it before the error goes on."""
    try:
        drawn: Run = draw(*arguments, **options)
    except CheckpointError as error:
        so_far = getattr(error, "run", None)
        if so_far is not None and so_far.iterations:
            try:
                so_far.save(out / "run-partial.npz")
            except OSError:
                raise error from None
            raise CheckpointError(f"{error} They are saved in {out / 'run-partial.npz'}.") from None
        raise
    return drawn


def hand_over(drawn: "Run", checkpoint: Path | None, out: Path, name: str, as_json: bool) -> None:
    """Write what a run gives to the output folder and show it; the exit code follows its verdict."""
    from sfumato.cli import outputs, show

    way_on = _way_on(checkpoint, out) if checkpoint is not None else ""
    if drawn.iterations == 0:
        _nothing_drawn(drawn, way_on, as_json)
    ended = drawn.stop_reason.name
    finished = ended not in ("INTERRUPTED", "OWNER_LOST")  # a chain that stopped itself is finished, too
    written = outputs.write(drawn, out, name, finished=finished)
    if as_json:
        endings.write_json(outputs.as_json(drawn, written, name))
    else:
        show.run(drawn, written, name, way_on)
    raise typer.Exit(endings.of_run(drawn))


def _nothing_drawn(drawn: "Run", way_on: str, as_json: bool) -> None:
    from sfumato.errors import BudgetSpent, OwnerLost

    kept = f"The pilot is paid for and kept. Go on with: {way_on}" if way_on else NO_WAY_ON
    if drawn.stop_reason.name == "INTERRUPTED":
        raise typer.Exit(endings.interrupted(f"Nothing is drawn yet. {kept}", as_json))
    if drawn.stop_reason.name == "OWNER_LOST":
        raise OwnerLost(
            f"a run waits for every owner, and {drawn.stop_owner!r} stopped answering before the first draw; wait until it is "
            f"back. {kept}",
            owner=drawn.stop_owner,
        )
    raise BudgetSpent(
        "a run needs budget for at least one step after its pilot, and none was left; ask for a larger epsilon, or "
        "look at `sfumato ledger show`.",
        needed=0.0,
        left=0.0,
    )
