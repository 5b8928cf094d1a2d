r"""Categories and contingency tables: Categorical and LogLinear."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints

from sfumato.domain import Categories, Domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import MAX_CELLS, Array, Family, Parameter
from sfumato.families.prior import Joint, Values
from sfumato.model.base import Record


@dataclass(frozen=True, eq=False, repr=False)
class Categorical(Family):
    r"""One of k categories.

    .. math:: S(y) = (1[y=0], \dots, 1[y=k-2]), \quad \varphi_j = \log\tfrac{p_j}{p_{k-1}}, \quad
              A(\varphi) = \log\bigl(1 + \sum_j e^{\varphi_j}\bigr)

    The last category is the reference, so that phi is free. :math:`\nabla_2 S = \sqrt 2` (1 if k = 2).

    Parameters
    ----------
    categories
        Their number, or the list of labels the raw column holds.
    prior
        On ``p``; by default Dirichlet(1, ..., 1), conjugate.
    """

    categories: int | Sequence[Any]

    def __post_init__(self) -> None:
        if self.count < 2:
            raise InvalidInput(f"Categorical needs at least two categories, got {self.categories}.")

    @property
    def count(self) -> int:
        """Number of categories."""
        return self.categories if isinstance(self.categories, int) else len(self.categories)

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in {0, ..., k-1}."""
        return {"y": Categories(self.categories)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One probability each."""
        return (Parameter("p", (self.count,), constraints.simplex),)

    def default_prior(self) -> dict[str, Any]:
        """Dirichlet(1, ..., 1)."""
        return {"p": dist.Dirichlet(np.ones(self.count))}

    def statistic(self, record: Record) -> Array:
        """Indicators of all categories but the last."""
        return (record["y"] == jnp.arange(self.count - 1)) * 1.0

    def natural(self, values: Values) -> Array:
        """Log odds against the last category."""
        logs = jnp.log(values["p"])
        return logs[:-1] - logs[-1]

    def log_partition(self, phi: Array) -> Array:
        r""":math:`\log(1 + \sum_j e^{\varphi_j})`."""
        return logsumexp(jnp.append(phi, 0.0))

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """Softmax."""
        return {"p": jax.nn.softmax(jnp.append(phi, 0.0))}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Categorical."""
        return dist.Categorical(probs=values["p"])

    def support(self, v: Array) -> Array:
        """Largest entry, or 0 for the reference."""
        return jnp.maximum(jnp.max(v), 0.0)

    def posterior(self, s_n: Array, n: int) -> Joint:
        """Dirichlet: counts add."""
        prior = self.joint_prior()["p"]
        if not isinstance(prior, dist.Dirichlet):
            raise Unsupported(f"a conjugate posterior needs a Dirichlet prior on p, got {type(prior).__name__}.")
        counts = jnp.append(s_n, n - jnp.sum(s_n))
        return Joint({"p": dist.Dirichlet(prior.concentration + counts)})


@dataclass(frozen=True, eq=False, repr=False)
class LogLinear(Family):
    r"""Contingency tables: main effects of several categorical columns, and chosen interactions.

    .. math:: p(y\mid\varphi) = \exp\{\varphi^\top S(y) - A(\varphi)\}, \quad
              A(\varphi) = \log\sum_{\text{cells } c} e^{\varphi^\top S(c)}

    S holds, for every column and every chosen set of columns, the products of the indicators of all levels but the first.
    Widths and the diameter are exact, over all cells.

    Parameters
    ----------
    columns
        Name -> number of levels, or list of labels.
    interactions
        Sets of columns that interact, such as ``[("smoker", "region")]``. Interactions within a set must be listed too.
    prior
        On ``coefficients``; by default Normal(0, 2), independent.
    """

    columns: Mapping[str, int | Sequence[Any]]
    interactions: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidInput("LogLinear needs at least one column, such as columns={'smoker': 2}.")
        for names in self.interactions:
            if len(set(names)) < 2 or len(set(names)) != len(names) or not set(names) <= set(self.columns):
                raise InvalidInput(
                    f"an interaction must name two or more of {list(self.columns)}, each once; got {tuple(names)}."
                )
        cells = int(np.prod([d.hi - d.lo + 1 for d in self.domain.values()]))
        if cells > MAX_CELLS:
            raise InvalidInput(f"a table may have {MAX_CELLS} cells, got {cells}; merge levels or drop columns.")

    @property
    def domain(self) -> dict[str, Domain]:
        """One of the levels in each column."""
        return {name: Categories(levels) for name, levels in self.columns.items()}

    @property
    def effects(self) -> list[dict[str, int]]:
        """What each coefficient belongs to: the level of each column it takes (level 0 is the reference)."""
        sets = [(name,) for name in self.columns] + [tuple(names) for names in self.interactions]
        levels = {name: range(1, int(d.hi) + 1) for name, d in self.domain.items()}
        return [
            dict(zip(names, chosen, strict=True)) for names in sets for chosen in product(*(levels[n] for n in names))
        ]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One coefficient per effect."""
        return (Parameter("coefficients", (len(self.effects),), constraints.real_vector),)

    def default_prior(self) -> dict[str, Any]:
        """Normal(0, 2), independent."""
        return {"coefficients": dist.Normal(0.0, 2.0).expand([len(self.effects)]).to_event(1)}

    def statistic(self, record: Record) -> Array:
        """Products of indicators."""
        hits = [
            jnp.prod(jnp.stack([record[name] == level for name, level in effect.items()]) * 1.0)
            for effect in self.effects
        ]
        return jnp.stack(hits)

    def natural(self, values: Values) -> Array:
        """The coefficients."""
        return values["coefficients"] * 1.0

    def log_partition(self, phi: Array) -> Array:
        """Sum over all cells."""
        return logsumexp(self.cells() @ phi)

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """The coefficients."""
        return {"coefficients": phi}

    def _cell_law(self, values: Values) -> dist.Distribution:
        return dist.Categorical(logits=self.cells() @ values["coefficients"])

    def draw(self, values: Values, key: Array, size: int) -> dict[str, Array]:
        """Draw cells, then read off their levels."""
        shape = [int(d.hi) + 1 for d in self.domain.values()]
        levels = jnp.unravel_index(self._cell_law(values).sample(key, (size,)), shape)
        return dict(zip(self.domain, levels, strict=True))

    def log_prob(self, values: Values, records: Record) -> Array:
        """NumPyro's Categorical over the cells."""
        shape = [int(d.hi) + 1 for d in self.domain.values()]
        cell = jnp.ravel_multi_index(tuple(records[name] for name in self.domain), tuple(shape), mode="clip")
        return self._cell_law(values).log_prob(cell)
