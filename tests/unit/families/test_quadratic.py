"""Quadratic functions over balls, boxes and products: closed cases, hard cases, and one method against another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfumato.families import quadratic as q


@pytest.fixture(autouse=True)
def in_64_bits():
    with jax.enable_x64(True):
        yield


def test_parabolas_over_an_interval():
    assert float(q.over_interval(2.0, -1.0, -5.0, 5.0)) == 1.0
    assert float(q.over_interval(2.0, -1.0, 2.0, 5.0)) == 0.0
    assert float(q.over_interval(2.0, 1.0, -5.0, 5.0)) == 35.0
    assert float(q.over_interval(0.0, 0.0, -5.0, 5.0)) == 0.0


@pytest.mark.parametrize(
    ("matrix", "linear", "radius", "expected"),
    [
        (np.zeros((2, 2)), [3.0, 4.0], 2.0, 10.0),
        (np.diag([1.0, 3.0]), [0.0, 0.0], 2.0, 12.0),
        (-np.eye(2), [0.0, 0.0], 2.0, 0.0),
        (-np.eye(2), [1.0, 0.0], 2.0, 0.25),  # the peak is inside
        (np.diag([1.0, 2.0]), [1.0, 0.0], 1.0, 2.25),  # hard case: nothing along the largest eigenvector
        (np.zeros((2, 2)), [0.0, 0.0], 1.0, 0.0),
    ],
)
def test_balls_in_closed_cases(matrix, linear, radius, expected):
    assert float(q.over_ball(jnp.asarray(matrix), jnp.asarray(linear), radius)) == pytest.approx(expected, abs=1e-12)


def test_a_ball_of_one_dimension_is_an_interval():
    rng = np.random.default_rng(0)
    for square, linear, radius in rng.standard_normal((30, 3)):
        ball = q.over_ball(jnp.array([[square]]), jnp.array([linear]), abs(radius))
        assert float(ball) == pytest.approx(
            float(q.over_interval(linear, square, -abs(radius), abs(radius))), abs=1e-12
        )


def random_box(rng, dim):
    lo = rng.standard_normal(dim)
    return lo, lo + rng.uniform(0.1, 3.0, dim)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_faces_beat_every_point_and_bounds_beat_faces(dim):
    rng = np.random.default_rng(dim)
    faces, hull, pairs = (jax.jit(f) for f in (q._over_faces, q._over_hull, q._by_pairs))
    for _ in range(20):
        matrix, linear, (lo, hi) = rng.standard_normal((dim, dim)), rng.standard_normal(dim), random_box(rng, dim)
        matrix = matrix + matrix.T
        points = rng.uniform(lo, hi, (4000, dim))
        points = np.where(rng.random(points.shape) < 0.3, lo, np.where(rng.random(points.shape) < 0.4, hi, points))
        found = (((points @ matrix) * points).sum(1) + points @ linear).max()
        exact = float(faces(matrix, linear, lo, hi))
        assert found <= exact + 1e-9
        assert exact <= float(hull(matrix, linear, lo, hi)) + 1e-9
        assert exact <= float(pairs(matrix, linear, lo, hi)) + 1e-9


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_shadows_agree_with_faces_up_to_rank_two(rank):
    rng = np.random.default_rng(rank)
    for _ in range(40):
        lo, hi = random_box(rng, 3)
        solid = q.Solid((lo + hi) / 2, (hi - lo) / 2, np.zeros(3), 0.0)
        roots = rng.standard_normal((3, rank))
        signs = np.array([1.0, -1.0, 1.0])[:rank]
        matrix = (roots * signs) @ roots.T
        exact = float(q.over_box(jnp.asarray(matrix), jnp.zeros(3), lo, hi))
        shadow = float(q.over_solid(jnp.asarray(matrix), solid))
        assert shadow >= exact - 1e-9
        if rank <= 2:
            assert shadow == pytest.approx(exact, abs=1e-9)


def test_shadows_of_concave_functions_are_bounds_that_are_met_at_zero():
    solid = q.Solid(np.zeros(2), np.ones(2), np.zeros(2), 0.0)
    assert float(q.over_solid(-jnp.eye(2), solid)) == 0.0
    away = q.Solid(np.array([3.0, 0.0]), np.ones(2), np.zeros(2), 0.0)
    assert float(q.over_solid(-jnp.eye(2), away)) == pytest.approx(-4.0)


def test_triangles_keep_norms_and_come_back():
    y = np.array([1.0, -2.0, 0.5])
    rows, columns, weights = q.triangle(3)
    entries = y[rows] * y[columns] * weights
    assert np.linalg.norm(entries) == pytest.approx(y @ y)
    assert np.allclose(q.from_triangle(jnp.asarray(entries), 3), np.outer(y, y))
