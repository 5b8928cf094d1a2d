"""Tables that study files and owners' files have in common: where a record lives, how widths are known."""

from collections.abc import Mapping
from typing import Any, Literal

from sfumato.errors import InvalidInput
from sfumato.files.schema import Positive, Table

Outside = Literal["refuse", "clamp"]
Precision = Literal["float64", "float32"]


class Column(Table, frozen=True):
    """Where one column of a record lives: public, and a promise about everybody, in the table or not.

    Attributes
    ----------
    kind
        Which set it is: binary, interval, integers, categories, box, ball or ellipsoid.
    columns
        The name of the raw column, or a list of names for a box, ball or ellipsoid; the name of the table by default.
    rest
        The keys of its kind, such as lower and upper of an interval: the arguments of `sf.Interval` and so on. `at_most` names
        another column that an interval or a whole number never exceeds.
    """

    kind: str
    columns: str | list[str] | None = None
    rest: dict[str, Any] = {}


def domains(tables: Mapping[str, Column]) -> dict[str, Any]:
    """Domains, built."""
    from sfumato.domain import from_dict

    built = {}
    for name, table in tables.items():
        try:
            built[name] = from_dict({"kind": table.kind, **table.rest})
        except InvalidInput as error:
            raise InvalidInput(f"in [domain.{name}]: {error}") from None
    return built


def columns(tables: Mapping[str, Column]) -> dict[str, Any]:
    """Which raw columns of the table make up each name."""
    return {name: table.columns for name, table in tables.items() if table.columns is not None}


class Sensitivity(Table, frozen=True):
    """How far one record can move an answer.

    Attributes
    ----------
    kind
        How that is known: auto (proven from the model where that can be done, else searched for
        and enforced), certify (proven or refused), clip (cut off) or lipschitz (declared by you).
    bound
        For clip: the range of one record's log ratio is [-bound, bound].
    per_step
        For clip: the range is this times the length of the step.
    constant
        For lipschitz: the constant of one record's log-likelihood.
    norm
        For lipschitz: 1, 2 or inf, the norm of the step; 2 by default.
    """

    kind: Literal["auto", "certify", "clip", "lipschitz"] = "auto"
    bound: Positive | None = None
    per_step: Positive | None = None
    constant: Positive | None = None
    norm: float | None = None

    def __post_init__(self) -> None:
        keys = {"auto": (), "certify": (), "clip": ("bound", "per_step"), "lipschitz": ("constant", "norm")}[self.kind]
        if wrong := [key for key in self._stated() if key not in keys]:
            raise InvalidInput(
                f"a sensitivity of kind {self.kind!r} takes {' and '.join(keys) or 'no other key'}, got {', '.join(wrong)}; "
                "leave that out, or choose another kind."
            )
        if self.kind == "lipschitz" and self.constant is None:
            raise InvalidInput("a sensitivity of kind 'lipschitz' must state its constant; it has no default.")

    def _stated(self) -> dict[str, float]:
        given = {"bound": self.bound, "per_step": self.per_step, "constant": self.constant, "norm": self.norm}
        return {key: value for key, value in given.items() if value is not None}

    def method(self) -> Any:
        """What `sample` takes: "auto", "certify", or an object that states the widths."""
        from sfumato.bounds import Clip, Lipschitz

        kinds: dict[str, Any] = {"clip": Clip, "lipschitz": Lipschitz}
        return kinds[self.kind](**self._stated()) if self.kind in kinds else self.kind
