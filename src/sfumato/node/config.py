"""`owner.toml`: what a node serves, to whom, for how much. A misspelt key is an error, never a silent default."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sfumato.errors import InvalidInput
from sfumato.files import tables
from sfumato.files.schema import Count, Positive, Share, Table, Where, keys, load, read
from sfumato.files.tables import Column, Outside, Precision, Sensitivity
from sfumato.vault.ray_table import RayTable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Names of studies, analysts and tokens: no dots, no slashes, nothing a path or an attribute could be made of."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Budget(Table, frozen=True):
    """A guarantee: (epsilon, delta).

    Attributes
    ----------
    epsilon
        Epsilon of the cap; between 0.1 and 10 is usual.
    delta
        Delta of the cap; well below 1 / number of records.
    """

    epsilon: Positive
    delta: Share


class Budgets(Table, frozen=True):
    """Caps, nested: everything that ever leaves, one analyst, one study of one analyst. Fixed for the life of the ledger.

    Attributes
    ----------
    total
        Everything that ever leaves, to all analysts together: your guarantee.
    per_analyst
        Any one analyst; the total by default.
    per_study
        One study of one analyst; that of the analyst by default.
    analysts
        Exceptions to per_analyst, by name.
    """

    total: Budget
    per_analyst: Budget | None = None
    per_study: Budget | None = None
    analysts: dict[str, Budget] = {}


class Data(Table, frozen=True):
    """Where the records lie, and who evaluates them. Only the vault opens the files.

    Attributes
    ----------
    path
        Parquet or CSV file; with engine ray a pattern, such as visits/*.parquet.
    outside
        What happens to records outside the domain.
    precision
        How records are evaluated; float32 is faster, never less private.
    engine
        Who evaluates the records: the node, or Ray, for a larger table.
    address
        With engine ray: a cluster of yours; by default one is started here, for this node alone.
    workers
        With engine ray: processes that hold the table; one a core by default.
    """

    path: str
    outside: Outside = "refuse"
    precision: Precision = "float64"
    engine: Literal["process", "ray"] = "process"
    address: str | None = None
    workers: Count | None = None

    def __post_init__(self) -> None:
        stated = [key for key in ("address", "workers") if getattr(self, key) is not None]
        if stated and self.engine != "ray":
            raise InvalidInput(f'{" and ".join(stated)} in [data] go with engine = "ray"; add it, or leave them out.')


class StudyEntry(Table, frozen=True):
    """One approved study: a Python file of the owner's and the limits of what may be asked about it.

    Attributes
    ----------
    model
        File and function or family, such as "model.py:coin"; a Python file of yours, run when the node starts.
    sigma_floor
        No answer has less noise than this, whatever it would cost.
    theta_bound
        No parameter outside this, on the unconstrained scale.
    columns
        The tables of [domain] it is about; all of them by default.
    sensitivity
        How far one record can move an answer.
    guess
        Public knowledge, for the console's planner: { p = 0.5 }.
    """

    model: str
    sigma_floor: Positive = 0.01
    theta_bound: Positive = 100.0
    columns: list[str] = []
    sensitivity: Sensitivity = Sensitivity()
    guess: dict[str, Any] = {}


class Listen(Table, frozen=True):
    """Where the node listens, and under which names it is reached.

    Attributes
    ----------
    host
        Address to listen on; any other than loopback needs certificate and key.
    port
        Port to listen on; 0 takes a free one.
    certificate
        File of the TLS certificate; with key.
    key
        File of the certificate's private key.
    names
        Names under which others reach it; any other Host is refused.
    origins
        Web pages that may talk to it; its own console may anyway.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8750
    certificate: str | None = None
    key: str | None = None
    names: list[str] = []
    origins: list[str] = []

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("[listen] certificate and key are given together or not at all.")


class Limits(Table, frozen=True):
    """What one visitor may take of the machine; see docs/how-to/run-a-node.md.

    Attributes
    ----------
    message_bytes
        One WebSocket message.
    body_bytes
        One HTTP body.
    chains
        Chains to a message.
    connections
        WebSockets at a time.
    connections_per_token
        The same for one token; also its open runs.
    messages_per_second
        For one token, over all its connections.
    begins_per_minute
        Runs opened and chains begun anew, for one token: each is proven and compiled.
    requests_per_second
        HTTP requests from one address.
    failed_logins_per_minute
        Wrong tokens from one address.
    header_seconds
        Until a request is complete.
    handshake_seconds
        From connection to the first run opened.
    idle_seconds
        Without a question.
    send_seconds
        Until a client takes its answer.
    answer_tick_ms
        Release answers on a fixed beat only: hides how long one took; 0 sends at once.
    shutdown_seconds
        For answers under way when the node is told to stop.
    """

    message_bytes: Count = 1 << 20
    body_bytes: Count = 1 << 16
    chains: Count = 256
    connections: Count = 256
    connections_per_token: Count = 64
    messages_per_second: Positive = 20_000.0
    begins_per_minute: Positive = 120.0
    requests_per_second: Positive = 50.0
    failed_logins_per_minute: Count = 30
    header_seconds: Positive = 10.0
    handshake_seconds: Positive = 20.0
    idle_seconds: Positive = 600.0
    send_seconds: Positive = 20.0
    answer_tick_ms: Annotated[float, Meta(ge=0)] = 0.0
    shutdown_seconds: Positive = 10.0


class OwnerTables(Table, frozen=True):
    """An owner's file.

    Attributes
    ----------
    name
        How analysts and statements call you.
    data
        Where the records lie.
    domain
        Where a record lives, one table for each column of a model.
    studies
        Approved studies by name; analysts name one, they never send code.
    budgets
        Caps on what leaves.
    ledger
        The budget's book; made at the first start.
    tokens
        Hashed tokens; made by `sfumato token add`.
    log
        Structured log, one JSON object a line; standard error by default.
    listen
        Where the node listens.
    limits
        What one visitor may take of the machine.
    """

    name: str
    data: Data
    domain: dict[str, Column]
    studies: dict[str, StudyEntry]
    budgets: Budgets
    ledger: str = "owner.ledger"
    tokens: str = "tokens.json"  # noqa: S105 (a file name)
    log: str | None = None
    listen: Listen = Listen()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not self.studies:
            raise InvalidInput("a node needs at least one approved study: add a table [studies.NAME] with model = ...")
        if not self.domain:
            raise InvalidInput("a node needs the domain of its records: add a table [domain.COLUMN] with kind = ...")
        for name in (*self.studies, *self.budgets.analysts):
            check_name(name)
        for budget in (self.budgets.per_analyst, self.budgets.per_study, *self.budgets.analysts.values()):
            if budget is not None and budget.delta < self.budgets.total.delta and budget.epsilon > 60:
                raise InvalidInput(f"epsilon = {budget.epsilon:g} is no privacy at all; choose a smaller one.")


class OwnerFile(OwnerTables, frozen=True):
    """A parsed `owner.toml`: plain values. Nothing is imported and no data file is opened before it is asked for."""

    path: Path = Path("owner.toml")

    @property
    def base(self) -> Path:
        """The folder that relative paths start from."""
        return self.path.parent

    def place(self, stated: str) -> Path:
        """Where a path of the file leads."""
        return self.base / stated

    def records(self) -> Path | RayTable:
        """Where the records lie: a file, or the files of a table in shards."""
        data = self.data
        if data.engine != "ray":
            return self.place(data.path)
        pattern = data.path if "://" in data.path else self.place(data.path)
        return RayTable(pattern, address=data.address, workers=data.workers)

    def domains(self) -> dict[str, Any]:
        """Domains, built; which raw columns they are made of is left to `columns`."""
        return tables.domains(self.domain)

    @property
    def columns(self) -> dict[str, Any]:
        """Which raw columns of the table make up each name."""
        return tables.columns(self.domain)


def read_owner(path: str | Path) -> OwnerFile:
    """Read and check an owner's file.

    Raises
    ------
    InvalidInput
        The file is missing or no TOML, or a key is missing, unknown, or has a value outside its rule.
    """
    path = Path(path)
    stated = read(Where(str(path)), load(path, "owner's file", "`sfumato init` writes one"), OwnerTables)
    file = OwnerFile(**msgspec.structs.asdict(stated), path=path)
    file.domains()
    return file


def check_name(name: str) -> str:
    """Refuse a name that could be anything but a name."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise InvalidInput(
            f"a name is made of letters, digits, - and _, starts with a letter or digit and has at most 64 of them; "
            f"got {name!r:.80}."
        )
    return name


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_listen(listen: Listen, *, dev: bool) -> None:
    """Refuse to send tokens and answers over a network in the clear.

    Raises
    ------
    InvalidInput
        The address is not loopback, there is no certificate, and nobody said `--dev`.
    """
    if listen.certificate is None and not is_loopback(listen.host) and not dev:
        raise InvalidInput(
            f"a node that others can reach needs TLS, and {listen.host} is not loopback; give certificate = and key = in "
            '[listen], or host = "127.0.0.1". (--dev serves without TLS, for trying out on a network you trust.)'
        )


TEMPLATE = """# The data owner's node. Serve it with
#
#     sfumato token add owner.toml me --owner        (a token for the console)
#     sfumato token add owner.toml alice             (a token for an analyst)
#     sfumato serve owner.toml
#
# Paths start from the folder of this file. A key that is not known is an error.

name = "{name}"                # how analysts and statements call you
ledger = "owner.ledger"        # the budget's book; made at the first start. Back it up with `sfumato ledger backup`
tokens = "tokens.json"         # hashed tokens; made by `sfumato token add`
# log = "node.log"             # structured log, one JSON object a line; standard error without it

[data]
path = "{data}"                # Parquet or CSV; only the vault opens it
outside = "refuse"             # or "clamp": what happens to records outside the domain
# precision = "float64"        # or "float32": faster, never less private
# engine = "ray"               # "process" by default; "ray": a larger table, path = "visits/*.parquet" (docs/how-to/ray.md)
# workers = 2                  # so many processes of Ray's hold the table; one a core by default
# address = "head:6379"        # on a cluster of yours; without it one is started here, on loopback, for this node alone

[domain.y]                     # where a record lives: public, and a promise about everybody, in the table or not
kind = "binary"                # or interval, integers, categories, box, ball
columns = "{column}"           # the raw column (a list of them for a box or ball)

[studies.{study}]                 # an approved study; analysts name it, they never send code
model = "{model}"              # file : function or family; a Python file of yours, run when the node starts
# sigma_floor = 0.01           # no answer with less noise than this, whatever it would cost
# theta_bound = 100.0          # no parameter outside this, on the unconstrained scale
# columns = ["y"]              # the columns of [domain] it is about; all of them by default
# sensitivity = {{ kind = "auto" }}   # or certify; {{ kind = "clip", bound = 1.0 }}; {{ kind = "lipschitz", constant = 1.0 }}
# guess = {{ p = 0.5 }}          # public knowledge, for the console's planner

[budgets]                      # caps, fixed for the life of the ledger; the guarantee is that of the total
total = {{ epsilon = 3.0, delta = 1e-6 }}         # everything that ever leaves, to all analysts together
per_analyst = {{ epsilon = 2.0, delta = 1e-6 }}   # any one analyst
per_study = {{ epsilon = 1.0, delta = 1e-6 }}     # one study of one analyst
# analysts = {{ alice = {{ epsilon = 2.5, delta = 1e-6 }} }}   # exceptions to per_analyst

[listen]
host = "127.0.0.1"             # any other address needs certificate and key
port = 8750
# certificate = "node.pem"
# key = "node.key"
# names = ["node.hospital.example"]              # under which others reach it; any other Host is refused
# origins = ["https://node.hospital.example"]    # web pages that may talk to it; its own console may anyway

[limits]                       # what one visitor may take of the machine; see docs/how-to/run-a-node.md
{limits}"""

MODEL = '''"""One question, answered yes or no; the share of the population that would say yes is unknown."""

from typing import Any

import numpyro
import numpyro.distributions as dist


def coin(y: Any) -> None:
    """Give every share the same chance before the data, and every person the share as the chance of a yes."""
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(p), obs=y)
'''
"""The study the template approves. Analysts need the same file, to the letter."""
MODEL_FILE = "model.py"


def template(name: str = "Example Hospital") -> str:
    """A commented owner's file with every key there is: it can be served as it stands, beside `MODEL` and a table."""
    limits = "".join(f"{f'# {key.name} = {key.default}':<36} # {key.meaning}\n" for key in keys(Limits).values())
    return TEMPLATE.format(
        name=name, data="people.csv", column="said_yes", study="coin", model=f"{MODEL_FILE}:coin", limits=limits
    )
