"""`study.toml`: a study written down, so that it can be read, reviewed and run again.

Relative paths start from the folder of the file (or from `base`, which the copy in an output folder carries).
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from sfumato.analysis.wording import Label, Words
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.files import tables
from sfumato.files.example import check_example, read_example
from sfumato.files.owners import LedgerKey, TableOwner, check_promise, open_ledger, read_owners
from sfumato.files.schema import Count, Positive, Share, Table, Where, load, read
from sfumato.files.tables import Column, Outside, Precision, Sensitivity

TOKEN = "SFUMATO_TOKEN"  # noqa: S105 (a variable's name)
"""The environment variable that holds a node's token: a study file is read by others."""
PLAN_OPTIONS = ("kernel", "chains", "max_iterations", "pilot_share", "truncate")
SAMPLE_OPTIONS = (*PLAN_OPTIONS, "outside", "precision", "seed", "force", "iterations")
ESTIMATE_OPTIONS = ("outside", "precision", "seed", "draws")
"""An estimate has no chains: what a study says of them is for `run`."""


class Settings(Table, frozen=True):
    """What is asked, for how much, and how.

    Attributes
    ----------
    model
        File and function, such as "model.py:coin": a NumPyro model whose arguments are the columns, or a family.
    name
        Title of the study; the name of the file by default.
    question
        What the study asks, in a sentence: the report opens with it.
    answer
        The parameter that answers the question, such as "p" or "beta[1]"; the first by default.
    epsilon
        The guarantee for everything the run releases; you must choose it, unless every owner has its own.
    delta
        Given with epsilon; well below 1 / number of people.
    kernel
        How the chains move: auto, langevin, guided, componentwise or random-walk; auto lets the plan choose.
    chains
        Chains, which share the budget.
    outside
        What happens to records outside the domain.
    precision
        How records are evaluated; float32 is faster, never less private.
    seed
        Drives proposals and decisions only, drawn anew by default; the noise has no seed.
    force
        Sample even if the plan says that the chain cannot mix.
    draws
        Draws of an estimate in each of four rows. Keys about chains are not for estimates.
    iterations
        Steps per chain; as many as the budget pays for by default.
    max_iterations
        Steps per chain at the most; as the plan finds by default.
    pilot_share
        Share of the budget for the pilot, which finds the start; as the plan finds by default.
    truncate
        Bound on each coordinate's move (the paper's Assumption 4); none by default.
    ledger
        A ledger's path, or { path = "...", epsilon = ..., delta = ... }: one budget for many runs on these people.
    checkpoint
        A folder, or false: every chunk is kept there, by default in the output folder, and a run can go on from it.
    """

    model: str
    name: str | None = None
    question: str | None = None
    answer: str | None = None
    epsilon: Positive | None = None
    delta: Share | None = None
    kernel: str = "auto"
    chains: Count = 4
    outside: Outside = "refuse"
    precision: Precision = "float64"
    seed: int | None = None
    force: bool = False
    draws: Count = 1000
    iterations: Count | None = None
    max_iterations: Count | None = None
    pilot_share: Annotated[float, Meta(ge=0, lt=1)] | None = None
    truncate: Positive | None = None
    ledger: LedgerKey = None
    checkpoint: str | bool | None = None

    def __post_init__(self) -> None:
        check_promise(self.epsilon, self.delta)
        if self.checkpoint is True:
            raise InvalidInput(
                "checkpoint is on anyway, in the output folder; leave the line out, or give a path, or false."
            )


class Data(Table, frozen=True):
    """Where the records are, if one owner has them: a table on this machine, or a node.

    Attributes
    ----------
    path
        Parquet or CSV file; only the vault opens it.
    n
        Number of records: public; `sfumato plan` needs it, and a table that has another is refused.
    node
        Address of an owner's node, https://host:port, in place of path; the token is in SFUMATO_TOKEN.
    certificate
        The certificate to trust, where the node's owner signs its own.
    source
        Where the records come from, in words, for the report.
    """

    path: str | None = None
    n: Count | None = None
    node: str | None = None
    certificate: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.node is None):
            raise InvalidInput(
                '[data] must have a path in quotes, like path = "people.parquet", or node = "https://host:port"; not both.'
            )


class Parameter(Table, frozen=True):
    """How the report calls and shows a parameter, or all entries of a vector. Nothing is computed with it.

    Attributes
    ----------
    label
        What it is, in the study's own words.
    unit
        Its unit, on the scale on which it is shown.
    scale
        How it is shown: as it is by default; percent (times 100), exp (a log ratio as a ratio), expit (log odds as a share).
    """

    label: str = ""
    unit: str = ""
    scale: Literal["percent", "exp", "expit"] | None = None


