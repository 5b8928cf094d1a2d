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
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bundle import Bundle
from sfumato.errors import BundleError, InvalidInput
from sfumato.families.base import Family
from sfumato.interruption import check as check_interrupted
from sfumato.interruption import listening, until_asked
from sfumato.kernel import Draw, Kernel, PublicStream, State, accepts
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


class Steps(NamedTuple):
    """The transcript of some steps: arrays (step, chain, ...). All of it follows from released values."""

    theta: Array
    theta_prop: Array
    d_n_noisy: Array
    sigma: Array
    sensitivity: Array
    accepted: Array


class Carry(NamedTuple):
    """A chain between steps: its state, and the natural parameter and log-normaliser there."""

    state: State
    phi: Array
    log_g: Array


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


def begin(question: Question, states: State) -> Carry:
    """Complete starting states, one per chain."""
    phi, log_g = jax.jit(jax.vmap(lambda theta: _natural(question, theta)))(states.theta)
    return Carry(states, phi, log_g)


def _natural(question: Question, theta: Array) -> tuple[Array, Array]:
    values = question.model.constrain(theta)
    return question.family.natural(values), question.family.log_g(values)


def step(question: Question, carry: Carry, draw: Draw, copy: Array) -> tuple[Carry, Steps]:
    """One step of one chain, on one copy."""
    kernel, state = question.kernel, carry.state
    theta_prop = kernel.propose(state, draw)
    phi_prop, log_g_prop = _natural(question, theta_prop)
    log_prior_prop = question.model.log_prior(theta_prop)
    move = phi_prop - carry.phi
    sigma = jnp.sqrt(question.xi * jnp.sum(move**2))
    d_n_noisy = question.n * (log_g_prop - carry.log_g) + jnp.sum(move * copy)
    # A copy that cannot judge (outside the support, or a pair beyond floating point) is spent all the same: the chain stays.
    asked = jnp.isfinite(log_prior_prop) & jnp.isfinite(d_n_noisy) & (sigma > 0)
    ratio = log_prior_prop - state.log_prior
    accepted = accepts(draw, d_n_noisy, ratio, jnp.zeros_like(ratio), sigma) & asked
    moved = kernel.update(state, theta_prop, log_prior_prop, accepted, draw)
    after = Carry(moved, jnp.where(accepted, phi_prop, carry.phi), jnp.where(accepted, log_g_prop, carry.log_g))
    shown = jnp.where(asked, sigma, 1.0)
    return after, Steps(
        theta=moved.theta,
        theta_prop=theta_prop,
        d_n_noisy=jnp.where(asked, d_n_noisy, jnp.nan),
        sigma=shown,
        sensitivity=jnp.where(asked, shown * question.root_cost, 0.0),
        accepted=accepted,
    )


@lru_cache(maxsize=8)
def compile_steps(question: Question) -> Callable[[Carry, Draw, Array], tuple[Carry, Steps]]:
    """Build the compiled loop (carry, draws, copies) -> (carry, steps); rows are steps, then chains."""
    each: Any = jax.vmap(lambda carry, draw, copy: step(question, carry, draw, copy))

    def one(carry: Carry, row: tuple[Draw, Array]) -> tuple[Carry, Steps]:
        after, rows = each(carry, *row)
        return after, rows

    return jax.jit(lambda carry, draws, copies: lax.scan(one, carry, (draws, copies)))


def run_chain(
    question: Question,
    states: State,
    stream: PublicStream,
    steps: int,
    take: Callable[[int], np.ndarray],
    *,
    tick: Tick = lambda done, total, text: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Steps, bool]:
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
    parts: list[Steps] = []
    done = 0
    with jax.enable_x64(True):
        run, carry = compile_steps(question), begin(question, states)
        while done < steps and not stop():
            count = min(size, steps - done)
            copies = take(count * chains).reshape(count, chains, -1)
            draws = stream.peek(question.kernel, count)
            carry, rows = run(carry, _padded(draws, size), jnp.asarray(_pad(copies, size)))
            stream.consume(count)
            parts.append(Steps(*(np.asarray(field)[:count] for field in rows)))
            done += count
            tick(done, steps, "sampling")
    joined = Steps(*(np.concatenate(fields) for fields in zip(*parts, strict=True))) if parts else _nothing(states)
    return joined, done == steps


def _padded(draws: Draw, size: int) -> Draw:
    return Draw(*(jnp.asarray(_pad(np.asarray(field), size)) for field in draws))


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
    """Fill the last chunk up, so that one compiled loop serves all; the filling is cut off again and moves nothing."""
    missing = size - len(rows)
    return rows if missing == 0 else np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])


def _nothing(states: State) -> Steps:
    chains, dim = states.theta.shape
    wide, narrow = np.zeros((0, chains, dim)), np.zeros((0, chains))
    return Steps(wide, wide, narrow, narrow, narrow, narrow.astype(bool))


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
    rows: Steps, whole: bool,
) -> Run:  # fmt: skip
    from sfumato.sampler import watched_terms

    transcript = {name: np.swapaxes(value, 0, 1) for name, value in rows._asdict().items()}
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
