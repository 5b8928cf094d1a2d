"""The owner's table, loaded once for many runs: a path goes in, desks come out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato.domain import Domain
from sfumato.errors import InvalidData
from sfumato.study import Study
from sfumato.vault import records
from sfumato.vault.desk import Desk
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Account, Journal
from sfumato.vault.noise import Source


class House:
    """Everything a node knows about its records, sealed.

    Parameters
    ----------
    path
        A Parquet or CSV file.
    outside, columns, precision
        What happens to records outside the domain; which raw columns make up each name; how records are evaluated.
    source
        scale -> noise source. For tests alone; nothing that reads a configuration can set it.
    """

    def __init__(
        self,
        path: Path,
        *,
        outside: str = "refuse",
        columns: Mapping[str, str | Sequence[str]] | None = None,
        precision: str = "float64",
        source: Callable[[float], Source] | None = None,
    ) -> None:
        self._path, self._outside, self._columns = path, outside, dict(columns or {})
        self._precision, self._source = precision, source
        self._tables: dict[str, records.Records] = {}

    def __repr__(self) -> str:
        return "<House sealed>"

    def __reduce__(self) -> Any:
        raise TypeError("a House is never serialised: it holds records.")

    def prepare(self, domain: Mapping[str, Domain]) -> int:
        """Read and check the columns of a domain; return the number of records, which is public."""
        return self._table(domain).n

    def desk(self, study: Study, account: Account, journal: Journal) -> Desk:
        """A counter for one run of a study; its answers are kept in the node's journal on their way to the ledger."""
        engine = LocalEngine(self._table(study.domain), study, precision=self._precision)
        return Desk(engine, study, account, source=self._source, kept=journal.account(account))

    def _table(self, domain: Mapping[str, Domain]) -> records.Records:
        key = repr(sorted((name, column.to_dict()) for name, column in domain.items()))
        if key not in self._tables:
            if not self._path.is_file():
                raise InvalidData(f"there is no data file at {self._path}; correct path in [data].")
            stated = {name: raw for name, raw in self._columns.items() if name in domain}
            self._tables[key] = records.load(self._path, domain, outside=self._outside, columns=stated or None)
        return self._tables[key]
