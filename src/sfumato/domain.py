"""Where one record lives.

A domain is public: the set 𝒴 that every record is promised to lie in, whoever it belongs to. Sensitivities are widths
over it, so it is the one thing an owner has to declare. Each column of the data has a domain of its own, and the record
domain is their product.

A domain is a class, and what the rest of the package wants to know of it, it asks the class: nobody else tells one kind of domain
from another. A new one says its `shape`, the nearest point of it (`clamp`) and how far it reaches (`support`); see
`docs/developer/domain.md`.

Nothing here looks at data as a whole: `contains` and `clamp` act on each record alone.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from typing import Any, ClassVar, Final, TypeAlias, cast

import numpy as np

from sfumato.errors import InvalidData, InvalidInput

Array: TypeAlias = Any
"""A NumPy array or a JAX array; domains work on both."""
UNDECLARED = np.inf
"""Code of a label that was not declared."""
LARGEST_WHOLE = 2**53
"""Records are checked in float64, which has all whole numbers up to here."""
WHOLE = np.dtype(np.int64)
"""Type in which models see whole numbers, wherever they are evaluated: in 32 bits the square of 60 000 wraps round. Tables
store them in the smallest type that holds them."""
TOLERANCE = 1e-6
"""A record may lie outside by this share of the domain's size: `clamp` rounds, and the vault clamps terms."""
MAX_CORNERS_DIM = 12
"""Largest box whose corners are listed: 2^11 of them, up to sign."""
_NEWTON = 16  # steps to the nearest point of an ellipsoid
_FAR = 1e3  # times the domain's own width: the nearest point of the domain to what is so far away is an extreme one


def _finite(name: str, value: Array) -> np.ndarray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} of a domain must be a number or an array of numbers, got {value!r}.") from None
    if not np.all(np.isfinite(array)):
        raise InvalidInput(f"{name} of a domain must be finite, got {value}; declare bounds that every record obeys.")
    return array


def _missing(label: Any) -> bool:
    """Whether a table has nothing where a label should be: None, NaN, an empty cell, or what pandas has for it."""
    none = label is None or label == "" or type(label).__name__ in ("NAType", "NaTType")
    return none or (isinstance(label, float) and bool(np.isnan(label)))


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(index(size) for size in np.atleast_1d(shape))
    except TypeError:
        sizes = (0,)
    if min(sizes, default=1) < 1:
        raise InvalidInput(
            f"the shape of a record must be a whole number or several, from 1, got {shape!r}; write shape=(3,)."
        )
    return sizes


def _inward(bound: np.ndarray, dtype: np.dtype[Any], inside: float) -> np.ndarray:
    """The bound in a type that may not hold it: rounded to the side of `inside`, so that what obeys it obeys the bound."""
    near = bound.astype(dtype)
    if dtype.kind != "f":
        return near
    passed = near < bound if inside > 0 else near > bound
    return np.where(passed, np.nextafter(near, dtype.type(inside)), near)


