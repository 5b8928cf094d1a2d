"""A domain of one's own: one class, in this file alone, goes through everything that sfumato does with domains.

The toy is compositional data: shares of a whole (of a day, a diet, a rock) are not negative and add up to at most one.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.auditor.neighbours import furthest
from sfumato.domain import Domain, from_dict, known_kinds, namespace
from sfumato.errors import InvalidData, InvalidInput
from sfumato.study.target import make_study
from sfumato.vault.records import load


@dataclass(frozen=True, eq=False)
class Shares(Domain):
    """All vectors of `parts` shares: none negative, at most one together."""

    parts: int
    kind: ClassVar[str] = "shares"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.parts,)

    def clamp(self, values: Any) -> Any:
        """Nearest point: take the same off every share until they add up to one, but leave none below zero."""
        xp = namespace(values)
        values = values.clip(-1e6, 1e6)
        down = xp.flip(xp.sort(values, axis=-1), axis=-1)
        over = (xp.cumsum(down, axis=-1) - 1) / np.arange(1, self.parts + 1, dtype=values.dtype)
        return xp.maximum(values - xp.maximum(over.max(axis=-1, keepdims=True), 0), 0)

    def support(self, direction: Any) -> Any:
        """The best share takes all, or nobody takes anything."""
        return direction.max(axis=-1).clip(0)


DAY = Shares(2)
DOMAIN: dict[str, Domain] = {"x": DAY, "y": sf.Binary()}
VERTICES = np.concatenate([np.zeros((1, 2)), np.eye(2)])


def logistic(x, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha + x @ beta), obs=y)


def table(n):
    rng = np.random.default_rng(3)
    x = rng.dirichlet(np.ones(3), n)[:, :2]
    return {"x": x, "y": (rng.random(n) < 1 / (1 + np.exp(0.5 - x @ np.array([2.0, -1.0])))).astype(int)}


# -- the class ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", [DAY, Shares(1), Shares(5)], ids=str)
def test_what_is_drawn_lies_inside_and_what_does_not_is_moved_to_the_nearest_point(domain):
    rng = np.random.default_rng(0)
    inside, outer = domain.sample(rng, 500), domain.extremes(rng, 500)
    for values in (inside, outer):
        assert domain.contains(values).all()
        assert np.allclose(domain.clamp(values), values)
    away = rng.normal(0, 3, (500, domain.parts))
    near = domain.clamp(away)
    assert domain.contains(near).all() and not domain.contains(away).all()
    # The nearest point of a convex set is where no direction that stays inside leads closer.
    closer = np.einsum("id,ijd->ij", away - near, inside[None] - near[:, None])
    assert closer.max() <= 1e-9
    assert not domain.contains(np.full((1, domain.parts), np.nan)).any()
    assert domain.contains(domain.clamp(np.full((1, domain.parts), np.inf))).all()


def test_the_box_around_it_the_corners_and_the_width_follow():
    assert np.array_equal(DAY.lo, [0, 0]) and np.array_equal(DAY.hi, [1, 1])
    assert DAY.diameter() == pytest.approx(2**0.5)
    outer = DAY.extremes(np.random.default_rng(0), 500)
    for vertex in VERTICES:
        assert np.abs(outer - vertex).sum(axis=1).min() < 1e-9
    directions = np.random.default_rng(1).normal(size=(100, 2))
    assert np.allclose(DAY.support(directions), (directions @ VERTICES.T).max(axis=1))


def test_numpy_and_jax_are_moved_alike():
    values = np.random.default_rng(0).normal(size=(50, 2))
    with jax.enable_x64(True):
        traced = jax.jit(DAY.project)(jnp.asarray(values))
        assert np.allclose(traced, DAY.project(values)) and traced.dtype == np.float64
        assert np.allclose(jax.jit(DAY.support)(jnp.asarray(values)), DAY.support(values))


def test_a_class_is_known_by_its_kind_from_its_definition_on():
    assert from_dict({"kind": "shares", "parts": 2}) == DAY != Shares(3)
    assert from_dict(DAY.to_dict()) == DAY and known_kinds()["shares"] is Shares
    with pytest.raises(InvalidInput, match="takes parts"):
        from_dict({"kind": "shares", "dim": 2})
    with pytest.raises(InvalidInput, match="'ball' is that of Ball"):
        type("Ball", (Domain,), {"kind": "ball"})
    with pytest.raises(InvalidInput, match="'shares' is that of Shares"):
        type("Parts", (Domain,), {"kind": "shares"})
    assert from_dict({"kind": "ball", "radius": 1.0, "dim": 2}) == sf.Ball(1.0, 2)
    _, last = (type("Parts", (Shares,), {"kind": "parts"}) for _ in range(2))  # a file that is read twice
    assert type(from_dict({"kind": "parts", "parts": 2})) is last


# -- the rest of the package ----------------------------------------------------------------------------------------------


def test_a_table_is_read_refused_and_clamped():
    inside = load(table(20), DOMAIN)
    assert np.allclose(inside.columns["x"], table(20)["x"])
    beyond = {"x_0": [0.7, 0.1], "x_1": [0.5131, 0.2], "y": [0, 1]}
    with pytest.raises(InvalidData, match="'x' has records outside its domain Shares") as caught:
        load(beyond, DOMAIN)
    assert "0.5131" not in str(caught.value)
    moved = load(beyond, DOMAIN, outside="clamp").columns["x"]
    assert np.allclose(moved, [[0.59345, 0.40655], [0.1, 0.2]])
    narrow = load({name: np.float32(column) for name, column in table(20).items()}, DOMAIN).columns["x"]
    assert narrow.dtype == np.float32 and DAY.contains(narrow).all()


def test_what_is_certified_holds_for_every_record_and_is_nearly_attained():
    here, there = {"alpha": -0.3, "beta": [0.4, 0.3]}, {"alpha": -0.4, "beta": [0.8, 0.6]}
    low, high = sf.certify(logistic, DOMAIN, here, there)
    x = np.concatenate([VERTICES, *(DAY.sample(np.random.default_rng(i), 2_000) for i in range(2))])
    signs = np.array([[-1.0], [1.0]])

    def terms(at):
        return -np.log1p(np.exp(-signs * (at["alpha"] + x @ np.array(at["beta"]))))

    found = terms(there) - terms(here)
    assert low <= found.min() and found.max() <= high
    assert np.ptp(found) > 0.9 * (high - low)
    box_low, box_high = sf.certify(logistic, DOMAIN | {"x": sf.Box(0, 1, shape=(2,))}, here, there)
    assert high - low < 0.7 * (box_high - box_low)


def test_the_auditors_two_records_are_ends_of_the_domain():
    model = make_study(logistic, DOMAIN, sf.Clip(1.0)).model
    one, other = furthest(lambda batch: batch["x"] * np.array([1.0, 3.0]), model, DOMAIN, np.zeros(3))
    assert DAY.contains(one["x"]).all() and DAY.contains(other["x"]).all()
    apart = np.linalg.norm((one["x"] - other["x"]) * np.array([1.0, 3.0]))
    assert apart == pytest.approx(10**0.5, rel=1e-3)


@pytest.mark.parametrize("kernel", ["guided", "langevin"])
def test_a_plan_has_a_forecast_and_a_run_goes_on_from_its_folder(kernel, tmp_path):
    asked: dict[str, Any] = {"domain": DOMAIN, "epsilon": 4.0, "delta": 1e-6, "kernel": kernel, "chains": 2}
    plan = sf.plan(logistic, n=5_000, **asked)
    assert plan.kernel == kernel and plan.forecast_ess > 0
    data = table(5_000)
    given: dict[str, Any] = {"force": True, "seed": 1, "progress": False}
    run = sf.sample(logistic, data, **asked, **given, max_iterations=20, checkpoint=tmp_path / "run")
    assert run.draws["beta"].shape[0] == 2 and run.privacy.epsilon == 4.0
    again = sf.resume(tmp_path / "run", data, model=logistic, progress=False)
    assert np.array_equal(again.draws["beta"], run.draws["beta"])


# -- nobody else asks -----------------------------------------------------------------------------------------------------

SOURCE = Path(sf.__file__).parent
CLASSES = {cls.__name__ for cls in known_kinds().values() if cls.__module__ == "sfumato.domain"}
KINDS = {cls.kind for cls in known_kinds().values()}


def asked_classes(tree: ast.AST) -> list[str]:
    """Places where a program tells one class of domains from another: by the class, or by its name."""
    known: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("sfumato.domain", "sfumato"):
            known |= {alias.asname or alias.name for alias in node.names if alias.name in CLASSES}
    found = []
    for node in ast.walk(tree):
        call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass")
        if call or isinstance(node, ast.Compare | ast.match_case):
            parts = [node.pattern] if isinstance(node, ast.match_case) else list(ast.iter_child_nodes(node))
            inner = [part for top in parts for part in ast.walk(top)]
            names = {part.id for part in inner if isinstance(part, ast.Name)} & known
            dotted = {part.attr for part in inner if isinstance(part, ast.Attribute)} & CLASSES
            text = {part.value for part in inner if isinstance(part, ast.Constant) and isinstance(part.value, str)}
            by_name = any(word in ast.unparse(node) for word in ("__name__", "__qualname__", ".kind", "'kind'"))
            if names or dotted or (by_name and text & (CLASSES | KINDS)):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node) in ("type(domain)", "type(column)", "type(d)"):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_tells_one_class_of_domains_from_another(path):
    if path.name != "domain.py":
        assert not asked_classes(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    "program",
    [
        "from sfumato.domain import Ball\nisinstance(d, Ball)",
        "from sfumato.domain import Ball as B, Box\nisinstance(d, B | Box)",
        "from sfumato import domain\nisinstance(d, (domain.Ball, str))",
        "from sfumato.domain import Box\ntype(self.y) is Box",
        "from sfumato.domain import Box\nmatch d:\n    case Box():\n        pass",
        "type(domain).__name__",
        "type(self.y).__name__ in ('Interval', 'Integers')",
        "d.kind == 'ball'",
        "spec['kind'] == 'shares'",
    ],
)
def test_a_module_that_does_is_found(program):
    assert asked_classes(ast.parse(program))


def test_classes_of_other_packages_by_these_names_are_not_meant():
    for program in ("from sfumato.bounds.interval import Interval\nisinstance(x, Interval)", "kind == 'run'"):
        assert not asked_classes(ast.parse(program))
