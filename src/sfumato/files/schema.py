"""Tables of a TOML file, declared: a class is a table, a field is a key with its type, range and default.

What a key means is its sentence among the `Attributes` of the class. Reading, defaults and refusals follow from the declaration,
and so do the pages in `docs/reference/`. Rules between the keys of a table stand in its `__post_init__`. A key that is not known
is an error: a misspelt `epsilon` must not be a silent default.
"""

import difflib
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import NODEFAULT, Meta, inspect

from sfumato.errors import InvalidInput

REST = "rest"
"""The field that takes keys which are not declared, in a table that has such."""

_LARGEST = sys.float_info.max
Positive = Annotated[float, Meta(gt=0, le=_LARGEST)]  # TOML has inf
Share = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a file: its fields are the keys it may have."""


T = TypeVar("T", bound=msgspec.Struct)


class Where(NamedTuple):
    """A place in a file, as messages call it: '[study] of study.toml'."""

    file: str
    table: str = ""

    def __str__(self) -> str:
        return f"{self.table} of {self.file}" if self.table else self.file

    def inner(self, key: str) -> "Where":
        """The table under a key of this one."""
        if self.table.endswith("]"):
            return Where(self.file, f"{self.table[:-1]}.{key}]")
        return Where(self.file, f"{key} in {self.table}" if self.table else f"[{key}]")


class Key(NamedTuple):
    """What a table declares of one key.

    Attributes
    ----------
    type, words
        Which values it takes: for msgspec, and for people.
    default
        What it is when it is not stated; None where that is nothing.
    table, named
        The declared table under it, if there is one; whether that is one for each of several names.
    """

    name: str
    type: Any
    words: str
    required: bool
    default: Any
    meaning: str
    table: type[msgspec.Struct] | None
    named: bool


@cache
def keys(kind: type[msgspec.Struct]) -> dict[str, Key]:
    """The keys that a table declares, by name, in their order."""
    entries = re.findall(r"^(\w+)\n((?:    .*\n?)+)", cleandoc(kind.__doc__ or ""), flags=re.MULTILINE)
    meanings = {name: " ".join(sentence.split()) for name, sentence in entries}
    found = {}
    for field in msgspec.structs.fields(kind):
        made = field.default_factory() if field.default_factory is not NODEFAULT else None
        default = made if field.default is NODEFAULT else field.default
        parts = _parts(inspect.type_info(field.type))
        structs = [getattr(part, "value_type", part) for part in parts]
        table = next((part.cls for part in structs if isinstance(part, inspect.StructType)), None)
        found[field.name] = Key(
            field.name, field.type, " or ".join(map(_words, parts)), field.required, default,
            meanings.get(field.name, ""), table, isinstance(parts[0], inspect.DictType),
        )  # fmt: skip
    return found


def load(path: Path, what: str, way_out: str) -> dict[str, Any]:
    """The plain values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"no {what} can be read at {path} ({error.strerror}); {way_out}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}. Correct that place.") from None


def read(where: Where, raw: Mapping[str, Any], kind: type[T]) -> T:
    """Check plain values against a declared table, and build it.

    Raises
    ------
    InvalidInput
        A key is unknown, missing, or has a value outside its type or range; or keys break a rule between them. The message
        names file, table and key.
    """
    known = {name: key for name, key in keys(kind).items() if name != REST}
    rest = {name: value for name, value in raw.items() if name not in known}
    if rest and REST not in keys(kind):
        near = [(name, difflib.get_close_matches(name, known, n=1)) for name in rest]
        said = ", ".join(f"{name!r} (did you mean {found[0]!r}?)" if found else repr(name) for name, found in near)
        raise InvalidInput(f"{where} does not know the key {said}; allowed are {', '.join(known)}.")
    for name, key in known.items():
        if key.required and name not in raw:
            wanted = f"have a table {where.inner(name).table}" if key.table else f"state {name}"
            raise InvalidInput(f"{where} must {wanted}; it has no default. {name}: {key.meaning}")
    values = {name: _value(where, key, raw[name]) for name, key in known.items() if name in raw}
    try:
        return kind(**values, **({REST: rest} if rest else {}))
    except InvalidInput as error:
        raise InvalidInput(f"in {where}: {error}") from None


def _value(where: Where, key: Key, value: Any) -> Any:
    """One value, of the type and in the range its key declares."""
    inner = where.inner(key.name)
    if isinstance(value, dict) and key.table is not None:
        if not key.named:
            return read(inner, value, key.table)
        one = key._replace(named=False, words="a table")
        return {name: _value(inner, one._replace(name=name), entry) for name, entry in value.items()}
    try:
        return msgspec.convert(value, key.table if key.words == "a table" and key.table else key.type)
    except msgspec.ValidationError:
        place = f", {inner.table}" if key.words == "a table" else ""
        raise InvalidInput(
            f"{key.name} in {where} must be {key.words}{place}, got {value!r:.80}; correct it. {key.name}: {key.meaning}"
        ) from None


def _parts(info: inspect.Type) -> list[inspect.Type]:
    """What a type is one of, without None."""
    if isinstance(info, inspect.Metadata):
        return _parts(info.type)
    if isinstance(info, inspect.UnionType):
        return [part for one in info.types for part in _parts(one)]
    return [] if isinstance(info, inspect.NoneType) else [info]


_WORDS: dict[type[inspect.Type], str] = {
    inspect.FloatType: "a number",
    inspect.IntType: "a whole number",
    inspect.StrType: "text in quotes",
    inspect.BoolType: "true or false",
}
_BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}


def _words(info: inspect.Type) -> str:
    if isinstance(info, inspect.LiteralType):
        return f"text in quotes, one of {', '.join(map(str, info.values))}"
    if isinstance(info, inspect.ListType):
        return "a list of texts" if isinstance(info.item_type, inspect.StrType) else "a list of tables"
    bounds = [(word, getattr(info, name, None)) for name, word in _BOUNDS.items()]
    said = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound not in (None, _LARGEST))
    return f"{_WORDS.get(type(info), 'a table')} {said}".rstrip()
