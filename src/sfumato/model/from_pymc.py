"""PyMC models in: what PyMC itself says of a model, compiled to JAX by PyTensor, for one record at a time.

The columns of a record are the model's `pm.Data` containers. PyMC supplies the log-densities, the transforms and the draws
from the prior: nothing of that is written again. One record's term is the log-density of a table that holds that record and
no other, so it cannot look at anybody else's; the trials see to it that these terms add up to the model the user wrote.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.domain import Domain, check_record_domain
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.model.base import Array, Model, Record, Site, check_values, input_spec
from sfumato.model.program import digest
from sfumato.model.trials import COMPANY, check_pure, check_separate, mixed_company
from sfumato.tools.quick_jit import QUICK_OPTIONS

_TRIED = 256  # draws from the prior at which a model's ranges are tried, and as many further out
_DRAWS = 2048  # from the prior, made once by PyMC's own samplers: PyTensor has but a few of them in JAX

# PyMC's two ways with a parameter out of range, such as a negative scale: a density of zero, or none of its business. Records are
# scored by the second: the first asks whether the parameters of all records are in range, a question no slope can answer. Models
# for which it makes a difference are refused (`_check_in_range`).
_REJECT = "local_check_parameter_to_ninf_switch"
_IGNORE = "local_remove_check_parameter"


def from_pymc(model: Any, domain: Mapping[str, Domain]) -> Model:
    r"""Turn a PyMC model into a `Model`.

    .. math:: \log p(\theta) + \sum_i \log p(r_i\mid\theta)

    with theta the values of the free variables on PyMC's own unconstrained scale; the log-Jacobian is in the prior.

    Parameters
    ----------
    model
        A `pymc.Model` whose columns are ``pm.Data`` containers. They may hold any stand-in records: only
        their shape and type are looked at.
    domain
        The declared domain of every container, by its name.

    Returns
    -------
    Model
        What `sample`, `plan`, `certify` and the others take, together with the same domain.

    Raises
    ------
    InvalidModel
        If the model has local or discrete latent variables, a prior or a potential that looks at the records, an observed
        variable that holds its own data, mixes records or can have a parameter out of its range, or an operation that PyTensor
        does not have in JAX. `.site` names the culprit.
    InvalidInput
        If PyMC is not installed.
    """
    _check_installed()
    import pymc

    if not isinstance(model, pymc.Model):
        raise InvalidModel(
            f"from_pymc takes a pymc.Model, got {type(model).__name__}; build one `with pm.Model() as model`."
        )
    columns = _match_columns(model, check_record_domain(domain))
    with jax.enable_x64(True), _told():
        _check_observed(model, columns)
        _check_latents(model, columns)
        made = _functions(model, columns)
        _check_shapes(model, columns, made)
        built = _build(made, columns)
        check_pure(
            built, {name: values[0] for name, values in mixed_company(columns, np.random.default_rng(0)).items()}
        )
        _check_records_are_separate(model, columns, made, built)
        _check_in_range(model, columns, made)
    return built


def _check_installed() -> None:
    """Import PyMC and PyTensor's JAX functions; the precision of JAX stays as it was, which the latter set for everybody."""
    before = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
            import pymc  # noqa: F401
        import pytensor.link.jax.dispatch  # noqa: F401
        from pytensor import config
    except ImportError as error:
        raise InvalidInput(
            f"from_pymc needs PyMC, and importing {error.name} failed; run pip install 'sfumato[pymc]'."
        ) from error
    finally:
        jax.config.update("jax_enable_x64", before)  # type: ignore[no-untyped-call]
    if config.floatX != "float64":
        raise InvalidInput(
            f"models are proven in float64, and pytensor.config.floatX is {config.floatX!r}; set it to 'float64' before the "
            "model is built."
        )


