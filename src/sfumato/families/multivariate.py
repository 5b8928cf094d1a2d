r"""Multivariate normal records, on a box or a ball: covariance known, covariance unknown."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from sfumato.domain import Domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Array, Family, Parameter
from sfumato.families.normal import need_default_prior, square_diameter
from sfumato.families.prior import Joint, Values
from sfumato.families.quadratic import MAX_FACES_DIM, from_triangle, over_ball, over_box, triangle
from sfumato.model.base import Record


def check_vector(name: str, domain: Any) -> None:
    """Refuse what is not a box or a ball of vectors."""
    known = isinstance(domain, Domain) and (domain.separable or domain.ball_radius is not None)
    if not known or len(domain.shape) != 1 or domain.discrete:
        raise InvalidInput(f"{name} must be a Box or a Ball of vectors, such as sf.Ball(1.0, dim=3); got {domain!r}.")


@dataclass(frozen=True, eq=False, repr=False)
class MultivariateNormal(Family):
    r"""Normal vectors of known covariance.

    .. math:: S(y) = y, \quad \varphi = \Sigma^{-1}\mu, \quad A(\varphi) = \tfrac12\varphi^\top\Sigma\varphi

    :math:`\nabla_2 S` is twice the radius of a ball, the diagonal of a box.

    Parameters
    ----------
    covariance_matrix
        The known covariance matrix.
    y
        The declared domain of a record: a Box or a Ball.
    prior
        On ``mean``; by default independent Normals with the domain's midpoint and half its length in each coordinate,
        conjugate.
    """

    covariance_matrix: Any
    y: Domain

    def __post_init__(self) -> None:
        check_vector("y", self.y)
        matrix = np.asarray(self.covariance_matrix, dtype=np.float64)
        if matrix.shape != self.y.shape * 2 or not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] <= 0:
            raise InvalidInput(f"covariance_matrix must be a positive definite matrix of shape {self.y.shape * 2}.")
        object.__setattr__(self, "covariance_matrix", matrix.tolist())

    @cached_property
    def _sigma(self) -> np.ndarray:
        return np.asarray(self.covariance_matrix)

    @cached_property
    def _precision(self) -> np.ndarray:
        return np.linalg.inv(self._sigma)

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in the box or ball."""
        return {"y": self.y}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One mean vector."""
        return (Parameter("mean", self.y.shape, constraints.real_vector),)

    def default_prior(self) -> dict[str, Any]:
        """Normal(midpoint, half length) in each coordinate."""
        return {"mean": dist.Normal((self.y.lo + self.y.hi) / 2, (self.y.hi - self.y.lo) / 2).to_event(1)}

    def statistic(self, record: Record) -> Array:
        """S(y) = y."""
        return jnp.asarray(record["y"])

    def natural(self, values: Values) -> Array:
        r""":math:`\Sigma^{-1}\mu`."""
        return self._precision.astype(values["mean"].dtype) @ values["mean"]

    def log_partition(self, phi: Array) -> Array:
        r""":math:`\tfrac12\varphi^\top\Sigma\varphi`."""
        return phi @ self._sigma.astype(phi.dtype) @ phi / 2

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        r""":math:`\mu = \Sigma\varphi`."""
        return {"mean": self._sigma @ phi}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's MultivariateNormal."""
        return dist.MultivariateNormal(values["mean"], covariance_matrix=self._sigma)

    def support(self, v: Array) -> Array:
        """Support function of the box or ball itself."""
        return self.y.support(v)

    def diameter(self) -> float:
        """Of the box or ball itself."""
        return self.y.diameter()

    def whitened_diameter(self, matrix: Array) -> Array:
        r"""Exact on a ball, :math:`2r\lVert A\rVert_2`, and on a box of up to 12 dimensions; beyond, the general bound."""
        exact = self.y.image_diameter(matrix)
        return super().whitened_diameter(matrix) if exact is None else exact

    def posterior(self, s_n: Array, n: int) -> Joint:
        """Precisions add; for a prior of independent Normals."""
        prior = self.joint_prior()["mean"]
        base = getattr(prior, "base_dist", None)
        if not isinstance(base, dist.Normal):
            raise Unsupported("a conjugate posterior needs a prior of independent Normals on mean.")
        weight = jnp.broadcast_to(1 / jnp.asarray(base.scale) ** 2, self.y.shape)
        precision = jnp.diag(weight) + n * self._precision
        centre = jnp.linalg.solve(precision, weight * base.loc + self._precision @ s_n)
        return Joint({"mean": dist.MultivariateNormal(centre, precision_matrix=precision)})


