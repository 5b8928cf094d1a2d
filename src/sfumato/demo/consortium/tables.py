"""The records: the RAND Health Insurance Experiment, as three insurers would hold it.

From 1974 to 1982 the experiment gave families one of several insurance plans, at random, and counted their visits to doctors.
The table is the one that ships with statsmodels (`statsmodels.datasets.randhie`, public domain by its own note; collected by
the RAND corporation, used in Cameron and Trivedi, *Microeconometrics*, 2005). It is public, which is why the posterior of all
records together, without privacy, may be shown beside the private one.

A record is one person in one year: 20 190 records of 5 912 people, five of one person at the most, and nobody is in two plans
(counted in the original file that statsmodels ships beside it; the table itself has no numbers for persons).
"""

from typing import Any, NamedTuple

import numpy as np

from sfumato.demo.census import Fit, logistic_fit
from sfumato.demo.consortium import DELTA
from sfumato.domain import Binary, Domain
from sfumato.errors import InvalidInput

CHAINS = 2
CHRONIC = 10.0
"""Above this score of chronic diseases (it runs from 0 to 58.6) a person counts as chronically ill here: three in five do.

A round number, and a share near a half: a value that few people have costs as much as if everybody had it (`demo/census.py`)."""
COLUMNS = ("pays", "chronic", "visited")
GUESS = {"intercept": 1.0, "b_pays": -0.5, "b_chronic": 0.3}
"""Round numbers near the known answer, chosen with these public records in view; a private study needs an outside source."""
LABELS = {"intercept": "intercept", "b_pays": "pays a part", "b_chronic": "chronically ill"}


class Insurer(NamedTuple):
    """One owner: its name, and what its own table holds."""

    name: str
    records: dict[str, np.ndarray]

    @property
    def n(self) -> int:
        """Number of records: public."""
        return len(self.records["visited"])


def load() -> list[Insurer]:
    """Read the public table and give each plan's records to its insurer: nobody is in two of them."""
    table = _read()
    deductible = np.asarray(table["idp"]) == 1
    coinsurance = ~deductible & (np.asarray(table["lncoins"]) > 0)
    columns = {
        "pays": (deductible | coinsurance).astype(np.int8),
        "chronic": (np.asarray(table["disea"]) > CHRONIC).astype(np.int8),
        "visited": (np.asarray(table["mdvis"]) > 0).astype(np.int8),
    }
    plans = {
        "Free Care": ~(deductible | coinsurance),
        "Coinsurance": coinsurance,
        "Deductible": deductible,
    }
    return [Insurer(name, {key: column[chosen] for key, column in columns.items()}) for name, chosen in plans.items()]


def _read() -> Any:
    try:
        from statsmodels.datasets import randhie
    except ImportError:
        raise InvalidInput(
            "the demo of several owners reads its public table from the package statsmodels, which is not installed; "
            "pip install 'sfumato[demo,node]'."
        ) from None
    return randhie.load_pandas().data


def domain() -> dict[str, Domain]:
    """Every column is zero or one, for every insurer."""
    return {name: Binary() for name in COLUMNS}


def example(size: int = 2048) -> dict[str, np.ndarray]:
    """Make up records with shares rounded from this public table, for the first plan. See `GUESS`."""
    rng = np.random.default_rng(0)
    shares = {"pays": 2 / 3, "chronic": 3 / 5, "visited": 2 / 3}
    return {name: (rng.random(size) < share).astype(np.int8) for name, share in shares.items()}


def terms(epsilon: float) -> dict[str, Any]:
    """Give the options that plan and run share."""
    return {"epsilon": epsilon, "delta": DELTA, "chains": CHAINS, "guess": GUESS, "example": example()}


def pooled_fit(insurers: list[Insurer]) -> Fit:
    """Fit all records together without privacy: a normal approximation, as good as exact for so many.

    For comparison only, and only because these records are public: no insurer and no analyst could do it.
    """
    together = {name: np.concatenate([insurer.records[name] for insurer in insurers]) for name in COLUMNS}
    ones = np.ones(len(together["visited"]))
    return logistic_fit(np.stack([ones, together["pays"], together["chronic"]], axis=1), together["visited"])
