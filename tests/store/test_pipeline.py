"""Statements that are sent together, and what becomes of those behind one that fails."""

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import PipelineStatus, TransactionStatus

from bursar.store.sql.connection import Connection
from tests.support.databases import connected
from tests.support.patience import eventually

ROWS = "select k.name, k.number from unnest(%s::text[], %s::bigint[]) as k(name, number)"
FAILS = "select 1 / %s::int"
MANY = "select repeat('x', 1000) from generate_series(1, %s)"


def test_answers_are_taken_in_any_order(connection: Connection) -> None:
    """Within the pipeline or after it; texts, numbers, booleans, lists and nothing are the same."""
    with connection.transaction(), connection.pipeline():
        first = connection.execute(ROWS, ['{"a","ö"}', "{1,NULL}"])
        second = connection.execute(
            "select %s::bool, %s::text, %s::text[]", [True, None, ["x", "y"]]
        )
        third = connection.execute("select 5 where 100 %% 7 = %s", [2])

        assert (5,) == third.fetchone()
        assert third.fetchone() is None
        assert [("a", 1), ("ö", None)] == first.fetchall()
    assert [(True, None, ["x", "y"])] == list(second)
    assert PipelineStatus.OFF == connection.info.pipeline_status


def test_the_number_of_written_rows_is_known(connection: Connection) -> None:
    """Also at the end of a pipeline within another, where all that was sent has been answered."""
    with connection.transaction(), connection.pipeline():
        connection.execute("create temporary table t (n int) on commit drop")
        with connection.pipeline():
            written = connection.execute("insert into t select generate_series(1, %s)", [3])
        changed = connection.execute("update t set n = n + 1 where n > %s", [1])

        assert 3 == written.rowcount
        assert 2 == changed.rowcount


def test_the_first_failure_is_raised_and_the_rest_fail_with_it(connection: Connection) -> None:
    """To whoever asks, and at the end; then the connection is as good as new."""

    def sends() -> None:
        with connection.transaction(), connection.pipeline():
            before = connection.execute(ROWS, ["{a}", "{1}"])
            failed = connection.execute(FAILS, [0])
            behind = connection.execute("select 'never prepared', %s::int", [1])

            assert [("a", 1)] == before.fetchall()
            for one in (failed, behind):
                with pytest.raises(errors.DivisionByZero):
                    one.fetchall()

    with pytest.raises(errors.DivisionByZero):
        sends()
    assert TransactionStatus.IDLE == connection.info.transaction_status
    with connection.transaction(), connection.pipeline():
        again = connection.execute("select 'never prepared', %s::int", [1])
        assert [("never prepared", 1)] == again.fetchall()
        assert [(1,)] == connection.execute(FAILS, [1]).fetchall()


def test_an_unread_result_fails_at_the_end(connection: Connection) -> None:
    """Nothing is committed that went wrong unseen."""
    with pytest.raises(errors.DivisionByZero), connection.transaction(), connection.pipeline():
        connection.execute(FAILS, [0])


def test_an_exception_in_the_block_takes_precedence(connection: Connection) -> None:
    """What is on its way is answered first: the connection can be used again."""

    def sends() -> None:
        with connection.transaction(), connection.pipeline():
            connection.execute(FAILS, [0])
            raise KeyError

    with pytest.raises(KeyError):
        sends()

    assert (1,) == connection.execute("select 1").fetchone()


def test_text_with_a_nul_is_refused_and_not_cut(connection: Connection) -> None:
    """So is what has no form that a pipeline knows."""
    with connection.transaction(), connection.pipeline():
        with pytest.raises(psycopg.DataError):
            connection.execute("select %s::text", ["a\0b"])
        with pytest.raises(TypeError):
            connection.execute("select %s::float8", [1.5])

        assert [("ab",)] == connection.execute("select %s::text", ["ab"]).fetchall()


def test_more_is_sent_and_received_than_fits_in_the_buffers(connection: Connection) -> None:
    """Neither side waits for the other to read what it says."""
    long = "x" * 4_000_000
    with connection.transaction(), connection.pipeline():
        sent = [
            (
                connection.execute(MANY, [4_000]),
                connection.execute("select length(%s)", [long]),
            )
            for _ in range(3)
        ]

        assert [4_000] * 3 == [len(many.fetchall()) for many, _ in sent]
        assert [[(len(long),)]] * 3 == [told.fetchall() for _, told in sent]


def test_a_connection_without_pending_results_is_idle(
    connection: Connection, database_url: str
) -> None:
    """So that a process which is stopped in the middle loses its locks on any server (F7)."""
    sql = "select state from pg_stat_activity where pid = %s"
    with connected(database_url) as other, other.transaction(), other.pipeline():
        assert (1,) == other.execute("select 1::int").fetchone()
        pid = other.info.backend_pid
        eventually(
            lambda: connection.execute(sql, [pid]).fetchall() == [("idle in transaction",)],
            "it is idle",
        )
        assert (2,) == other.execute("select 2::int").fetchone()


def test_a_lost_connection_is_reported(connection: Connection, database_url: str) -> None:
    """As the driver tells it: an error of operation, and a closed connection."""

    def sends() -> None:
        with connection.transaction(), connection.pipeline():
            connection.execute("select 1").fetchall()
            with psycopg.connect(database_url, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
            connection.execute("select pg_sleep(%s)", [10]).fetchall()

    with pytest.raises(psycopg.OperationalError):
        sends()

    assert connection.closed


def test_statements_are_prepared_again_when_the_driver_has_dropped_them(
    connection: Connection,
) -> None:
    """It does so when a transaction is rolled back after it has prepared some of its own."""
    for _ in range(20):
        with connection.transaction(), connection.pipeline():
            assert [("a", 1)] == connection.execute(ROWS, ["{a}", "{1}"]).fetchall()
        for _ in range(4):  # more than the driver waits before it prepares
            connection.execute("select %s::int", [3]).fetchall()
        with pytest.raises(KeyError), connection.transaction():
            raise KeyError


def test_a_connection_whose_prepared_statements_are_gone_is_closed(connection: Connection) -> None:
    """A pooler may have dropped them: the batch is repeated on a new connection."""
    with connection.transaction(), connection.pipeline():
        connection.execute(ROWS, ["{a}", "{1}"])
    connection.execute("deallocate all")

    with pytest.raises(psycopg.OperationalError, match="no longer usable"):  # noqa: SIM117
        with connection.transaction(), connection.pipeline():
            connection.execute(ROWS, ["{a}", "{1}"]).fetchall()

    assert connection.closed


def test_a_connection_whose_prepared_statements_have_other_results_is_closed(
    connection: Connection,
) -> None:
    """The server stores the plan of a statement, and a migration may have changed its columns."""
    connection.execute("create temporary table t (n int)")
    with connection.transaction(), connection.pipeline():
        connection.execute("select t.*, %s::int from t", [1])
    connection.execute("alter table t alter column n type text")

    with pytest.raises(psycopg.OperationalError, match="no longer usable"):  # noqa: SIM117
        with connection.transaction(), connection.pipeline():
            connection.execute("select t.*, %s::int from t", [1]).fetchall()

    assert connection.closed