class Domain:
    """What every column domain offers.

    A subclass gives its `kind`, `shape`, `clamp` and `support`; whatever else follows from these, and may be given where a closed
    form is better. Records lie along the first axis of an array. `clamp`, `support` and `image_diameter` are given NumPy arrays
    and JAX arrays, traced ones too: write them with operators and the functions of `namespace`.

    Attributes
    ----------
    kind
        Name in `study.toml` and on the wire. A class that has one is found by `from_dict` from its definition on.
    discrete
        Whether its numbers are whole.
    separable
        Whether it is all of the box from `lo` to `hi` (its whole numbers, if discrete): then entries may be exchanged and cut one
        by one.
    nominal
        Whether its numbers are codes, without order or distance.
    labels
        What codes stand for in a raw column, if not for themselves.
    at_most
        Another column that this one never exceeds, in any record (`joined`).
    """

    kind: ClassVar[str]
    discrete: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    nominal: ClassVar[bool] = False
    labels: tuple[Any, ...] | None = None
    at_most: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            there = _KINDS.setdefault(cls.kind, cls)
            again = there.__qualname__ == cls.__qualname__ and there.__module__ != __name__  # its file was read again
            if there is not cls and not again:
                raise InvalidInput(
                    f"the kind of a domain must be its own, and {cls.kind!r} is that of {there.__qualname__}; choose another."
                )
            _KINDS[cls.kind] = cls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.kind, self.shape))

    # -- what a new domain says -----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's value."""
        raise NotImplementedError

    def clamp(self, values: Array) -> Array:
        """Nearest point of the domain for each record, in the type of `values`; NaN stays NaN (it is near nothing)."""
        raise NotImplementedError

    def support(self, direction: Array) -> Array:
        r"""Support function :math:`h(v) = \sup_x v^\top x`, for directions of the domain's shape along the last axes."""
        raise NotImplementedError

    # -- what follows, and may be said better ---------------------------------------------------------------------

    @property
    def lo(self) -> np.ndarray:
        """Lower corner of the smallest box around the domain."""
        return -np.asarray(self.support(-self._directions()), dtype=np.float64).reshape(self.shape)

    @property
    def hi(self) -> np.ndarray:
        """Upper corner of the smallest box around the domain."""
        return np.asarray(self.support(self._directions()), dtype=np.float64).reshape(self.shape)

    def _directions(self) -> np.ndarray:
        return np.eye(self.size).reshape(self.size, *self.shape)

    @property
    def ball_radius(self) -> float | None:
        """Radius of the ball around zero that the domain is; None if it is another set."""
        return None

    def contains(self, values: np.ndarray) -> np.ndarray:
        """Whether each record lies in the domain, up to rounding; NaN never does."""
        values = values.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.abs(self.clamp(values) - values)
        room = TOLERANCE * float(np.max(np.abs([self.lo, self.hi])))
        return np.all(moved <= room, axis=tuple(range(1, values.ndim)))

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw synthetic records from all over the domain: for planning, where no real record may be used."""
        return np.asarray(self.clamp(rng.uniform(self.lo, self.hi, size=(size, *self.shape))))

    def extremes(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw extreme points of the domain: where sensitivities are attained."""
        away = rng.standard_normal((size, *self.shape))
        return np.asarray(self.clamp((self.lo + self.hi) / 2 + _FAR * (self.hi - self.lo) * away))

    def corners(self) -> np.ndarray:
        """A few records that no trial of a model may miss; none by default."""
        return np.zeros((0, *self.shape))

    def cells(self, entry: int, most: int) -> np.ndarray | None:
        """All values of an entry, if the domain is separable and they are at most so many; None: cut it into intervals."""
        low, high = (float(np.ravel(end)[entry]) for end in (self.lo, self.hi))
        if not self.separable or not self.discrete or high - low + 1 > most:
            return None
        return np.arange(low, high + 1)

    def vary(self, values: np.ndarray, fresh: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
        """Change records, inside the domain: some move a little, some become those of `fresh`, and half stay.

        `share` is for domains that are separable: how many of all entries are changed.
        """
        turned = self.clamp(values + 0.2 * (self.hi - self.lo) * rng.standard_normal(values.shape))
        single = (len(values), *[1] * len(self.shape))
        changed = np.where(rng.random(single) < 0.5, turned, fresh)
        return np.where(rng.random(single) < 0.5, changed, values)

    def diameter(self) -> float:
        """Largest distance of two points, or a bound of it."""
        return float(np.linalg.norm(self.hi - self.lo))

    def image_diameter(self, matrix: Array) -> Array | None:
        r"""Largest :math:`\lVert A^\top(x - y)\rVert` of two points, where there is a closed form; else None."""
        return None

    def encode(self, column: Any) -> np.ndarray:
        """Turn a raw column into numbers (labels into codes)."""
        array = np.asarray(column)
        if array.dtype == object or array.dtype.kind in "USOM":
            try:
                lists = array.ndim == 1 and len(array) > 0 and isinstance(array[0], list | np.ndarray)
                array = np.array(array.tolist() if lists else array, dtype=np.float64)
            except (TypeError, ValueError):
                raise InvalidData(
                    f"a {self.name} column must hold numbers, as many for every record, got dtype "
                    f"{np.asarray(column).dtype}; use sf.Categories([...labels]) for text, or convert the column."
                ) from None
        return array

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Undo `encode`: codes back to the labels that a raw column holds."""
        return values

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`: the constructor's arguments, which are attributes too."""
        return {"kind": self.kind} | {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @property
    def brief(self) -> str:
        """How a sentence about one of its values calls it."""
        return f"its domain {self.name}"

    # -- the same for all -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """How messages call it."""
        return type(self).__name__

    @property
    def size(self) -> int:
        """Numbers in one record's value."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type in which models see the column: whole numbers as such (NumPyro indexes with them), the rest as floats."""
        return WHOLE if self.discrete else np.dtype(np.float64)

    def storage(self, given: np.dtype[Any]) -> np.dtype[Any]:
        """Smallest type that holds a table's column: integers by their range, reals as they came (float32 or float64)."""
        if not self.discrete:
            return np.dtype(np.float32) if given == np.float32 else np.dtype(np.float64)
        return next((np.dtype(kind) for kind in (np.int8, np.int16, np.int32) if self._fits(np.iinfo(kind))), WHOLE)

    def _fits(self, info: Any) -> bool:
        return bool(info.min <= np.min(self.lo) and np.max(self.hi) <= info.max)

    def project(self, column: Array) -> Array:
        """Move stored records into the domain and type them as models see them: a width is a supremum over it and no more."""
        return self.clamp(column.astype(np.float64)).astype(self.dtype)


_KINDS: Final[dict[str, type[Domain]]] = {}


def namespace(values: Array) -> Any:
    """The functions that fit an array: NumPy's, or JAX's."""
    return values.__array_namespace__()


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """All arrays of `shape` with lo <= x <= hi, entry by entry.

    Parameters
    ----------
    lower, upper
        Bounds: numbers, or arrays that broadcast to `shape`.
    shape
        Shape of one record's value; by default that of the bounds.
    """

    lower: Any
    upper: Any
    shape_: tuple[int, ...] = field(default=(), init=False, repr=False)
    kind: ClassVar[str] = "box"
    separable: ClassVar[bool] = True

    def __init__(self, lower: Any, upper: Any, shape: Sequence[int] | int | None = None) -> None:
        low, high = _finite("the lower bound", lower), _finite("the upper bound", upper)
        try:
            sizes = np.broadcast_shapes(low.shape, high.shape) if shape is None else _sizes(shape)
            low, high = np.broadcast_to(low, sizes), np.broadcast_to(high, sizes)
        except InvalidInput:
            raise
        except ValueError:
            raise InvalidInput(
                f"bounds must be numbers, or arrays of a record's shape, got shapes {low.shape} and {high.shape} for a record of "
                f"shape {shape}; give one number for all entries, or one for each."
            ) from None
        if not np.all(low <= high):
            raise InvalidInput(f"bounds must satisfy lower <= upper, got {lower} and {upper}; swap them.")
        object.__setattr__(self, "lower", low.tolist())
        object.__setattr__(self, "upper", high.tolist())
        object.__setattr__(self, "shape_", sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's value."""
        return self.shape_

    @property
    def lo(self) -> np.ndarray:
        """Lower corner."""
        return np.asarray(self.lower, dtype=np.float64)

    @property
    def hi(self) -> np.ndarray:
        """Upper corner."""
        return np.asarray(self.upper, dtype=np.float64)

    def contains(self, values: np.ndarray) -> np.ndarray:
        """Whether each record of `values` lies in the domain; NaN never does.

        A bound is taken as the type of the values holds it: in float32, 0.1 itself is a little more than 0.1, and is let in.
        `clamp` then moves it to the nearest such number inside.
        """
        kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            inside = (values >= self.lo.astype(kind)) & (values <= self.hi.astype(kind)) & np.isfinite(values)
            if self.discrete:
                inside &= values == np.round(values)
        return np.all(inside, axis=tuple(range(1, values.ndim)))

    def clamp(self, values: Array) -> Array:
        """Entry by entry."""
        with np.errstate(over="ignore"):
            lo, hi = _inward(self.lo, values.dtype, np.inf), _inward(self.hi, values.dtype, -np.inf)
        values = values.clip(lo, hi)
        return values.round() if self.discrete else values

    def support(self, direction: Array) -> Array:
        r"""Support function :math:`v^\top m + \lvert v\rvert^\top r`, m the middle and r half the lengths."""
        centre, half = (self.hi + self.lo) / 2, (self.hi - self.lo) / 2
        return (direction * centre + abs(direction) * half).sum(axis=tuple(range(-len(self.shape), 0)))

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw synthetic records, uniformly."""
        if self.discrete:
            return rng.integers(self.lo.astype(int), self.hi.astype(int) + 1, size=(size, *self.shape)).astype(float)
        return rng.uniform(self.lo, self.hi, size=(size, *self.shape))

    def extremes(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw corners."""
        return np.where(rng.random((size, *self.shape)) < 0.5, self.lo, self.hi)

    def corners(self) -> np.ndarray:
        """The lower corner and the upper one."""
        return np.stack([self.lo, self.hi])

    def vary(self, values: np.ndarray, fresh: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
        """Replace a share of all entries by those of `fresh`."""
        return np.where(rng.random(values.shape) < share, fresh, values)

    def image_diameter(self, matrix: Array) -> Array | None:
        """Two opposite corners attain it: all of them are tried, up to 12 dimensions."""
        if self.size > MAX_CORNERS_DIM:
            return None
        signs = 1 - 2 * ((np.arange(2 ** (self.size - 1))[:, None] >> np.arange(self.size)) & 1)
        return ((((signs * np.ravel(self.hi - self.lo)) @ matrix) ** 2).sum(axis=1)).max() ** 0.5

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`."""
        return {"kind": self.kind, "lower": self.lower, "upper": self.upper, "shape": list(self.shape)}


class Interval(Box):
    """One real number between `lower` and `upper`.

    Parameters
    ----------
    lower, upper
        Bounds.
    at_most
        Name of another column that this one never exceeds.
    """

    kind: ClassVar[str] = "interval"

    def __init__(self, lower: float, upper: float, at_most: str | None = None) -> None:
        super().__init__(lower, upper, shape=())
        object.__setattr__(self, "at_most", _column(at_most))

    @property
    def brief(self) -> str:
        """Its ends say all."""
        return f"{self.name}({self.lo + 0:.6g}, {self.hi + 0:.6g})"

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`."""
        return {"kind": self.kind, "lower": self.lower, "upper": self.upper} | _said(self.at_most)


class Integers(Box):
    """One whole number between `lower` and `upper`, both included; or an array of them, of the given shape.

    Parameters
    ----------
    lower, upper
        Bounds.
    shape
        Shape of one record's value; one number by default.
    at_most
        Name of another column that one number never exceeds: successes of so many trials are ``Integers(0, 10,
        at_most="trials")``.
    """

    kind: ClassVar[str] = "integers"
    discrete: ClassVar[bool] = True

    def __init__(self, lower: int, upper: int, shape: Sequence[int] | int = (), at_most: str | None = None) -> None:
        ends = _finite("the lower bound", lower), _finite("the upper bound", upper)
        if any(end.ndim or end != np.round(end) for end in ends):
            raise InvalidInput(
                f"bounds of {type(self).__name__} must be whole numbers, got {lower} and {upper}; round them."
            )
        if any(abs(end) > LARGEST_WHOLE for end in ends):
            raise InvalidInput(
                f"bounds of {type(self).__name__} must be at most 2^53 in size, where every whole number is a float64 too, got "
                f"{lower} and {upper}; rescale the column."
            )
        super().__init__(*ends, shape=shape)
        if at_most is not None and self.shape:
            raise InvalidInput(
                f"at_most= is for a column of one number, got shape {self.shape}; declare its entries as columns of their own."
            )
        object.__setattr__(self, "at_most", _column(at_most))

    @property
    def brief(self) -> str:
        """Its ends say all, if it is one number and no more than a number."""
        plain = type(self) is Integers and not self.shape
        return f"{self.name}({self.lo + 0:.6g}, {self.hi + 0:.6g})" if plain else super().brief

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`."""
        ends = {"kind": self.kind, "lower": int(np.min(self.lo)), "upper": int(np.max(self.hi))}
        return ends | ({"shape": list(self.shape)} if self.shape else {}) | _said(self.at_most)


def _column(at_most: Any) -> str | None:
    if at_most is not None and not isinstance(at_most, str):
        raise InvalidInput(
            f"at_most must be the name of another column, got {at_most!r:.60}; a number belongs in upper=."
        )
    return at_most


def _said(at_most: str | None) -> dict[str, Any]:
    return {} if at_most is None else {"at_most": at_most}


class Binary(Integers):
    """Zero or one; or an array of zeros and ones, of the given shape."""

    kind: ClassVar[str] = "binary"

    def __init__(self, shape: Sequence[int] | int = ()) -> None:
        super().__init__(0, 1, shape)

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`."""
        return {"kind": self.kind} | ({"shape": list(self.shape)} if self.shape else {})


class Categories(Integers):
    """One of k categories, coded 0 .. k-1.

    Parameters
    ----------
    labels
        The number of categories, or the list of labels that the raw column holds.
    """

    kind: ClassVar[str] = "categories"
    nominal: ClassVar[bool] = True

    def __init__(self, labels: int | Sequence[Any]) -> None:
        try:
            names = None if isinstance(labels, int | np.integer) else tuple(labels)
            count = len(set(names)) if names is not None else index(cast(int, labels))
        except TypeError:
            raise InvalidInput(f"Categories takes a number or a list of plain labels, got {labels!r}.") from None
        if names is not None and count < len(names):
            raise InvalidInput(
                f"the labels of Categories must be different from each other, got {labels!r}; name each once."
            )
        if count < 1:
            raise InvalidInput(f"Categories needs at least one category, got {labels!r}; name them, or say how many.")
        super().__init__(0, count - 1)
        object.__setattr__(self, "labels", names)

    def __repr__(self) -> str:
        return f"Categories({self.to_dict()['labels']!r})"

    def encode(self, column: Any) -> np.ndarray:
        """Labels to codes; a missing one becomes NaN, one that was not declared `UNDECLARED`: no domain contains either."""
        if self.labels is None:
            return super().encode(column)
        codes = {label: float(code) for code, label in enumerate(self.labels)}
        return np.array([codes.get(x, np.nan if _missing(x) else UNDECLARED) for x in np.asarray(column).tolist()])

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Codes to labels."""
        return values if self.labels is None else np.array([self.labels[int(code)] for code in values], dtype=object)

    def extremes(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw categories: a code is a name, and every one of them is an extreme point."""
        return self.sample(rng, size)

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`."""
        return {"kind": self.kind, "labels": list(self.labels) if self.labels else int(self.upper) + 1}


@dataclass(frozen=True, eq=False)
class Ball(Domain):
    """All vectors of length `dim` with Euclidean norm at most `radius`."""

    radius: float
    dim: int
    kind: ClassVar[str] = "ball"

    def __init__(
        self, radius: float = 1.0, dim: int | None = None, *, shape: Sequence[int] | int | None = None
    ) -> None:
        if dim is None and shape is not None:
            sizes = _sizes(shape)
            dim = sizes[0] if len(sizes) == 1 else None
        if not isinstance(dim, int | np.integer) or dim < 1:
            raise InvalidInput(
                f"Ball needs a dimension of at least one, got dim={dim!r}, shape={shape}; write Ball(1.0, dim=5)."
            )
        length = _finite("the radius", radius)
        if length.ndim or not length > 0:
            raise InvalidInput(f"the radius of a Ball must be one positive number, got {radius}.")
        object.__setattr__(self, "radius", float(length))
        object.__setattr__(self, "dim", int(dim))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's value."""
        return (self.dim,)

    @property
    def lo(self) -> np.ndarray:
        """Lower corner of the box around the ball."""
        return np.full(self.dim, -self.radius)

    @property
    def hi(self) -> np.ndarray:
        """Upper corner of the box around the ball."""
        return np.full(self.dim, self.radius)

    @property
    def ball_radius(self) -> float:
        """Its own."""
        return self.radius

    def contains(self, values: np.ndarray) -> np.ndarray:
        """Whether each record lies in the ball, up to rounding."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.linalg.norm(values.astype(np.float64), axis=-1) <= self.radius * (1 + TOLERANCE)

    def clamp(self, values: Array) -> Array:
        """Radial projection; an infinite entry is first cut to the box around the ball."""
        xp, values = namespace(values), values.clip(-self.radius, self.radius)
        norm = xp.linalg.norm(values, axis=-1, keepdims=True)
        return values * xp.minimum(1.0, self.radius / xp.maximum(norm, np.finfo(values.dtype).tiny))

    def support(self, direction: Array) -> Array:
        r"""Support function :math:`r\lVert v\rVert`."""
        return self.radius * namespace(direction).sqrt((direction**2).sum(axis=-1))

    def diameter(self) -> float:
        """Twice the radius."""
        return 2 * self.radius

    def image_diameter(self, matrix: Array) -> Array:
        r""":math:`2r\lVert A\rVert_2`."""
        return 2 * self.radius * namespace(matrix).linalg.norm(matrix, 2)

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw synthetic records, uniformly over the ball."""
        normal = rng.standard_normal((size, self.dim))
        radius = self.radius * rng.uniform(size=(size, 1)) ** (1 / self.dim)
        return normal / np.linalg.norm(normal, axis=1, keepdims=True) * radius

    def extremes(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw points of the sphere, uniformly."""
        normal = rng.standard_normal((size, self.dim))
        return self.radius * normal / np.linalg.norm(normal, axis=1, keepdims=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`."""
        return {"kind": self.kind, "radius": self.radius, "dim": self.dim}


@dataclass(frozen=True, eq=False)
class Ellipsoid(Domain):
    r"""All vectors with :math:`(x - c)^\top C^{-1} (x - c) \le r^2`: columns that hang together.

    A box around correlated columns has corners where nobody is, and everybody pays for them.

    Parameters
    ----------
    centre
        c, public.
    covariance
        C, a positive matrix that says which way the columns go together; public, never that of the private records.
    radius
        r, in standard deviations of C. Of normal records in d dimensions, the root of d plus 3 holds all but one in a thousand.
    """

    centre: Any
    covariance: Any
    radius: float
    kind: ClassVar[str] = "ellipsoid"

    def __init__(self, centre: Any, covariance: Any, radius: float) -> None:
        middle, matrix, length = (
            _finite("the centre", centre), _finite("the covariance", covariance), _finite("the radius", radius)
        )  # fmt: skip
        if middle.ndim != 1 or not middle.size or matrix.shape != (middle.size, middle.size):
            raise InvalidInput(
                f"an Ellipsoid needs a centre of d numbers and a covariance of d x d, got shapes {middle.shape} and "
                f"{matrix.shape}; "
                "write Ellipsoid([0, 0], [[1, 0.8], [0.8, 1]], 4.0)."
            )
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
        if not np.allclose(matrix, matrix.T, rtol=1e-9) or values[0] <= 1e-12 * values[-1]:
            raise InvalidInput(
                f"the covariance of an Ellipsoid must be symmetric and positive, and its eigenvalues are "
                f"{values.tolist()!r:.120}; "
                "leave out columns that follow from others."
            )
        if length.ndim or not length > 0:
            raise InvalidInput(f"the radius of an Ellipsoid must be one positive number, got {radius}.")
        object.__setattr__(self, "centre", middle.tolist())
        object.__setattr__(self, "covariance", ((matrix + matrix.T) / 2).tolist())
        object.__setattr__(self, "radius", float(length))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's value."""
        return (len(self.centre),)

    @cached_property
    def _axes(self) -> tuple[np.ndarray, np.ndarray]:
        """Squared half-lengths of its axes, and their directions as columns."""
        values, vectors = np.linalg.eigh(np.asarray(self.covariance))
        return self.radius**2 * values, vectors

    @property
    def lo(self) -> np.ndarray:
        """Lower corner of the box around it."""
        return np.asarray(self.centre) - self.radius * np.sqrt(np.diag(self.covariance))

    @property
    def hi(self) -> np.ndarray:
        """Upper corner of the box around it."""
        return np.asarray(self.centre) + self.radius * np.sqrt(np.diag(self.covariance))

    def contains(self, values: np.ndarray) -> np.ndarray:
        """Whether each record lies inside, up to rounding."""
        squares, directions = self._axes
        with np.errstate(invalid="ignore", over="ignore"):
            along = (values.astype(np.float64) - np.asarray(self.centre)) @ directions
            return (along**2 / squares).sum(axis=-1) <= (1 + TOLERANCE) ** 2

    def clamp(self, values: Array) -> Array:
        r"""Nearest point: along each axis :math:`x_i s_i/(s_i + \lambda)`, with the multiplier that ends on the surface.

        :math:`1/\lVert x(\lambda)\rVert` is nearly a straight line (More & Sorensen 1983), so Newton's method needs few steps.
        What is infinite is first cut to where squares of squares are numbers.
        """
        xp, kind = namespace(values), values.dtype
        squares, directions = (part.astype(kind) for part in self._axes)
        centre = np.asarray(self.centre, kind)
        far = np.asarray(np.finfo(kind).max ** 0.2, kind)
        along = (values.clip(-far, far) - centre) @ directions
        multiplier = xp.zeros_like(along[..., :1])
        for _ in range(_NEWTON):
            shrunk = squares + multiplier
            square = (along**2 * squares / shrunk**2).sum(axis=-1, keepdims=True)
            slope = (along**2 * squares / shrunk**3).sum(axis=-1, keepdims=True)
            step = square / xp.maximum(slope, np.finfo(kind).tiny) * (xp.sqrt(square) - 1)
            multiplier = xp.maximum(multiplier + step, 0)
        near = along * squares / (squares + multiplier)
        length = xp.sqrt((near**2 / squares).sum(axis=-1, keepdims=True))
        return centre + (near / xp.maximum(length, 1)) @ directions.T

    def support(self, direction: Array) -> Array:
        r"""Support function :math:`c^\top v + r\sqrt{v^\top C v}`."""
        xp = namespace(direction)
        square = ((direction @ np.asarray(self.covariance)) * direction).sum(axis=-1)
        positive = xp.where(square > 0, square, 1.0)  # a root has no slope at zero
        return direction @ np.asarray(self.centre) + self.radius * xp.where(square > 0, xp.sqrt(positive), 0.0)

    def diameter(self) -> float:
        """Twice its longest half-axis."""
        return 2 * float(np.sqrt(self._axes[0][-1]))

    def image_diameter(self, matrix: Array) -> Array:
        r""":math:`2r\lVert C^{1/2} A\rVert_2`."""
        squares, directions = self._axes
        return 2 * namespace(matrix).linalg.norm((np.sqrt(squares)[:, None] * directions.T) @ matrix, 2)

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw synthetic records, uniformly over it."""
        share = rng.uniform(size=(size, 1)) ** (1 / self.size)
        return np.asarray(self.centre) + share * (self.extremes(rng, size) - np.asarray(self.centre))

    def extremes(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw points of its surface."""
        normal = rng.standard_normal((size, self.size))
        squares, directions = self._axes
        return (
            np.asarray(self.centre)
            + (normal / np.linalg.norm(normal, axis=1, keepdims=True) * np.sqrt(squares)) @ directions.T
        )

    def corners(self) -> np.ndarray:
        """The ends of its axes."""
        squares, directions = self._axes
        away = (np.sqrt(squares) * directions).T
        return np.asarray(self.centre) + np.concatenate([away, -away])

    def to_dict(self) -> dict[str, Any]:
        """Plain description, as written in `study.toml`."""
        return {"kind": self.kind, "centre": self.centre, "covariance": self.covariance, "radius": self.radius}


def known_kinds() -> dict[str, type[Domain]]:
    """All kinds of domain that were defined, by name."""
    return dict(_KINDS)


def from_dict(spec: Mapping[str, Any]) -> Domain:
    """Build a domain from its plain description (the inverse of `to_dict`)."""
    rest = {key: value for key, value in spec.items() if key != "kind"}
    cls = _KINDS.get(str(spec.get("kind", "")))
    if cls is None:
        raise InvalidInput(f"the kind of a domain must be one of {', '.join(_KINDS)}; got {spec.get('kind')!r}.")
    try:
        return cls(**rest)
    except TypeError:
        known = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        wrong = sorted(set(rest) - set(known)) or sorted(rest)
        raise InvalidInput(
            f"a domain of kind {cls.kind!r} takes {', '.join(known) or 'no fields'}; got {wrong}."
        ) from None


def check_record_domain(domain: Mapping[str, Any]) -> dict[str, Domain]:
    """Validate the product domain: a non-empty mapping from column name to Domain."""
    if not isinstance(domain, Mapping) or not domain:
        raise InvalidInput(
            f"domain must map column names to domains, got {type(domain).__name__}; write {{'y': sf.Binary()}}."
        )
    for name, column in domain.items():
        if not isinstance(column, Domain):
            raise InvalidInput(
                f"domain[{name!r}] must be a domain such as sf.Interval(0, 1), got {type(column).__name__}."
            )
    for name, column in domain.items():
        if column.at_most is not None:
            _check_pair(name, column, domain)
    return dict(domain)


# -- columns that go together -----------------------------------------------------------------------------------------


def _check_pair(name: str, column: Domain, domain: Mapping[str, Domain]) -> None:
    other = domain.get(str(column.at_most))
    if other is None or other is column or other.shape or other.nominal:
        raise InvalidInput(
            f"domain[{name!r}] is at most {column.at_most!r}, which must be another column of one number; the domain has "
            f"{sorted(set(domain) - {name})}."
        )
    if other.at_most is not None:
        raise InvalidInput(
            f"domain[{name!r}] is at most {column.at_most!r}, which has an at_most= of its own; declare one such bound for a "
            f"pair."
        )
    if other.lo < column.lo or (column.discrete and not other.discrete):
        raise InvalidInput(
            f"domain[{name!r}] starts at {column.lo:g} and is at most {column.at_most!r}, which {other.brief} lets be less, "
            f"or no "
            f"whole number; raise the lower bound of {column.at_most!r}."
        )


def joined(domain: Mapping[str, Domain], record: Mapping[str, Array]) -> dict[str, Array]:
    """A record, or many, with every column cut to the one that it never exceeds: what models see."""
    out = dict(record)
    for name, column in domain.items():
        if column.at_most is not None and name in out and column.at_most in out:
            out[name] = namespace(out[name]).minimum(out[name], out[column.at_most])
    return out