_PRIOR_WEIGHT = 1 / 16


@dataclass(frozen=True, eq=False, repr=False)
class MultivariateNormalMeanCovariance(Family):
    r"""Normal vectors, mean and covariance unknown.

    .. math:: S(y) = (y,\ \mathrm{triangle}(yy^\top)), \quad
              \varphi = (\Sigma^{-1}\mu,\ -\tfrac12\mathrm{triangle}(\Sigma^{-1})), \quad
              A = \tfrac12\mu^\top\Sigma^{-1}\mu + \tfrac12\log\det\Sigma

    The triangle is the upper one, its off-diagonal entries times :math:`\sqrt 2`, so that lengths are Frobenius norms.
    On a ball widths and :math:`\nabla_2 S` are exact. On a box widths are exact up to 4 dimensions and a proven bound
    beyond; :math:`\nabla_2 S` is a proven bound: each entry at its own widest.

    Parameters
    ----------
    y
        The declared domain of a record: a Box or a Ball.
    prior
        On ``covariance`` and ``mean``; by default inverse Wishart with d + 2 degrees of freedom and mean diag(length/8)^2,
        and mean given covariance Normal(midpoint, 16 covariance), conjugate.
    """

    y: Domain

    def __post_init__(self) -> None:
        check_vector("y", self.y)

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """On a ball, and on a box of few dimensions."""
        return self.y.ball_radius is not None or self.y.size <= MAX_FACES_DIM

    @property
    def exact_diameter(self) -> bool:  # type: ignore[override]
        """On a ball, and on a line."""
        return self.y.ball_radius is not None or self.y.size == 1

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in the box or ball."""
        return {"y": self.y}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Mean vector and covariance matrix."""
        shape = self.y.shape
        mean = Parameter("mean", shape, constraints.real_vector)
        return (mean, Parameter("covariance", shape * 2, constraints.positive_definite))

    @property
    def _centre(self) -> np.ndarray:
        return (self.y.lo + self.y.hi) / 2

    @property
    def _spread(self) -> np.ndarray:
        return np.diag(((self.y.hi - self.y.lo) / 8) ** 2)

    def default_prior(self) -> dict[str, Any]:
        """Normal-inverse-Wishart, as wide as the domain."""
        return self._conjugate(self.y.size + 2.0, self._spread, self._centre, _PRIOR_WEIGHT)

    @staticmethod
    def _conjugate(df: Array, scale: Array, centre: Array, weight: Array) -> dict[str, Any]:
        return {
            "covariance": dist.InverseWishart(df, scale_matrix=scale),
            "mean": lambda values: dist.MultivariateNormal(centre, covariance_matrix=values["covariance"] / weight),
        }

    def statistic(self, record: Record) -> Array:
        """S(y) = (y, triangle(yy'))."""
        y = jnp.asarray(record["y"])
        rows, columns, weights = triangle(self.y.size)
        return jnp.concatenate([y, y[rows] * y[columns] * weights.astype(y.dtype)])

    def natural(self, values: Values) -> Array:
        r""":math:`(\Sigma^{-1}\mu, -\tfrac12\mathrm{triangle}(\Sigma^{-1}))`."""
        rows, columns, weights = triangle(self.y.size)
        precision = jnp.linalg.inv(values["covariance"])
        precision = (precision + precision.T) / 2
        squares = -0.5 * precision[rows, columns] * weights.astype(precision.dtype)
        return jnp.concatenate([precision @ values["mean"], squares])

    def log_g(self, values: Values) -> Array:
        r""":math:`-\tfrac12\mu^\top\Sigma^{-1}\mu - \tfrac12\log\det\Sigma`."""
        root = jnp.linalg.cholesky(values["covariance"])
        white = jax.scipy.linalg.solve_triangular(root, values["mean"], lower=True)
        return -jnp.sum(white**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(root)))

    def log_partition(self, phi: Array) -> Array:
        r""":math:`\tfrac14 a^\top P^{-1} a - \tfrac12\log\det 2P`, a and -P the two parts of phi."""
        dim = self.y.size
        linear, minus = phi[:dim], from_triangle(phi[dim:], dim)
        root = jnp.linalg.cholesky(-2 * minus)
        white = jax.scipy.linalg.solve_triangular(root, linear, lower=True)
        value = jnp.sum(white**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(root)))
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        r""":math:`\Sigma = (2P)^{-1},\ \mu = \Sigma a`."""
        dim = self.y.size
        covariance = jnp.linalg.inv(-2 * from_triangle(phi[dim:], dim))
        covariance = (covariance + covariance.T) / 2
        return {"mean": covariance @ phi[:dim], "covariance": covariance}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's MultivariateNormal."""
        return dist.MultivariateNormal(values["mean"], covariance_matrix=values["covariance"])

    def support(self, v: Array) -> Array:
        """Largest value of a quadratic over the box or ball."""
        dim = self.y.size
        linear, matrix = v[:dim], from_triangle(v[dim:], dim)
        if (radius := self.y.ball_radius) is not None:
            return over_ball(matrix, linear, radius)
        return over_box(matrix, linear, self.y.lo, self.y.hi)

    def diameter(self) -> float:
        r"""Closed form on a ball, entry by entry on a box.

        Two points of the sphere at an angle of cosine c are :math:`2r^2(1-c) + 2r^4(1-c^2)` apart (squared), largest at
        c = -1/(2r^2), or at -1 for small balls; points inside are closer.
        """
        if self.y.size == 1:
            return square_diameter(float(self.y.lo[0]), float(self.y.hi[0]))
        if (radius := self.y.ball_radius) is not None:
            square = radius**2
            cosine = max(-1.0, -1 / (2 * square))
            return float(2 * square * (1 - cosine) + 2 * square**2 * (1 - cosine**2)) ** 0.5
        return float(np.linalg.norm(np.concatenate([self.y.hi - self.y.lo, product_widths(self.y.lo, self.y.hi)])))

    def posterior(self, s_n: Array, n: int) -> Joint:
        """Normal-inverse-Wishart update."""
        need_default_prior(self)
        dim, weight = self.y.size, _PRIOR_WEIGHT + n
        total, squares = s_n[:dim], from_triangle(s_n[dim:], dim)
        centre = (_PRIOR_WEIGHT * self._centre + total) / weight
        scale = self._spread + squares + _PRIOR_WEIGHT * np.outer(self._centre, self._centre)
        scale = scale - weight * jnp.outer(centre, centre)
        return Joint(self._conjugate(dim + 2.0 + n, (scale + scale.T) / 2, centre, weight))


def product_widths(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    r"""Widths of the triangle of :math:`yy^\top` over a box, entry by entry."""
    rows, columns, weights = triangle(len(lo))
    ends = np.stack([lo[rows] * lo[columns], lo[rows] * hi[columns], hi[rows] * lo[columns], hi[rows] * hi[columns]])
    least = np.where((rows == columns) & (lo[rows] < 0) & (hi[rows] > 0), 0.0, ends.min(axis=0))
    return np.asarray(
        (np.where(rows == columns, np.maximum(lo[rows] ** 2, hi[rows] ** 2), ends.max(axis=0)) - least) * weights
    )
