"""Counting the kinds of record of a finite domain: the same sums, and a cost that says nothing about the records."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.domain import Domain, namespace
from sfumato.kernel import Guided, PublicStream, State
from sfumato.study.target import make_study
from sfumato.vault import counting, records
from sfumato.vault.vault import Vault
from statistical.harness import Endless

DOMAIN = {"age": sf.Integers(-2, 3), "group": sf.Categories(3), "y": sf.Binary()}


def model(age, group, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", age.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=slope * age + effect[group]), obs=y)


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    return {"age": rng.integers(-2, 4, n), "group": rng.integers(0, 3, n), "y": rng.integers(0, 2, n)}


def tally(data):
    seen = {}
    for row in zip(*(np.asarray(data[name]).tolist() for name in DOMAIN), strict=True):
        seen[row] = seen.get(row, 0) + 1
    return seen


def test_counts_are_those_of_the_records():
    data = table(500)
    counted = counting.count_records(records.load(data, DOMAIN), DOMAIN)
    rows = zip(*(counted.columns[name].tolist() for name in DOMAIN), strict=True)
    found = {row: count for row, count in zip(rows, counted.counts.tolist(), strict=True) if count}
    assert found == tally(data)
    assert counted.n == 500 and len(counted.counts) == counting.possible_records(DOMAIN) == 36
    for name, column in DOMAIN.items():
        assert np.all(column.contains(counted.columns[name].astype(float)))


def test_vectors_of_whole_numbers_are_not_mixed_up():
    domain = {"x": sf.Box(0, 1, shape=(2,)), "y": sf.Binary()}
    assert counting.possible_records(domain) is None  # a box holds real numbers
    assert (
        counting.count_records(records.load({"x": np.zeros((9, 2)), "y": np.zeros(9)}, domain), domain).counts is None
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Score(Domain):
    """Minus one, zero or two: whole numbers, and not all of those between its ends."""

    kind: ClassVar[str] = "score-of-three"
    discrete: ClassVar[bool] = True

    @property
    def shape(self):
        return ()

    def clamp(self, values):
        xp = namespace(values)
        return xp.where(values > 1, 2.0, xp.where(values < -0.5, -1.0, 0.0)).astype(values.dtype)

    def support(self, direction):
        return namespace(direction).maximum(-direction, 2 * direction)


def test_a_domain_that_is_not_all_of_its_box_is_not_listed():
    """A kind of record that cannot be would be evaluated, with count zero: outside of what was proven."""
    domain = {"score": Score(), "y": sf.Binary()}
    loaded = records.load({"score": np.tile([-1, 0, 2], 50), "y": np.zeros(150)}, domain)
    assert counting.possible_records(domain) is None
    assert counting.count_records(loaded, domain).counts is None


def test_rows_do_not_depend_on_the_records():
    """What a step costs is a function of the domain and n: also where all records are of one kind."""
    for data in (table(500), {name: np.zeros(500, int) for name in DOMAIN}):
        counted = counting.count_records(records.load(data, DOMAIN), DOMAIN)
        assert len(counted.counts) == 36
    few = counting.count_records(records.load(table(60), DOMAIN), DOMAIN)
    assert few.counts is None


class Known:
    """The same numbers every time: two ways to the same sum must agree to the last bit."""

    def __init__(self, scale):
        self.rng = np.random.default_rng(5)
        self.scale = scale

    def draw(self, size):
        return np.round(self.rng.standard_normal(size) * self.scale).astype(np.int64)


def answers(data, count, monkeypatch):
    if not count:
        monkeypatch.setattr("sfumato.vault.engine.count_records", lambda table, domain: table)
    study = make_study(model, DOMAIN)
    vault = Vault(records.load(data, DOMAIN), study, Endless(), source=Known)
    assert vault.rows == (36 if count else 400)
    gradient = vault.release("gradient", np.zeros(4), np.eye(4), 5.0, 1.0)
    stream, kernel = PublicStream(3, 2), Guided(np.eye(4) * 0.1, 1.0)
    with jax.enable_x64(True):
        theta = jnp.zeros((2, 4))
        states = State(theta, jax.jit(jax.vmap(study.model.log_prior))(theta), jnp.asarray(stream.directions(4)))
    vault.begin(kernel, 1.0, states)
    try:
        chunk = vault.chunk(states, stream.peek(kernel, 50), 50, 2**62)
    finally:
        vault.close()
    monkeypatch.undo()
    return [gradient, *(np.asarray(part) for part in chunk.transcript if part is not None)]


def test_the_same_answers_to_the_last_bit(monkeypatch):
    data = table(400)
    one_by_one, counted = answers(data, False, monkeypatch), answers(data, True, monkeypatch)
    assert len(one_by_one) == 7
    for left, right in zip(one_by_one, counted, strict=True):
        np.testing.assert_array_equal(left, right)
    other = answers(table(400, seed=1), True, monkeypatch)  # and the comparison can tell tables apart
    assert np.any(other[0] != counted[0])


def test_counts_must_add_up():
    loaded = records.load(table(500), DOMAIN)
    with pytest.raises(ValueError, match="add up"):
        dataclasses.replace(loaded, counts=np.ones(500, np.int64) * 2)
