"""The verdict and the watch: what must be caught is caught, what is healthy is left alone; by transcripts made in NumPy."""

import dataclasses
import math

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.analysis import watch
from sfumato.analysis.result import Run, StopReason
from sfumato.analysis.verdict import visible_transient
from sfumato.privacy.statement import PERHAPS_CUT, Statement

SIGMA = 0.3


def plan_of(dim, kernel, step, sigma, trust=None, root=None):
    root = np.eye(dim) if root is None else root
    picture = {"centre": [0.0] * dim, "covariance": (root @ root.T).tolist(), "roughness": 0.0, "error": 0.3}
    facts = {"kernel": kernel, "step": step, "sigma": sigma, "trust": trust, "slope": [0.0] * dim, "belief": picture}
    facts["prior_share"] = [0.0] * dim
    counts = {"chains": 4, "iterations": 400, "forecast_ess": 100.0, "limit_ess": 200.0, "assumptions": ["made up"]}
    return facts | counts | {"matrix": root.tolist(), "weak": False}


def walk(rng, mode, start, steps=600, step=0.8, sigma=1.5, curve=1.0, move=True, root=None):
    """A random walk with the penalty rule on N(mode, I / curve) in the plan's coordinates; (chain, draw, d) of a run."""
    chains, dim = start.shape
    x, mode = start.copy(), np.broadcast_to(mode, (dim,))
    kept = {name: [] for name in ("theta", "theta_prop", "d_n_noisy", "accepted")}
    for _ in range(steps):
        there = x + step * rng.standard_normal((chains, dim))
        exact = (curve * ((x - mode) ** 2 - (there - mode) ** 2)).sum(1) / 2
        noisy = exact + sigma * rng.standard_normal(chains)
        accepted = (np.log(rng.random(chains)) < noisy - sigma**2 / 2) & move
        x = np.where(accepted[:, None], there, x)
        for name, value in zip(kept, (x, there, noisy, accepted), strict=True):
            kept[name].append(value)
    out = {name: np.swapaxes(np.array(values), 0, 1) for name, values in kept.items()}
    if root is not None:
        out |= {name: out[name] @ root.T for name in ("theta", "theta_prop")}
    return out | {"sigma": np.full(out["d_n_noisy"].shape, sigma)}, plan_of(dim, "random-walk", step, sigma, root=root)


def langevin(rng, mode, start, steps=400, h=0.5, curve=1.0, trust=11.0, sigma=SIGMA):
    """Langevin around the plan's centre, on N(mode, I / curve) cut to the trust region."""
    chains, dim = start.shape
    x, mode = start.copy(), np.broadcast_to(mode, (dim,))
    noise, kappa = math.sqrt(4 / h - 1), 1 / (2 - h / 2)
    kept = {name: [] for name in ("theta", "theta_prop", "d_n_noisy", "accepted", "t_noisy")}
    for _ in range(steps):
        t_noisy = curve * mode + noise * rng.standard_normal((chains, dim))
        there = x + h / 2 * (t_noisy - x)
        delta, ahead = there - x, curve * mode
        known = kappa * (delta * (x + there)).sum(1) - kappa * h / 4 * ((there**2).sum(1) - (x**2).sum(1))
        exact = (curve * ((x - mode) ** 2 - (there - mode) ** 2)).sum(1) / 2
        exact -= 2 * kappa * (delta @ ahead) + kappa * h / 2 * ((x - there) @ ahead)
        noisy = exact + sigma * rng.standard_normal(chains)
        accepted = np.log(rng.random(chains)) < noisy + known - sigma**2 / 2
        accepted &= (there**2).sum(1) <= trust**2
        x = np.where(accepted[:, None], there, x)
        for name, value in zip(kept, (x, there, noisy, accepted, t_noisy), strict=True):
            kept[name].append(value)
    out = {name: np.swapaxes(np.array(values), 0, 1) for name, values in kept.items()}
    return out | {"sigma": np.full(out["d_n_noisy"].shape, sigma)}, plan_of(dim, "langevin", h, sigma, trust)


