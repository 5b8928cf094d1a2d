r"""What an exponential family offers: statistic, natural parameter, log-normaliser, and exact sensitivities.

One record y has density

.. math:: p(y\mid\theta) = h(y)\, g(\theta)\, \exp\{\varphi(\theta)^\top S(y)\},

so everything the data say about theta is :math:`S_n = \sum_i S(y_i)`, and one record moves an answer
:math:`v^\top S_n` by at most the *width* of its domain's image :math:`S(\mathcal Y)` along v. Widths come from the
support function :math:`\sup_y v^\top S(y)`, which every family here knows in closed form (or bounds, and says so).

A family is public and pure: it knows no data and no variable that changes, for what is compiled of it is kept with the object.
Methods are JAX-traceable unless they say otherwise, and are called in
64-bit mode (``with jax.enable_x64(True):``), which the public functions of sfumato enter for you.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, biject_to

from sfumato.bounds.bounds import Bounds
from sfumato.domain import Domain
from sfumato.errors import InvalidModel, Unsupported
from sfumato.families.measurement import Measurement
from sfumato.families.prior import Joint, Values, as_joint
from sfumato.model import Model, Site
from sfumato.model.base import Record, check_values
from sfumato.model.trials import as_model_input
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any

MAX_CELLS = 4096
"""Largest finite record domain whose points are listed one by one."""
_PROBES = 20
_FAN = 128  # directions of a half circle: the diameter of a planar set to within 1/cos(pi/256), 8e-5


class Parameter(NamedTuple):
    """One site of a family: its name, its shape, and the NumPyro constraint its values obey."""

    name: str
    shape: tuple[int, ...]
    constraint: Any


@dataclass(frozen=True, eq=False)
class Family(ABC):
    r"""An exponential family on a declared bounded domain.

    A new family is a frozen dataclass with `domain`, `parameters`, `statistic`, `natural`, `default_prior`, and one of
    `log_partition` and `log_g`; where the domain is not a short list of points, also `support`. `check` tests it.

    Parameters
    ----------
    prior
        A NumPyro distribution (one site), or a dict site -> distribution (or function of earlier sites that gives one).
        By default the family's own, conjugate where there is one.

    Attributes
    ----------
    exact
        Whether `support` is the supremum itself; otherwise it is a proven upper bound of it.
    exact_ratio
        The same for `ratio_range`, the range of one record's log ratio that a chain asks about.
    exact_diameter
        The same for `diameter`.
    """

    prior: Any = field(default=None, kw_only=True)

    exact = True
    exact_diameter = True
    form = ""  # of a statistic that has changed: bundles and checkpoints of another form are refused

    # -- what a family must say -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def domain(self) -> dict[str, Domain]:
        """Column name -> where its values live."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[Parameter, ...]:
        """The sites."""

    @abstractmethod
    def statistic(self, record: Record) -> Array:
        """S of one record, shape (k,)."""

    @abstractmethod
    def natural(self, values: Values) -> Array:
        r"""Natural parameter :math:`\varphi(\theta)`, shape (k,), of constrained values."""

    @abstractmethod
    def default_prior(self) -> dict[str, Any]:
        """Give the prior that is used when none is given."""

    # -- what a family may say ------------------------------------------------------------------------------------

    def log_partition(self, phi: Array) -> Array:
        r"""Log-partition :math:`A(\varphi)` as a function of the natural parameter; infinite outside its space."""
        raise Unsupported(f"{type(self).__name__} has no log-partition of the natural parameter alone.")

    def log_g(self, values: Values) -> Array:
        r"""Log-normaliser of one record, :math:`\log g(\theta) = -A(\varphi(\theta))`."""
        return -self.log_partition(self.natural(values))

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        r"""Constrained values whose natural parameter is phi."""
        raise Unsupported(f"{type(self).__name__} has no inverse of its natural parameter.")

    def distribution(self, values: Values) -> Distribution:
        """Give the NumPyro distribution of column y, in families of one column: for made-up records and checks."""
        raise Unsupported(f"{type(self).__name__} gives no NumPyro distribution of a record.")

    def log_prob(self, values: Values, records: Record) -> Array:
        """Log density of each of several records by NumPyro, log h(y) included: what `check` compares with."""
        (name,) = self.domain
        return self.distribution(values).log_prob(records[name])

    def posterior(self, s_n: Array, n: int) -> Joint:
        """Conjugate posterior given the sum of statistics and n; for comparisons, never private."""
        raise Unsupported(f"{type(self).__name__} has no conjugate posterior in closed form.")

    # -- sensitivities --------------------------------------------------------------------------------------------

    @property
    def exact_ratio(self) -> bool:
        """Whether the range of a record's log ratio is exact."""
        return self.exact

    def support(self, v: Array) -> Array:
        r"""Support function :math:`\sup_{y\in\mathcal Y} v^\top S(y)`; by default over the points of a finite domain."""
        return jnp.max(self.cells() @ v)

    def width(self, v: Array) -> Array:
        r"""Sensitivity of :math:`v^\top S_n`: :math:`\sup_y v^\top S(y) - \inf_y v^\top S(y)`."""
        return self.support(v) + self.support(-v)

    def diameter(self) -> float:
        r"""Sensitivity of :math:`S_n`, the paper's :math:`\nabla_2 S = \sup\lVert S(x) - S(y)\rVert_2`."""
        return self.known_diameter(np.eye(self.size))

    def whitened_diameter(self, matrix: Array) -> Array:
        r"""Sensitivity of :math:`A^\top S_n`: :math:`\sup\lVert A^\top(S(x) - S(y))\rVert_2`, or a proven bound of it.

        Exact on finite domains and for one column of A. For two columns the diameter of a planar set, from widths along
        a fan of directions (relative excess below 1e-4). Beyond, widths along orthogonal axes, by Pythagoras.
        """
        if self.finite:
            return _spread(self.cells() @ matrix)
        columns = matrix.shape[1]
        if columns <= 2:
            angles = np.arange(_FAN) * np.pi / _FAN
            fan = np.ones((1, 1)) if columns == 1 else np.stack([np.cos(angles), np.sin(angles)])
            slack = 1.0 if columns == 1 else 1.0 / np.cos(np.pi / (2 * _FAN))
            return jnp.max(jax.vmap(self.width, 1)(matrix @ fan)) * slack
        _, _, right = jnp.linalg.svd(matrix, full_matrices=True)
        widths = jax.vmap(self.width, 1)(jnp.concatenate([matrix, matrix @ right.T], axis=1))
        return jnp.sqrt(jnp.min(jnp.sum(widths.reshape(2, columns) ** 2, axis=1)))

    def known_diameter(self, matrix: np.ndarray) -> float:
        """`whitened_diameter` as a number. Not traceable."""
        with jax.enable_x64(True):
            return float(self._numbers.diameter(matrix))

    def known_ranges(self, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest v'S over the record domain for every row v, as numbers. Not traceable."""
        with jax.enable_x64(True):
            below, above = self._numbers.supports(-np.asarray(directions)), self._numbers.supports(directions)
            return -np.asarray(below, np.float64), np.asarray(above, np.float64)

    @cached_property
    def _numbers(self) -> "_Numbers":
        return _Numbers(quick_jit(self.whitened_diameter), quick_jit(jax.vmap(self.support)))

    @property
    def finite(self) -> bool:
        """Whether the record domain is a list of at most `MAX_CELLS` points, each column one whole number."""
        return self._listed is not None

    @cached_property
    def _listed(self) -> list[np.ndarray] | None:
        """The values of every column, if their combinations are few."""
        lists = [None if d.shape else d.cells(0, MAX_CELLS) for d in self.domain.values()]
        found = [values for values in lists if values is not None]
        return found if len(found) == len(lists) and prod(map(len, found)) <= MAX_CELLS else None

    def cells(self) -> np.ndarray:
        """S at every point of a finite domain, shape (points, k)."""
        if self._listed is None:
            raise Unsupported(
                f"{type(self).__name__} must define `support`: its record domain is not a list of at most {MAX_CELLS} "
                "points."
            )
        table = np.array(list(product(*self._listed)))
        batch = {name: table[:, j].astype(d.dtype) for j, (name, d) in enumerate(self.domain.items())}
        with jax.ensure_compile_time_eval():  # constants, also when a caller is being traced
            return np.asarray(jax.vmap(self.statistic)(batch), dtype=np.float64)

    # -- moments --------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Length k of the statistic."""
        record = {name: np.zeros(d.shape, d.dtype) for name, d in self.domain.items()}
        return int(jax.eval_shape(self.statistic, record).shape[0])

    @property
    def regular(self) -> bool:
        """Whether the family is given by its natural parameter alone: what Langevin needs."""
        given = type(self)
        return given.log_partition is not Family.log_partition and given.natural_inverse is not Family.natural_inverse

    def mean(self, values: Values) -> Array:
        r"""Mean of S under theta, :math:`\nabla A(\varphi)`."""
        return jax.grad(self.log_partition)(self.natural(values))

    def covariance(self, values: Values) -> Array:
        r"""Covariance of S under theta, :math:`\nabla^2 A(\varphi)`."""
        return jax.hessian(self.log_partition)(self.natural(values))

    def beside(self, measurement: Measurement) -> tuple[Measurement, Any]:
        r"""What of a measurement is left for `moments_of_sum`, and what it says of quantities without a law: by default none.

        A family whose records have a part without a law (covariates) gives what is believed of that part's own sums.
        """
        return measurement, None

    def moments_of_sum(self, values: Values, n: int, beside: Any) -> tuple[Array, Array]:
        r"""Mean and covariance of :math:`S_n` under theta, given what `beside` says."""
        return n * self.mean(values), n * self.covariance(values)

    def draw(self, values: Values, key: Array, size: int) -> dict[str, Array]:
        """Draw records from the family itself, before they meet the declared domain. Not traceable in `size`."""
        (name,) = self.domain
        return {name: self._sampler(values, key, size)}

    @cached_property
    def _sampler(self) -> Callable[[Values, Array, int], Array]:
        """Compiled whole: operation by operation, NumPyro's samplers are dozens of programs."""
        return jax.jit(lambda values, key, size: self.distribution(values).sample(key, (size,)), static_argnums=2)

    def sample(self, values: Values, key: Array, size: int) -> dict[str, np.ndarray]:
        """Draw made-up records, moved into the declared domain. Not traceable."""
        drawn = self.draw(values, key, size)
        moved = {name: d.clamp(np.nan_to_num(np.asarray(drawn[name], np.float64))) for name, d in self.domain.items()}
        return {name: as_model_input(d, moved[name]) for name, d in self.domain.items()}

    # -- the family as a model ------------------------------------------------------------------------------------

    def joint_prior(self) -> Joint:
        """Read the prior as a joint law of the sites."""
        given = self.default_prior() if self.prior is None else self.prior
        return as_joint(given, tuple(p.name for p in self.parameters))

    def prior_draws(self, seed: int) -> list[dict[str, Array]]:
        """Draw the sites a few times from the prior: points to try things at. Not traceable."""
        own = self.prior is None and type(self).__module__.startswith("sfumato.")
        drawn = _draws_of(_Said(self), seed) if own else _draw_prior(self, seed)
        return [{name: jax.device_put(column[i]) for name, column in drawn.items()} for i in range(_PROBES)]

    def log_likelihood(self, values: Values, record: Record) -> Array:
        r"""One record's :math:`\varphi(\theta)^\top S(y) + \log g(\theta)`; log h(y), which cancels, is left out."""
        phi = self.natural(values)
        return jnp.sum(phi * self.statistic(record).astype(phi.dtype)) + self.log_g(values).astype(phi.dtype)

    def to_model(self) -> Model:
        """Turn the family into a `Model`: unconstrained through NumPyro's bijections, Jacobians in the prior."""
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        """What it was made of: programs that it keeps are compiled again where it goes."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_model", "_numbers", "_sampler")}

    @cached_property
    def _model(self) -> Model:
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            return _build(self)

    def bounds(self) -> Bounds:
        r"""Range of one record's log ratio, from the support function.

        .. math:: \log\tfrac{g(\theta')}{g(\theta)} - h(-v) \le \ell(y,\theta') - \ell(y,\theta)
                  \le \log\tfrac{g(\theta')}{g(\theta)} + h(v), \quad v = \varphi(\theta') - \varphi(\theta).
        """
        constrain = self.to_model().constrain

        def range_(theta: Array, theta_prop: Array) -> tuple[Array, Array]:
            lo, hi = self.ratio_range(constrain(theta), constrain(theta_prop))
            undefined = jnp.isnan(lo) | jnp.isnan(hi)
            return jnp.where(undefined, -jnp.inf, lo), jnp.where(undefined, jnp.inf, hi)

        return Bounds(range_, "exact" if self.exact_ratio else "certified", proven=True, statistic=True)

    def ratio_range(self, values: Values, values_prop: Values) -> tuple[Array, Array]:
        """Smallest and largest log ratio of one record, as in `bounds`, for constrained values."""
        move = self.natural(values_prop) - self.natural(values)
        shift = self.log_g(values_prop) - self.log_g(values)
        return shift - self.support(-move), shift + self.support(move)

    def log_prior_natural(self, phi: Array) -> Array:
        r"""Log prior density over the natural parameter: that of the sites, with the Jacobian of `natural_inverse`."""
        model = self.to_model()

        def free(phi: Array) -> Array:
            return model.unconstrain(self.natural_inverse(phi))

        if self.coordinatewise:
            slopes = jax.jvp(free, (phi,), (jnp.ones_like(phi),))[1]
            return model.log_prior(free(phi)) + jnp.sum(jnp.log(jnp.abs(slopes)))
        return model.log_prior(free(phi)) + jnp.linalg.slogdet(jax.jacfwd(free)(phi))[1]

    @property
    def coordinatewise(self) -> bool:
        """Whether each coordinate of the unconstrained parameter depends on one of phi alone: a diagonal Jacobian."""
        return False

    # -- identity -------------------------------------------------------------------------------------------------

    def source(self) -> str:
        """Text that identifies the family: name, settings, prior; the program too, if it is not one of ours."""
        kind = type(self)
        settings = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "prior"}
        prior = "default" if self.prior is None else self.joint_prior().describe()
        program = self.form if kind.__module__.startswith("sfumato.") else _program(kind)
        return json.dumps([kind.__qualname__, settings, prior, program])

    def __repr__(self) -> str:
        shown = [(f.name, getattr(self, f.name)) for f in fields(self)]
        inside = ", ".join(f"{name}={value!r}" for name, value in shown if not (name == "prior" and value is None))
        return f"{type(self).__name__}({inside})"


def _plain(value: Any) -> Any:
    if isinstance(value, Domain):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | bool | None) else np.asarray(value).tolist()


class _Numbers(NamedTuple):
    """A family's sensitivities, each compiled whole: operation by operation they are dozens of programs."""

    diameter: Callable[[np.ndarray], Array]
    supports: Callable[[np.ndarray], Array]


class _Said:
    """One of our families with its own prior, known by all that it says of itself: what was drawn for one serves its equals."""

    def __init__(self, family: Family) -> None:
        self.family, self._key = family, (family.source(), str(jnp.result_type(float)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Said) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=64)
def _draws_of(said: _Said, seed: int) -> dict[str, np.ndarray]:
    return _draw_prior(said.family, seed)


def _draw_prior(family: Family, seed: int) -> dict[str, np.ndarray]:
    sample = family.joint_prior().sample
    with jax.ensure_compile_time_eval():  # the same context for every caller: compiled once
        # A loop compiles faster than a vectorised sampler.
        drawn = quick_jit(lambda keys: jax.lax.map(sample, keys))(jax.random.split(jax.random.key(seed), _PROBES))
        return {name: np.asarray(column) for name, column in drawn.items()}


def _program(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return kind.__module__


def _spread(points: Array) -> Array:
    """Largest distance between two of the points: exact, row by row, so that memory stays flat."""
    points = jnp.asarray(points)
    return jnp.sqrt(jnp.max(jax.lax.map(lambda p: jnp.max(jnp.sum((points - p) ** 2, axis=1)), points)))


def _build(family: Family) -> Model:
    prior, parameters = family.joint_prior(), family.parameters
    names = [p.name for p in parameters]
    probes = family.prior_draws(0)
    transforms = {name: biject_to(prior.given(name, probes[0]).support) for name in names}
    for parameter in parameters:
        _check_prior(parameter, prior, probes)
    free = {name: jax.eval_shape(transforms[name].inv, probes[0][name]).shape for name in names}
    sites = tuple(Site(p.name, p.shape, int(np.prod(free[p.name], dtype=int))) for p in parameters)
    splits = np.cumsum([site.size for site in sites])[:-1].tolist()

    def unpack(theta: Array) -> dict[str, Array]:
        parts = jnp.split(theta, splits)
        return {name: part.reshape(free[name]) for name, part in zip(names, parts, strict=True)}

    def constrain(theta: Array) -> dict[str, Array]:
        return {name: transforms[name](value) for name, value in unpack(theta).items()}

    def unconstrain(values: Values) -> Array:
        check_values(values, sites)
        return jnp.concatenate([jnp.ravel(transforms[n].inv(jnp.asarray(values[n], dtype=float))) for n in names])

    def log_likelihood(theta: Array, record: Record) -> Array:
        # Bijections in 64 bits (some of NumPyro's know no other in 64-bit mode), records in the precision of theta.
        values = {name: value.astype(theta.dtype) for name, value in constrain(theta.astype(float)).items()}
        return family.log_likelihood(values, record)

    def log_prior(theta: Array) -> Array:
        parts = unpack(theta)
        values = {name: transforms[name](part) for name, part in parts.items()}
        total = prior.log_prob(values)
        for name, part in parts.items():
            total += jnp.sum(transforms[name].log_abs_det_jacobian(part, values[name]))
        return total

    def sample_records(theta: Array, key: Array, size: int) -> dict[str, np.ndarray]:
        return family.sample(quick_jit(constrain)(theta), key, size)

    return Model(
        sites=sites,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        constrain=constrain,
        unconstrain=unconstrain,
        sample_prior=lambda key: unconstrain(prior.sample(key)),
        columns=tuple(family.domain),
        source=family.source(),
        sample_records=sample_records,
    )


def _check_prior(parameter: Parameter, prior: Joint, probes: list[dict[str, Array]]) -> None:
    name, shape, constraint = parameter
    drawn = prior.given(name, probes[0])
    if np.shape(probes[0][name]) != shape:
        raise InvalidModel(
            f"the prior of site {name!r} must have shape {shape}, got {np.shape(probes[0][name])}.", site=name
        )
    if drawn.support.is_discrete or not all(np.all(constraint(np.asarray(v[name]))) for v in probes):
        raise InvalidModel(
            f"the prior of site {name!r} must stay within {constraint}, and {type(drawn).__name__} does not; choose a "
            "prior with that support or a smaller one.",
            site=name,
        )
