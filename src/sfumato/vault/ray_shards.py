"""A table in shards on a Ray cluster: actors hold them, loaded once, and add up what any number of runs ask.

What the actors return is exact and private, so the cluster belongs inside the owner's walls, like the table itself: one that is
started here listens on loopback only. An actor that dies is built again from its shard and asked again; its sums are the same
whole numbers.
"""

import contextlib
import hmac
import ipaddress
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidData, InvalidInput, SfumatoError
from sfumato.study.target import Study
from sfumato.tools.progress import Tick
from sfumato.vault.closed import closed
from sfumato.vault.engine import LocalEngine, Query
from sfumato.vault.ray_table import RayTable
from sfumato.vault.records import Records, check_outside, check_precision
from sfumato.vault.shards import Shard, deal_out, find_files, pieces_of, read_shard

REBUILDS = 5
"""Times one sum may lose an actor before the run ends."""
ACTOR_THREADS = {"NPROC": "1", "OMP_NUM_THREADS": "1"}
"""One thread an actor: there are as many actors as cores."""
ELSEWHERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own switch for clusters of several machines: without it, it listens on loopback. It is read when Ray is imported."""
AT_HOME = {ELSEWHERE: "0", "RAY_AUTH_MODE": "token", "RAY_prestart_worker_first_driver": "0"}
"""Of a cluster that is started here: on loopback, for those who have its token, and without a process for every core that waits
for work: a shard's actor has one of its own."""
STORE_BYTES = 128 << 20
"""Memory for what travels: a model, and a few numbers a round. Ray would set aside a third of the machine's."""


@closed("records")
class Worker:
    """An actor: one shard in memory, and an engine for every run that is open. It answers sums, nothing about a record."""

    def __init__(
        self, shard: Shard, domain: Mapping[str, Domain], outside: str, columns: Mapping[str, Any], precision: str,
        names: Sequence[int], *studies: Study,
    ) -> None:  # fmt: skip
        self._shard, self._domain, self._outside = shard, domain, outside
        self._columns, self._precision = columns, precision
        self._loading, self._read = threading.Lock(), 0
        self._records: Records | None = None
        self._studies = dict(zip(names, studies, strict=True))
        self._engines: dict[int, tuple[threading.Lock, LocalEngine]] = {}

    def load(self) -> str:
        """Read the shard; what is wrong with it, if anything is."""
        with self._loading:
            if self._records is None:
                try:
                    self._records = read_shard(self._shard, self._domain, self._columns, self._outside, self._tell)
                except SfumatoError as error:
                    return str(error)
        return ""

    def _tell(self, rows: int) -> None:
        self._read = rows

    def progress(self) -> int:
        """Records read so far."""
        return self._read

    def open(self, name: int, study: Study) -> None:
        """Make ready for a run."""
        self._studies[name] = study
        self._engine(name)

    def sum(self, name: int, query: Query) -> np.ndarray:
        """Partial sum of a run's query."""
        lock, engine = self._engine(name)
        with lock:
            return engine.sum(query)

    def forget(self, name: int) -> None:
        """Drop what a run keeps between rounds."""
        if name in self._engines:
            lock, engine = self._engines[name]
            with lock:
                engine.forget()

    def drop(self, name: int) -> None:
        """A run is over."""
        self.forget(name)
        self._studies.pop(name, None)
        self._engines.pop(name, None)

    def macs(self, key: bytes) -> list[str]:
        """Keyed digest of every piece of the shard, in their order."""
        if trouble := self.load():
            raise InvalidData(trouble)
        assert self._records is not None  # noqa: S101 (just loaded)
        sizes = [piece.rows for piece in self._shard.pieces]
        starts = itertools.accumulate(sizes, initial=0)
        return [self._records.part(start, size).mac(key) for start, size in zip(starts, sizes, strict=False)]

    def _engine(self, name: int) -> tuple[threading.Lock, LocalEngine]:
        if trouble := self.load():
            raise InvalidData(trouble)
        with self._loading:
            if name not in self._engines:
                assert self._records is not None  # noqa: S101 (just loaded)
                study = self._studies[name]
                made = LocalEngine(self._records.only(study.domain), study, precision=self._precision)
                self._engines[name] = threading.Lock(), made
            return self._engines[name]


