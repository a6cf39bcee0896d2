"""Opens the database that BURSAR_DATABASE_URL names, or else the embedded one (D1)."""

import os
from collections.abc import Callable, Iterator
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
from bursar.store.sql.dsn import check_address, error_text, without_password
from bursar.store.sql.pipeline import Pipeline, PreparedStatements

URL_VARIABLE: Final = "BURSAR_DATABASE_URL"
OLDEST_VERSION: Final = 150000  # PostgreSQL 15, in the server's notation

# The service looks rows up by their keys, in small sets. Its plans must not depend on statistics
# (D3): with old statistics, the plans that these settings forbid would read a whole org or compile.
PLANNER_SETTINGS: Final = MappingProxyType(
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

# A peer in the network that is silent for so long, in seconds and tries, is gone.
KEEPALIVES: Final = MappingProxyType(
    {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}
)

SEND_TIMEOUT_S: Final = 45.0  # for the peer's kernel to confirm that data has arrived

# From this version on, PostgreSQL can limit transactions that are not idle, as in a pipeline.
TRANSACTION_TIMEOUT_VERSION: Final = 170000

RESERVE_BYTES: Final = 256 * 2**20  # of disk that commands leave free; a full disk stops reads too

IS_READ_ONLY: Final = """
    select pg_is_in_recovery() or current_setting('transaction_read_only')::boolean
"""

T = TypeVar("T")


class DatabaseFull(Fault):
    """The disk of the database is full; the batch had no effect. Retry later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time limits of a connection. The server enforces them, except for `answer_s`."""

    connect_s: int = 5
    lock_ms: int = 10_000
    statement_ms: int = 30_000
    idle_in_transaction_ms: int = 60_000  # how long a stopped process can keep its locks
    transaction_ms: int | None = None  # None: as for an idle transaction
    answer_s: float = 45.0  # for any answer, if the server does not enforce its limits

    @property
    def options(self) -> str:
        """The settings for the server."""
        settings = PLANNER_SETTINGS | {
            "lock_timeout": self.lock_ms,
            "statement_timeout": self.statement_ms,
            "idle_in_transaction_session_timeout": self.idle_in_transaction_ms,
            # The server must also notice that a machine that holds locks is gone.
            **KEEPALIVES,
        }
        return " ".join(f"-c {name}={value}" for name, value in settings.items())

    @property
    def parameters(self) -> dict[str, int]:
        """The settings for libpq and the kernel, which notice that a peer is gone."""
        return {
            "connect_timeout": self.connect_s,
            **{name.removeprefix("tcp_"): value for name, value in KEEPALIVES.items()},
            # The kernel applies this limit instead of the keepalives, so it does not grow with
            # the time that an answer may take.
            "tcp_user_timeout": int(min(self.answer_s, SEND_TIMEOUT_S) * 1_000),
        }


DEFAULT_TIMEOUTS: Final = Timeouts()


@dataclass(frozen=True, slots=True)
class Database:
    """A database with our schema, and how to connect to it."""

    server_url: str | None  # None: the database is embedded
    embedded: EmbeddedDatabase | None

    @property
    def url(self) -> str:
        """Its address now."""
        if self.embedded is not None:
            return self.embedded.url
        assert self.server_url is not None
        return self.server_url

    @property
    def display_url(self) -> str:
        """Its address for people to read, without the password."""
        return without_password(self.url)

    def connect(self, timeouts: Timeouts | None = DEFAULT_TIMEOUTS) -> Connection:
        """Open a connection; restart an embedded database that has died."""
        if self.embedded is not None:
            self.embedded.ensure()
        return connect(self.url, timeouts)

    def check_space(self) -> None:
        """Raise `DatabaseFull` while an embedded database has little disk space left.

        A PostgreSQL that cannot write its log ends, and does not start again until there is space.
        """
        if self.embedded is not None and (free := self.embedded.free_bytes) < RESERVE_BYTES:
            raise DatabaseFull(f"only {free:,} bytes are free on the database's disk")


class _TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when an answer takes too long.

    The server's own limits have no effect if the server, or a pooler, has stopped.
    """

    answer_s: float | None = None
    clock_guard: Callable[[Connection], int] | None = None  # judges the clock for `money_time`
    _named_statements: PreparedStatements | None = None
    _open_pipeline: Pipeline | None = None

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        if self._open_pipeline is None:
            return super().execute(query, params, **options)
        return self._open_pipeline.send(query, params or ())

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:  # type: ignore[override]
        """Send statements together; a nested pipeline only waits for its results at its end."""
        if self._open_pipeline is not None:
            yield self._open_pipeline
            self._open_pipeline.settle()
            return
        if self._named_statements is None:
            self._named_statements = PreparedStatements(self)
        pipeline = self._open_pipeline = Pipeline(self, self._named_statements, self.wait)
        try:
            try:
                yield pipeline
            except BaseException:
                with suppress(psycopg.Error):  # the first error is raised
                    pipeline.end()
                raise
            else:
                pipeline.end()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
            if not _is_stale_statement(error):
                raise
            self.pgconn.finish()  # a new connection prepares its statements again
            raise psycopg.OperationalError(
                f"the connection is no longer usable: {error}"
            ) from error
        finally:
            self._open_pipeline = None
            if self.pgconn.pipeline_status != PipelineStatus.OFF:
                self.pgconn.finish()  # interrupted: nothing more can be sent

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """Drop our prepared statements when the driver deallocates all statements."""
        if name is None:
            self._named_statements = None
        yield from super()._deallocate(name)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout or self.answer_s)
        except errors._WaitTimeout:
            if timeout is not None:
                raise
            self.pgconn.finish()
            raise errors.ConnectionTimeout(f"no answer within {self.answer_s:g} s") from None


def _is_stale_statement(error: psycopg.Error) -> bool:
    """Whether a prepared statement is gone, or its result type has changed."""
    changed = error.diag.source_function == "RevalidateCachedQuery"
    return isinstance(error, errors.InvalidSqlStatementName) or changed


def connect(url: str, timeouts: Timeouts | None = DEFAULT_TIMEOUTS) -> Connection:
    """Open a connection in autocommit mode: transactions are explicit.

    Read committed, whatever the server's default: a statement after a lock must see the state at
    the time of the lock (D3). Limits in the address take precedence over `timeouts`; None sets no
    limits.
    """
    if timeouts is not None:
        url = _with_timeouts(url, timeouts)
    connection = _TimedConnection.connect(url, autocommit=True, prepare_threshold=2)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    if timeouts is not None:
        connection.answer_s = timeouts.answer_s
        if connection.info.server_version >= TRANSACTION_TIMEOUT_VERSION:
            longest_ms = timeouts.transaction_ms or timeouts.idle_in_transaction_ms
            connection.execute(f"set transaction_timeout = {longest_ms}")
    return connection


def guard_clock(connection: Connection, guard: Callable[[Connection], int]) -> None:
    """Let a guard judge the database's clock for all reads on a connection of ours."""
    assert isinstance(connection, _TimedConnection)
    connection.clock_guard = guard


def _with_timeouts(url: str, timeouts: Timeouts) -> str:
    """The address with our limits; of two equal options PostgreSQL takes the last."""
    parameters = conninfo_to_dict(url)
    options = parameters.pop("options", None) or os.environ.get("PGOPTIONS", "")
    everything = {**timeouts.parameters, **parameters, "options": f"{timeouts.options} {options}"}
    return make_conninfo("", **everything)


def takes_writes(connection: Connection) -> bool:
    """Whether the server is neither a standby nor read-only."""
    [(is_read_only,)] = connection.execute(IS_READ_ONLY).fetchall()
    return not is_read_only


@contextmanager
def open_database(state: Path | None = None, *, migrating: bool = True) -> Iterator[Database]:
    """Open the database and bring it to our schema.

    Without `migrating` nothing is changed: the database must have our schema already.
    """
    server_url = os.environ.get(URL_VARIABLE)
    if server_url:
        check_address(server_url, URL_VARIABLE)
        yield _prepare(Database(server_url, None), migrating=migrating)
        return
    with open_embedded(state, migrating=migrating) as database:
        yield database


@contextmanager
def open_embedded(
    state: Path | None = None, linger_s: float = LINGER_S, *, migrating: bool = True
) -> Iterator[Database]:
    """Open an embedded database, whatever server the environment names."""
    if not migrating:
        _check_data_exists(state)
    with EmbeddedDatabase(state, linger_s=linger_s) as guest:
        yield _prepare(Database(None, guest), migrating=migrating)


def state_folder(state: Path | None) -> Path:
    """The state folder."""
    return (default_state() if state is None else state).expanduser()


def _check_data_exists(state: Path | None) -> None:
    """Raise `StateUnusable` if opening would create a new database."""
    path = state_folder(state)
    if not path.exists() or (os.access(path, os.X_OK) and not StateFolder(path).data.exists()):
        raise StateUnusable(f"There is no database in {path}. `bursar up` makes one.")


def _prepare(database: Database, *, migrating: bool) -> Database:
    try:
        with database.connect(timeouts=None) as connection:  # migrations may take long
            _check_server(connection)
            if migrating:
                migrate(connection)
            else:
                check_schema(connection)
                _check_sees_all(connection)
    except psycopg.OperationalError as error:
        message = error_text(error, database.url)
        raise DatabaseDown(f"the database cannot be reached: {message}") from error
    except errors.InsufficientPrivilege as error:
        message = error_text(error, database.url)
        raise StateUnusable(f"the database's user lacks a privilege: {message}") from error
    return database


def _check_sees_all(connection: Connection) -> None:
    """Raise `StateUnusable` for a user with row-level security: checks would miss rows."""
    [(is_restricted,)] = connection.execute("select row_security_active('orgs')").fetchall()
    if is_restricted:
        raise StateUnusable(
            f"the database's user {connection.info.user} does not see all orgs:"
            " use the owner of the tables"
        )


def _check_server(connection: Connection) -> None:
    if connection.info.server_version < OLDEST_VERSION:
        version = connection.info.parameter_status("server_version")
        raise StateUnusable(f"PostgreSQL 15 or newer is needed, this is {version}")
