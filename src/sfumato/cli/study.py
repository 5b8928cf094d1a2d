"""``sfumato plan``, ``run``, ``estimate`` and ``resume``: a study file in; a plan, a run or an estimate out."""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from sfumato.cli import endings
from sfumato.cli.options import flag
from sfumato.errors import CheckpointError, Interrupted, InvalidInput, NotArrived, PlanTooWeak
from sfumato.tools.progress import stage, watching

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run
    from sfumato.files.study import StudyFile
    from sfumato.planner import Plan

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).", show_default=False)]
AsJson = Annotated[bool, flag("--json", help="Write one JSON document to standard output and nothing else.")]
Force = Annotated[
    bool, flag("--force", help="Sample although the plan says that the chain cannot mix. The verdict is not softened.")
]
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

    with ExitStack() as stack:
        stack.enter_context(watching(f"reading {study.name}"))
        file = read_study(study)
        answered = file.remote or bool(file.owners)
        records = n if n is not None or answered else file.records()
        stage("starting JAX")
        from sfumato.run.sampling import plan as make_plan

        source = stack.enter_context(file.source()) if answered else None
        model = file.model()
        stage("proving how far one record reaches, and planning: nothing is spent")
        made = make_plan(
            model, source, n=records, domain=file.domain(), epsilon=file.settings.epsilon,
            delta=file.settings.delta, sensitivity=file.sensitivity(), guess=file.guess, example=file.example(),
            **file.options(PLAN_OPTIONS),
        )  # fmt: skip
    if as_json:
        endings.write_json({"ok": not made.hopeless, "study": file.name, "plan": made.to_dict()})
    else:
        from sfumato.cli import show

        show.plan(made, file.name, study)
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
    from sfumato.files.study import SAMPLE_OPTIONS

    file = _read(study)
    checkpoint = _prepare(file, out)
    options = file.options(SAMPLE_OPTIONS)
    options |= {"seed": seed} if seed is not None else {}
    options |= {"force": True} if force else {}
    options |= {} if file.owners else {"columns": file.columns or None}  # owners have their own
    options |= {"n": file.n} if file.n is not None and not file.remote else {}
    telling = _telling_the_way_on(checkpoint, out, as_json, study)
    with (
        telling,
        following(as_json, file.name, bool(options.get("force"))),
        file.open_ledger() or nullcontext() as ledger,
        file.source() as source,
    ):
        from sfumato.run.sampling import sample

        drawn = _keeping(
            out, sample, file.model(), source, domain=file.domain(), epsilon=file.settings.epsilon,
            delta=file.settings.delta, sensitivity=file.sensitivity(), guess=file.guess,
            example=file.example(), ledger=ledger, checkpoint=checkpoint, **options,
        )  # fmt: skip
    hand_over(drawn.described(file.words), checkpoint, out, file.name, as_json)


