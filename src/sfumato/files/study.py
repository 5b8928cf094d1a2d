"""`study.toml`: a study written down, so that it can be read, reviewed and run again.

Relative paths start from the folder of the file (or from `base`, which the copy in an output folder carries). A key
that is not known is an error: a misspelt `epsilon` must not be a silent default.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from sfumato.errors import InvalidInput, InvalidModel
from sfumato.files.example import check_example, read_example
from sfumato.files.owners import check_ledger, check_owners, needs_domain, open_ledger, open_owners

TABLES = ("base", "study", "data", "owners", "domain", "guess", "example", "sensitivity")
DATA_KEYS = ("path", "n", "node", "certificate")
TOKEN = "SFUMATO_TOKEN"  # noqa: S105 (a variable's name)
"""The environment variable that holds a node's token: a study file is read by others."""
SENSITIVITY_KEYS = {"certify": (), "clip": ("bound", "per_step"), "lipschitz": ("constant", "norm")}

Kinds: TypeAlias = tuple[type, ...]
NUMBER: Kinds = (float, int)
WHOLE: Kinds = (int,)
TEXT: Kinds = (str,)
FLAG: Kinds = (bool,)
_WORDS: dict[Kinds, str] = {NUMBER: "a number", WHOLE: "a whole number", TEXT: "text in quotes", FLAG: "true or false"}
STUDY_KEYS: dict[str, Kinds] = {
    "name": TEXT,
    "model": TEXT,
    "epsilon": NUMBER,
    "delta": NUMBER,
    "kernel": TEXT,
    "chains": WHOLE,
    "outside": TEXT,
    "precision": TEXT,
    "seed": WHOLE,
    "force": FLAG,
    "iterations": WHOLE,
    "max_iterations": WHOLE,
    "pilot_share": NUMBER,
    "truncate": NUMBER,
    "ledger": (str, dict),
    "checkpoint": (str, bool),
}
_WORDS[STUDY_KEYS["ledger"]] = 'a path in quotes, or { path = "...", epsilon = ..., delta = ... }'
_WORDS[STUDY_KEYS["checkpoint"]] = "a path in quotes, or false"
PLAN_OPTIONS = ("kernel", "chains", "max_iterations", "pilot_share", "truncate")
SAMPLE_OPTIONS = (*PLAN_OPTIONS, "outside", "precision", "seed", "force", "iterations")


@dataclass(frozen=True)
class StudyFile:
    """A parsed study: plain values only. Nothing is imported and no data file is opened before it is asked for.

    Attributes
    ----------
    path, base
        The file, and the folder that relative paths start from.
    settings
        The `[study]` table.
    data, owners
        Where the records are: one table `[data]`, or several `[[owners]]`.
    """

    path: Path
    base: Path
    settings: dict[str, Any]
    data: dict[str, Any]
    domain_specs: dict[str, dict[str, Any]]
    columns: dict[str, Any]
    guess: dict[str, Any] | None
    sensitivity_spec: dict[str, Any] = field(default_factory=dict)
    owners: tuple[dict[str, Any], ...] = ()
    example_spec: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Title of the study."""
        return str(self.settings.get("name", self.path.stem))

    @property
    def data_path(self) -> Path:
        """Where the records lie, if they lie in a file here."""
        if "path" not in self.data:
            raise InvalidInput(
                f"{self.path} names no table of its own (path in [data]): its records are with their owners."
            )
        return self.base / str(self.data["path"])

    @property
    def remote(self) -> bool:
        """Whether the records are behind an owner's node."""
        return "node" in self.data

    @contextmanager
    def source(self) -> Iterator[Any]:
        """What takes the place of data: the path of a file, the owner at a node, or a list of owners."""
        with ExitStack() as stack:
            if self.owners:
                yield open_owners(self.owners, self.base, self.columns, stack)
            else:
                yield self._node() if self.remote else self.data_path

    def _node(self) -> Any:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise InvalidInput(f"{self.data['node']} wants a token; put the one its owner gave you into {TOKEN}.")
        from sfumato.owners.remote import connect

        stated = self.data.get("certificate")
        return connect(self.data["node"], token=token, certificate=None if stated is None else str(self.base / stated))

    def domain(self) -> dict[str, Any] | None:
        """Domains, built; None leaves them to the owner of a node."""
        from sfumato.domain import from_dict

        if not self.domain_specs:  # only where nodes bring their own
            return None
        return {name: _named(f"domain.{name}", from_dict, spec) for name, spec in self.domain_specs.items()}

    def model(self) -> Any:
        """Import the model function."""
        return load_model(self.settings["model"], self.base)

    def sensitivity(self) -> Any:
        """How widths are known: "certify", or an object that states them."""
        from sfumato.bounds import Clip, Lipschitz

        rest = {key: value for key, value in self.sensitivity_spec.items() if key != "kind"}
        kind = self.sensitivity_spec.get("kind", "certify")
        stated: dict[str, Any] = {"clip": Clip, "lipschitz": Lipschitz}
        return stated[kind](**rest) if kind in stated else "certify"

    def open_ledger(self) -> Any:
        """Open the shared ledger, or None. One that is missing is made only if its own epsilon and delta are stated."""
        given = self.settings.get("ledger")
        return None if given is None else open_ledger(given, self.base)

    def example(self) -> dict[str, Any] | None:
        """Public records for planning, or None: those in the file, or those of the CSV file it names."""
        private = [self.base / str(spec["path"]) for spec in (self.data, *self.owners) if "path" in spec]
        return read_example(self.example_spec, self.base, private, self.domain(), self.columns)

    def records(self) -> int:
        """Give the number of records as stated: it is public, but the file itself is opened by the vault alone."""
        if "n" not in self.data:
            raise InvalidInput(
                "a plan needs the number of records and opens no data file; add n = ... to [data], or pass --n."
            )
        return int(self.data["n"])

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """Those settings that were stated, for passing on: what was not stated keeps the library's default."""
        return {name: self.settings[name] for name in names if name in self.settings}

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
        The file is missing or no TOML, or a key is missing, unknown or of the wrong type.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            f"no study can be read at {path} ({error.strerror}); give the path of a study.toml."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}. Correct that place.") from None
    _check_keys("the file", raw, TABLES)
    if "data" in raw and "owners" in raw:
        raise InvalidInput(f"{path} must have [data] or [[owners]], not both.")
    for name in _needed(raw):
        if not isinstance(raw.get(name), dict) or not raw[name]:
            raise InvalidInput(
                f"{path} must have a table [{name}]; see examples/01_coin/study.toml for a complete one."
            )
    base = raw.get("base", ".")
    if not isinstance(base, str):
        raise InvalidInput(f"base must be {_WORDS[TEXT]}, got {base!r}.")
    specs, columns = _domain(_table("domain", raw.get("domain")))
    return StudyFile(
        path=path,
        base=path.parent / base,
        settings=_study(raw["study"], promised="owners" not in raw),
        data=_data(raw["data"]) if "data" in raw else {},
        domain_specs=specs,
        columns=columns,
        guess=_table("guess", raw.get("guess")) or None,
        sensitivity_spec=_sensitivity(_table("sensitivity", raw.get("sensitivity"))),
        owners=check_owners(raw["owners"], raw["study"]) if "owners" in raw else (),
        example_spec=check_example(_table("example", raw.get("example"))),
    )