@closed("the way to records")
class RayShards:
    """The shards of a table, each with an actor that has read it.

    Parameters
    ----------
    table
        Where the files and the cluster are.
    domain
        Column name -> Domain: all columns that any study will be about.
    outside, columns, precision
        As for any table; see `sfumato.vault.records.load`.
    tick
        Hears how many records were loaded.
    """

    def __init__(
        self,
        table: RayTable,
        domain: Mapping[str, Domain],
        *,
        outside: str = "refuse",
        columns: Mapping[str, str | Sequence[str]] | None = None,
        precision: str = "float64",
        tick: Tick = lambda done, total, text: None,
    ) -> None:
        check_outside(outside)
        check_precision(precision)
        pieces = pieces_of(find_files(table.pattern))
        self.n = sum(piece.rows for piece in pieces)
        if self.n < 2:
            raise InvalidData(f"a table must have at least two records, got {self.n}.")
        self._ray, self._own = connect(table)
        self._actors: list[Any] = []
        self._studies: dict[int, Any] = {}
        self._names, self._lock = itertools.count(), threading.Lock()
        try:
            self.shards = deal_out(pieces, self._workers(table))
            self._make = self._maker(table, domain, outside, dict(columns or {}), precision)
            self._actors = [self._make(shard) for shard in self.shards]
            self._load(tick)
        except BaseException:
            self.close()
            raise

    @property
    def largest(self) -> int:
        """Records of the largest shard."""
        return max(shard.rows for shard in self.shards)

    def _workers(self, table: RayTable) -> int:
        cores = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        workers = table.workers or cores
        if workers > cores:
            raise InvalidInput(
                f"a worker needs a core, and the cluster has {cores} cores, not {workers}; ask for fewer."
            )
        return workers

    def _maker(
        self, table: RayTable, domain: Mapping[str, Domain], outside: str, columns: Mapping[str, Any], precision: str
    ) -> Callable[[Shard], Any]:
        # On this machine workers may import what this process may: a model is often in a file of the user's own.
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} if table.address is None else {}
        actor = self._ray.remote(
            num_cpus=1, max_restarts=0, max_concurrency=2, runtime_env={"env_vars": ACTOR_THREADS | paths}
        )(Worker)
        terms = dict(domain), outside, columns, precision
        return lambda shard: actor.remote(shard, *terms, list(self._studies), *self._studies.values())

    # -- loading --------------------------------------------------------------------------------------------------

    def _load(self, tick: Tick) -> None:
        waiting = [actor.load.remote() for actor in self._actors]
        done: list[Any] = []
        while waiting:
            ready, waiting = self._ray.wait(waiting, timeout=0.5)
            done += ready
            tick(self._loaded(), self.n, "loading")
        for trouble in self._get(done):
            if trouble:
                raise InvalidData(trouble)
        tick(self.n, self.n, "loading")

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

    def mac(self, key: bytes) -> str:
        """Keyed digest of the table, however it is dealt out to workers: see `Records.mac`."""
        found = [
            (piece.path.rpartition("/")[2], piece.row_group, mac)
            for shard, macs in zip(self.shards, self._all("macs", key), strict=True)
            for piece, mac in zip(shard.pieces, macs, strict=True)
        ]
        return hmac.new(key, repr(sorted(found)).encode(), "sha256").hexdigest()

    # -- runs -----------------------------------------------------------------------------------------------------

    def open(self, study: Study) -> int:
        """Make every actor ready for a run; its name among the runs here."""
        # Sent once, however many actors there are; how widths are proven is this side's affair.
        shared = self._ray.put(study.without_reference()._replace(bounds=cast(Any, None)))
        name = next(self._names)
        with self._lock:
            self._studies[name] = shared
        self._all("open", name, shared)
        return name

    def sum(self, name: int, query: Query) -> np.ndarray:
        """Ask every actor and add up. Whole numbers: the order, and who was asked twice, does not matter."""
        return np.asarray(np.sum(self._all("sum", name, query), axis=0, dtype=np.int64))

    def forget(self, name: int) -> None:
        """Drop what a run keeps between rounds, in every actor."""
        for actor in self._actors:
            actor.forget.remote(name)

    def drop(self, name: int) -> None:
        """A run is over."""
        with self._lock:
            known = self._studies.pop(name, None)
        if known is not None and self._ray.is_initialized():
            for actor in self._actors:
                actor.drop.remote(name)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """What every actor answers; one that died is built again and asked again."""
        parts: dict[int, Any] = {}
        for attempt in range(REBUILDS + 1):
            if not self._actors:
                raise InvalidInput("these shards were closed; open the owner's records again.")
            asked = {i: actor for i, actor in enumerate(self._actors) if i not in parts}
            waiting = {i: getattr(actor, method).remote(*arguments) for i, actor in asked.items()}
            for i, ref in waiting.items():
                try:
                    parts[i] = self._ray.get(ref)
                except self._ray.exceptions.RayActorError:
                    self._rebuild(i, asked[i])
                except self._ray.exceptions.RayTaskError as error:
                    # Its text has a remote traceback; only the kind is safe to show.
                    kind = type(getattr(error, "cause", error)).__name__
                    raise InvalidInput(f"a worker could not evaluate the model ({kind}); see Ray's own log.") from None
            if len(parts) == len(self._actors):
                return [parts[i] for i in sorted(parts)]
            time.sleep(0.1 * 2**attempt)
        raise InvalidInput(f"a sum was given up after its workers died {REBUILDS + 1} times; look at the cluster.")

    def _rebuild(self, i: int, dead: Any) -> None:
        """A new actor for a shard, unless another run has seen to it already; it knows all runs that are open."""
        with self._lock:
            if i < len(self._actors) and self._actors[i] is dead:
                self._ray.kill(dead)  # one that is only out of reach would keep its core
                self._actors[i] = self._make(self.shards[i])

    def close(self) -> None:
        """End the actors, and the cluster if it was started for this table."""
        with self._lock:
            actors, self._actors = self._actors, []
            self._studies.clear()
        if not self._ray.is_initialized():
            return
        for actor in actors:
            self._ray.kill(actor)
        if self._own:
            self._ray.shutdown()


