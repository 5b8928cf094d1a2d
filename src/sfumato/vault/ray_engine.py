"""Sums over a Ray cluster, for one run: noise, ledger and wall stay in this process.

The actors' partial sums are exact and private; they are added up here, before noise is added once. So whoever dies in between
(`vault/ray_shards.py`), nothing is paid twice.
"""

import numpy as np

from sfumato.study.target import Study
from sfumato.vault.closed import closed
from sfumato.vault.counting import WORTHWHILE, possible_records
from sfumato.vault.engine import Asked, Bend, Place, Price, Spot
from sfumato.vault.langevin import LangevinQuestion
from sfumato.vault.ray_shards import RayShards


@closed("the way to records")
class RayEngine:
    """The records of a table in shards.

    Parameters
    ----------
    shards
        Who holds them; several engines may share them.
    study
        Public: the model and the domain.
    own
        Whether the shards are let go of with the engine.
    """

    def __init__(self, shards: RayShards, study: Study, *, own: bool = False) -> None:
        self._shards, self._own = shards, own
        kinds = possible_records(study.domain)
        self._rows = shards.largest if kinds is None or kinds * WORTHWHILE > shards.largest else kinds
        self._name = shards.open(study)

    @property
    def n(self) -> int:
        """Number of records."""
        return self._shards.n

    @property
    def rows(self) -> int:
        """Rows that the busiest actor evaluates a round."""
        return self._rows

    @property
    def here(self) -> bool:
        """Sums are computed by the actors."""
        return False

    def ratio(self, spot: Spot) -> np.ndarray:
        """Integer log-likelihood ratio of every chain."""
        return self._shards.sum(self._name, "ratio", spot)

    def priced_ratio(self, price: Price, asked: Asked) -> None:
        """No: actors are asked once the price is known, and paid."""
        return None

    def vector(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, centre: np.ndarray, radius: float, gamma: float
    ) -> np.ndarray:
        """Integer sum of a pilot's vectors, each less the centre and cut to the radius."""
        return self._shards.sum(self._name, "vector", what, theta, matrix, centre, radius, gamma)

    def statistic(self, question: LangevinQuestion) -> np.ndarray:
        """Integer sum of whitened statistics, less the middle of their range."""
        return self._shards.sum(self._name, "statistic", question)

    def gradient(self, place: Place) -> np.ndarray:
        """Integer sum of whitened gradients at a reference point."""
        return self._shards.sum(self._name, "gradient", place)

    def remainder(self, bend: Bend) -> np.ndarray:
        """Integer sum of every chain's second-order scalars."""
        return self._shards.sum(self._name, "remainder", bend)

    def forget(self) -> None:
        """Drop kept terms in every actor."""
        self._shards.forget(self._name)

    def close(self) -> None:
        """Let go of the run, and of the shards if they are its own."""
        self._shards.drop(self._name)
        if self._own:
            self._shards.close()
