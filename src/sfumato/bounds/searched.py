r"""What holds for one record near a reference point, searched for and enforced: for programs without a proof.

Both queries of Langevin use a record's gradient at the reference point, cut to balls (`balls`). Privacy rests on the cut.
Langevin is exact for *any* vector, so a cut costs no exactness by itself; a second query whose range is too narrow does.

*The second query's range* is searched for, for this very pair of parameters: its scalar

.. math:: r(y) = \ell(y,\theta') - \ell(y,\theta) - s(y)^\top v

is evaluated on a *bank* of made-up records, the furthest of them are moved to the corners that their slopes point to (Frank and
Wolfe 1956), and the range met is widened by a margin on either side. The bank holds corners, records as the model makes them, and
those that reached furthest for many moves around the reference point. Nothing here is a product of norms: a record of one group
out of fifty feels a move in its own block alone, and the range says so. The range of the swapped pair is this one, negated and
exchanged.

*Kinks.* Where a gradient jumps, r is large for the few records between two kinks, and no bank has them. There

.. math:: |\ell(y,\theta') - \ell(y,\theta) - \nabla\ell(y,\theta^*)^\top\delta| \le W\,\lVert A^{-1}\delta\rVert

holds with W the largest change of a whitened gradient over domain and trust region, and the range is
:math:`c_0^\top\tilde w \pm (W\lVert\tilde\delta\rVert + R\lVert\tilde w\rVert)`, with w = delta - v whitened.

What no search has found is cut: as private as before, and exact no more for that record. The statement says that a search was
made.

References
----------
Frank & Wolfe 1956.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import synthetic
from sfumato.bounds.balls import Balls, Kinds, diameter, enclosing
from sfumato.bounds.body import Body
from sfumato.bounds.climbing import Climber, joined, mixed
from sfumato.bounds.gradients import GUARD, GradientSet
from sfumato.bounds.interval import Array
from sfumato.bounds.reach import Search
from sfumato.bounds.reach import diameter as furthest_apart
from sfumato.bounds.reference import Proven, Reference
from sfumato.bounds.remainder import Anchor
from sfumato.domain import Domain
from sfumato.errors import Unsupported
from sfumato.model.base import Model
from sfumato.model.trials import as_model_input
from sfumato.tools.quick_jit import quick_jit

ROOM = 1.05
"""Radius of a ball over the furthest vector that was met."""
KEPT = 4
"""Reference points remembered: a plan has one before its pilot and one after."""
MOVES = 48
"""Moves around the reference point whose furthest records join the bank."""
BEST = 3
"""Records that join for either end of each of them."""
TIGHT = 1.3
"""Budget that a proof may cost, over what records were found to need, before a search is made in its place."""
LOOSE = 4.0
"""The same of the second query, which takes a small part of a budget."""
TRIED_MOVES, TRIED_STEP, TRIED_RECORDS = 6, 0.1, 1024
"""Moves, their step size and made-up records by which that is judged."""
KINK = 0.35
"""Largest change of a gradient over a tenth of a distance, beside that over the whole: a smooth one changes by a tenth."""
FAR = 10.0
"""Distance from the reference point, in whitened units, at which gradients are compared."""
_EACH = 512  # made-up records of each sort, from which the bank is chosen
_STAY = 128  # of each sort that stay in it
_PER_KIND = 2048  # made-up records for the balls, shared out among kinds
_TURNS = 3  # of climbing when the bank is made
_DIRECTIONS = 16
_UNBOUNDED = (
    "kernel='langevin' needs gradients bounded on the domain, in a matrix with an inverse; use kernel='guided'."
)


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """The inverse of a matrix that somebody else may have chosen."""
    try:
        found = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        raise Unsupported(_UNBOUNDED) from None
    if not np.isfinite(found).all():
        raise Unsupported(_UNBOUNDED)
    return found


class Bank(NamedTuple):
    """Made-up records that a range is searched among, as arrays: all public.

    Attributes
    ----------
    records, vectors
        Columns; and each record's gradient at the reference point.
    centre, radius
        Of a ball around all whitened gradients that were met.
    jump
        W: the largest change of a whitened gradient; 0 where gradients do not jump.
    inverse
        Of the matrix that whitens.
    theta
        The reference point.
    """

    records: Mapping[str, Array]
    vectors: Array
    centre: Array
    radius: Array
    jump: Array
    inverse: Array
    theta: Array


class Searched(NamedTuple):
    """What was found at one reference point; the names are those of `reference.Proven`."""

    anchor: Bank
    gradients: GradientSet
    body: Balls

    @property
    def searched(self) -> bool:
        """Found by a search, not proven."""
        return True


class SearchedReference:
    """Bounds for Langevin around reference points of one model: searched for, with a margin, and enforced.

    It offers what `reference.Reference` offers.
    """

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self._model, self._domain = model, dict(domain)
        self._kinds, self._climber = Kinds(domain), Climber(domain)
        self._within = Climber(
            domain, still=[name for name, *_ in self._kinds.pieces]
        )  # moves a record inside of its kind
        self._found = lru_cache(maxsize=KEPT)(self._search_at)

    # -- what every reference offers ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `Unsupported` if the model has no gradient."""
        if self.why_not:
            raise Unsupported(self.why_not)

    @property
    def possible(self) -> bool:
        """Whether the model has a gradient."""
        return not self.why_not

    @cached_property
    def why_not(self) -> str:
        """Why there can be no Langevin; empty where there can."""
        with jax.enable_x64(True):
            theta = np.asarray(self._model.sample_prior(jax.random.key(0)), np.float64)
            try:
                scores = np.asarray(self._scores(theta, self._climber.typed(synthetic.extreme(self._domain, 64))))
            except TypeError as error:  # JAX: a loop of unknown length, a callback
                return f"kernel='langevin' needs a program that JAX can differentiate, and this one: {str(error)[:120]}"
        if not np.isfinite(scores).any():
            return "kernel='langevin' needs gradients that are numbers, and on made-up records none is"
        return ""

    @property
    def thorough(self) -> bool:
        """Whether a search may take the place of a proof: it moves real columns, and tries every value of the others."""
        whole = {name for name, d in self._domain.items() if d.discrete}
        return self.possible and whole <= {name for name, *_ in self._kinds.columns}

    def at(self, centre: np.ndarray, matrix: np.ndarray) -> Searched:
        """Search at a reference point; a planner asks about the same one again and again."""
        point, root = np.asarray(centre, np.float64), np.asarray(matrix, np.float64)
        return self._found(point.tobytes(), root.tobytes())

    def vector(self, body: Balls, record: Mapping[str, Array]) -> Array:
        """Vector of one record, as both queries use it: its gradient, cut to a ball where it is whitened."""
        plain = jax.grad(self._model.log_likelihood)(body.theta, record)
        kind = self._kinds.of(record)
        white = body.matrix.T @ plain
        cut = body.cut(white, kind)
        usual = jnp.all(jnp.isfinite(white))
        return jnp.where(usual, plain + body.back @ (cut - jnp.where(usual, white, cut)), body.back @ cut)

    def whitened(self, body: Balls, matrix: Array, record: Mapping[str, Array]) -> Array:
        """The same, whitened: an element of a ball by construction. The body knows the matrix it was made for."""
        return body.cut(
            body.matrix.T @ jax.grad(self._model.log_likelihood)(body.theta, record), self._kinds.of(record)
        )

    def range(self, anchor: Bank, theta: Array, theta_prop: Array, lag: Array) -> tuple[Array, Array]:
        """Range of one record's second-order scalar; pure JAX, in 64-bit mode."""
        delta = theta_prop - theta
        along = delta - lag
        scalar = self._scalar(theta, theta_prop, along, anchor.theta)
        there, here = (jax.vmap(self._model.log_likelihood, (None, 0))(t, anchor.records) for t in (theta_prop, theta))
        low, high = self._climber.widest(scalar, anchor.records, there - here - anchor.vectors @ along)
        white, white_lag = anchor.inverse @ delta, anchor.inverse @ lag
        middle = anchor.centre @ white_lag
        rough = anchor.jump * jnp.linalg.norm(white) + anchor.radius * jnp.linalg.norm(white_lag)
        smooth = anchor.jump == 0
        low = jnp.where(smooth, low, jnp.minimum(low, middle - rough))
        high = jnp.where(smooth, high, jnp.maximum(high, middle + rough))
        undefined = ~(jnp.isfinite(low) & jnp.isfinite(high))
        return jnp.where(undefined, -jnp.inf, low), jnp.where(undefined, jnp.inf, high)

    # -- one record's scalar ----------------------------------------------------------------------------------------------

    def _scalar(self, theta: Array, theta_prop: Array, along: Array, centre: Array) -> Callable[..., Array]:
        """Function record -> its scalar, uncut."""
        density = self._model.log_likelihood

        def scalar(record: Mapping[str, Array]) -> Array:
            slope = jax.jvp(lambda t: density(t, record), (centre,), (along,))[1]
            return density(theta_prop, record) - density(theta, record) - slope

        return scalar

    # -- at a reference point -------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")  # what overflows, or is no number, is refused at the end
    def _search_at(self, point: bytes, root: bytes) -> Searched:
        centre = np.frombuffer(point)
        matrix = np.frombuffer(root).reshape(len(centre), -1)
        with jax.enable_x64(True):
            back = _inverse(matrix).T
            bank = self._bank(centre, matrix)
            centres, radii, middle, reach = self._balls(centre, matrix, bank)
            jump = self._jump(centre, matrix, bank)
            vectors = self._scores(centre, bank)
            anchor = Bank(bank, vectors, middle, np.float64(reach), np.float64(jump), back.T, centre)
            low, high = (centres - radii[:, None]).min(axis=0), (centres + radii[:, None]).max(axis=0)
            slack = GUARD - 1
            spread = np.abs(low) + np.abs(high)
            found = GradientSet(diameter(centres, radii) * GUARD, low - slack * spread, high + slack * spread)
            if not (np.isfinite(found.diameter) and np.isfinite(spread).all() and np.isfinite(jump)):
                raise Unsupported(_UNBOUNDED)
            return jax.tree.map(
                jnp.asarray, Searched(anchor, found, Balls(centre, matrix, back, centres, radii))
            )._replace(gradients=found)

    @cached_property
    def _scores(self) -> Callable[..., Array]:
        return quick_jit(jax.vmap(jax.grad(self._model.log_likelihood), (None, 0)))

    def _bank(self, centre: np.ndarray, matrix: np.ndarray) -> dict[str, np.ndarray]:
        """Corners, records as the model makes them, and those that reach furthest for moves around the reference point."""
        model, domain, rng = self._model, self._domain, np.random.default_rng(0)
        sorts = [
            synthetic.extreme(domain, _EACH), synthetic.uniform(model, domain, centre, _EACH),
            synthetic.uniform(model, domain, centre, _EACH, 1, 0.5), mixed(domain, rng, _EACH), self._corners(),
        ]  # fmt: skip
        pool = self._sound(centre, joined([self._climber.typed(batch) for batch in sorts]))
        size = len(next(iter(pool.values())))
        pairs = self._moves(centre, matrix)
        chosen, parents = [{name: column[:: _EACH // _STAY] for name, column in pool.items()}], pool
        for _ in range(_TURNS):
            values = np.asarray(self._values(*pairs, centre, parents))  # (move, record)
            order = np.argsort(np.where(np.isfinite(values), values, 0.0), axis=1)
            ends = np.concatenate(
                [order[:, :BEST], order[:, -BEST:]], axis=1
            ).ravel()  # always as many: nothing is recompiled
            furthest = {name: column[ends] for name, column in parents.items()}
            chosen.append(furthest)
            parents = self._sound(centre, self._children(furthest, size, rng))
        return joined(chosen)

    def _corners(self) -> dict[str, np.ndarray]:
        """Records that no trial of a model may miss, repeated to as many for every column."""
        rng, size = np.random.default_rng(1), 8
        each = {name: np.concatenate([d.corners(), d.extremes(rng, size)])[:size] for name, d in self._domain.items()}
        return {name: as_model_input(self._domain[name], values) for name, values in each.items()}

    def _sound(self, centre: np.ndarray, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Records whose gradient at the reference point is a number."""
        good = np.isfinite(np.asarray(self._scores(centre, batch))).all(axis=1)
        if not good.any():
            raise Unsupported(
                "kernel='langevin' needs gradients that are numbers at the reference point; use kernel='guided'."
            )
        # As many as before, so that nothing is compiled twice.
        which = np.resize(np.flatnonzero(good), len(good))
        return {name: column[which] for name, column in batch.items()}

    def _children(self, parents: dict[str, np.ndarray], size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        number = len(next(iter(parents.values())))
        of = rng.integers(0, number, size)
        entries = sum(d.size for d in self._domain.values())
        out = {}
        fresh = mixed(self._domain, rng, size)
        for name, d in self._domain.items():
            out[name] = d.vary(parents[name][of], fresh[name], max(1.5 / entries, 0.1), rng)
        return self._climber.typed(out)

    def _moves(self, centre: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of parameters as a chain may make them: short steps and long ones, near the reference point and off it."""
        rng, dim = np.random.default_rng(2), len(centre)
        step = np.resize([0.05, 0.3, 1.0], MOVES)[:, None]
        x = rng.standard_normal((MOVES, dim)) * np.resize([1.0, 1.0, 2.0, 2.0], MOVES)[:, None]
        x_prop = (1 - step / 2) * x + np.sqrt(step * (1 - step / 4)) * rng.standard_normal((MOVES, dim))
        return centre + x @ matrix.T, centre + x_prop @ matrix.T

    @cached_property
    def _values(self) -> Callable[..., Array]:
        def values(theta: Array, theta_prop: Array, centre: Array, batch: Mapping[str, Array]) -> Array:
            def one(pair: tuple[Array, Array]) -> Array:
                return jax.vmap(self._scalar(*pair, pair[1] - pair[0], centre))(batch)

            return jax.lax.map(one, (theta, theta_prop))

        return quick_jit(values)

    # -- balls --------------------------------------------------------------------------------------------------------

    def _balls(
        self, centre: np.ndarray, matrix: np.ndarray, bank: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Centre and radius of every kind's ball, all the same if that is less; and the one ball around all."""
        kinds = self._kinds
        each = max(16, _PER_KIND // kinds.number)
        rng = np.random.default_rng(3)
        batch = self._climber.typed(mixed(self._domain, rng, kinds.number * each) | kinds.values(each, rng))
        white = np.asarray(self._scores(centre, batch)) @ matrix
        middle = np.nanmean(np.where(np.isfinite(white), white, np.nan), axis=0)
        climbed = np.asarray(self._reach(centre, matrix, middle, batch)) if self._within.reals else white
        sets = np.concatenate([white.reshape(kinds.number, each, -1), climbed.reshape(kinds.number, each, -1)], axis=1)
        usual = np.isfinite(sets).all(axis=2, keepdims=True)
        sets = np.where(
            usual, sets, np.where(usual, sets, 0.0).sum(1, keepdims=True) / np.maximum(usual.sum(1, keepdims=True), 1)
        )
        centres, radii = enclosing(sets)
        radii = ROOM * radii + 1e-12
        everything = np.concatenate([sets.reshape(-1, len(centre)), np.asarray(self._scores(centre, bank)) @ matrix])
        whole_centre, whole_radius = enclosing(everything[None])
        whole_radius = ROOM * whole_radius + 1e-12
        if diameter(whole_centre, whole_radius) <= diameter(centres, radii):
            centres, radii = (np.repeat(part, kinds.number, axis=0) for part in (whole_centre, whole_radius))
        return centres, radii, whole_centre[0], float(whole_radius[0])

    @cached_property
    def _reach(self) -> Callable[..., Array]:
        """Compile: records moved to where their whitened gradient is further from a point -> those gradients."""

        def reach(centre: Array, matrix: Array, middle: Array, batch: Mapping[str, Array]) -> Array:
            def white(record: Mapping[str, Array]) -> Array:
                return matrix.T @ jax.grad(self._model.log_likelihood)(centre, record)

            def one(record: Mapping[str, Array]) -> Array:
                return white(self._within.climb(lambda r: jnp.sum((white(r) - middle) ** 2), record)[0])

            return jax.lax.map(one, dict(batch), batch_size=256)

        return quick_jit(reach)

    # -- kinks --------------------------------------------------------------------------------------------------------

    def _jump(self, centre: np.ndarray, matrix: np.ndarray, bank: dict[str, np.ndarray]) -> float:
        """W, where gradients jump; else 0."""
        rng, dim = np.random.default_rng(4), len(centre)
        direction = rng.standard_normal((_DIRECTIONS, dim))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        here = np.asarray(self._scores(centre, bank)) @ matrix

        def change(distance: float) -> float:
            apart = [np.asarray(self._scores(centre + distance * matrix @ u, bank)) @ matrix - here for u in direction]
            return max(float(np.linalg.norm(a[np.isfinite(a).all(axis=1)], axis=1).max(initial=0.0)) for a in apart)

        far, near, nearest = (change(FAR / 10**k) for k in range(3))
        if near <= KINK * far and nearest <= KINK * near:
            return 0.0
        return ROOM * max(far, near, nearest, change(dim**0.5 + FAR))


class BestReference:
    """Proven bounds where the program has rules for them and they are tight, else searched ones: `sensitivity="auto"`.

    The choice is made for every reference point, from public numbers alone, so an owner and an analyst make the same one.
    """

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self._model, self._domain = model, domain
        self._proven, self._searched = Reference(model, domain), SearchedReference(model, domain)
        self._chosen = lru_cache(maxsize=KEPT)(self._choose_at)

    @property
    def possible(self) -> bool:
        """Whether there can be Langevin."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """Why there can be none; empty where there can."""
        return "" if self._proven.possible else self._searched.why_not

    def check(self) -> None:
        """Raise `Unsupported` if there can be no Langevin."""
        if not self._proven.possible:
            self._searched.check()

    def at(self, centre: np.ndarray, matrix: np.ndarray) -> Proven | Searched:
        """What holds at a reference point."""
        point, root = np.asarray(centre, np.float64), np.asarray(matrix, np.float64)
        return self._chosen(point.tobytes(), root.tobytes())

    def _choose_at(self, point: bytes, root: bytes) -> Proven | Searched:
        centre = np.frombuffer(point)
        matrix = np.frombuffer(root).reshape(len(centre), -1)
        proven = self._try_proof(centre, matrix)
        if proven is None:
            return self._searched.at(centre, matrix)
        with jax.enable_x64(True):
            met = furthest_apart(Search(self._model, [self._domain]).vectors("gradient", centre, matrix))
            across, needed = self._widths(centre, matrix, proven)
        if not self._searched.thorough:
            return proven
        if not np.isfinite(across) or across**2 > LOOSE * needed**2:
            return self._searched.at(centre, matrix)
        if proven.gradients.diameter**2 <= TIGHT * met**2:
            return proven
        found = self._searched.at(centre, matrix)
        return found if TIGHT * found.gradients.diameter**2 < proven.gradients.diameter**2 else proven

    def _widths(self, centre: np.ndarray, matrix: np.ndarray, proven: Proven) -> tuple[float, float]:
        """Width of the second query for a few ordinary moves, proven and needed by made-up records: root mean squares."""
        rng, dim = np.random.default_rng(5), len(centre)
        x = rng.standard_normal((TRIED_MOVES, dim))
        x_prop = (1 - TRIED_STEP / 2) * x + TRIED_STEP**0.5 * rng.standard_normal((TRIED_MOVES, dim))
        here, there = (jnp.asarray(centre + part @ matrix.T) for part in (x, x_prop))
        lo, hi = (np.asarray(end) for end in self._ranges(proven.anchor, here, there))
        batch = mixed(self._domain, rng, TRIED_RECORDS)
        scalars = np.asarray(self._scalars(centre, here, there, batch))
        scalars = np.where(np.isfinite(scalars), scalars, np.nan)
        spans = np.nan_to_num(np.nanmax(scalars, axis=1) - np.nanmin(scalars, axis=1))
        return float(np.mean((hi - lo) ** 2) ** 0.5), float(np.mean(spans**2) ** 0.5)

    @cached_property
    def _ranges(self) -> Callable[..., Any]:
        def ranges(anchor: Anchor, here: Array, there: Array) -> Any:
            return jax.lax.map(
                lambda pair: self._proven.range(anchor, pair[0], pair[1], jnp.zeros_like(pair[0])), (here, there)
            )

        return quick_jit(ranges)

    @cached_property
    def _scalars(self) -> Callable[..., Array]:
        density = self._model.log_likelihood

        def scalars(centre: Array, here: Array, there: Array, batch: Mapping[str, Array]) -> Array:
            def one(pair: tuple[Array, Array]) -> Array:
                def scalar(record: Mapping[str, Array]) -> Array:
                    slope = jax.jvp(lambda t: density(t, record), (centre,), (pair[1] - pair[0],))[1]
                    return density(pair[1], record) - density(pair[0], record) - slope

                return jax.vmap(scalar)(batch)

            return jax.lax.map(one, (here, there))

        return quick_jit(scalars)

    def _try_proof(self, centre: np.ndarray, matrix: np.ndarray) -> Proven | None:
        try:
            return self._proven.at(centre, matrix) if self._proven.possible else None
        except Unsupported:  # gradients without a bound, here
            return None

    def vector(self, body: Body | Balls, record: Mapping[str, Array]) -> Array:
        """Vector of one record, as both queries use it."""
        return self._searched.vector(body, record) if isinstance(body, Balls) else self._proven.vector(body, record)

    def whitened(self, body: Body | Balls, matrix: Array, record: Mapping[str, Array]) -> Array:
        """The same, whitened."""
        if isinstance(body, Balls):
            return self._searched.whitened(body, matrix, record)
        return self._proven.whitened(body, matrix, record)

    def range(self, anchor: Anchor | Bank, theta: Array, theta_prop: Array, lag: Array) -> tuple[Array, Array]:
        """Range of one record's second-order scalar."""
        if isinstance(anchor, Bank):
            return self._searched.range(anchor, theta, theta_prop, lag)
        return self._proven.range(anchor, theta, theta_prop, lag)
