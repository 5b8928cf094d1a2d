"""Moving plain numbers about gives what JAX gives, and compiles nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax

import sfumato as sf
from sfumato.bounds.moves import _MOVES, move
from sfumato.bounds.shapes import structural_names

X = np.arange(24.0).reshape(2, 3, 4)

KNOWN = {
    "broadcast_in_dim": (lambda x: lax.broadcast_in_dim(x, (5, 2, 3, 4), (1, 2, 3)), X),
    "broadcast ones": (lambda x: jnp.broadcast_to(x[:, :1], (2, 3, 4)), X),
    "concatenate": (lambda x, y: lax.concatenate([x, y], 1), X, -X),
    "reshape": (lambda x: lax.reshape(x, (6, 4)), X),
    "reshape, columns first": (lambda x: jnp.ravel(x, order="F"), X),
    "reshape, columns first, entry by entry": (jax.vmap(lambda x: jnp.ravel(x, order="F"), -1, -1), X),
    "rev": (lambda x: lax.rev(x, (0, 2)), X),
    "slice": (lambda x: lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)), X),
    "split": (lambda x: lax.split(x, (1, 3), 2), X),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), X[:, :1]),
    "transpose": (lambda x: lax.transpose(x, (2, 0, 1)), X),
    "entry by entry of the last axis": (jax.vmap(lambda x: jnp.broadcast_to(x.T, (5, 3, 2)), -1, -1), X),
    "whole numbers": (lambda x: x[None, ..., ::-1], X.astype(np.int64)),
    "yes and no": (lambda x: x.T, X > 3),
    "a scalar": (lambda x: x[None], np.float64(2.0)),
    "a program inside": (jax.jit(lambda x: x.T), X),
}


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert isinstance(a, np.ndarray)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_are_where_jax_puts_them_and_nothing_is_compiled(name, monkeypatch):
    apply, *arrays = KNOWN[name]
    with jax.enable_x64(True):
        wanted = apply(*(jnp.asarray(a) for a in arrays))

        def compiles(*_, **__):
            raise AssertionError("a program is compiled")

        monkeypatch.setattr("jax._src.compiler.compile_or_get_cached", compiles)
        same(move(apply, *arrays), wanted)


def test_what_numpy_is_not_told_about_is_left_to_jax():
    with jax.enable_x64(True):
        index = np.array([2, 0])
        same(move(lambda x: jnp.take(x, index, axis=1), X), X[:, [2, 0]])
        keys = jax.random.split(jax.random.key(0), 3)
        assert jnp.array_equal(jax.random.key_data(move(lambda k: k[::-1], keys)), jax.random.key_data(keys[::-1]))


def test_inside_a_program_that_is_traced_the_numbers_are_plain():
    with jax.enable_x64(True):

        @jax.jit
        def program(y):
            moved = move(lambda x: x.T, X)
            assert isinstance(moved, np.ndarray)
            return y + moved.sum()

        assert program(1.0) == 1 + X.sum()


def test_every_move_is_one_of_those_the_bounds_know():
    assert set(_MOVES) <= set(structural_names())


def test_a_bound_holds_where_constants_and_records_are_read_column_by_column():
    weights = np.array([[1.0, 50.0], [0.0, 0.0], [0.0, 0.0]])

    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        turned = jax.vmap(lambda row: jnp.ravel(row.reshape(3, 2), order="F"))(x)
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(b * (x @ jnp.ravel(weights, order="F") + turned[:, 1]), 1.0), obs=y)

    top = np.array([1.0, 0.001, 1.0, 1.0, 1.0, 1.0])
    domain = {"x": sf.Box(np.zeros(6), top, shape=(6,)), "y": sf.Interval(-1.0, 1.0)}
    lo, hi = sf.certify(model, domain, {"b": 0.1}, {"b": 0.2})
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (4096, 6)) * top, rng.choice([-1.0, 1.0], 4096)
    mean = x @ weights.ravel(order="F") + x.reshape(-1, 3, 2).transpose(0, 2, 1).reshape(-1, 6)[:, 1]
    ratio = -((y - 0.2 * mean) ** 2) / 2 + (y - 0.1 * mean) ** 2 / 2
    assert lo <= ratio.min() < -30
    assert ratio.max() <= hi
