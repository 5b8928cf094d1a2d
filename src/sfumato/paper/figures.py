"""The pictures the paper does not have, made from exact finite chains and from real runs.

`draw` writes them all in well under three minutes. Lines are exact (closed forms and the laboratory), dots are runs of
plain NumPy chains on synthetic records (:mod:`sfumato.paper.simulation`, no private data), with bars of two standard
errors where they are wide enough to be seen. matplotlib is imported when the first figure is drawn, not before.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sfumato.errors import InvalidInput
from sfumato.paper import lab
from sfumato.paper.acceptance import acceptance, expected_acceptance
from sfumato.paper.ergodicity import kappa
from sfumato.paper.simulation import Coins, Walk, measured_efficiency, run
from sfumato.paper.theorem import limit_epsilon, theorem1
from sfumato.privacy import gdp

Array = NDArray[np.float64]

INK, GREY, PALE = "#22252b", "#6b7280", "#e5e7eb"
BLUE, ORANGE, GREEN, RED, VIOLET = "#0a6ebd", "#d9730d", "#1b8a5a", "#c2304a", "#6d4fc2"
SEED = 20161
_STYLE: Any = {
    "font.size": 10.5,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.color": INK,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "savefig.dpi": 110,
    "svg.hashsalt": "sfumato",
}


def draw(folder: str | Path, names: Sequence[str] | None = None, suffix: str = "png") -> list[Path]:
    """Write the figures to a folder and return their paths.

    Parameters
    ----------
    folder
        Made if it does not exist.
    names
        Which of `FIGURES`; None for all.
    suffix
        ``"png"`` or ``"svg"``.

    Returns
    -------
    list of Path

    Raises
    ------
    InvalidInput
        If a name or the suffix is unknown.
    """
    wanted = list(FIGURES) if names is None else list(names)
    if unknown := [name for name in wanted if name not in FIGURES]:
        raise InvalidInput(f"unknown figure; got {unknown!r}. Choose from {', '.join(FIGURES)}.")
    if suffix not in ("png", "svg"):
        raise InvalidInput(f"suffix must be 'png' or 'svg'; got {suffix!r}. Use 'png'.")
    import matplotlib as mpl

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(_STYLE):
        for name in wanted:
            paths.append(target / f"{name}.{suffix}")
            FIGURES[name]().savefig(paths[-1], metadata={"Date": None} if suffix == "svg" else {"Software": None})
    return paths


def acceptance_sigma() -> Any:
    """Draw the expected acceptance against sigma for several log ratios (Proposition 1)."""
    figure, axis = _canvas("More noise, fewer acceptances", "Expected acceptance of a penalty step against its noise")
    sigma = np.linspace(0, 5, 301)
    for lam, colour in zip((4.0, 2.0, 0.0, -1.0, -2.0), (VIOLET, BLUE, GREEN, ORANGE, RED), strict=True):
        axis.plot(sigma, expected_acceptance(lam, sigma), color=colour, label=f"log ratio {lam:g}")
    axis.plot([2.38], [expected_acceptance(0.0, 2.38)], "o", color=INK, zorder=5)
    axis.annotate("0.234 at σ = 2.38:\nthe best use of a budget\nfor small steps", (2.38, 0.234), (3.4, 0.5),
                  color=GREY, fontsize=9.5, arrowprops={"arrowstyle": "-", "color": GREY})  # fmt: skip
    axis.set(xlabel="noise σ", ylabel="expected acceptance", xlim=(0, 5), ylim=(0, 1.02))
    axis.legend(loc="upper right")
    return figure


def acceptance_measured() -> Any:
    """Draw measured against expected acceptance, by log ratio, on a Bernoulli posterior."""
    figure, axis = _canvas(
        "Real chains accept as often as the formula says",
        "Dots: 400 chains × 400 steps on 10 000 synthetic coins, in bins of the exact log ratio",
    )
    rng, coins = np.random.default_rng(SEED), Coins(10_000, 3_000)
    grid, edges = np.linspace(-6, 2.6, 300), np.linspace(-6, 2.5, 18)
    for sigma, colour in ((0.5, BLUE), (1.0, GREEN), (2.4, ORANGE), (4.0, RED)):
        chains = run(rng, coins, Walk(3.5), np.array([sigma]), iterations=400, chains=400)
        axis.plot(grid, expected_acceptance(grid, sigma), color=colour, label=f"σ = {sigma:g}")
        which = np.digitize(chains.log_ratio.ravel(), edges)
        for b in range(1, edges.size):
            inside = which == b
            if (count := int(inside.sum())) >= 100:
                lam, rate = chains.log_ratio.ravel()[inside].mean(), chains.accepted.ravel()[inside].mean()
                axis.errorbar(lam, rate, 2 * (rate * (1 - rate) / count) ** 0.5, fmt="o", ms=4.5, color=colour)
    axis.plot(grid, acceptance(grid), "--", color=GREY, lw=1.5, label="Metropolis-Hastings")
    axis.set(xlabel="exact log acceptance ratio λ", ylabel="acceptance", xlim=(-6, 2.6), ylim=(0, 1.05))
    axis.legend(loc="upper left")
    return figure


def kappas() -> Any:
    """Draw the three minorisation constants, and the truth (Proposition 2)."""
    figure, axis = _canvas(
        "How slow the penalty chain can be: κ, three ways",
        "T_σ ≥ κ T. The printed κ is valid but far from sharp, and its proof takes a false step left of B = 1",
    )
    bound = np.linspace(0.005, 12, 400)
    axis.axvspan(0, 1, color=PALE, alpha=0.7, lw=0)
    axis.text(1.12, 0.93, "left of here the proof's step\nP(V ≥ √B/2) ≥ P(V ≥ B/2) is false", color=GREY, fontsize=9)
    lam = np.linspace(-8, 8, 1601)
    dots = np.array([0.05, 0.4, 1, 2, 3, 4.5, 6, 8, 10, 12])
    worst = [np.min(np.asarray(expected_acceptance(lam, b**0.5)) / np.asarray(acceptance(lam))) for b in dots]
    axis.plot(bound, kappa(bound, "sharp"), color=GREEN, label="sharp: 2Φ(−√B/2)")
    axis.plot(bound, kappa(bound, "proof"), color=BLUE, label="what the proof gives: 1 − Φ(√B/2)")
    axis.plot(bound, kappa(bound, "printed"), color=RED, label="printed: 1 − Φ(B/2)")
    axis.plot(dots, worst, "o", color=INK, ms=5, label="smallest ratio over all λ, computed")
    axis.set(xlabel="B, the largest noise variance", ylabel="κ", xlim=(0, 12), ylim=(0, 1.02))
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 0.88))
    return figure


def total_variation() -> Any:
    """Draw the total variation distance against iterations for several sigma (uniform ergodicity and its rate)."""
    figure, axis = _canvas(
        "Noise slows convergence, and κ says by how much at most",
        "Lines: exact distance from the centre. Dotted: the bound (1 − κβ)ᵗ from any start. Dots: 40 000 chains",
    )
    pi, proposal = lab.normal_target(25, 4.0), lab.independent(lab.normal_target(25, 6.0))
    beta, steps = lab.minorisation(lab.metropolis(pi, proposal)), np.arange(46)
    rng = np.random.default_rng(SEED)
    for sigma, colour in ((0.0, BLUE), (1.0, GREEN), (2.4, ORANGE), (4.0, RED)):
        chain = lab.penalty(pi, proposal, sigma)
        label = "σ = 0 (Metropolis-Hastings)" if sigma == 0 else f"σ = {sigma:g}"
        axis.plot(steps, lab.total_variation(pi, chain, 45, start=12), color=colour, label=label)
        axis.plot(steps, (1 - float(kappa(sigma**2)) * beta) ** steps, ":", color=colour, lw=1.6)
        at, distance = _simulated_distance(rng, pi, proposal, sigma)
        axis.plot(at, distance, "o", ms=4.5, color=colour)
    axis.set(xlabel="iterations", ylabel="total variation distance", yscale="log", xlim=(0, 45), ylim=(1e-2, 1.1))
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.08))
    return figure


def epsilon_scaling() -> Any:
    """Draw epsilon of Theorem 1 as printed, corrected, unsimplified and exact, against n and against k."""
    figure, (left, right) = _canvas(
        "Theorem 1: what it prints, what its proof gives, and the truth",
        "α = ½, β = 1.5, c = 1, σ = 10, every ε at the theorem's own δ. Left: k₀ = 1. Right: n = 10⁵",
        panels=2,
    )
    n, k0 = np.logspace(2, 14, 200), np.logspace(-2.5, 2, 200)
    by_n, by_k = (theorem1(n, 1, 0.5, 1.5, 1, 10), theorem1(1e5, k0, 0.5, 1.5, 1, 10))
    lines = (
        ("epsilon_corrected", ORANGE, "-", "corrected: climbs like √log n"),
        ("epsilon_unsimplified", VIOLET, (0, (4, 1.5)), "proof before its last step"),
        ("epsilon_printed", RED, (0, (1, 1)), "printed: not what the proof gives"),
        ("epsilon_exact", GREEN, "-", "exact account: settles"),
    )
    for field, colour, dash, label in lines:
        left.plot(n, getattr(by_n, field), color=colour, ls=dash, label=label)
        right.plot(by_k.iterations, getattr(by_k, field), color=colour, ls=dash)
    limit = float(limit_epsilon(1, 1.5, 1, 10))
    left.axhline(limit, color=GREY, lw=1.2, ls="--")
    left.text(1.2e2, limit * 1.07, "limit √(2k₀β) c/σ = 0.173", color=GREY, fontsize=9)
    left.set(xscale="log", yscale="log", xlabel="records n", ylabel="ε", ylim=(0.08, 6))
    left.legend(loc="upper left", ncols=1)
    right.set(xscale="log", yscale="log", xlabel="iterations k", ylabel="ε", xlim=(30, by_k.iterations[-1]))
    return figure


def ess_scaling() -> Any:
    """Draw the effective draws against n at fixed epsilon for several alpha: above one half the chain freezes."""
    figure, (left, right) = _canvas(
        "Steps that shrink faster than the posterior freeze the chain; a compute limit makes it hurt",
        "Moves below c n^(−α), equal at n = 10³, σ = 2.4. Lines: exact chains. Dots: runs on synthetic coins",
        panels=2,
    )
    n, mu, limit = np.logspace(3, 6, 13), float(gdp.mu(1.0, 1e-6)), 20_000
    rng = np.random.default_rng(SEED)
    for alpha, colour in ((0.25, BLUE), (0.5, GREEN), (0.75, RED)):
        reach = 1.5 * (n / 1e3) ** (0.5 - alpha)
        per_step = np.array([_lab_efficiency(r, 2.4) for r in reach])
        affordable = mu**2 * 2.4**2 / (reach * 2 * n**-0.5) ** 2
        left.plot(n, per_step, color=colour, label=f"α = {alpha:g}")
        right.plot(n, affordable * per_step, color=colour)
        right.plot(n, np.minimum(affordable, limit) * per_step, color=colour, ls=":")
        for index in (0, 6, 12):
            coins = Coins(int(n[index]), int(n[index]) // 2)
            runs = run(rng, coins, Walk(float(reach[index])), np.array([2.4]), iterations=4000, chains=300)
            value, error = measured_efficiency(coins, runs)
            left.errorbar(n[index], value, 2 * error, fmt="o", ms=5, color=colour)
    left.set(xscale="log", yscale="log", xlabel="records n", ylabel="effective draws per iteration")
    left.legend(loc="lower left")
    right.set(xscale="log", yscale="log", xlabel="records n", ylabel="effective draws at ε = 1, δ = 10⁻⁶")
    right.set_ylim(0.5, 5e3)
    right.plot([], [], color=GREY, label="every iteration the budget buys")
    right.plot([], [], color=GREY, ls=":", label="at most 20 000 iterations")
    right.legend(loc="upper left")
    return figure


def owners() -> Any:
    """Draw N owners against one: the price of N sigma squared (Algorithm 2)."""
    figure, (left, right) = _canvas(
        "Many owners: each adds its own noise, and the chain pays for all of it",
        "Steps of one posterior sd; the same privacy for every owner. Lines: exact chains. Dots: runs of Algorithm 2",
        panels=2,
    )
    count, coins, rng = np.arange(1, 17), Coins(100_000, 50_000), np.random.default_rng(SEED)
    chain = _LabWalk(1.0, law="normal")
    plans = (
        ("σ = 2.4 at every owner", RED, lambda m: 2.4),
        ("σ = 2.4/√N: one owner's share over N", GREEN, lambda m: 2.4 / m**0.5),
    )
    for label, colour, sigma_of in plans:
        efficiency = np.array([chain.efficiency(sigma_of(m) * m**0.5) for m in count])
        left.plot(count, [chain.acceptance(sigma_of(m) * m**0.5) for m in count], color=colour, label=label)
        right.plot(count, efficiency * np.array([sigma_of(m) ** 2 for m in count]), color=colour, label=label)
        for m in (1, 2, 4, 8):
            runs = run(rng, coins, Walk(1.0, law="normal"), np.full(m, sigma_of(m)), iterations=2000, chains=300)
            value, error = measured_efficiency(coins, runs)
            left.plot(m, runs.accepted.mean(), "o", ms=5, color=colour)
            if value * 2000 < 5:  # fewer than five effective draws a chain: nothing can be measured from its mean
                continue
            right.errorbar(m, value * sigma_of(m) ** 2, 2 * error * sigma_of(m) ** 2, fmt="o", ms=5, color=colour)
    left.set(xlabel="owners N", ylabel="acceptance", ylim=(0, 0.3))
    left.legend(loc="upper right")
    right.set(xlabel="owners N", ylabel="effective draws, share of the limit", yscale="log", ylim=(5e-4, 0.5))
    return figure


def small_steps() -> Any:
    """Draw small steps against classical steps at equal budget (the planner's figure)."""
    figure, axis = _canvas(
        "At equal privacy, small steps give more draws",
        "Share of the one-shot limit μ²/(L²τ²). Lines: exact chains. Dots: runs on 100 000 synthetic coins",
    )
    sizes, coins, rng = np.geomspace(0.12, 4, 31), Coins(100_000, 50_000), np.random.default_rng(SEED)
    plans = (
        (1.7, GREEN, True, "guided walk, σ = 1.7"),
        (2.4, BLUE, False, "random walk, σ = 2.4"),
        (1.0, ORANGE, False, "random walk, σ = 1"),
    )
    for sigma, colour, guided, label in plans:
        share = [_LabWalk(s, guided=guided).efficiency(sigma) * (sigma / s) ** 2 for s in sizes]
        axis.plot(sizes, share, color=colour, label=label)
        for s in (0.25, 0.5, 1.0, 2.4):
            walk = Walk(1.2 * s, 0.8 * s, guided=True) if guided else Walk(s, law="normal")
            runs = run(rng, coins, walk, np.array([sigma]), iterations=int(2000 / s), chains=800)
            value, error = measured_efficiency(coins, runs)
            axis.errorbar(s, value * (sigma / s) ** 2, 2 * error * (sigma / s) ** 2, fmt="o", ms=5, color=colour)
    axis.axhline(2.38**2 * float(ndtr(-1.19)) / 2, color=GREY, lw=1.2, ls="--")
    axis.text(3.95, 0.338, "limit of the\nrandom walk", color=GREY, fontsize=9, ha="right")
    axis.axvline(2.4, color=GREY, lw=1.2, ls=":")
    axis.text(2.47, 0.58, "classical\nstep 2.4", color=GREY, fontsize=9, va="top")
    axis.set(xscale="log", xlabel="step size s, in posterior standard deviations", ylabel="share of the limit",
             ylim=(0, 0.6), xlim=(0.12, 4))  # fmt: skip
    axis.set_xticks([0.125, 0.25, 0.5, 1, 2, 4], ["⅛", "¼", "½", "1", "2", "4"])
    axis.minorticks_off()
    axis.legend(loc="lower left")
    return figure


class _LabWalk:
    """A walk of `s` posterior standard deviations on a normal grid, as an exact chain."""

    def __init__(self, s: float, *, guided: bool = False, law: str = "normal") -> None:
        # Fine enough that a step spans several points, wide enough that the edges carry no mass.
        sd = float(np.clip(5.0 / s, 16.0, 42.0))
        size = int(9 * sd) | 1
        length = np.arange(min(size, int(6 * s * sd) + 3)) / (s * sd)
        if guided:
            half = 0.5 / (s * sd)  # weight of each grid point: the part of its cell inside (0.8, 1.2)
            weights = np.clip(np.minimum(length + half, 1.2) - np.maximum(length - half, 0.8), 0.0, None)
        elif law == "uniform":
            half = 0.5 / (s * sd)
            weights = np.clip(np.minimum(length + half, 1.0) - np.maximum(length - half, 0.0), 0.0, None)
        else:
            weights = np.exp(-(length**2) / 2) * np.where(length == 0, 0.5, 1.0)
        self.pi, self.guided, self.weights = lab.normal_target(size, sd), guided, weights

    def efficiency(self, sigma: float) -> float:
        """Effective draws per iteration."""
        if self.guided:
            lifted, position = np.tile(self.pi, 2) / 2, np.tile(np.arange(float(self.pi.size)), 2)
            return lab.efficiency(lifted, lab.guided(self.pi, self.weights, sigma), position)
        return lab.efficiency(self.pi, lab.penalty(self.pi, lab.steps(self.pi.size, self.weights), sigma))

    def acceptance(self, sigma: float) -> float:
        """Probability to accept, averaged over target and proposal."""
        q = lab.steps(self.pi.size, self.weights)
        return float(self.pi @ (q * np.asarray(expected_acceptance(lab.log_ratios(self.pi, q), sigma))).sum(axis=1))


def _lab_efficiency(reach: float, sigma: float) -> float:
    return _LabWalk(reach, law="uniform").efficiency(sigma)


def _simulated_distance(rng: np.random.Generator, pi: Array, q: Array, sigma: float) -> tuple[Array, Array]:
    """Distance of 40 000 simulated chains to the target, while it stands clear of the sampling error."""
    count, size, proposal = 40_000, pi.size, q[0]
    state, at, distance = np.full(count, size // 2), [], []
    lam = lab.log_ratios(pi, q)
    for t in range(1, 46):
        moved = rng.choice(size, p=proposal, size=count)
        noisy = lam[state, moved] + sigma * rng.normal(size=count) - sigma**2 / 2
        state = np.where(np.log(rng.uniform(size=count)) < noisy, moved, state)
        gap = float(np.abs(np.bincount(state, minlength=size) / count - pi).sum() / 2)
        if (t <= 3 or t % 5 == 0) and gap > 0.03:
            at.append(t)
            distance.append(gap)
    return np.array(at), np.array(distance)


def _canvas(title: str, subtitle: str, panels: int = 1) -> tuple[Any, Any]:
    """Give a figure with the finding as its title, and its axes."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(rect=(0.005, 0.005, 0.985, 0.86))
    figure = Figure(figsize=(7.4 if panels == 1 else 10.4, 4.6), layout=layout)
    figure.text(0.02, 0.945, title, fontsize=13, fontweight="bold", color=INK)
    figure.text(0.02, 0.895, subtitle, fontsize=9.5, color=GREY)
    return figure, figure.subplots(1, panels)


FIGURES: dict[str, Callable[[], Any]] = {
    "acceptance-sigma": acceptance_sigma,
    "acceptance-measured": acceptance_measured,
    "kappa": kappas,
    "total-variation": total_variation,
    "epsilon-scaling": epsilon_scaling,
    "ess-scaling": ess_scaling,
    "owners": owners,
    "small-steps": small_steps,
}
"""Every figure by the name of its file."""
