"""The owner's table, loaded once for many runs: a path goes in, desks come out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.domain import Domain
from sfumato.errors import InvalidData, InvalidInput
from sfumato.study.target import Study
from sfumato.tools.progress import Tick
from sfumato.vault import records
from sfumato.vault.closed import closed
from sfumato.vault.desk import Desk
from sfumato.vault.engine import Engine
from sfumato.vault.ledger import Account, Journal
from sfumato.vault.noise import Source
from sfumato.vault.ray_table import RayTable
from sfumato.vault.sealed.consortium import Consortium
from sfumato.vault.threads import ThreadedEngine

if TYPE_CHECKING:
    from sfumato.vault.ray_shards import RayShards


@closed("records")
class ClosedTable:
    """Everything a node knows about its records, closed to everybody else.

    Parameters
    ----------
    where
        A Parquet or CSV file; or a table in shards, which the workers of a Ray cluster hold for all runs together.
    outside, columns, precision
        What happens to records outside the domain; which raw columns make up each name; how records are evaluated.
    tick
        Hears how many records of a table in shards were loaded.
    source
        scale -> noise source. For tests alone; nothing that reads a configuration can set it.
    """

    def __init__(
        self,
        where: Path | RayTable,
        *,
        outside: str = "refuse",
        columns: Mapping[str, str | Sequence[str]] | None = None,
        precision: str = "float64",
        tick: Tick = lambda done, total, text: None,
        source: Callable[[float], Source] | None = None,
    ) -> None:
        self._where, self._outside, self._columns = where, outside, dict(columns or {})
        self._precision, self._source, self._tick = precision, source, tick
        self._tables: dict[str, records.Records] = {}
        self._shards: RayShards | None = None

    def prepare(self, domains: Sequence[Mapping[str, Domain]]) -> int:
        """Read and check the columns of all studies; return the number of records, which is public."""
        if isinstance(self._where, RayTable):
            return self._load_shards(self._where, {name: c for domain in domains for name, c in domain.items()})
        return [self._table(domain).n for domain in domains][0]

    def desk(
        self, study: Study, account: Account, journal: Journal, seat: tuple[Consortium, str, Account] | None = None
    ) -> Desk:
        """A counter for one run of a study; its answers are kept in the node's journal on their way to the ledger.

        `seat`: of a run whose sums are sealed, the consortium, the run's name and its account against everybody.
        """
        engine, keys, everybody = self._engine(study), None, None
        if seat is not None:
            consortium, run, everybody = seat
            keys = consortium.run(run, study.model.fingerprint(), engine.n)
        return Desk(
            engine, study, account, source=self._source, kept=journal.account(account), own=True, keys=keys,
            everybody=everybody,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the records, and of the cluster that was started for them."""
        self._tables.clear()
        if self._shards is not None:
            self._shards.close()

    def _engine(self, study: Study) -> Engine:
        if isinstance(self._where, RayTable):
            from sfumato.vault.ray_engine import RayEngine

            if self._shards is None:
                raise InvalidInput("the columns of a table in shards must be prepared before a study is asked about.")
            return RayEngine(self._shards, study)
        return ThreadedEngine(self._table(study.domain), study, precision=self._precision)

    def _load_shards(self, table: RayTable, domain: Mapping[str, Domain]) -> int:
        from sfumato.vault.ray_shards import RayShards

        self._shards = RayShards(
            table,
            domain,
            outside=self._outside,
            columns=self._stated(domain),
            precision=self._precision,
            tick=self._tick,
        )
        return self._shards.n

    def _table(self, domain: Mapping[str, Domain]) -> records.Records:
        key = repr(sorted((name, column.to_dict()) for name, column in domain.items()))
        if key not in self._tables:
            if not (isinstance(self._where, Path) and self._where.is_file()):
                raise InvalidData(f"there is no data file at {self._where}; correct path in [data].")
            self._tables[key] = records.load(
                self._where, domain, outside=self._outside, columns=self._stated(domain) or None
            )
        return self._tables[key]

    def _stated(self, domain: Mapping[str, Domain]) -> dict[str, str | Sequence[str]]:
        return {name: raw for name, raw in self._columns.items() if name in domain}
