r"""Algorithm 3: the penalty chain on noisy copies of the sufficient statistic, anywhere, without the data.

One step uses one copy (of every owner), never to be used again:

.. math:: \hat d = n\log\tfrac{g(\theta')}{g(\theta)} + (\varphi' - \varphi)^\top\hat S^{(t)}, \qquad
          \sigma_t^2 = \lVert\varphi' - \varphi\rVert^2\,\xi, \qquad
          \alpha = \min\{1, e^{\hat d + \log r_0 - \sigma_t^2/2}\}

with r_0 the ratios of prior and proposal. :math:`\sigma_t` varies from step to step but is symmetric in (theta, theta'), so the
chain is exact. With N owners the statistics add and so do the noise variances, :math:`\xi = \sum_i \xi_i` (Algorithm 2 with
unequal noise). Nothing here sees a record: the guarantee is the one the bundles were released under.

References
----------
Yıldırım 2016, Algorithms 2 and 3, Corollary 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bundle import Bundle
from sfumato.errors import BundleError, InvalidInput
from sfumato.families.base import Family
from sfumato.interruption import check as check_interrupted
from sfumato.interruption import listening, until_asked
from sfumato.kernel import Heard, Kernel, Move, PublicStream, State
from sfumato.kernel.loop import Priced, Transcript, compile_loop
from sfumato.model import Model
from sfumato.noise_aware import check_distinct, from_copies
from sfumato.planner import Plan
from sfumato.planner.bundles import Supply, picture_from_copies, plan_bundles, refuse_if_weak
from sfumato.privacy.joint import join
from sfumato.progress import Tick, ticker
from sfumato.run import Run, StopReason
from sfumato.verdict import visible_transient

Array: TypeAlias = Any
CHUNK = 1 << 16
"""Steps (of all chains together) per compiled call: a fraction of a second, so that progress moves and Ctrl-C is heard."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is computed, step after step.

    Attributes
    ----------
    n, xi
        Records and noise variance per coordinate, of all owners together.
    root_cost
        Root of what one copy cost the owner who paid most (mu of one copy).
    """

    family: Family
    model: Model
    kernel: Kernel
    n: int
    xi: float
    root_cost: float


class Natural(NamedTuple):
    """Natural parameter and log-normaliser at every chain's theta."""

    phi: Array
    log_g: Array