@contextmanager
def _told() -> Iterator[None]:
    """Turn whatever PyMC, PyTensor or JAX raise about a model into `InvalidModel`. They see made-up records only."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        said = str(error).strip().split("\n")[0].rstrip(".")
        advice = (
            "Write the model without it."
            if isinstance(error, NotImplementedError)
            else "Fill its pm.Data with one and with three such records, and evaluate model.compile_logp(), to see why."
        )
        raise InvalidModel(
            f"a model must run in JAX on any records of the domain, and this one raised {type(error).__name__}"
            f"{': ' + said if said else ''}. {advice}"
        ) from error


# -- the variables ----------------------------------------------------------------------------------------------------


def _match_columns(model: Any, domain: Mapping[str, Domain]) -> dict[str, Domain]:
    data = {container.name: container for container in model.data_vars}
    if undeclared := sorted(set(data) - set(domain)):
        raise InvalidModel(
            f"every pm.Data of the model is a column of the records, and the domain does not declare {undeclared}; add them to "
            "domain=, or write public constants into the model as plain NumPy arrays.",
            site=undeclared[0],
        )
    if extra := sorted(set(domain) - set(data)):
        raise InvalidModel(
            f"the domain declares {extra}, which are no pm.Data of the model; write pm.Data({extra[0]!r}, ...) in the model, or "
            "remove them from domain=."
        )
    for name, column in domain.items():
        _check_column(name, data[name], column)
    return dict(domain)


def _check_column(name: str, container: Any, domain: Domain) -> None:
    shape, dtype = container.get_value(borrow=True).shape, np.dtype(container.dtype)
    if shape[1:] != domain.shape or not shape:
        raise InvalidModel(
            f"pm.Data {name!r} must have one row for each record, of the domain's shape {domain.shape}; it holds an array of "
            f"shape {shape}. Fill it with an array of shape {(1, *domain.shape)}, for instance.",
            site=name,
        )
    if dtype.kind != "f" and not domain.discrete:
        raise InvalidModel(
            f"pm.Data {name!r} holds {dtype}, which would cut the numbers of {domain} to whole ones; fill it with floats.",
            site=name,
        )
    if dtype.kind != "f" and not np.all(
        (_cast(domain.lo, dtype) == domain.lo) & (_cast(domain.hi, dtype) == domain.hi)
    ):
        raise InvalidModel(
            f"pm.Data {name!r} holds {dtype}, which cannot hold all of {domain}; fill it with int64.", site=name
        )


def _cast(bound: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    return bound.astype(np.int64).astype(dtype)


def _looks(model: Any, columns: Mapping[str, Domain], *graphs: Any) -> bool:
    """Whether any column is needed to compute the graphs."""
    from pytensor.graph.traversal import ancestors

    return not {model[name] for name in columns}.isdisjoint(ancestors(graphs))


def _check_observed(model: Any, columns: Mapping[str, Domain]) -> None:
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    if not model.observed_RVs:
        raise InvalidModel(
            "a model must have an observed variable; pass observed= the pm.Data of a column to one of its variables."
        )
    for rv in model.observed_RVs:
        if not _looks(model, columns, model.rvs_to_values[rv]):
            raise InvalidModel(
                f"observed variable {rv.name!r} holds its data inside the model; records stay with their owner. Put a column in "
                f"their place: observed=pm.Data(...), declared in domain=. Public evidence is written as pm.Potential.",
                site=rv.name,
            )
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise InvalidModel(
                f"observed variable {rv.name!r} has a total_size; all records are scored, each as it is. Leave total_size= out.",
                site=rv.name,
            )


def _check_latents(model: Any, columns: Mapping[str, Domain]) -> None:
    if not model.free_RVs:
        raise InvalidModel("a model must have at least one free random variable; there is nothing to infer.")
    for rv, term, value in zip(
        model.free_RVs,
        model.logp(vars=model.free_RVs, sum=False),
        model.replace_rvs_by_values(model.free_RVs),
        strict=True,
    ):
        if np.dtype(rv.dtype).kind != "f":
            raise InvalidModel(
                f"variable {rv.name!r} is a discrete latent variable; marginalise it out of the model (for instance pm.Mixture).",
                site=rv.name,
            )
        if not _looks(model, columns, rv, term, value):
            continue
        if _shape(model, columns, rv, 2) != _shape(model, columns, rv, 3):
            raise InvalidModel(
                f"variable {rv.name!r} is a local latent variable: one for each record. Only global ones can be inferred; "
                "marginalise it out of the model, or give it a shape of its own.",
                site=rv.name,
            )
        raise InvalidModel(
            f"the prior of {rv.name!r} depends on the records; a prior must be fixed before the data are seen. Write what it "
            "needs to know into the model as plain numbers.",
            site=rv.name,
        )
    for potential in model.potentials:
        if _looks(model, columns, *model.logp(vars=[potential], sum=False)):
            raise InvalidModel(
                f"potential {potential.name!r} looks at the records, and does not say what it adds for each of them; write it as "
                "an observed variable (for instance pm.CustomDist with a logp).",
                site=potential.name,
            )


def _shape(model: Any, columns: Mapping[str, Domain], rv: Any, size: int) -> list[Any]:
    from pymc.pytensorf import constant_fold
    from pytensor.graph.replace import clone_replace

    _, given = _records(model, columns, size)
    (replaced,) = clone_replace([rv], given)
    return [str(length) for length in constant_fold(tuple(replaced.shape), raise_not_constant=False)]


# -- graphs to functions ----------------------------------------------------------------------------------------------


def _records(model: Any, columns: Mapping[str, Domain], size: int) -> tuple[list[Any], dict[Any, Any]]:
    """Inputs for the columns of so many records, and what to put in the place of the model's containers."""
    import pytensor.tensor as pt

    inputs = [pt.tensor(name, dtype=str(d.dtype), shape=(size, *d.shape)) for name, d in columns.items()]
    return inputs, {model[given.name]: given.astype(model[given.name].dtype) for given in inputs}


