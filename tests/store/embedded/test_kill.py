"""Killing any of them at any time: what was committed is there, and nothing is left behind."""

import contextlib
import signal

import psycopg
import pytest

from bursar.store.embedded import DatabaseDown, EmbeddedDatabase, StateUnusable
from bursar.store.embedded.locks import find_holders, is_locked, kill_holders
from bursar.store.embedded.programs import UNFINISHED_PREFIX
from tests.support.embedded_guests import LINGER_S, World, execute, is_over, kill
from tests.support.patience import eventually

WRITE = "update kept set figure = 8"
READ = "select figure from kept"
NEVER_ENDS = b"do $$ begin loop end loop; end $$"


@pytest.mark.slow
def test_a_killed_server_comes_back_with_what_was_committed(world: World) -> None:
    state = world.used_state()
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        before = database.info
        execute(database.url, WRITE)

        kill(before.postgres_pid)
        after = database.ensure()

        assert before.supervisor_pid == after.supervisor_pid
        assert before.postgres_pid != after.postgres_pid
        assert [(8,)] == execute(after.url, READ)


@pytest.mark.slow
def test_a_killed_supervisor_takes_its_server_along_and_both_are_replaced(world: World) -> None:
    """The kernel asks PostgreSQL to shut down, although it runs as another user than its parent."""
    state = world.used_state()
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        before = database.info
        execute(database.url, WRITE)

        kill(before.supervisor_pid)
        eventually(lambda: is_over(state), "the server ends with its supervisor")
        after = database.ensure()

        assert "database system is shut down" in state.log.read_text()
        assert before.supervisor_pid != after.supervisor_pid
        assert [(8,)] == execute(after.url, READ)


@pytest.mark.slow
def test_ensure_does_not_wait_for_killed_processes(world: World) -> None:
    """Supervisor and server are killed at once, and several guests ask for them at once."""
    world.used_state()
    guests = [world.guest() for _ in range(3)]
    told = [guest.told() for guest in guests][-1]
    execute(told["url"], WRITE)

    kill(told["supervisor_pid"])
    with contextlib.suppress(ProcessLookupError):
        kill(told["postgres_pid"])
    after = [guest.ensures() for guest in guests]

    assert 1 == len({one["postgres_pid"] for one in after})
    assert [(8,)] == execute(after[0]["url"], READ)


@pytest.mark.slow
def test_nothing_outlives_guests_that_are_killed(world: World) -> None:
    """Also when the last thing a guest did was to leave a query behind that never ends."""
    state = world.used_state()
    guests = [world.guest() for _ in range(3)]
    told = [guest.told() for guest in guests][-1]
    execute(told["url"], WRITE)
    with contextlib.closing(psycopg.connect(told["url"])) as connection:
        connection.pgconn.send_query(NEVER_ENDS)

        for guest in guests:
            guest.killed()

        eventually(lambda: is_over(state), "supervisor and server end after their guests")
    assert "database system is shut down" in state.log.read_text()


@pytest.mark.slow
def test_a_backend_that_outlives_its_server_is_killed(world: World) -> None:
    """A new server waits until the last process of the old one is gone, and sees to it."""
    state = world.used_state()
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        before = database.info
        execute(database.url, WRITE)
        with contextlib.closing(psycopg.connect(database.url)) as connection:
            backend = connection.info.backend_pid
            connection.pgconn.send_query(NEVER_ENDS)
            eventually(lambda: _busy(before.url), "the query runs")

            kill(before.postgres_pid)
            after = database.ensure()

            assert backend not in find_holders(state.server_lock)
            assert [(8,)] == execute(after.url, READ)


def _busy(url: str) -> bool:
    return [(1,)] == execute(
        url, "select count(*) from pg_stat_activity where state = 'active' and query like 'do %'"
    )


@pytest.mark.slow
def test_a_supervisor_killed_during_initdb_leaves_no_partial_data(world: World) -> None:
    state = world.state()
    guest = world.guest()
    eventually(
        lambda: any(state.path.glob(f"{UNFINISHED_PREFIX}*")), "the data folder is being made"
    )
    for pid in find_holders(state.supervisor_lock):
        kill(pid, signal.SIGSTOP)  # so that it cannot be done before it is killed
    eventually(lambda: any(state.path.glob(f"{UNFINISHED_PREFIX}*/data/base")), "initdb has begun")

    kill_holders(state.supervisor_lock)
    told = guest.told()

    assert 2 == state.log.read_text().count("supervisor: creating")
    assert [] == list(state.path.glob(f"{UNFINISHED_PREFIX}*"))
    assert [(1,)] == execute(told["url"], "select 1")


@pytest.mark.slow
def test_a_terminated_supervisor_ends_its_server_first(world: World) -> None:
    state = world.used_state()
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        kill(database.info.supervisor_pid, signal.SIGTERM)
        eventually(lambda: is_over(state), "supervisor and server end")

        assert not state.server_info.exists()
        assert [(1,)] == execute(database.ensure().url, "select 1")


@pytest.mark.slow
def test_a_server_that_cannot_start_is_reported_with_its_own_message(world: World) -> None:
    """It is tried a few times, more and more slowly, and then given up."""
    state = world.used_state()
    with (state.data / "postgresql.conf").open("a") as file:
        file.write("\nnonsense = 'yes'\n")

    with pytest.raises(DatabaseDown) as caught, EmbeddedDatabase(state.path, linger_s=LINGER_S):
        pass

    assert str(state.path) in str(caught.value)
    assert "it does not start" in str(caught.value)
    assert "5 times in a row" in str(caught.value)
    assert 'unrecognized configuration parameter "nonsense"' in state.log.read_text()
    eventually(lambda: not is_locked(state.guests_lock), "the guest that failed has left")


@pytest.mark.slow
def test_a_server_that_does_not_start_in_time_is_reported(world: World) -> None:
    """One that hangs is not killed for it: it may be at work."""
    state = world.used_state()
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        kill(database.info.postgres_pid, signal.SIGSTOP)
        try:
            with pytest.raises(DatabaseDown, match="did not accept connections in time") as caught:
                database.ensure(timeout_s=0.1)
        finally:
            kill(database.info.postgres_pid, signal.SIGCONT)

        assert "serves on" in str(caught.value), "the log's last lines are quoted"
        assert [(1,)] == execute(database.ensure().url, "select 1")


@pytest.mark.slow
def test_a_folder_that_vanishes_is_not_replaced_by_an_empty_one(world: World) -> None:
    state = world.used_state()
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        supervisor = database.info.supervisor_pid
        state.path.rename(world.room / "elsewhere")
        moved = world.state("elsewhere")

        with pytest.raises(StateUnusable, match="was removed while in use"):
            database.ensure()
        eventually(
            lambda: supervisor not in find_holders(moved.supervisor_lock), "the supervisor ends"
        )
        eventually(lambda: is_over(moved), "the server ends")
        assert not state.path.exists()
