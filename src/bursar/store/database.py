"""Which database: the one that BURSAR_DATABASE_URL names, or an embedded one (D1)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus

from bursar.core.refusal import Fault
from bursar.store.embedded import DatabaseDown, EmbeddedDatabase, StateUnusable, default_state
from bursar.store.embedded.database import LINGER_S
from bursar.store.embedded.folder import StateFolder
from bursar.store.schema.migrator import check_schema, migrate
from bursar.store.sql.connection import Connection
from bursar.store.sql.dsn import check_address, said_by, without_password
from bursar.store.sql.pipeline import Pipeline, Prepared

URL_VARIABLE: Final = "BURSAR_DATABASE_URL"
OLDEST: Final = 150000  # PostgreSQL 15, as the server tells its version

# The service looks rows up by their keys, in small sets. Its plans must not hang on statistics
# (D3): what these forbid would read a whole org, or compile, while statistics are old.
PLANS: Final = MappingProxyType(
    {
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_material": "off",
        "enable_memoize": "off",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
    }
)

# Over a network a peer that says nothing for so long, in seconds and tries, is gone.
KEEPALIVES: Final = MappingProxyType(
    {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}
)

ARRIVES_S: Final = 45.0  # in which a peer's kernel says that what was sent has arrived

# Inside a pipeline PostgreSQL does not count a transaction as idle; this ends it all the same.
KNOWS_TRANSACTION_TIMEOUT: Final = 170000

RESERVE_BYTES: Final = 256 * 2**20  # of disk that commands leave free; a full one stops reads too

T = TypeVar("T")


class DatabaseFull(Fault):
    """The database has no room left; nothing of this batch has happened. Ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a database is waited for; the server keeps these limits, the last one is ours."""

    connect_s: int = 5
    lock_ms: int = 10_000
    statement_ms: int = 30_000
    idle_in_transaction_ms: int = 60_000  # that a process which was stopped can keep its locks
    transaction_ms: int | None = None  # that a transaction may last; None: as long as an idle one
    answer_s: float = 45.0  # for anything at all, if the server keeps no limits any more

    @property
    def options(self) -> str:
        """The server's part."""
        settings = PLANS | {
            "lock_timeout": self.lock_ms,
            "statement_timeout": self.statement_ms,
            "idle_in_transaction_session_timeout": self.idle_in_transaction_ms,
            # The server must notice, too, when a machine that holds locks is gone.
            **KEEPALIVES,
        }
        return " ".join(f"-c {name}={value}" for name, value in settings.items())

    @property
    def parameters(self) -> dict[str, int]:
        """The part of libpq and the kernel: a peer that is gone without a word is noticed."""
        return {
            "connect_timeout": self.connect_s,
            **{name.removeprefix("tcp_"): value for name, value in KEEPALIVES.items()},
            # Not longer, however long an answer may take: the kernel keeps this limit instead of
            # those of keepalives.
            "tcp_user_timeout": int(min(self.answer_s, ARRIVES_S) * 1_000),
        }


USUAL: Final = Patience()


@dataclass(frozen=True, slots=True)
class Database:
    """A database with our schema, to be connected to again and again."""

    given: str | None  # its address, if it is not ours
    embedded: EmbeddedDatabase | None

    @property
    def url(self) -> str:
        """Its address now."""
        if self.embedded is not None:
            return self.embedded.url
        assert self.given is not None
        return self.given

    @property
    def shown(self) -> str:
        """Its address for people to read."""
        return without_password(self.url)

    def connect(self, patience: Patience | None = USUAL) -> Connection:
        """A new connection; an embedded database that has died is brought back first."""
        if self.embedded is not None:
            self.embedded.ensure()
        return connected(self.url, patience)

    def admit(self) -> None:
        """Turn writing away while there is still room to read; of a given server others know.

        When PostgreSQL cannot write its log it ends, and does not start until there is room.
        """
        if self.embedded is not None and (free := self.embedded.free_bytes) < RESERVE_BYTES:
            raise DatabaseFull(f"only {free:,} bytes are free on the database's disk")