def _needed(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Tables that a file must have: where records live is the study's to say, unless all of them are behind nodes."""
    if "owners" in raw:
        listed = raw["owners"] if isinstance(raw["owners"], list) else []
        local = needs_domain([spec for spec in listed if isinstance(spec, dict)])
        return ("study", "domain") if local else ("study",)
    remote = isinstance(raw.get("data"), dict) and "node" in raw["data"]
    return ("study", "data") if remote else ("study", "data", "domain")


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


# -- checks, table by table -------------------------------------------------------------------------------------------


def _study(raw: dict[str, Any], promised: bool) -> dict[str, Any]:
    _check_keys("[study]", raw, STUDY_KEYS)
    for needed in ("model", "epsilon", "delta") if promised else ("model",):
        if needed not in raw:
            raise InvalidInput(f"[study] must state {needed}; it has no default, because the owner must choose it.")
    for key, value in raw.items():
        kinds = STUDY_KEYS[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InvalidInput(f"{key} in [study] must be {_WORDS[kinds]}, got {value!r}.")
    if "ledger" in raw:
        check_ledger("[study]", raw["ledger"])
    if raw.get("checkpoint") is True:
        raise InvalidInput(
            "checkpoint is on anyway, in the output folder; leave the line out, or give a path, or false."
        )
    return raw


def _data(raw: dict[str, Any]) -> dict[str, Any]:
    _check_keys("[data]", raw, DATA_KEYS)
    where = [key for key in ("path", "node") if isinstance(raw.get(key), str)]
    if len(where) != 1 or any(not isinstance(raw.get(key, ""), str) for key in ("path", "node", "certificate")):
        raise InvalidInput(
            '[data] must have a path in quotes, like path = "people.parquet", or node = "https://host:port"; not both.'
        )
    if "n" in raw and (not isinstance(raw["n"], int) or isinstance(raw["n"], bool)):
        raise InvalidInput(f"n in [data] must be {_WORDS[WHOLE]}, got {raw['n']!r}.")
    return raw


def _domain(raw: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Split what a domain is from which raw columns it is made of."""
    specs, columns = {}, {}
    for name, spec in raw.items():
        table = _table(f"domain.{name}", spec)
        if "columns" in table:
            wanted = table["columns"]
            if not isinstance(wanted, str) and not (
                isinstance(wanted, list) and all(isinstance(c, str) for c in wanted)
            ):
                raise InvalidInput(
                    f"columns in [domain.{name}] must be a column's name or a list of names, got {wanted!r}."
                )
            columns[name] = wanted
        specs[name] = {key: value for key, value in table.items() if key != "columns"}
    return specs, columns


def _sensitivity(raw: dict[str, Any]) -> dict[str, Any]:
    kind = raw.get("kind", "certify")
    if kind not in SENSITIVITY_KEYS:
        raise InvalidInput(f"kind in [sensitivity] must be one of {', '.join(SENSITIVITY_KEYS)}; got {kind!r}.")
    _check_keys("[sensitivity]", raw, ("kind", *SENSITIVITY_KEYS[kind]))
    return raw


def _table(name: str, raw: Any) -> dict[str, Any]:
    if raw is not None and not isinstance(raw, dict):
        raise InvalidInput(f"{name} must be a table, [{name}], got {raw!r}.")
    return dict(raw or {})


def _check_keys(where: str, raw: Mapping[str, Any], allowed: Iterable[str]) -> None:
    unknown = [key for key in raw if key not in tuple(allowed)]
    if unknown:
        names = ", ".join(repr(key) for key in unknown)
        raise InvalidInput(f"{where} does not know the key {names}; allowed are {', '.join(allowed)}.")


def _named(where: str, build: Any, spec: dict[str, Any]) -> Any:
    """Say in which table of the file a domain went wrong."""
    try:
        return build(spec)
    except InvalidInput as error:
        raise InvalidInput(f"in [{where}]: {error}") from None


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
