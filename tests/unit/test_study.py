"""Studies are shared by those who study the same: told by the program, not by the function's name."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.model import from_numpyro
from sfumato.model.program import digest
from sfumato.study.target import _program, make_study

DOMAIN = {"y": sf.Interval(-1.0, 1.0)}
SCALE = 1.0


def model(y):
    m = numpyro.sample("m", dist.Normal(0.0, SCALE))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, SCALE), obs=y)


def test_what_is_proven_for_a_program_is_proven_once():
    assert make_study(model, DOMAIN).bounds is make_study(model, {"y": sf.Interval(-1, 1)}, kernel="langevin").bounds
    assert make_study(model, DOMAIN, sf.Clip(bound=1.0)).model is make_study(model, DOMAIN).model
    given = make_study(model, DOMAIN).model
    assert make_study(given, DOMAIN).reference_bounds is make_study(given, DOMAIN).reference_bounds


def test_another_domain_is_another_study():
    assert make_study(model, DOMAIN).bounds is not make_study(model, {"y": sf.Interval(-2.0, 1.0)}).bounds
    given = make_study(model, DOMAIN).model
    assert make_study(given, DOMAIN).bounds is not make_study(given, {"y": sf.Interval(-2.0, 1.0)}).bounds


def test_a_global_variable_that_changed_makes_another_study(monkeypatch):
    before = sf.certify(model, DOMAIN, {"m": 0.0}, {"m": 1.0})
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    after = sf.certify(model, DOMAIN, {"m": 0.0}, {"m": 1.0})
    assert before[1] - before[0] > 3 * (after[1] - after[0])


@pytest.mark.parametrize("inner", [False, True])
def test_models_that_differ_in_one_number_of_a_table_they_hold_are_two(inner):
    """However large the table, also where an inner program holds it: nothing proven for one may be used for the other."""

    def weighted(weights):
        def weigh(x):
            return x @ weights

        def model(x):
            m = numpyro.sample("m", dist.Normal(0.0, 1.0))
            with numpyro.plate("records", x.shape[0]):
                numpyro.sample("y", dist.Normal(m, 1.0), obs=(jax.jit(weigh) if inner else weigh)(x))

        return model

    domain = {"x": sf.Box(-1.0, 1.0, shape=(3000,))}
    flat = np.full(3000, 1e-3)
    other = np.where(np.arange(3000) == 1234, 5.0, flat)
    digests = [
        _program(from_numpyro(weighted(jnp.asarray(w)), domain), domain).digest for w in (flat, other, flat.copy())
    ]
    assert digests[0] != digests[1] and digests[0] == digests[2]


def test_a_family_is_studied_once():
    family = sf.families.Bernoulli()
    assert make_study(family, kernel="langevin").model is make_study(family, kernel="auto").model


def test_arrays_written_into_a_program_are_part_of_it():
    """JAX has a setting under which arrays are no constants of a program; its text does not show them either."""

    def with_table(*table):
        return jax.make_jaxpr(lambda x: x @ jnp.array(table))(jnp.zeros(3))

    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        one, other = with_table(1.0, 2.0, 3.0), with_table(1.0, 2.0, 4.0)
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", before)
    assert str(one) == str(other) and not one.consts
    assert digest(one) != digest(other)
