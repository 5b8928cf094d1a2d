import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sfumato as sf
from sfumato.domain import check_record_domain, from_dict
from sfumato.errors import InvalidData, InvalidInput
from sfumato.vault.records import load

DOMAINS = [
    sf.Interval(-1.5, 2),
    sf.Integers(-2, 5),
    sf.Binary(),
    sf.Binary(shape=(3,)),
    sf.Integers(-1, 4, shape=2),
    sf.Categories(4),
    sf.Categories(["a", "b", "c"]),
    sf.Box(-1, 1, shape=(3,)),
    sf.Box([0, -1], [1, 2]),
    sf.Ball(2.0, dim=3),
    sf.Ellipsoid([1.0, -2.0], [[4.0, 1.8], [1.8, 1.0]], 2.5),
    sf.Integers(0, 10, at_most="trials"),
    sf.Interval(0, 2, at_most="total"),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_what_is_sampled_or_extreme_is_contained_and_not_moved(domain):
    rng = np.random.default_rng(0)
    for values in (domain.sample(rng, 500), domain.extremes(rng, 500)):
        assert values.shape == (500, *domain.shape)
        assert domain.contains(values).all()
        assert np.allclose(domain.clamp(values), values)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_clamping_brings_anything_finite_inside(domain):
    values = np.random.default_rng(1).normal(0, 50, (500, *domain.shape))
    values[0] = np.inf
    assert domain.contains(domain.clamp(values)).all()
    assert not domain.contains(np.full((1, *domain.shape), np.nan)).any()


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_the_support_function_bounds_all_records_and_is_attained(domain):
    rng = np.random.default_rng(2)
    records = np.concatenate([domain.sample(rng, 4000), domain.extremes(rng, 4000)]).reshape(8000, -1)
    for _ in range(5):
        direction = rng.normal(size=domain.shape)
        reach = (records @ direction.ravel()).max()
        assert reach <= domain.support(direction) * (1 + 1e-12) + 1e-12
        assert reach >= domain.support(direction) - 0.15 * np.abs(direction).sum() * 2


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_descriptions_round_trip(domain):
    assert from_dict(domain.to_dict()) == domain


@given(st.floats(-10, 10), st.floats(0, 10))
def test_an_interval_knows_its_ends(lower, extent):
    domain = sf.Interval(lower, lower + extent)
    assert domain.contains(np.array([domain.lo, domain.hi]).reshape(2)).all()
    assert domain.support(np.array(1.0)) == pytest.approx(lower + extent)


def test_labels_are_coded_and_undeclared_ones_are_told_from_missing_ones():
    domain = sf.Categories(["a", "b"])
    codes = domain.encode(np.array(["b", "a", "A", None, "", float("nan")], dtype=object))
    assert codes[:2].tolist() == [1.0, 0.0]
    assert np.isinf(codes[2]) and np.isnan(codes[3:]).all()
    assert domain.contains(codes).tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("outside", ["refuse", "clamp"])
def test_a_label_that_was_not_declared_is_called_so_and_not_quoted(outside):
    domain = {"sex": sf.Categories(["F", "M"])}
    with pytest.raises(
        InvalidData, match=r"'sex' has a label that was not declared; declared are \['F', 'M'\]"
    ) as caught:
        load({"sex": ["F", "zzz"]}, domain, outside=outside)
    assert "zzz" not in str(caught.value) and "missing" not in str(caught.value)
    with pytest.raises(InvalidData, match="'sex' has missing values"):
        load({"sex": np.array(["F", None], dtype=object)}, domain, outside=outside)


@pytest.mark.parametrize(
    "build",
    [
        lambda: sf.Interval(1, 0),
        lambda: sf.Interval(0, np.inf),
        lambda: sf.Interval(np.nan, 1),
        lambda: sf.Integers(0.5, 2),
        lambda: sf.Categories([]),
        lambda: sf.Ball(1.0),
        lambda: sf.Ball(-1.0, dim=2),
        lambda: sf.Ball(1.0, dim=0),
        lambda: sf.Box([0, 1], [1, 0]),
        lambda: sf.Box([0, 0], [1, 1], shape=(3,)),
        lambda: sf.Box([0, 0], [1, 1, 1]),
        lambda: sf.Box(0, 1, shape=(0,)),
        lambda: sf.Box(0, 1, shape="a"),
        lambda: sf.Box("a", 1),
        lambda: sf.Interval("a", 1),
        lambda: sf.Interval([0, 1], 2),
        lambda: sf.Interval(None, 1),
        lambda: sf.Integers("a", 2),
        lambda: sf.Integers(0, np.inf),
        lambda: sf.Integers([0, 1], 2),
        lambda: sf.Categories(["a", "a"]),
        lambda: sf.Categories([["a"], ["b"]]),
        lambda: sf.Categories(2.5),
        lambda: sf.Ball("a", dim=2),
        lambda: sf.Ball(1.0, dim="a"),
        lambda: sf.Ellipsoid([0, 0], [[1, 0], [0, -1]], 1.0),
        lambda: sf.Ellipsoid([0, 0], [[1, 1], [1, 1]], 1.0),
        lambda: sf.Ellipsoid([0, 0], [[1, 0.5], [0.2, 1]], 1.0),
        lambda: sf.Ellipsoid([0, 0, 0], [[1, 0], [0, 1]], 1.0),
        lambda: sf.Ellipsoid([0, 0], [[1, 0], [0, 1]], 0.0),
        lambda: sf.Integers(0, 10, shape=2, at_most="m"),
        lambda: sf.Integers(0, 10, at_most=5),
        lambda: check_record_domain({"k": sf.Integers(0, 10, at_most="m")}),
        lambda: check_record_domain({"k": sf.Integers(0, 10, at_most="k")}),
        lambda: check_record_domain({"k": sf.Integers(0, 10, at_most="m"), "m": sf.Integers(-1, 10)}),
        lambda: check_record_domain({"k": sf.Integers(0, 10, at_most="m"), "m": sf.Interval(1, 10)}),
        lambda: check_record_domain({"k": sf.Integers(0, 10, at_most="m"), "m": sf.Categories(4)}),
        lambda: check_record_domain(
            {"k": sf.Integers(0, 5, at_most="m"), "m": sf.Integers(1, 5, at_most="n"), "n": sf.Integers(2, 5)}
        ),
        lambda: from_dict({"kind": "interval", "lower": "a", "upper": 1}),
        lambda: from_dict({"kind": "box", "lower": [0, 0], "upper": [1, 1], "shape": [3]}),
        lambda: from_dict({"kind": "sphere"}),
        lambda: from_dict({"kind": "ball", "lower": 3}),
        lambda: check_record_domain({}),
        lambda: check_record_domain({"y": 3}),
        lambda: check_record_domain([sf.Binary()]),
    ],
)
def test_impossible_domains_are_refused(build):
    with pytest.raises(InvalidInput) as caught:
        build()
    assert len(str(caught.value)) > 30


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_equal_domains_are_one_key_and_others_are_not(domain):
    assert {domain: 1}[from_dict(domain.to_dict())] == 1
    assert [other for other in DOMAINS if other == domain] == [domain]


def test_labels_are_part_of_what_categories_are():
    assert sf.Categories(["a", "b"]) != sf.Categories(["a", "c"])
    assert sf.Categories(["a", "b"]) != sf.Categories(2)
    assert repr(sf.Categories(["a", "b"])) == "Categories(['a', 'b'])"
    assert repr(sf.Categories(2)) == "Categories(2)"


@given(st.floats(-100, 100), st.floats(1e-3, 100))
def test_a_bound_that_float32_cannot_hold_lets_its_own_rounding_in_and_nothing_more(lower, extent):
    """What is let in is moved by one step of float32 at the most, and then lies in the domain itself."""
    domain = sf.Interval(lower, lower + extent)
    ends = np.array([domain.lower, domain.upper], np.float32)
    assert domain.contains(ends).all()
    moved = domain.clamp(ends)
    assert moved.dtype == np.float32
    assert np.all((moved.astype(np.float64) >= domain.lower) & (moved.astype(np.float64) <= domain.upper))
    assert np.all(np.abs(moved - ends) <= np.spacing(np.abs(ends)))
    beyond = np.nextafter(ends, np.array([-np.inf, np.inf], np.float32))
    assert not domain.contains(beyond).any()
    assert domain.contains(domain.clamp(beyond)).all()


def test_infinite_records_are_outside_also_where_a_bound_is_beyond_the_type():
    domain = sf.Interval(-1e300, 1e300)
    values = np.array([np.inf, -np.inf], np.float32)
    assert not domain.contains(values).any()
    assert np.isfinite(domain.clamp(values)).all()


LONG = sf.Ellipsoid([1.0, -2.0, 0.0], [[9.0, 2.9, 0.0], [2.9, 1.0, 0.1], [0.0, 0.1, 0.4]], 2.0)


def test_the_nearest_point_of_an_ellipsoid_is_the_nearest_also_from_far_away_and_in_float32():
    rng = np.random.default_rng(3)
    inside = np.concatenate([LONG.sample(rng, 500), LONG.extremes(rng, 500), LONG.corners()])
    for spread in (1.0, 30.0, 1e4):
        away = rng.normal(0, spread, (300, 3))
        near = LONG.clamp(away)
        assert LONG.contains(near).all()
        room = 1e-7 * np.linalg.norm(away - near, axis=1, keepdims=True) + 1e-9
        assert np.all(np.einsum("id,ijd->ij", away - near, inside[None] - near[:, None]) < room * LONG.diameter())
        single = LONG.clamp(away.astype(np.float32))
        assert single.dtype == np.float32 and np.allclose(single, near, atol=1e-3 * LONG.diameter())
    with jax.enable_x64(True):
        assert np.allclose(jax.jit(LONG.clamp)(jnp.asarray(away)), near, atol=1e-9)
        direction = rng.normal(size=3)
        assert np.allclose(jax.grad(LONG.support)(jnp.asarray(direction)) @ direction, LONG.support(direction))
    matrix = rng.normal(size=(3, 2))
    met = inside @ matrix
    assert np.linalg.norm(met[:, None] - met[None], axis=2).max() <= LONG.image_diameter(matrix) * (1 + 1e-12)
    assert LONG.image_diameter(matrix) <= 1.05 * np.linalg.norm(met[:, None] - met[None], axis=2).max()


PAIR = {"k": sf.Integers(0, 10, at_most="m"), "m": sf.Integers(1, 20)}


def test_records_above_the_column_they_never_exceed_are_refused_or_cut(tmp_path):
    table = {"k": np.array([3, 7, 9]), "m": np.array([3, 5, 12])}
    with pytest.raises(InvalidData, match="'k' has records above 'm'"):
        load(table, PAIR)
    assert load(table, PAIR, outside="clamp").columns["k"].tolist() == [3, 5, 9]
    assert load(table | {"k": np.array([3, 5, 9])}, PAIR).n == 3
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(InvalidData, match="never exceeds"):
        load(str(tmp_path / "t.parquet"), PAIR)