def estimate(
    study: StudyPath,
    out: OutFolder = Path("sfumato-output"),
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="In place of the study's: after a refused run, what is left.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="For the draws; the noise has no seed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer at any budget: the posterior given what the whole budget can release. An approximation, which says so.

    For studies whose plan is too weak for chains; of the study file, keys about chains are not used. Every answer is saved
    before the next is asked for: `sfumato resume` goes on. Exit code 8 if the verdict on the estimate is "do not use".
    """
    from sfumato.files.study import ESTIMATE_OPTIONS

    file = _read(study)
    if epsilon is not None and file.owners:
        raise InvalidInput("--epsilon is for a study with one owner; write those of several into their [[owners]].")
    checkpoint = _prepare(file, out)
    options = file.options(ESTIMATE_OPTIONS)
    options |= {"seed": seed} if seed is not None else {}
    options |= {} if file.owners else {"columns": file.columns or None}  # owners have their own
    options |= {"n": file.n} if file.n is not None and not file.remote else {}
    telling = _telling_the_way_on(checkpoint, out, as_json, study)
    with telling, following(as_json, file.name), file.open_ledger() or nullcontext() as ledger, file.source() as source:
        from sfumato.run.estimating import estimate as make_estimate

        found = make_estimate(
            file.model(), source, domain=file.domain(), epsilon=file.settings.epsilon if epsilon is None else epsilon,
            delta=file.settings.delta, sensitivity=file.sensitivity(), guess=file.guess, example=file.example(),
            ledger=ledger, checkpoint=checkpoint, **options,
        )  # fmt: skip
    hand_over(found.described(file.words), checkpoint, out, file.name, as_json)


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
        bool, flag("--from-guess", help="If the pilot did not arrive: run another, from the study's [guess].")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run or an estimate that was interrupted or killed, or with a run whose pilot did not arrive.

    What was drawn is kept, and nothing goes uncounted.
    """
    checkpoint = folder / "checkpoint" if (folder / "checkpoint" / "run.json").exists() else folder
    if not (checkpoint / "run.json").exists():
        raise CheckpointError(
            f"{folder} holds no run; give the output folder of `sfumato run`, or its checkpoint folder."
        )
    home = checkpoint.parent if out is None else out
    study_file = _find_study(checkpoint, study)
    file = _read(study_file)
    home.mkdir(parents=True, exist_ok=True)
    telling = _telling_the_way_on(checkpoint, home, as_json, study_file)
    with telling, following(as_json, file.name), file.open_ledger() or nullcontext() as ledger, file.source() as source:
        from sfumato.run.sampling import resume as go_on

        drawn = _keeping(
            home, go_on, checkpoint, source, model=file.model(), ledger=ledger, sensitivity=file.sensitivity(),
            guess=file.guess if from_guess else None, pilot_share=pilot_share, force=force,
        )  # fmt: skip
    hand_over(drawn.described(file.words), checkpoint, home, file.name, as_json)


def _read(study: Path) -> "StudyFile":
    """Read a study, with a word on the screen from the first moment."""
    with watching(f"reading {study.name}"):
        from sfumato.files.study import read_study

        return read_study(study)


@contextmanager
def following(as_json: bool, name: str, forced: bool = False) -> Iterator[None]:
    """Everything that a run does, with a live line where somebody watches; its plan is printed before it spends."""

    def planned(plan: "Plan") -> None:
        from sfumato.cli import show

        show.first_plan(plan, name, forced)

    with watching("starting JAX", planned=None if as_json else planned):
        yield


# -- folders ----------------------------------------------------------------------------------------------------------


def _prepare(file: "StudyFile", out: Path) -> Path | None:
    """Make the output folder, never over an earlier run: its draws were paid for."""
    from sfumato.cli import outputs

    if any((out / name).exists() for name in outputs.FINISHED):
        raise InvalidInput(
            f"the folder {out} already holds a finished run or estimate, which is never overwritten; choose another --out."
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
def _telling_the_way_on(checkpoint: Path | None, out: Path, as_json: bool, study: Path) -> Iterator[None]:
    """End a command that stopped before there were draws in words: what is paid for, and how to go on."""
    try:
        yield
    except PlanTooWeak as error:
        raise PlanTooWeak(_in_shell(str(error), study, checkpoint, out), error.plan) from None
    except NotArrived as error:
        if checkpoint is None:
            raise
        raise NotArrived(
            error.so_far,
            f"Go on with: {_way_on(checkpoint, out)} --pilot-share 0.2. Or write roughly where the parameters are into [guess] "
            f"of the study file beside it, and add --from-guess. {_in_shell(error.instead, study, checkpoint, out)}".strip(),
            off_by=error.off_by,
            spent=error.spent,
            left=error.left,
            limit=error.limit,
            estimate=error.estimate,
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


def _in_shell(text: str, study: Path, checkpoint: Path | None, out: Path) -> str:
    """The same words with commands in them; a folder whose run has begun is taken."""
    from sfumato.cli.show import in_shell

    begun = checkpoint is not None and (checkpoint / "run.json").exists()
    return in_shell(text, study, out if begun else None)


def _keeping(out: Path, draw: Any, *arguments: Any, **options: Any) -> "Run | Estimate":
    """Draw; if a checkpoint fails on the way, what was drawn so far is saved beside it before the error goes on."""
    try:
        drawn: Run | Estimate = draw(*arguments, **options)
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


def hand_over(drawn: "Run | Estimate", checkpoint: Path | None, out: Path, name: str, as_json: bool) -> None:
    """Write what a run or an estimate gives to the output folder and show it; the exit code follows its verdict."""
    from sfumato.analysis.estimate import Estimate
    from sfumato.cli import outputs, show

    if isinstance(drawn, Estimate):
        _hand_over_estimate(drawn, out, name, as_json)

    way_on = _way_on(checkpoint, out) if checkpoint is not None else ""
    if drawn.iterations == 0:
        _nothing_drawn(drawn, way_on, out, as_json)
    ended = drawn.stop_reason.name
    finished = ended not in ("INTERRUPTED", "OWNER_LOST")  # a chain that stopped itself is finished, too
    with watching("looking at the draws, and writing the report"):
        written = outputs.write(drawn, out, name, finished=finished)
    if as_json:
        endings.write_json(outputs.as_json(drawn, written, name))
    else:
        show.run(drawn, written, name, way_on)
    raise typer.Exit(endings.of_run(drawn))


def _hand_over_estimate(found: "Estimate", out: Path, name: str, as_json: bool) -> NoReturn:
    """The same for an estimate."""
    from sfumato.cli import outputs, show

    with watching("writing the report"):
        written = outputs.write_estimate(found, out, name)
    if as_json:
        endings.write_json(outputs.estimate_json(found, written, name))
    else:
        show.estimate(found, written, name)
    raise typer.Exit(endings.of_estimate(found))


def _nothing_drawn(drawn: "Run", way_on: str, out: Path, as_json: bool) -> None:
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
    told = ""
    if drawn.heard is not None:  # it was paid for
        saved = drawn.heard.save(out / "noise-aware.npz")
        told = f" What the pilot's releases say all the same is in {saved}: see `sfumato report`."
    raise BudgetSpent(
        "a run needs budget for at least one step after its pilot, and none was left; ask for a larger epsilon, or "
        f"look at `sfumato ledger show`.{told}",
        needed=0.0,
        left=0.0,
    )
