r"""Linear regression as an exponential family: covariates and outcome both private."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from sfumato.domain import Domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families import covariates
from sfumato.families.base import Array, Family, Parameter
from sfumato.families.measurement import Measurement, split
from sfumato.families.multivariate import check_vector, product_widths
from sfumato.families.normal import need_default_prior, scale_law
from sfumato.families.prior import Joint, Values
from sfumato.families.quadratic import MAX_FACES_DIM, Solid, from_triangle, over_box, over_solid, triangle
from sfumato.model.base import Record

_MADE_UP = 4096  # covariates that say what sums of them may be
_PRIOR_SHAPE = 2.0
_PRIOR_REACH = 10.0  # prior standard deviation of a covariate's whole effect, in units of the noise


class Sums(NamedTuple):
    """The statistics of many records, as matrices."""

    zz: Array
    zy: Array
    yy: Array


class Frame(NamedTuple):
    """Where x and y are measured from, and in which units: shape (columns of x + 1,), y last."""

    shift: np.ndarray
    unit: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class LinearRegression(Family):
    r"""Normal outcome, mean linear in the covariates; coefficients and noise unknown.

    With z = x, or (1, x) with an intercept, :math:`y \mid x \sim N(\beta^\top z, \sigma^2)`. In S and in
    :math:`\varphi` x and y are measured in units of their domain: from its middle, in half lengths, with an intercept; as
    parts of the largest value without one. Coefficients and scale are those of x and y as they are.

    .. math:: S = (\mathrm{triangle}(zz^\top),\ zy,\ y^2), \quad
              \varphi = \Bigl(-\frac{\mathrm{triangle}(\beta\beta^\top)}{2\sigma^2},\ \frac{\beta}{\sigma^2},\
              -\frac{1}{2\sigma^2}\Bigr), \quad \log g = -\log\sigma

    The triangle is the upper one, off-diagonal entries times :math:`\sqrt 2`; the constant entry of :math:`zz^\top` is left
    out of S (its part of phi moves into log g). Covariates have no law of their own here: it cancels in every ratio, but
    moments of S exist only given x (`moments_given`), or given what was released of the sums of covariates (`beside`).

    The range of a log ratio is that of a difference of two squares, which is exact in any dimension. Widths along a given
    direction are exact for a box of at most 4 dimensions, x and y together, and otherwise a proven upper bound, tight
    where the direction is a difference of two squares. :math:`\nabla_2 S` is a proven bound: each block at its own widest.

    Parameters
    ----------
    x
        The declared domain of the covariates: a Box or a Ball of vectors.
    y
        The declared domain of the outcome: an Interval.
    intercept
        Whether to add a constant covariate, as the first coefficient.
    prior
        On ``scale`` and ``coefficients``; by default :math:`1/\sigma^2\sim` Gamma(2, 2 (length of y/8)^2) and, given scale,
        the mean of y at the middle of x Normal about the middle of y, and slopes Normal about zero, independent, with standard
        deviations 10 scale and 10 scale / half length of x_j, conjugate. Without an intercept: by the largest size of x_j.
    """

    x: Domain
    y: Domain
    intercept: bool = False

    exact_diameter = False
    form = "in units of the domain"

    def __post_init__(self) -> None:
        check_vector("x", self.x)
        line = isinstance(self.y, Domain) and self.y.separable and not self.y.shape and not self.y.discrete
        if not line or not self.y.lo < self.y.hi:
            raise InvalidInput(f"y must be an Interval such as sf.Interval(-5, 5), got {self.y!r}.")

    # -- the family -----------------------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """Number of coefficients."""
        return self.x.size + int(self.intercept)

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """On a box of few dimensions."""
        return self.x.separable and self.x.size + 1 <= MAX_FACES_DIM

    @property
    def exact_ratio(self) -> bool:
        """Always: a log ratio is a difference of two squares."""
        return True

    @property
    def domain(self) -> dict[str, Domain]:
        """X in the box or ball, y in the interval."""
        return {"x": self.x, "y": self.y}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Coefficients and noise."""
        coefficients = Parameter("coefficients", (self.dim,), constraints.real_vector)
        return (coefficients, Parameter("scale", (), constraints.positive))

    @cached_property
    def _frame(self) -> "Frame":
        """Where x and y are measured from, and in which units: by their domain."""
        lo, hi = np.append(self.x.lo, self.y.lo), np.append(self.x.hi, self.y.hi)
        shift = (lo + hi) / 2 if self.intercept else np.zeros(len(lo))
        unit = np.maximum(hi - shift, shift - lo)
        return Frame(shift, np.where(unit > 0, unit, 1.0))

    def _standard(self, values: Values) -> tuple[Array, Array]:
        """Coefficients and scale of x and y as they are measured in S."""
        beta, first, frame = values["coefficients"], int(self.intercept), self._frame
        shift, unit = frame.shift.astype(beta.dtype), frame.unit.astype(beta.dtype)
        slopes = beta[first:] * unit[:-1]
        constant = jnp.reshape(beta[0] + beta[first:] @ shift[:-1] - shift[-1], (1,)) if self.intercept else beta[:0]
        return jnp.concatenate([constant, slopes]) / unit[-1], values["scale"] / unit[-1]

    def _measured(self, record: Record) -> tuple[Array, Array]:
        """Covariates z and outcome y of a record in the units of S."""
        x, y, frame = jnp.asarray(record["x"]), jnp.asarray(record["y"]), self._frame
        shift, unit = frame.shift, frame.unit
        scaled = (x - shift[:-1].astype(x.dtype)) / unit[:-1].astype(x.dtype)
        return self.design(scaled), (y - shift[-1].astype(y.dtype)) / unit[-1].astype(y.dtype)

    def design(self, x: Array) -> Array:
        """The covariates of a record, or of many, with the constant if there is one."""
        x = jnp.asarray(x)
        return jnp.concatenate([jnp.ones_like(x[..., :1]), x], axis=-1) if self.intercept else x

    def _triangle(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The triangle without the constant entry."""
        return tuple(part[int(self.intercept) :] for part in triangle(self.dim))  # type: ignore[return-value]

    def statistic(self, record: Record) -> Array:
        """S = (triangle(zz'), zy, y^2)."""
        z, y = self._measured(record)
        rows, columns, weights = self._triangle()
        return jnp.concatenate([z[rows] * z[columns] * weights.astype(z.dtype), z * y, jnp.reshape(y**2, (1,))])

    def natural(self, values: Values) -> Array:
        r""":math:`(-\mathrm{triangle}(\beta\beta^\top)/2,\ \beta,\ -1/2)/\sigma^2`."""
        beta, scale = self._standard(values)
        rows, columns, weights = self._triangle()
        squares = -beta[rows] * beta[columns] * weights.astype(beta.dtype) / 2
        return jnp.concatenate([squares, beta, -0.5 * jnp.ones_like(beta[:1])]) / scale**2

    def log_g(self, values: Values) -> Array:
        r""":math:`-\log\sigma`, and :math:`-\beta_0^2/(2\sigma^2)` for the intercept."""
        beta, scale = self._standard(values)
        constant = beta[0] ** 2 / (2 * scale**2) if self.intercept else 0.0
        return -jnp.log(values["scale"]) - constant

    # -- sensitivities --------------------------------------------------------------------------------------------

    def quadratic(self, v: Array) -> Array:
        r"""Symmetric Q with :math:`v^\top S = w^\top Q w`, w = (z, y)."""
        dim = self.dim
        size = dim * (dim + 1) // 2 - int(self.intercept)
        entries = jnp.concatenate([jnp.zeros(int(self.intercept), v.dtype), v[:size]])
        matrix = jnp.zeros((dim + 1, dim + 1), v.dtype).at[:dim, :dim].set(from_triangle(entries, dim))
        mixed = v[size : size + dim] / 2
        return matrix.at[dim, :dim].set(mixed).at[:dim, dim].set(mixed).at[dim, dim].set(v[-1])

    def solid(self) -> Solid:
        """The set of all w = (z, y)."""
        one, none = np.ones(int(self.intercept)), np.zeros(int(self.intercept))
        lo, hi, radius = self._ends
        centre, half, ball = (lo + hi) / 2, (hi - lo) / 2, np.zeros(len(lo))
        if radius is not None:
            ball[:-1], half[:-1] = 1.0, 0.0
        parts = np.concatenate([one, centre]), np.concatenate([none, half]), np.concatenate([none, ball])
        return Solid(*parts, radius or 0.0)

    @property
    def _ends(self) -> tuple[np.ndarray, np.ndarray, float | None]:
        """Lowest and highest x and y in the units of S, and the radius of the ball that x fills if it is one."""
        lo, hi = np.append(self.x.lo, self.y.lo), np.append(self.x.hi, self.y.hi)
        shift, unit = self._frame
        radius = self.x.ball_radius
        return (lo - shift) / unit, (hi - shift) / unit, None if radius is None else radius / float(unit[0])

    def support(self, v: Array) -> Array:
        """Largest value of a quadratic over the covariates and the outcome."""
        matrix, solid = self.quadratic(v), self.solid()
        if self.exact:
            first = int(self.intercept)
            linear = 2 * matrix[0, first:] if self.intercept else jnp.zeros(len(matrix), matrix.dtype)
            lo, hi = (solid.offset - solid.half)[first:], (solid.offset + solid.half)[first:]
            return over_box(matrix[first:, first:], linear, lo, hi)
        bound = over_solid(matrix, solid)
        if not self.intercept:
            return bound
        # The constant's own square may be given any weight, taken off again; this one makes ranks as small as they get.
        weight = jnp.nan_to_num(matrix[0, 1:] @ jnp.linalg.pinv(matrix[1:, 1:], rtol=1e-9) @ matrix[0, 1:])
        return jnp.minimum(bound, over_solid(matrix.at[0, 0].add(weight), solid) - weight)

    def ratio_range(self, values: Values, values_prop: Values) -> tuple[Array, Array]:
        r"""Exact: a difference of two squares is a quadratic of rank two.

        .. math:: \log\frac{\sigma}{\sigma'} + \frac{(y-\beta^\top z)^2}{2\sigma^2} - \frac{(y-\beta'^\top z)^2}{2\sigma'^2}
        """

        def residual(at: Values) -> Array:
            beta, scale = self._standard(at)
            return jnp.append(-beta, 1.0) / (2.0**0.5 * scale)

        here, there = residual(values), residual(values_prop)
        matrix = jnp.outer(here, here) - jnp.outer(there, there)
        shift = jnp.log(values["scale"]) - jnp.log(values_prop["scale"])
        return shift - over_solid(-matrix, self.solid()), shift + over_solid(matrix, self.solid())

    def diameter(self) -> float:
        r"""A proven bound: :math:`zz^\top`, :math:`zy` and :math:`y^2`, each at its own widest."""
        every_lo, every_hi, radius = self._ends
        x_lo, x_hi, lo, hi = every_lo[:-1], every_hi[:-1], float(every_lo[-1]), float(every_hi[-1])
        largest, least = max(lo**2, hi**2), 0.0 if lo < 0 < hi else min(lo**2, hi**2)
        squares = [(largest - least) ** 2]
        if self.intercept:
            squares.append((hi - lo) ** 2)
        if radius is not None:
            corner = radius**4 * (2.0 if self.x.size > 1 else 1.0)
            squares += [corner, (2 * radius * max(abs(lo), abs(hi))) ** 2]
            squares += [2 * (2 * radius) ** 2] if self.intercept else []
        else:
            squares += (product_widths(x_lo, x_hi) ** 2).tolist()
            ends = np.stack([x * y for x in (x_lo, x_hi) for y in (lo, hi)])
            squares += ((ends.max(axis=0) - ends.min(axis=0)) ** 2).tolist()
            squares += (2 * (x_hi - x_lo) ** 2).tolist() if self.intercept else []
        return float(np.sqrt(np.sum(squares)))

    # -- moments and records --------------------------------------------------------------------------------------

    def mean(self, values: Values) -> Array:
        """Not defined: covariates have no law here."""
        raise Unsupported(
            "moments of LinearRegression's statistic depend on the covariates; use moments_given(values, x), or moments_of_sum."
        )

    def covariance(self, values: Values) -> Array:
        """Not defined: covariates have no law here."""
        raise Unsupported(
            "moments of LinearRegression's statistic depend on the covariates; use moments_given(values, x), or moments_of_sum."
        )

    def moments_given(self, values: Values, x: Array) -> tuple[Array, Array]:
        """Mean and covariance of S given the covariates of one record."""
        beta, scale = self._standard(values)
        z, _ = self._measured({"x": x, "y": self.y.lo})
        centre, variance = jnp.sum(z * beta), scale**2
        rows, columns, weights = self._triangle()
        known = z[rows] * z[columns] * weights
        mean = jnp.concatenate([known, z * centre, jnp.reshape(centre**2 + variance, (1,))])
        # y and y^2 under N(m, s^2): Var y = s^2, Cov = 2 m s^2, Var y^2 = 4 m^2 s^2 + 2 s^4.
        pair = jnp.array([[1.0, 2 * centre], [2 * centre, 4 * centre**2 + 2 * variance]]) * variance
        loads = jnp.zeros((len(mean), 2)).at[len(known) : -1, 0].set(z).at[-1, 1].set(1.0)
        return mean, loads @ pair @ loads.T

    def beside(self, measurement: Measurement) -> tuple[Measurement, Any]:
        """What is measured besides the sums of covariates, and what is believed of these: `covariates.believed`."""
        own = len(self._triangle()[0])
        heard, rest = split(measurement, own)
        return rest, covariates.believed(self._made_up, heard, lambda entries: self._grams(entries, measurement.n))

    @cached_property
    def _made_up(self) -> np.ndarray:
        """Entries of zz' of made-up covariates: half of the entries (of a ball's records) uniform, half at the ends."""
        rng, rows = np.random.default_rng(0), self._triangle()
        spread, extreme = self.x.sample(rng, _MADE_UP), self.x.extremes(rng, _MADE_UP)
        entry = (_MADE_UP, 1) if self.x.ball_radius is not None else spread.shape
        frame = self._frame
        x = (np.where(rng.random(entry) < 0.5, spread, extreme) - frame.shift[:-1]) / frame.unit[:-1]
        z = np.concatenate([np.ones((_MADE_UP, int(self.intercept))), x], axis=1)
        return np.asarray(z[:, rows[0]] * z[:, rows[1]] * rows[2])

    def _grams(self, entries: np.ndarray, n: int) -> np.ndarray:
        """Matrices of sums of zz' from their entries, many at once."""
        rows, columns, weights = self._triangle()
        grams: Any = np.zeros((len(entries), self.dim, self.dim))
        if self.intercept:
            grams[:, 0, 0] = n
        grams[:, rows, columns] = grams[:, columns, rows] = entries / weights
        return grams

    def moments_of_sum(self, values: Values, n: int, beside: Any) -> tuple[Array, Array]:
        r"""Mean and covariance of :math:`S_n`, its covariates averaged over by the moments of their sums G.

        Given G, :math:`Z^\top y` and :math:`y^\top y` have means :math:`G\beta`, :math:`\beta^\top G\beta + n\sigma^2`,
        variances :math:`\sigma^2G`, :math:`2n\sigma^4 + 4\sigma^2\beta^\top G\beta` and covariance
        :math:`2\sigma^2G\beta`: all linear in G.
        """
        beta, scale = self._standard(values)
        variance, own, entries = scale**2, len(beside.mean), beside.mean
        fixed, each = self._gram_parts
        gram = n * fixed + jnp.tensordot(entries, each, 1)
        along = gram @ beta
        mean = jnp.concatenate([entries, along, jnp.reshape(beta @ along + n * variance, (1,))])
        turned = each @ beta
        slopes = jnp.concatenate([np.eye(own), turned, (turned @ beta)[:, None]], axis=1)
        square = 2 * n * variance**2 + 4 * variance * (beta @ along)
        given = jnp.block([[variance * gram, 2 * variance * along[:, None]], [2 * variance * along[None], square]])
        corner = ((own, 0), (own, 0))
        return mean, slopes.T @ beside.covariance @ slopes + jnp.pad(given, corner)

    @cached_property
    def _gram_parts(self) -> tuple[np.ndarray, np.ndarray]:
        """What Z'Z has of one record before any entry is known, and of one in each entry."""
        fixed = self._grams(np.zeros((1, len(self._triangle()[0]))), 1)[0]
        return fixed, self._grams(np.eye(len(self._triangle()[0])), 0)

    def draw(self, values: Values, key: Array, size: int) -> dict[str, Array]:
        """Covariates uniform over their domain, outcomes from the family."""
        seed, sub = jax.random.split(key)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(seed)).astype(np.uint32).tolist())
        x = jnp.asarray(self.x.sample(rng, size))
        return {"x": x, "y": dist.Normal(self.design(x) @ values["coefficients"], values["scale"]).sample(sub)}

    def log_prob(self, values: Values, records: Record) -> Array:
        """NumPyro's Normal, given the covariates."""
        return dist.Normal(self.design(records["x"]) @ values["coefficients"], values["scale"]).log_prob(records["y"])

    # -- prior and posterior --------------------------------------------------------------------------------------

    @cached_property
    def _prior_centre(self) -> np.ndarray:
        """Slopes zero, and with an intercept the middle of y."""
        return np.append(self._frame.shift[-1:] if self.intercept else [], np.zeros(self.x.size))

    @cached_property
    def _prior_precision(self) -> np.ndarray:
        """Diagonal for x measured from its middle: the same belief whatever the units and the origin of x."""
        first, frame = int(self.intercept), self._frame
        standard = np.diag(np.append(np.ones(first), frame.unit[:-1]))
        if self.intercept:
            standard[0, 1:] = frame.shift[:-1]
        return np.asarray(standard.T @ standard / _PRIOR_REACH**2)

    @property
    def _prior_rate(self) -> float:
        return float(_PRIOR_SHAPE * ((self.y.hi - self.y.lo) / 8) ** 2)

    @staticmethod
    def _conjugate(shape: Array, rate: Array, centre: Array, root: Array) -> dict[str, Any]:
        def coefficients(values: Values) -> dist.Distribution:
            return dist.MultivariateNormal(centre, scale_tril=root * values["scale"])

        return {"scale": scale_law(shape, rate), "coefficients": coefficients}

    def default_prior(self) -> dict[str, Any]:
        """Normal-inverse-gamma, as wide as the domain."""
        root = np.linalg.cholesky(np.linalg.inv(self._prior_precision))
        return self._conjugate(_PRIOR_SHAPE, self._prior_rate, self._prior_centre, root)

    def unpack(self, s_n: Array, n: int) -> Sums:
        """Z'Z, Z'y and y'y of x and y as they are, from the sum of statistics."""
        dim, first, frame = self.dim, int(self.intercept), self._frame
        size = dim * (dim + 1) // 2 - first
        gram, mixed = self.unpack_gram(s_n[:size], n), s_n[size : size + dim]
        every = jnp.block([[gram, mixed[:, None]], [mixed[None], jnp.reshape(s_n[-1], (1, 1))]])
        back: Any = np.diag(np.concatenate([np.ones(first), frame.unit]))
        if self.intercept:
            back[1:, 0] = frame.shift
        every = back @ every @ back.T
        return Sums(every[:dim, :dim], every[:dim, dim], every[dim, dim])

    def unpack_gram(self, entries: Array, n: int) -> Array:
        """Z'Z in the units of S from its entries."""
        constant = jnp.full(int(self.intercept), float(n))
        return from_triangle(jnp.concatenate([constant, entries]), self.dim)

    def posterior(self, s_n: Array, n: int) -> Joint:
        """Normal-inverse-gamma update."""
        need_default_prior(self)
        sums = self.unpack(s_n, n)
        precision = self._prior_precision + sums.zz
        prior = self._prior_precision @ self._prior_centre
        centre = jnp.linalg.solve(precision, prior + sums.zy)
        rate = self._prior_rate + (sums.yy + self._prior_centre @ prior - centre @ precision @ centre) / 2
        root = jnp.linalg.cholesky(jnp.linalg.inv(precision))
        return Joint(self._conjugate(_PRIOR_SHAPE + n / 2, rate, centre, root))