class StudyTables(Table, frozen=True):
    """A study file. It has `[study]`, and `[data]` or `[[owners]]`; a table on this machine needs `[domain.NAME]` too.

    Attributes
    ----------
    study
        What is asked, for how much, and how.
    base
        The folder that relative paths start from, seen from that of the file.
    data
        Where the records are, if one owner has them.
    owners
        Several owners in place of [data], one table [[owners]] for each.
    domain
        Where a record lives, one table for each argument of the model; a node brings its own.
    guess
        Public knowledge for planning: a value for each parameter, p = 0.5.
    example
        Public records for planning: columns, y = [0, 1, 1], or data = "public.csv" with the same raw columns.
    sensitivity
        How far one record can move an answer.
    parameters
        How the report calls and shows parameters, one table for each.
    """

    study: Settings
    base: str = "."
    data: Data | None = None
    owners: list[dict[str, Any]] | None = None
    domain: dict[str, Column] = {}
    guess: dict[str, Any] = {}
    example: dict[str, Any] = {}
    sensitivity: Sensitivity = Sensitivity()
    parameters: dict[str, Parameter] = {}


@dataclass(frozen=True)
class StudyFile:
    """A parsed study: plain values only. Nothing is imported and no data file is opened before it is asked for.

    Attributes
    ----------
    path
        The file.
    tables
        What it says.
    owners
        Its `[[owners]]`, read; none where the records are those of `[data]`.
    stated
        Which keys of `[study]` it has.
    """

    path: Path
    tables: StudyTables
    owners: tuple[Any, ...]
    stated: frozenset[str]

    @property
    def base(self) -> Path:
        """The folder that relative paths start from."""
        return self.path.parent / self.tables.base

    @property
    def settings(self) -> Settings:
        """The `[study]` table."""
        return self.tables.study

    @property
    def name(self) -> str:
        """Title of the study."""
        return self.path.stem if self.settings.name is None else self.settings.name

    @property
    def words(self) -> Words:
        """The study in its own words, for the report."""
        labels = {
            name: Label(table.label, table.unit, table.scale or "") for name, table in self.tables.parameters.items()
        }
        columns = {name: raw if isinstance(raw, str) else ", ".join(raw) for name, raw in self.columns.items()}
        return Words(
            title=self.name, question=self.settings.question or "", answer=self.settings.answer or "", parameters=labels,
            source=self._source(), columns=columns,
        )  # fmt: skip

    def _source(self) -> str:
        """Where the records are: as stated, or the name of the file, never its folder."""
        data = self.tables.data
        if data is None:
            return f"{len(self.owners)} owners"
        return data.source or data.node or Path(data.path or "").name

    @property
    def data_path(self) -> Path:
        """Where the records lie, if they lie in a file here."""
        if self.tables.data is None or self.tables.data.path is None:
            raise InvalidInput(
                f"{self.path} names no table of its own (path in [data]): its records are with their owners."
            )
        return self.base / self.tables.data.path

    @property
    def n(self) -> int | None:
        """Number of records that the table must have, as stated."""
        return self.tables.data.n if self.tables.data is not None else None

    @property
    def remote(self) -> bool:
        """Whether the records are behind an owner's node."""
        return self.tables.data is not None and self.tables.data.node is not None

    @contextmanager
    def source(self) -> Iterator[Any]:
        """What takes the place of data: the path of a file, the owner at a node, or a list of owners."""
        with ExitStack() as stack:
            if self.owners:
                yield [owner.open(self.base, self.columns, stack) for owner in self.owners]
            else:
                yield self._node(self.tables.data) if self.remote else self.data_path

    def _node(self, data: Any) -> Any:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise InvalidInput(f"{data.node} wants a token; put the one its owner gave you into {TOKEN}.")
        from sfumato.owners.remote import connect

        trusted = None if data.certificate is None else str(self.base / data.certificate)
        return connect(data.node, token=token, certificate=trusted)

    @property
    def columns(self) -> dict[str, Any]:
        """Which raw columns of the table make up each name."""
        return tables.columns(self.tables.domain)

    def domain(self) -> dict[str, Any] | None:
        """Domains, built; None leaves them to the owner of a node."""
        return tables.domains(self.tables.domain) or None

    def model(self) -> Any:
        """Import the model function."""
        return load_model(self.settings.model, self.base)

    def sensitivity(self) -> Any:
        """How widths are known: "auto", "certify", or an object that states them."""
        return self.tables.sensitivity.method()

    @property
    def guess(self) -> dict[str, Any] | None:
        """Public knowledge for planning."""
        return self.tables.guess or None

    def open_ledger(self) -> Any:
        """Open the shared ledger, or None. One that is missing is made only if its own epsilon and delta are stated."""
        return open_ledger(self.settings.ledger, self.base)

    def example(self) -> dict[str, Any] | None:
        """Public records for planning, or None: those in the file, or those of the CSV file it names."""
        paths = [owner.path for owner in self.owners if isinstance(owner, TableOwner)]
        private = [self.base / path for path in paths] + ([] if self.owners or self.remote else [self.data_path])
        return read_example(self.tables.example, self.base, private, self.domain(), self.columns)

    def records(self) -> int:
        """Give the number of records as stated: it is public, but the file itself is opened by the vault alone."""
        if self.n is None:
            raise InvalidInput(
                "a plan needs the number of records and opens no data file; add n = ... to [data], or pass --n."
            )
        return self.n

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """Those settings that were stated, for passing on: what was not stated keeps the library's default."""
        return {name: getattr(self.settings, name) for name in names if name in self.stated}

    def copy_to(self, folder: Path) -> Path:
        """Write a copy that still finds its model and data from another folder."""
        text = re.sub(r"(?m)\A([ \t]*(#.*)?\n)*base[ \t]*=.*\n", "", self.path.read_text(encoding="utf-8"))
        base = Path(os.path.relpath(self.base.resolve(), folder.resolve())).as_posix()
        target = folder / "study.toml"
        target.write_text(f'base = "{_quoted(base)}"\n{text}', encoding="utf-8")
        return target