def run_of(transcript, plan, *, pilot=None, stop=StopReason.BUDGET_SPENT, discard=True, exact="Exact."):
    shape = transcript["accepted"].shape
    transcript = transcript | {"sensitivity": np.full(shape, 0.01), "mu_squared": np.full(shape, 1e-5)}
    privacy = Statement(
        epsilon=1.0, delta=1e-6, mu=0.25, releases=1234, spent_mu=0.125, n=54321, lattice_slack=1e-15,
        sensitivity="Proven.", exact=exact, precision="float64", shared_ledger=False,
    )  # fmt: skip
    discarded = visible_transient(transcript["theta"]) if discard else 0
    return Run(
        draws={"b": transcript["theta"][:, discarded:]}, transcript=transcript, privacy=privacy, stop_reason=stop,
        planned=plan, pilot={"releases": [], "share": 0.1} | (pilot or {}), coordinates=("b",), seed=1, discarded=discarded,
    )  # fmt: skip


def starts(rng, dim, chains=4, at=0.0):
    return at + rng.standard_normal((chains, dim))


def words(run):
    return " ".join(run.verdict.reasons)


# -- healthy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dim"), [(walk, 1), (walk, 3), (langevin, 1), (langevin, 3), (langevin, 10)])
def test_a_healthy_run_is_good_or_rough_and_no_look_fires(kind, dim):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        transcript, plan = kind(rng, rng.normal(0, 0.5, dim), starts(rng, dim), steps=1500 if kind is walk else 400)
        run = run_of(transcript, plan)
        assert run.verdict.usable, (seed, run.verdict)
        assert run.acceptance == pytest.approx(watch.planned_acceptance(plan), abs=0.12)
        for look in range(1, watch.LOOKS + 1):
            so_far = {k: v[:, : int(v.shape[1] / 2 ** (watch.LOOKS + 1 - look))] for k, v in transcript.items()}
            assert watch.alarms(so_far, plan, watch.level(look)) == []


def test_a_long_healthy_run_is_good_and_says_how_good():
    rng = np.random.default_rng(0)
    run = run_of(*langevin(rng, 0.4, starts(rng, 2), steps=1000, h=1.0))
    assert run.verdict.level == "good" and str(run.verdict).startswith("good: The chains agree")
    assert "effective draws" in words(run) and run.discarded == 0


def test_few_draws_are_rough_and_say_so():
    rng = np.random.default_rng(0)
    run = run_of(*langevin(rng, 0.4, starts(rng, 2), steps=80))
    assert run.verdict.level == "rough" and "ends of intervals are rough" in words(run)


@pytest.mark.parametrize("curve", [0.5, 2.0])
def test_a_picture_that_is_off_by_two_raises_no_alarm(curve):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        run = run_of(*langevin(rng, rng.normal(0, 1.0, 3), starts(rng, 3), steps=1000, curve=curve))
        assert run.verdict.usable, (seed, run.verdict)


def test_chains_that_agree_long_before_they_have_seen_all_are_caught():
    """Where the planned width is a fifth of the true one, a short chain may look mixed, with a hundred effective draws."""
    told = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        run = run_of(*langevin(rng, 0.0, starts(rng, 1), steps=200, h=1.5, curve=0.04))
        assert run.draws["b"].std() * 0.2 < 0.5
        assert not run.verdict.usable or "that the released answers imply" in words(run), (seed, run.verdict)
        told += "The chains do not agree" not in words(run)
    assert told > 2


def test_a_posterior_that_the_trust_region_cuts_off_is_not_good():
    rng = np.random.default_rng(0)
    run = run_of(*langevin(rng, 0.0, starts(rng, 1), steps=20_000, h=1.5, curve=0.01))
    assert run.draws["b"].std() < 7 and "cut off by the trust region" in words(run)
    assert run.verdict.level == "rough"