def _function(inputs: Sequence[Any], outputs: Sequence[Any], checks: str = _IGNORE) -> Callable[..., list[Array]]:
    """JAX function of a PyTensor graph. Other numbers that the graph shares are taken as they are now."""
    from pytensor.compile.mode import JAX
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.fg import FunctionGraph
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.traversal import graph_inputs
    from pytensor.link.jax.dispatch import jax_funcify
    from pytensor.tensor.random.type import RandomType

    shared = [variable for variable in graph_inputs(outputs) if isinstance(variable, SharedVariable)]
    if any(isinstance(variable.type, RandomType) or variable.default_update is not None for variable in shared):
        raise InvalidModel(
            "a density must be the same whenever it is computed, and this model draws random numbers in one (pm.Simulator, or "
            "a distribution that was not registered?); give each random variable a name in the model."
        )
    held = {variable: variable.type.make_constant(variable.get_value()) for variable in shared}
    graph = FunctionGraph(list(inputs), clone_replace(list(outputs), held), clone=True)
    JAX.including(checks).optimizer.rewrite(graph)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Skipping")  # assertions, which a compiled program cannot make
        function: Callable[..., list[Array]] = jax_funcify(graph)
    return function


def _terms(
    model: Any, columns: Mapping[str, Domain], size: int, checks: str = _IGNORE
) -> Callable[[list[Array], Record], dict[str, Array]]:
    """Function (values, records) -> log-density of so many records at each observed variable, one number for each."""
    from pytensor.graph.replace import clone_replace

    inputs, given = _records(model, columns, size)
    names = [rv.name for rv in model.observed_RVs]
    outputs = clone_replace(model.logp(vars=model.observed_RVs, sum=False), given)
    function = _function([*model.value_vars, *inputs], outputs, checks)

    def terms(values: list[Array], records: Record) -> dict[str, Array]:
        # Whole numbers may come in the smallest type that holds them; PyTensor's program was typed beforehand.
        typed = [jnp.asarray(records[n], dtype=d.dtype if d.discrete else None) for n, d in columns.items()]
        each = dict(zip(names, function(*values, *typed), strict=True))
        return {name: jnp.sum(term, axis=tuple(range(1, jnp.ndim(term)))) for name, term in each.items()}

    return terms


def _unconstrainer(model: Any) -> Callable[..., list[Array]]:
    """Function of the free variables, in their own supports, -> their values on the unconstrained scale."""
    from pytensor.graph.replace import clone_replace

    given = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    transforms = [(rv, model.rvs_to_transforms[rv]) for rv in model.free_RVs]
    # A transform may look at other variables: the upper end of one may be the value of another.
    outputs = [rv if how is None else how.forward(given[rv], *rv.owner.inputs) for rv, how in transforms]
    return _function(list(given.values()), clone_replace(outputs, given))