# -- the cluster --------------------------------------------------------------------------------------------------------


def connect(table: RayTable) -> tuple[Any, bool]:
    """Ray, connected: to the cluster given, to the one this process already uses, or to a new one on this machine."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if table.address is None:
        for name, value in AT_HOME.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InvalidInput("a RayTable needs Ray: pip install 'sfumato[ray]'.") from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    if table.address is not None:
        where: dict[str, Any] = {"address": table.address, "namespace": "sfumato"}
    else:
        cores = max(table.workers or os.cpu_count() or 1, 1)
        where = {
            "address": "local", "num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE_BYTES,
        }  # fmt: skip
    try:
        with _own_signals():
            ray.init(**where, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        told, next_step = "Ray could not start a cluster here", "see Ray's own log"
        if table.address:
            told = f"no Ray cluster can be used at {table.address}"
            next_step = "see Ray's own log; one that asks for a token needs RAY_AUTH_MODE=token here as well"
        raise InvalidInput(f"{told} ({type(error).__name__}); {next_step}.") from None
    if table.address is None:
        _check_at_home(ray)
    return ray, True


def _check_at_home(ray: Any) -> None:
    """Refuse a cluster of our own that others could reach: whoever reaches Ray runs code where the records are."""
    reached = [node["NodeManagerAddress"] for node in ray.nodes()]
    if os.environ[ELSEWHERE] == "0" and not all(ipaddress.ip_address(address).is_loopback for address in reached):
        ray.shutdown()
        raise InvalidInput(
            f"a cluster that is started for one table must listen on loopback only, and Ray was imported before this could be "
            f"settled; set {ELSEWHERE}=0 before it is, or start a cluster behind your own walls and give its address=."
        )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; whoever is told to stop here has its own way of doing so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