def test_one_chain_is_rough_at_best():
    rng = np.random.default_rng(0)
    run = run_of(*langevin(rng, 0.4, starts(rng, 2, chains=1), steps=2000, h=1.0))
    assert run.verdict.level == "rough" and "One chain cannot be compared" in words(run)


def test_a_parameter_that_is_constant_by_construction_is_no_standing_chain():
    rng = np.random.default_rng(0)
    run = run_of(*langevin(rng, 0.4, starts(rng, 2), steps=1000, h=1.0))
    factor = np.concatenate([np.ones((*run.draws["b"].shape[:2], 1)), run.draws["b"]], axis=2)
    assert dataclasses.replace(run, draws={"factor": factor}).verdict.level == "good"


# -- saboteurs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("off", [20.0, 100.0])
def test_langevin_around_a_moved_centre_is_caught_by_its_first_look(off, dim):
    rng = np.random.default_rng(1)
    transcript, plan = langevin(rng, off, starts(rng, dim))
    run = run_of(transcript, plan)
    assert run.verdict.level == "unusable" and "trust region" in words(run)
    first = {name: values[:, :25] for name, values in transcript.items()}
    assert watch.alarms(first, plan, watch.level(1))


@pytest.mark.parametrize("kind", [walk, langevin])
@pytest.mark.parametrize("off", [5.0, 20.0, 100.0])
def test_a_moved_start_never_ends_in_a_wrong_mean_that_may_be_used(kind, off):
    used = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        run = run_of(*kind(rng, off, starts(rng, 2), steps=400))
        error = np.abs(run.draws["b"].mean(axis=(0, 1)) - off) if run.verdict.usable else np.zeros(2)
        used += run.verdict.usable
        assert error.max() < 0.3 + 3 * run.draws["b"].std() / 4, (seed, run.verdict)
    assert used == 0 or off < (100.0 if kind is walk else 20.0)  # an exact chain may well come back from so far


def test_a_walk_that_travels_is_stopped_while_it_does():
    rng = np.random.default_rng(1)
    transcript, plan = walk(rng, 60.0, starts(rng, 1), steps=25)
    assert "from the mode" in watch.alarms(transcript, plan, watch.level(1))[0]


@pytest.mark.parametrize("kind", [walk, langevin])
def test_twins_that_agree_on_a_wrong_place_are_caught(kind):
    rng = np.random.default_rng(1)
    transcript, plan = kind(rng, 0.0, starts(rng, 2), steps=1500)
    wrong, _ = kind(rng, 0.0, starts(rng, 2), steps=1500)
    shift = 2.5
    if kind is walk:  # the answers to the same moves are those of a posterior somewhere else
        before = np.concatenate([np.zeros_like(wrong["theta"][:, :1]), wrong["theta"][:, :-1]], axis=1)
        wrong["d_n_noisy"] = wrong["d_n_noisy"] - shift * (wrong["theta_prop"] - before).sum(axis=2)
    else:
        wrong["t_noisy"] = wrong["t_noisy"] - shift
    assert run_of(transcript, plan).verdict.level == "good"
    run = run_of(wrong, plan)
    assert run.verdict.level == "unusable" and "from where the released answers put the mode" in words(run)
    assert run_of(wrong, plan | {"prior_share": [1.0, 1.0]}).verdict.usable  # answers know nothing of such directions


def test_a_range_that_was_stated_is_never_good_and_may_not_lead_away_from_the_pilot():
    """Cut terms and draws agree on the posterior of the cut terms; the pilot's gradients were not cut by that range."""
    rng = np.random.default_rng(0)
    near = langevin(rng, 0.4, starts(rng, 2), steps=1000, h=1.0)
    assert run_of(*near).verdict.level == "good"
    stated = run_of(*near, exact=PERHAPS_CUT + " And more.")
    assert stated.verdict.level == "rough" and "stated, not proven" in words(stated)
    far = walk(rng, 4.0, starts(rng, 2, at=4.0), steps=3000)
    assert run_of(*far).verdict.usable and not run_of(*far, exact=PERHAPS_CUT).verdict.usable
    assert "from the pilot's centre" in words(run_of(*far, exact=PERHAPS_CUT))