def _prior_draws(model: Any) -> list[np.ndarray]:
    """Draw the free variables, in their own supports, by PyMC's own samplers: public, and always the same."""
    import pymc

    def draw(variables: list[Any], draws: int) -> list[np.ndarray]:
        drawn: list[np.ndarray] = pymc.draw(variables, draws=draws, random_seed=0, mode="FAST_COMPILE")
        return drawn

    try:
        return draw(list(model.free_RVs), _DRAWS)
    except Exception:
        for rv in model.free_RVs:
            try:
                draw([rv], 1)
            except Exception as error:
                raise InvalidModel(
                    f"the prior of {rv.name!r} cannot be drawn from ({type(error).__name__}); a prior must be proper. Give it "
                    "one that is, such as a wide pm.Normal.",
                    site=rv.name,
                ) from error
        raise


# -- building ---------------------------------------------------------------------------------------------------------


class _Functions(NamedTuple):
    """What PyTensor made of a model; `values` are those of the free variables on the unconstrained scale, in their order."""

    names: list[str]
    values: list[Any]  # their shapes
    drawn: list[np.ndarray]  # from the prior, in their own supports
    to_values: Callable[..., list[Array]]
    from_values: Callable[..., list[Array]]
    log_prior: Callable[..., list[Array]]
    terms: Callable[[list[Array], Record], dict[str, Array]]  # of one record

    def unpack(self, theta: Array) -> list[Array]:
        """Cut theta into values."""
        splits = np.cumsum([np.prod(value.shape, dtype=int) for value in self.values])[:-1].tolist()
        return [part.reshape(v.shape) for part, v in zip(jnp.split(theta, splits), self.values, strict=True)]

    def pack(self, *variables: Array) -> Array:
        """Theta of the free variables."""
        return jnp.concatenate([jnp.ravel(value) for value in self.to_values(*variables)])


def _functions(model: Any, columns: Mapping[str, Domain]) -> _Functions:
    drawn, to_values = _prior_draws(model), _unconstrainer(model)
    return _Functions(
        names=[rv.name for rv in model.free_RVs],
        values=list(jax.eval_shape(to_values, *(draws[0] for draws in drawn))),
        drawn=drawn,
        to_values=to_values,
        from_values=_function(model.value_vars, model.replace_rvs_by_values(model.free_RVs)),
        log_prior=_function(model.value_vars, [model.logp(vars=[*model.free_RVs, *model.potentials])], _REJECT),
        terms=_terms(model, columns, 1),
    )


def _build(made: _Functions, columns: Mapping[str, Domain]) -> Model:
    sites = tuple(
        Site(name, draws.shape[1:], int(np.prod(value.shape)))
        for name, draws, value in zip(made.names, made.drawn, made.values, strict=True)
    )

    def log_prior(theta: Array) -> Array:
        return made.log_prior(*made.unpack(theta))[0]

    def log_likelihood(theta: Array, record: Record) -> Array:
        return sum(_alone(made, theta, record).values())

    def constrain(theta: Array) -> dict[str, Array]:
        return dict(zip(made.names, made.from_values(*made.unpack(theta)), strict=True))

    def unconstrain(values: Mapping[str, Array]) -> Array:
        check_values(values, sites)
        return made.pack(*(jnp.asarray(values[name], dtype=float) for name in made.names))

    table = np.asarray(jax.vmap(made.pack)(*made.drawn))
    table = table[np.all(np.isfinite(table), axis=1)]  # a draw may round to the edge of its support
    if not len(table):
        raise InvalidModel(
            "all draws from the prior lie on the edge of its support; choose a prior that has a density."
        )

    def sample_prior(key: Array) -> Array:
        return jnp.asarray(table)[jax.random.randint(key, (), 0, len(table))]

    return Model(
        sites=sites,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        constrain=constrain,
        unconstrain=unconstrain,
        sample_prior=sample_prior,
        columns=tuple(columns),
        source=_source(columns, table.shape[1], (log_prior, constrain), log_likelihood),
    )


