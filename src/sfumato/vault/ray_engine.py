"""Sums over a Ray cluster: actors hold shards, evaluate the model, and return 64-bit integer partial sums.

Noise, ledger and wall stay in this process: what the actors return is exact and private, and is added up here before noise is
added once. An actor that dies is built again from its shard and asked again; the sum is the same whole number, so nothing is
paid twice. The cluster belongs inside the owner's walls, like the table itself.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from sfumato.errors import InvalidData, InvalidInput, SfumatoError
from sfumato.progress import Tick
from sfumato.raytable import RayTable
from sfumato.study import Study
from sfumato.vault.engine import Bend, LocalEngine, Place, Spot
from sfumato.vault.kinds import number_of_kinds
from sfumato.vault.langevin import LangevinQuestion
from sfumato.vault.records import _check_outside, check_precision
from sfumato.vault.shards import Shard, deal_out, find_files, pieces_of, read_shard

REBUILDS = 5
"""Times one sum may lose an actor before the run ends."""
ACTOR_THREADS = {"NPROC": "1", "OMP_NUM_THREADS": "1"}
"""One thread an actor: there are as many actors as cores."""


class _Worker:
    """An actor: one shard in memory. It answers sums, and nothing about single records."""

    def __init__(self, shard: Shard, study: Study, outside: str, columns: Mapping[str, Any], precision: str) -> None:
        self._shard, self._study, self._outside = shard, study, outside
        self._columns, self._precision = columns, precision
        self._engine: LocalEngine | None = None
        self._read = 0

    def load(self) -> int | str:
        """Read the shard; how many records it has, or what is wrong with it."""
        if self._engine is None:
            try:
                table = read_shard(self._shard, self._study.domain, self._columns, self._outside, self._tell)
            except SfumatoError as error:
                return str(error)
            self._engine = LocalEngine(table, self._study, precision=self._precision)
        return self._shard.rows

    def _tell(self, rows: int) -> None:
        self._read = rows

    def progress(self) -> int:
        """Records read so far."""
        return self._read

    def ratio(self, *spot: Any) -> np.ndarray:
        """Partial sum of log ratios."""
        return self._ready().ratio(Spot(*spot))

    def vector(self, *arguments: Any) -> np.ndarray:
        """Partial sum of gradients or informations."""
        return self._ready().vector(*arguments)

    def statistic(self, question: LangevinQuestion) -> np.ndarray:
        """Partial sum of whitened statistics."""
        return self._ready().statistic(question)

    def gradient(self, *place: Any) -> np.ndarray:
        """Partial sum of whitened gradients."""
        return self._ready().gradient(Place(*place))

    def remainder(self, *bend: Any) -> np.ndarray:
        """Partial sum of second-order scalars."""
        return self._ready().remainder(Bend(*bend))

    def forget(self) -> None:
        """Drop what is kept between rounds."""
        if self._engine is not None:
            self._engine.forget()

    def _ready(self) -> LocalEngine:
        if self._engine is None:
            self.load()
        if self._engine is None:
            raise InvalidData("a shard could not be read again.")
        return self._engine


class RayEngine:
    """A table in shards on a Ray cluster.

    Parameters
    ----------
    table
        Where the files and the cluster are.
    study
        Public: the model and the domain.
    outside, columns, precision
        As for any table; see `sfumato.vault.records.load`.
    tick
        Hears how many records were loaded.
    """

    def __init__(
        self,
        table: RayTable,
        study: Study,
        *,
        outside: str = "refuse",
        columns: Mapping[str, str | Sequence[str]] | None = None,
        precision: str = "float64",
        tick: Tick = lambda done, total, text: None,
    ) -> None:
        _check_outside(outside)
        check_precision(precision)
        pieces = pieces_of(find_files(table.pattern))
        self._count = sum(piece.rows for piece in pieces)
        if self._count < 2:
            raise InvalidData(f"a table must have at least two records, got {self._count}.")
        self._ray, self._own = _connect(table)
        # On this machine workers may import what this process may: a model is often in a file of the user's own.
        self._paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} if table.address is None else {}
        cores = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        workers = table.workers or cores
        if workers > cores:
            if self._own:
                self._ray.shutdown()
            raise InvalidInput(
                f"a worker needs a core, and the cluster has {cores} cores, not {workers}; ask for fewer."
            )
        self.shards = deal_out(pieces, workers)
        self._make = self._maker(study, outside, dict(columns or {}), precision)
        kinds = number_of_kinds(study.domain)
        largest = max(shard.rows for shard in self.shards)
        self._rows = largest if kinds is None or kinds * 2 > largest else kinds
        self._actors = [self._make(shard) for shard in self.shards]
        try:
            self._load(tick)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return "<RayEngine sealed>"

    def __reduce__(self) -> Any:
        raise TypeError("an engine is never serialised.")

    @property
    def n(self) -> int:
        """Number of records."""
        return self._count

    @property
    def rows(self) -> int:
        """Rows that the busiest actor evaluates a round."""
        return self._rows

    def _maker(self, study: Study, outside: str, columns: Mapping[str, Any], precision: str) -> Callable[[Shard], Any]:
        # Once, however many actors there are; how widths are proven is this side's affair.
        shared = self._ray.put(study._replace(bounds=cast(Any, None), near=None))
        environment = {"env_vars": ACTOR_THREADS | self._paths}
        actor = self._ray.remote(num_cpus=1, max_restarts=0, max_concurrency=2, runtime_env=environment)(_Worker)
        return lambda shard: actor.remote(shard, shared, outside, columns, precision)

    # -- loading --------------------------------------------------------------------------------------------------

    def _load(self, tick: Tick) -> None:
        waiting = [actor.load.remote() for actor in self._actors]
        done: list[Any] = []
        while waiting:
            ready, waiting = self._ray.wait(waiting, timeout=0.5)
            done += ready
            tick(self._loaded(), self._count, "loading")
        for said in self._get(done):
            if isinstance(said, str):
                raise InvalidData(said)
        tick(self._count, self._count, "loading")

    def _loaded(self) -> int:
        """Records read so far; an actor that is not up yet has read none."""
        said, _ = self._ray.wait(
            [a.progress.remote() for a in self._actors], num_returns=len(self._actors), timeout=0.2
        )
        return int(sum(self._get(said)))

    def _get(self, refs: list[Any]) -> list[Any]:
        try:
            return list(self._ray.get(refs))
        except self._ray.exceptions.RayError as error:
            raise InvalidInput(
                f"a worker ended while the table was loaded ({type(error).__name__}): it must have memory enough for its shard, "
                "and be able to import sfumato and the module of the model; see Ray's own log."
            ) from None

    # -- sums -----------------------------------------------------------------------------------------------------

    def ratio(self, spot: Spot) -> np.ndarray:
        """Integer log-likelihood ratio of every chain."""
        return self._sum("ratio", *spot)

    def vector(self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, gamma: float) -> np.ndarray:
        """Integer sum of shortened gradients or informations."""
        return self._sum("vector", what, theta, matrix, radius, gamma)

    def statistic(self, question: LangevinQuestion) -> np.ndarray:
        """Integer sum of whitened statistics, less the middle of their range."""
        return self._sum("statistic", question)

    def gradient(self, place: Place) -> np.ndarray:
        """Integer sum of whitened gradients at a reference point."""
        return self._sum("gradient", *place)

    def remainder(self, bend: Bend) -> np.ndarray:
        """Integer sum of every chain's second-order scalars."""
        return self._sum("remainder", *bend)

    def _sum(self, what: str, *arguments: Any) -> np.ndarray:
        """Ask every actor and add up. Whole numbers: the order, and who was asked twice, does not matter."""
        parts: dict[int, np.ndarray] = {}
        for attempt in range(REBUILDS + 1):
            waiting = {
                i: getattr(actor, what).remote(*arguments) for i, actor in enumerate(self._actors) if i not in parts
            }
            for i, ref in waiting.items():
                try:
                    parts[i] = self._ray.get(ref)
                except self._ray.exceptions.RayActorError:
                    self._actors[i] = self._make(self.shards[i])
                except self._ray.exceptions.RayTaskError as error:
                    # Its text has a remote traceback; only the kind is safe to show.
                    kind = type(getattr(error, "cause", error)).__name__
                    raise InvalidInput(f"a worker could not evaluate the model ({kind}); see Ray's own log.") from None
            if len(parts) == len(self._actors):
                return np.asarray(np.sum([parts[i] for i in sorted(parts)], axis=0, dtype=np.int64))
            time.sleep(0.1 * 2**attempt)
        raise InvalidInput(f"a sum was given up after its workers died {REBUILDS + 1} times; look at the cluster.")

    # -- housekeeping ---------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop kept terms in every actor."""
        for actor in self._actors:
            actor.forget.remote()

    def close(self) -> None:
        """End the actors, and the cluster if it was started for this table."""
        if not self._ray.is_initialized():
            return
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._own:
            self._ray.shutdown()


def _connect(table: RayTable) -> tuple[Any, bool]:
    """Ray, connected: to the cluster given, to the one this process already uses, or to a new one on this machine."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InvalidInput("a RayTable needs Ray: pip install 'sfumato[ray]'.") from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    if table.address is not None:
        ray.init(address=table.address, namespace="sfumato", **quiet)
    else:
        cores = table.workers or os.cpu_count() or 1
        ray.init(num_cpus=max(cores, 1), include_dashboard=False, **quiet)
    return ray, True