def test_a_clip_that_cuts_is_not_passed_over():
    def visits(age, ill):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with numpyro.plate("people", ill.shape[0]):
            numpyro.sample("ill", dist.Bernoulli(logits=b[0] + b[1] * age), obs=ill)

    rng = np.random.default_rng(41)
    age = rng.uniform(-1, 1, 60_000)
    data = {"age": age, "ill": (rng.random(60_000) < 1 / (1 + np.exp(1.2 - 0.9 * age))).astype(int)}
    run = sf.sample(
        visits, data, domain={"age": sf.Interval(-1, 1), "ill": sf.Binary()}, epsilon=8.0, delta=1e-7, seed=1,
        sensitivity=sf.Clip(per_step=0.7), max_iterations=300, progress=False,
    )  # fmt: skip
    assert abs(run.draws["b"].mean((0, 1))[0] + 1.2) > 0.06  # six posterior standard deviations and more
    assert run.verdict.level == "unusable"


def test_chains_that_stand_still_are_caught():
    rng = np.random.default_rng(1)
    transcript, plan = walk(rng, 0.0, starts(rng, 2), move=np.array([True, True, True, False]))
    run = run_of(transcript, plan)
    assert run.verdict.level == "unusable" and "Chain 4 hardly moved" in words(run) and "never moved" in words(run)
    assert watch.alarms({k: v[:, :300] for k, v in transcript.items()}, plan, watch.level(4))
    transcript, plan = walk(rng, 0.0, starts(rng, 2), move=False)
    run = run_of(transcript, plan)
    assert run.verdict.level == "unusable" and "Only 0.0% of the proposals" in words(run)


def test_identical_draws_have_no_diagnostics_and_no_use():
    rng = np.random.default_rng(1)
    transcript, plan = walk(rng, 0.0, np.zeros((2, 1)), move=False)
    run = run_of(transcript, plan)
    assert run.verdict.level == "unusable" and "all alike" in words(run)
    assert run.summary()[["mean", "sd"]].isna().all().all()


def test_chains_that_disagree_are_caught():
    rng = np.random.default_rng(1)
    transcript, plan = walk(rng, 0.0, starts(rng, 1), steps=2000)
    transcript["theta"] = transcript["theta"] + 3.0 * np.arange(4)[:, None, None]
    assert "do not agree" in words(run_of(transcript, plan, discard=False))


@pytest.mark.parametrize("steps", [0, 1, 3, 10])
def test_runs_too_short_to_judge_are_not_usable(steps):
    rng = np.random.default_rng(1)
    transcript, plan = walk(rng, 0.0, starts(rng, 2), steps=max(steps, 1))
    run = run_of({name: values[:, :steps] for name, values in transcript.items()}, plan)
    assert run.verdict.level == "unusable" and "too few to tell" in words(run) or "independent ones" in words(run)


def test_a_chain_that_saw_little_of_the_width_is_caught():
    rng = np.random.default_rng(1)
    transcript, plan = walk(rng, 0.0, np.zeros((4, 1)), steps=60, step=0.02, sigma=0.01)
    assert "too short to mix" in words(run_of(transcript, plan))


def test_a_pilot_that_did_not_arrive_leaves_nothing_to_use():
    rng = np.random.default_rng(0)
    healthy = langevin(rng, 0.4, starts(rng, 2), steps=1000, h=1.0)
    assert run_of(*healthy, pilot={"arrived": True, "off_by": 1.2}).verdict.level == "good"
    run = run_of(*healthy, pilot={"arrived": False, "off_by": 12.3})
    assert run.verdict.level == "unusable" and "12.3 posterior sds" in words(run)


# -- pieces -----------------------------------------------------------------------------------------------------------