class _Impatient(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when an answer does not come: it may never come.

    The server's limits do not help against a server, or a pooler, that has stopped.
    """

    answer_s: float | None = None
    _statements: Prepared | None = None
    _sending: Pipeline | None = None

    def execute(self, query: Any, params: Any = None, **given: Any) -> Any:
        if self._sending is None:
            return super().execute(query, params, **given)
        return self._sending.send(query, params or ())

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:  # type: ignore[override]
        """Send what is executed together; one within another only waits for answers at its end."""
        if self._sending is not None:
            yield self._sending
            self._sending.settle()
            return
        if self._statements is None:
            self._statements = Prepared(self)
        found = self._sending = Pipeline(self, self._statements, self.wait)
        try:
            try:
                yield found
            except BaseException:
                with suppress(psycopg.Error):  # what was met first is told
                    found.end()
                raise
            else:
                found.end()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
            if not _forgotten(error):
                raise
            self.pgconn.finish()  # a new connection prepares its statements anew
            raise psycopg.OperationalError(f"the connection is of no more use: {error}") from error
        finally:
            self._sending = None
            if self.pgconn.pipeline_status != PipelineStatus.OFF:
                self.pgconn.finish()  # cut off in the middle: nothing more can be sent over it

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """The driver forgets its statements at times; if all at once, ours are gone with them."""
        if name is None:
            self._statements = None
        yield from super()._deallocate(name)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout or self.answer_s)
        except errors._WaitTimeout:
            if timeout is not None:
                raise
            self.pgconn.finish()
            raise errors.ConnectionTimeout(f"no answer within {self.answer_s:g} s") from None


def _forgotten(error: psycopg.Error) -> bool:
    """Whether a prepared statement is gone, or finds something else than when it was prepared."""
    changed = error.diag.source_function == "RevalidateCachedQuery"
    return isinstance(error, errors.InvalidSqlStatementName) or changed


def connected(url: str, patience: Patience | None = USUAL) -> Connection:
    """A connection as all of Bursar uses it: every transaction is said so.

    Read committed, whatever the server's own choice: what is read after a lock must be what is
    there once the lock is had (D3). What the address says of limits comes before ours; with no
    patience given at all there are none.
    """
    if patience is not None:
        url = _limited(url, patience)
    connection = _Impatient.connect(url, autocommit=True, prepare_threshold=2)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    if patience is not None:
        connection.answer_s = patience.answer_s
        if connection.info.server_version >= KNOWS_TRANSACTION_TIMEOUT:
            longest_ms = patience.transaction_ms or patience.idle_in_transaction_ms
            connection.execute(f"set transaction_timeout = {longest_ms}")
    return connection


def _limited(url: str, patience: Patience) -> str:
    """An address with our limits; of two equal options PostgreSQL takes the last."""
    given = conninfo_to_dict(url)
    options = given.pop("options", None) or os.environ.get("PGOPTIONS", "")
    everything = {**patience.parameters, **given, "options": f"{patience.options} {options}"}
    return make_conninfo("", **everything)


@contextmanager
def opened(state: Path | None = None, *, migrating: bool = True) -> Iterator[Database]:
    """A database that can be reached and has our schema, for as long as one uses it.

    If it must not be changed, not even to bring it to our schema, it has to have that already.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        check_address(given, URL_VARIABLE)
        yield _ready(Database(given, None), migrating=migrating)
        return
    with embedded(state, migrating=migrating) as database:
        yield database


@contextmanager
def embedded(
    state: Path | None = None, linger_s: float = LINGER_S, *, migrating: bool = True
) -> Iterator[Database]:
    """An embedded database, whatever server the environment names."""
    if not migrating:
        _check_is_there(state)
    with EmbeddedDatabase(state, linger_s=linger_s) as guest:
        yield _ready(Database(None, guest), migrating=migrating)


def state_of(state: Path | None) -> Path:
    """The folder that state is kept in."""
    return (default_state() if state is None else state).expanduser()


def _check_is_there(state: Path | None) -> None:
    """Raise `StateUnusable` where a guest would make a new database."""
    path = state_of(state)
    if not path.exists() or (os.access(path, os.X_OK) and not StateFolder(path).data.exists()):
        raise StateUnusable(f"There is no database in {path}. `bursar up` makes one.")


def _ready(database: Database, *, migrating: bool) -> Database:
    try:
        with database.connect(patience=None) as connection:  # migrations take their time
            _check_server(connection)
            if migrating:
                migrate(connection)
            else:
                check_schema(connection)
                _check_sees_all(connection)
    except psycopg.OperationalError as error:
        said = said_by(error, database.url)
        raise DatabaseDown(f"the database cannot be reached: {said}") from error
    except errors.InsufficientPrivilege as error:
        said = said_by(error, database.url)
        raise StateUnusable(f"the database's user may not do what is needed: {said}") from error
    return database


def _check_sees_all(connection: Connection) -> None:
    """Raise `StateUnusable` for a user who is kept from rows: what it found sound might not be."""
    [(kept,)] = connection.execute("select row_security_active('orgs')").fetchall()
    if kept:
        raise StateUnusable(
            f"the database's user {connection.info.user} does not see all orgs: name the one who"
            " owns the tables"
        )


def _check_server(connection: Connection) -> None:
    if connection.info.server_version < OLDEST:
        version = connection.info.parameter_status("server_version")
        raise StateUnusable(f"PostgreSQL 15 or newer is needed, this is {version}")