class Judged(NamedTuple):
    """What is public about a proposed pair: the same at the proposal, and noise and direction of the copy's log ratio."""

    there: Natural
    move: Array
    sigma: Array


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies for the compiled loop: `fresh` is one for each chain, `kept` the natural parameters. Nothing is charged here."""

    question: Question

    def natural(self, theta: Array) -> Natural:
        """Natural parameters of all chains."""
        family, model = self.question.family, self.question.model

        def one(theta: Array) -> Natural:
            values = model.constrain(theta)
            return Natural(family.natural(values), family.log_g(values))

        found: Natural = jax.vmap(one)(theta)
        return found

    def price(self, held: None, states: State, kept: Natural, move: Move) -> Priced:
        """Noise of the log ratios. A copy that cannot judge (no prior there, beyond floating point) is spent all the same."""
        there = self.natural(move.theta_prop)
        away = there.phi - kept.phi
        sigma = jnp.sqrt(self.question.xi * jnp.sum(away**2, axis=1))
        usable = move.possible & jnp.isfinite(sigma) & jnp.isfinite(there.log_g - kept.log_g) & (sigma > 0)
        shown = jnp.where(usable, sigma, 1.0)
        widths = jnp.where(usable, shown * self.question.root_cost, 0.0)
        return Priced(widths, usable, jnp.zeros((), jnp.int64), Judged(there, away, shown))

    def answer(
        self, held: None, states: State, kept: Natural, move: Move, priced: Priced, fresh: Array
    ) -> tuple[Heard, Natural]:
        """The noisy log ratio of every chain, by its copy."""
        there, away, sigma = priced.clamp
        d_n_noisy = self.question.n * (there.log_g - kept.log_g) + jnp.sum(away * fresh, axis=1)
        return Heard(jnp.where(priced.answered, d_n_noisy, jnp.nan), sigma, priced.answered), there


@lru_cache(maxsize=8)
def compile_steps(question: Question) -> Callable[..., Any]:
    """Build the compiled loop on copies, and keep it: many runs on one bundle share it."""
    return compile_loop(Copies(question), question.model.log_prior)


def run_chain(
    question: Question,
    states: State,
    stream: PublicStream,
    steps: int,
    take: Callable[[int], np.ndarray],
    *,
    tick: Tick = lambda done, total, text: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Transcript, bool]:
    """Run `steps` steps of every chain, taking fresh copies chunk by chunk.

    Parameters
    ----------
    take
        Function m -> m unused copies, shape (m, d), of all owners together; each is given to one chain and one step.
    tick, stop
        Progress; whether to end after the chunk under way.

    Returns
    -------
    The steps, and whether all of them were taken.
    """
    chains = len(states.theta)
    size = max(1, min(steps, CHUNK // chains))
    parts: list[Transcript] = []
    done = 0
    with jax.enable_x64(True):
        run, kept = compile_steps(question), jax.jit(Copies(question).natural)(states.theta)
        while done < steps and not stop():
            count = min(size, steps - done)
            copies = take(count * chains).reshape(count, chains, -1)
            rows = jax.tree.map(
                lambda part: _pad(np.asarray(part), size), (stream.peek(question.kernel, count), copies)
            )
            looped, kept = run(None, question.kernel, states, kept, *rows, count, 0)
            states = looped.states
            stream.consume(count)
            parts.append(jax.tree.map(partial(_first, count), looped.transcript))
            done += count
            tick(done, steps, "sampling")
    joined = jax.tree.map(lambda *fields: np.concatenate(fields), *parts) if parts else _nothing(states)
    return joined, done == steps


def _first(count: int, rows: Array) -> np.ndarray:
    return np.asarray(rows)[:count]


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
    """Fill the last chunk up, so that one compiled loop serves all; the filling is cut off again and moves nothing."""
    missing = size - len(rows)
    return rows if missing == 0 else np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])


def _nothing(states: State) -> Transcript:
    chains, dim = states.theta.shape
    wide, narrow = np.zeros((0, chains, dim)), np.zeros((0, chains))
    return Transcript(wide, wide, narrow, narrow, narrow.astype(bool), narrow)


# -- from bundles to a run --------------------------------------------------------------------------------------------


def as_bundles(data: Any) -> list[Bundle] | None:
    """Bundles, if that is what the data are: one, or a list of them."""
    if isinstance(data, Bundle):
        return [data]
    if isinstance(data, list | tuple) and data and any(isinstance(item, Bundle) for item in data):
        if not all(isinstance(item, Bundle) for item in data):
            raise InvalidInput("a list of data must hold bundles only; open each file with sf.Bundle.open(path).")
        return list(data)
    return None


def sample_bundles(
    family: Any,
    bundles: Sequence[Bundle],
    *,
    kernel: str = "auto",
    chains: int = 4,
    seed: int | None = None,
    guess: Mapping[str, Any] | None = None,
    iterations: int | None = None,
    pilot_share: float = 0.1,
    truncate: float | None = None,
    force: bool = False,
    progress: bool | Tick | None = None,
) -> Run:
    """Run Algorithm 3 on the bundles of one or several owners: what `sfumato.sample` does with them.

    Parameters
    ----------
    family
        The family the bundles were released for, with the prior to use.
    bundles
        One per owner; their unused copies are used up.
    iterations
        Steps per chain; by default as many as there are copies for.
    pilot_share
        Share of the unused copies that finds start and scale; the chain does not see those.

    See `sfumato.sample` for the others.
    """
    if not isinstance(family, Family):
        raise InvalidInput(f"bundles are sampled with the family they were released for, got {family!r}.")
    check_distinct(family, bundles)
    if not 0 <= pilot_share < 1:
        raise InvalidInput(f"pilot_share must lie in [0, 1), got {pilot_share!r}.")
    if isinstance(chains, bool) or not isinstance(chains, int | np.integer) or chains < 1:
        raise InvalidInput(f"chains must be a whole number of at least one, got {chains!r}.")
    stream = PublicStream(seed, chains)
    model = family.to_model()
    first = [bundle.used for bundle in bundles]
    pilot_copies, steps = _share_out(bundles, chains, iterations, pilot_share)
    with listening(), ticker(progress) as tick:
        plan, pilot = _prepare(
            family, model, bundles, pilot_copies, steps * chains, kernel=kernel, chains=chains, guess=guess,
            pilot_share=pilot_share, truncate=truncate,
        )  # fmt: skip
        if not force:
            refuse_if_weak(plan)
        question = _question(family, model, bundles, plan)
        states = _starts(model, plan, stream)
        check_interrupted()
        with until_asked() as interrupted:
            rows, whole = run_chain(
                question, states, stream, steps, lambda count: _take(bundles, count), tick=tick, stop=interrupted
            )
    pilot["copies"] = [
        {"bundle": b.id, "first": at, "used": b.used, "of": b.copies} for b, at in zip(bundles, first, strict=True)
    ]
    return _wrap(family, model, bundles, plan, pilot, stream, rows, whole)


def _share_out(bundles: Sequence[Bundle], chains: int, iterations: int | None, share: float) -> tuple[int, int]:
    """Copies for the pilot and steps per chain, from the owner who has fewest copies left."""
    left = min(bundle.left for bundle in bundles)
    if left == 0:
        raise BundleError(
            "every copy of this bundle is used up; a copy is used once. Ask its owner for another bundle. (A file that is "
            "opened anew can be analysed anew, with another prior for instance; but two runs on the same copies share "
            "their noise and must not be pooled.)"
        )
    pilot = max(1, int(left * share)) if share > 0 else 0
    steps = (left - pilot) // chains
    if iterations is not None:
        if isinstance(iterations, bool) or not isinstance(iterations, int | np.integer) or iterations < 1:
            raise InvalidInput(f"iterations must be a whole number of at least one, got {iterations!r}.")
        if iterations > steps:
            raise BundleError(
                f"{iterations:,} iterations of {chains} chains need {iterations * chains:,} copies beside {pilot:,} for the "
                f"start, and {left:,} are left; ask for at most {steps:,} iterations."
            )
        steps = int(iterations)
    if steps < 1:
        raise BundleError(f"{chains} chains need a copy each beside {pilot} for the start, and {left} are left.")
    return pilot, steps


def _prepare(
    family: Family, model: Model, bundles: Sequence[Bundle], pilot_copies: int, steps: int, *, kernel: str, chains: int,
    guess: Mapping[str, Any] | None, pilot_share: float, truncate: float | None,
) -> tuple[Plan, dict[str, Any]]:  # fmt: skip
    """Find start and scale from some copies, then plan."""
    n, xi = sum(b.n for b in bundles), sum(b.xi for b in bundles)
    clamped = any(b.outside == "clamp" for b in bundles)
    pilot: dict[str, Any] = {"releases": [], "share": pilot_share, "outside": "clamp" if clamped else "refuse"}
    if pilot_copies:
        mean, variance = _take(bundles, pilot_copies).mean(axis=0), xi / pilot_copies
        pilot["copies_mean"] = {"mean": mean.tolist(), "variance": variance, "copies": pilot_copies}
    else:  # nothing but the prior: as if measured with no precision at all
        mean, variance = np.zeros(family.size), 1e12 * (n * max(b.sensitivity for b in bundles)) ** 2
    picture = picture_from_copies(family, model, from_copies(mean, variance, n), guess, clamped)
    joined = join([b.privacy for b in bundles])
    supply = Supply(steps, xi, n, joined.epsilon, joined.delta, joined.mu)
    plan = plan_bundles(
        family, model, picture, supply, kernel=kernel, chains=chains, pilot_share=pilot_share, truncate=truncate
    )
    return plan, pilot


def _question(family: Family, model: Model, bundles: Sequence[Bundle], plan: Plan) -> Question:
    n, xi = sum(b.n for b in bundles), sum(b.xi for b in bundles)
    dearest = max(b.sensitivity / b.xi**0.5 for b in bundles)
    return Question(family, model, plan.build_kernel(), n, xi, dearest)


def _take(bundles: Sequence[Bundle], count: int) -> np.ndarray:
    """Fresh copies of every owner, added up."""
    if len(bundles) == 1:
        return bundles[0].take(count)
    return np.sum([bundle.take(count) for bundle in bundles], axis=0)


def _starts(model: Model, plan: Plan, stream: PublicStream) -> State:
    """One starting point per chain, from the picture of the posterior."""
    picture = plan.picture
    log_prior = jax.jit(jax.vmap(model.log_prior))  # eager, its many small operations would be compiled one by one
    with jax.enable_x64(True):
        drawn = stream.starts(picture.centre, picture.start)
        inside = np.isfinite(np.asarray(log_prior(jnp.asarray(drawn))))[:, None]
        theta = jnp.asarray(np.where(inside, drawn, picture.centre))
        return State(theta, log_prior(theta), jnp.asarray(stream.directions(plan.matrix.shape[1])))


def _wrap(
    family: Family, model: Model, bundles: Sequence[Bundle], plan: Plan, pilot: dict[str, Any], stream: PublicStream,
    rows: Transcript, whole: bool,
) -> Run:  # fmt: skip
    from sfumato.sampler import watched_terms

    transcript = {name: np.swapaxes(value, 0, 1) for name, value in rows._asdict().items() if value is not None}
    transcript["mu_squared"] = np.full_like(transcript["sigma"], (max(b.sensitivity / b.xi**0.5 for b in bundles)) ** 2)
    with jax.enable_x64(True):
        constrained = jax.jit(jax.vmap(jax.vmap(model.constrain)))(jnp.asarray(transcript["theta"]))
    discarded = visible_transient(transcript["theta"])
    return Run(
        draws={name: np.asarray(value)[:, discarded:] for name, value in constrained.items()},
        transcript=transcript,
        privacy=join([bundle.privacy for bundle in bundles]),
        stop_reason=StopReason.FINISHED if whole else StopReason.INTERRUPTED,
        plan=watched_terms(plan, model, model.log_prior),
        pilot=pilot,
        coordinates=tuple(model.coordinate_names()),
        seed=stream.seed,
        family=family,
        discarded=discarded,
    )