def read_study(path: str | Path) -> StudyFile:
    """Read and check a study file.

    Raises
    ------
    InvalidInput
        The file is missing or no TOML, or a key is missing, unknown, or has a value outside its rule.
    """
    path = Path(path)
    raw = load(path, "study", "give the path of a study.toml")
    stated = read(Where(str(path)), raw, StudyTables)
    if stated.data is not None and stated.owners is not None:
        raise InvalidInput(f"{path} must have [data] or [[owners]], not both.")
    owners = () if stated.owners is None else read_owners(str(path), stated.owners, raw["study"])
    local = any(isinstance(owner, TableOwner) for owner in owners) or (
        stated.data is not None and stated.data.path is not None
    )
    if stated.data is None and not owners:
        raise _lacks(path, "data")
    if local and not stated.domain:
        raise _lacks(path, "domain")
    if not owners and stated.study.epsilon is None:
        raise InvalidInput(
            f"[study] of {path} must state epsilon and delta; they have no default, because the owner must choose them."
        )
    check_example(stated.example)
    return StudyFile(path, stated, owners, frozenset(raw["study"]))


def _lacks(path: Path, name: str) -> InvalidInput:
    return InvalidInput(f"{path} must have a table [{name}]; see examples/01_coin/study.toml for a complete one.")


def load_model(reference: str, base: Path) -> Any:
    """Import what ``model.py:logistic`` names: a NumPyro model function, a family, or a `Model`.

    The file is run: a study's model is code that its owner trusts. What it raises is told by type and line only.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    file, _, function = reference.rpartition(":")
    path = base / file
    if not file or not function.isidentifier() or path.suffix != ".py":
        raise InvalidInput(f'model must name a file and a function, like "model.py:logistic"; got {reference!r}.')
    if not path.is_file():
        raise InvalidInput(f"no model file at '{path}'; the path of a study's model starts from the folder '{base}'.")
    spec = spec_from_file_location(f"sfumato_study_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} cannot be imported as Python; check the file.")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code may raise anything
        raise InvalidModel(
            f"{path.name} raised {type(error).__name__}{_line(error, path)} while it was imported."
        ) from None
    model = getattr(module, function, None)
    if model is None or not (callable(model) or hasattr(model, "statistic") or hasattr(model, "log_likelihood")):
        raise InvalidInput(
            f"{path.name} has no function {function!r}; name a function, a family or an sf.Model that it defines."
        )
    return model


def _line(error: BaseException, path: Path) -> str:
    """Where in the user's file it happened, as ' on line 12'."""
    if isinstance(error, SyntaxError):
        return f" on line {error.lineno}"
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            found = trace.tb_lineno
        trace = trace.tb_next
    return f" on line {found}" if found is not None else ""


def _quoted(text: str) -> str:
    """Escape what TOML's basic strings do not take as it stands."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