def _alone(made: _Functions, theta: Array, record: Record) -> dict[str, Array]:
    """Log-density of one record at each observed variable: that of a table without any other."""
    table = {name: jnp.asarray(value)[None] for name, value in record.items()}
    return {name: jnp.squeeze(term, 0) for name, term in made.terms(made.unpack(theta), table).items()}


def _source(columns: Mapping[str, Domain], dim: int, public: Sequence[Any], log_likelihood: Callable[..., Any]) -> str:
    """Text that stands for what a model computes: a PyMC model is an object, and has no text of its own."""
    theta, record = input_spec(dim, columns)
    programs = [jax.make_jaxpr(function)(theta) for function in public]
    return digest(*programs, jax.make_jaxpr(log_likelihood)(theta, record))


# -- trials -----------------------------------------------------------------------------------------------------------


def _check_shapes(model: Any, columns: Mapping[str, Domain], made: _Functions) -> None:
    """Refuse terms that are as many as the stand-in records, or any other number but one, when there is one record."""
    record = {name: column[:1] for name, column in mixed_company(columns, np.random.default_rng(0)).items()}
    lengths = {len(model[name].get_value(borrow=True)) for name in columns}
    for name, term in jax.eval_shape(made.terms, made.values, record).items():
        if term.shape != (1,):
            sized = zip(made.names, made.drawn, strict=True)
            like = [latent for latent, draws in sized if draws.shape[1:2] == term.shape and lengths & set(term.shape)]
            raise InvalidModel(
                f"observed variable {name!r} must give one log-density per record, got shape {term.shape} for one record"
                + (f": {like[0]!r} has an entry for each stand-in record. " if like else ". ")
                + "Let shapes follow the pm.Data of the columns, records along the first axis, and give no latent variable and "
                "no constant an entry for each record.",
                site=like[0] if like else name,
            )


def _check_records_are_separate(model: Any, columns: Mapping[str, Domain], made: _Functions, built: Model) -> None:
    company = _terms(model, columns, COMPANY)

    def together(theta: Array, records: Record) -> dict[str, Array]:
        return company(made.unpack(theta), records)

    advice = "let the records run along the first axis, with no density over all of them"
    kinds = {rv.name: type(rv.owner.op).__name__.removesuffix("RV") for rv in model.observed_RVs}
    check_separate(together, partial(_alone, made), built.sample_prior, columns, advice, kinds)


def _check_in_range(model: Any, columns: Mapping[str, Domain], made: _Functions) -> None:
    """Refuse a model whose density is zero because a parameter is out of its range, where the formula alone is a number.

    The vault computes the formula. It is tried at draws from the prior, and as far out again as three and ten times their
    distance from the median: with many records a posterior need not respect what a prior finds unlikely.
    """
    strict, loose = (_terms(model, columns, COMPANY, checks) for checks in (_REJECT, _IGNORE))
    records = mixed_company(columns, np.random.default_rng(0))

    def broken(theta: Array) -> dict[str, Array]:
        checked, formula = (terms(made.unpack(theta), records) for terms in (strict, loose))
        return {name: jnp.any(jnp.isneginf(checked[name]) & jnp.isfinite(formula[name])) for name in formula}

    table = np.asarray(jax.vmap(made.pack)(*(draws[:_TRIED] for draws in made.drawn)))
    table = table[np.all(np.isfinite(table), axis=1)]
    middle = np.median(table, axis=0)
    far = np.concatenate([middle + factor * (table - middle) for factor in (1, 3, 10)])
    for name, out in jax.jit(jax.vmap(broken), compiler_options=QUICK_OPTIONS)(far).items():
        if np.any(out):
            raise InvalidModel(
                f"a parameter of observed variable {name!r} can be out of its range, where PyMC's density is zero and the "
                "formula of it is not; give the latent variables priors that keep it inside (pm.HalfNormal for a scale, "
                "pm.Dirichlet or pm.math.softmax for probabilities), or transform them.",
                site=name,
            )