def test_the_implied_mode_is_the_mode_with_the_noise_it_states():
    root = np.array([[2.0, 0.0], [1.5, 0.5]])
    for kind in (walk, langevin):
        found = []
        for seed in range(40):
            rng = np.random.default_rng(seed)
            extra = {"root": root} if kind is walk else {}
            implied = watch.implied_mode(*kind(rng, [1.0, -2.0], starts(rng, 2), steps=100, **extra))
            away = implied.offset - np.array([1.0, -2.0])
            found.append(away @ implied.precision @ away)
        assert np.mean(found) == pytest.approx(2.0, abs=4 * 2 / math.sqrt(40))  # chi-square with two degrees of freedom


def test_public_slopes_enter_the_implied_mode():
    for kind in (walk, langevin):
        rng = np.random.default_rng(0)
        transcript, plan = kind(rng, [1.0, -2.0], starts(rng, 2), steps=100)
        moved = watch.implied_mode(transcript, plan | {"slope": [0.5, 0.25]}).offset
        assert moved - watch.implied_mode(transcript, plan).offset == pytest.approx([0.5, 0.25])


def test_looks_come_when_what_was_done_has_doubled():
    marks = np.linspace(0, 1.2, 481)
    looks = [watch.due(a, b) for a, b in zip(marks, marks[1:], strict=False)]
    assert [look for look in looks if look] == [1, 2, 3, 4]
    assert [marks[i + 1] for i, look in enumerate(looks) if look] == pytest.approx(
        [1 / 16, 1 / 8, 1 / 4, 1 / 2], abs=0.003
    )
    assert watch.due(0.0, 0.3) == 3 and watch.due(0.0, 0.05) == watch.due(0.6, 0.9) == watch.due(0.2, 0.2) == 0
    assert sum(watch.level(j) for j in range(1, 1000)) < watch.FALSE_ALARM


def test_what_a_trust_region_forgives_leaves_the_posterior_inside():
    rng = np.random.default_rng(0)
    for dim in (1, 10, 30):
        plan = plan_of(dim, "langevin", 0.5, SIGMA, trust=dim**0.5 + 10)
        mode = np.zeros(dim)
        mode[0] = watch.forgiven(plan)
        assert 5 < mode[0] < dim**0.5 + 10
        x = mode + rng.standard_normal((40_000, dim))
        assert np.mean((x**2).sum(1) > plan["trust"] ** 2) < 1e-3


def test_a_transient_is_discarded_by_the_rule_and_only_where_it_is_seen():
    discarded = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        discarded.append(run_of(*langevin(rng, 0.3, starts(rng, 2))).discarded)
    assert discarded == [0] * 20
    rng = np.random.default_rng(0)
    run = run_of(*langevin(rng, 5.0, starts(rng, 1), h=0.01, steps=2000))
    assert 0 < run.discarded <= 1000 and run.discarded % 200 == 0
    assert run.draws["b"].shape[1] == 2000 - run.discarded and run.iterations == 2000
    assert f"first {run.discarded} draws" in words(run)


# -- what follows it --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    rng = np.random.default_rng(0)
    good = run_of(*langevin(rng, 0.4, starts(rng, 2), steps=1000, h=1.0))
    bad = run_of(*langevin(rng, 30.0, starts(rng, 2)), stop=StopReason.NOT_MIXING)
    return good, bad


def test_a_summary_begins_with_the_verdict_and_an_unusable_one_shows_no_numbers(pair):
    good, bad = (run.summary() for run in pair)
    assert str(good).startswith("good: ") and good["mean"].notna().all()
    assert str(bad).startswith("do not use: ") and "&" not in bad._repr_html_()[:40]
    assert bad._repr_html_().startswith("<p>do not use: ")
    assert bad.drop(columns=["ess_bulk", "ess_tail", "r_hat"]).isna().all().all() and bad["r_hat"].notna().any()
    assert str(bad.loc[["b[0]"]]).startswith("do not use: ")  # a part of it, too
    assert bad.attrs["verdict"] == str(pair[1].verdict)


