"""Sums over a Ray cluster, for one run: noise, ledger and wall stay in this process.

The actors' partial sums are exact and private; they are added up here, before noise is added once. So whoever dies in between
(`vault/ray_shards.py`), nothing is paid twice.
"""

import numpy as np

from sfumato.study.target import Study
from sfumato.vault.closed import closed
from sfumato.vault.counting import WORTHWHILE, possible_records
from sfumato.vault.engine import Query
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
        possible = possible_records(study.domain)
        counted = possible is not None and possible * WORTHWHILE <= shards.largest
        self._rows = possible if counted and possible is not None else shards.largest
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

    def at_once(self, chains: int) -> bool:
        """No: actors are asked once the price is known, and paid."""
        return False

    def sum(self, query: Query) -> np.ndarray:
        """Integer sum over all shards."""
        return self._shards.sum(self._name, query)

    def forget(self) -> None:
        """Drop kept terms in every actor."""
        self._shards.forget(self._name)

    def close(self) -> None:
        """Let go of the run, and of the shards if they are its own."""
        self._shards.drop(self._name)
        if self._own:
            self._shards.close()