def test_reprs_and_arviz_carry_the_verdict(pair):
    good, bad = pair
    assert repr(good).endswith("; good>") and repr(bad).endswith("not mixing; unusable>")
    assert bad.to_arviz().attrs["verdict"].startswith("do not use")


def test_a_saved_run_has_the_same_verdict_and_the_same_discarded_draws(tmp_path, pair):
    rng = np.random.default_rng(0)
    for run in (*pair, run_of(*langevin(rng, 5.0, starts(rng, 1), h=0.01, steps=2000))):
        again = sf.load(run.save(tmp_path / "r.npz"))
        assert (again.verdict, again.discarded, again.stop_reason) == (run.verdict, run.discarded, run.stop_reason)


def test_the_report_opens_with_a_banner(tmp_path, pair):
    good, bad = (run.report(tmp_path / "r.html").read_text() for run in pair)
    assert 'class="verdict good"' in good and "Posterior density" in good and "90 % interval" in good
    assert 'class="verdict bad"' in bad and bad.index("Do not use these draws") < bad.index('id="promise"')
    assert "Posterior density" not in bad and "known to" not in bad and "75% of the budget is left" in bad
    mean = pair[1].draws["b"][..., 0].mean()
    assert f">{mean:.2f}" not in bad


# -- end to end -------------------------------------------------------------------------------------------------------


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


TOSSES = {"y": (np.random.default_rng(0).random(30_000) < 0.3).astype(int)}
TERMS = {"domain": {"y": sf.Binary()}, "delta": 1e-6, "progress": False}


@pytest.mark.parametrize("kernel", ["langevin", "guided"])
def test_a_forced_run_on_next_to_no_budget_is_not_to_be_used(kernel):
    run = sf.sample(coin, TOSSES, epsilon=0.05, force=True, kernel=kernel, **TERMS)
    assert run.verdict.level == "unusable" and str(run.summary()).startswith("do not use")


@pytest.mark.parametrize("kernel", ["langevin", "guided"])
def test_a_run_on_a_good_budget_is_not_stopped_and_may_be_used(kernel):
    run = sf.sample(coin, TOSSES, epsilon=2.0, kernel=kernel, max_iterations=1000, **TERMS)
    assert run.verdict.usable and run.stop_reason is not StopReason.NOT_MIXING, run.verdict
    assert abs(run.draws["p"].mean() - TOSSES["y"].mean()) < 0.5 * 0.0026


@pytest.mark.parametrize("kernel", ["langevin", "guided"])
def test_a_chain_that_starts_nowhere_stops_while_budget_is_left_and_does_not_go_on(kernel, tmp_path):
    started = {"kernel": kernel, "pilot_share": 0.0, "guess": {"p": 0.9}}  # some 200 posterior sds from the mode
    ledger = sf.Ledger(tmp_path / "ledger.sqlite", epsilon=1.0, delta=1e-6)
    folder = tmp_path / "run"
    with ledger:
        run = sf.sample(coin, TOSSES, epsilon=1.0, checkpoint=folder, ledger=ledger, **started, **TERMS)
        spent = ledger.spent
        assert run.stop_reason is StopReason.NOT_MIXING and run.verdict.level == "unusable"
        assert 0 < run.privacy.spent_mu**2 < 0.3 * run.privacy.mu**2
        again = sf.resume(folder, TOSSES, model=coin, ledger=ledger, progress=False)
        assert again.stop_reason is StopReason.NOT_MIXING and again.iterations == run.iterations
        assert ledger.spent == spent  # not a quantum more


def test_a_chain_over_owners_stops_itself_too():
    half = {"y": TOSSES["y"][:15_000]}
    owners = [sf.Owner(half, name=name, domain=TERMS["domain"]) for name in ("east", "west")]
    run = sf.sample(
        coin, owners, epsilon=2.0, delta=1e-6, kernel="guided", pilot_share=0.0, guess={"p": 0.9}, progress=False
    )
    assert run.stop_reason is StopReason.NOT_MIXING and run.verdict.level == "unusable"
    assert run.privacy.spent_mu < 0.6 * run.privacy.mu
