"""`bursar up`, `bursar ledger verify` and `bursar ledger rebuild` as an operator meets them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner, Result

from bursar.cli.app import app
from bursar.cli.up import folder_off_path
from bursar.core.ids import AccountId, GrantId, UserId
from bursar.core.instant import SECOND
from bursar.core.ledger.commands import AddAccount, AddUser, Issue
from bursar.core.ledger.values import CreditKind
from bursar.core.pricing import PriceBook
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.store import database
from bursar.store.ledger.writer import freeze
from bursar.store.sql.connection import Connection, money_time
from tests.support.databases import connected, migrated, new_org, new_state
from tests.support.patience import eventually

SECRET = "s3cret-of-nobody"
LOOKING = (["ledger", "verify"], ["ledger", "rebuild"], ["ledger", "rebuild", "--repair"])
ALL = (["up"], *LOOKING)


def run(url: str | None, *arguments: str) -> Result:
    """A command on the database of this address, or on an embedded one."""
    return CliRunner().invoke(app, list(arguments), env={database.URL_VARIABLE: url})


@contextmanager
def small(database_url: str) -> Iterator[tuple[str, Connection, str]]:
    """A database of its own with one org in it."""
    with migrated(database_url) as url, connected(url) as connection:
        org = new_org(connection)
        asks = [
            CommandRequest(org, "k1", AddAccount(account=AccountId("org"), parent=None, name="o")),
            CommandRequest(org, "k2", AddUser(user=UserId("ann"))),
        ]
        Batch(connection, PriceBook(), {}).run(asks)
        yield url, connection, org


def refused(told: Result, *words: str) -> None:
    """One sentence on standard error, and nothing else."""
    assert 2 == told.exit_code, told.output
    assert "" == told.stdout
    assert told.stderr.startswith("bursar: ")
    assert 1 == told.stderr.count("\n")
    assert SECRET not in told.stderr
    for word in words:
        assert word in told.stderr


# Addresses


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_invalid_database_url_is_reported_in_one_line(command: list[str]) -> None:
    refused(run(f"postgres//ann:{SECRET}@localhost/db", *command), database.URL_VARIABLE)


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_closed_port_is_reported_in_one_line(command: list[str]) -> None:
    told = run(f"postgresql://ann:{SECRET}@127.0.0.1:1/db", *command)

    refused(told, "cannot be reached", "127.0.0.1", "port 1")


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_wrong_user_password_or_database_is_reported_in_one_line(
    database_url: str, command: list[str]
) -> None:
    nobody = make_conninfo(database_url, user="nobody_we_know", password=SECRET)
    wrong = make_conninfo(database_url, password=SECRET)
    nowhere = make_conninfo(database_url, dbname="nothing_we_have")

    refused(run(nobody, *command), "nobody_we_know")
    refused(run(wrong, *command), "password")
    refused(run(nowhere, *command), "nothing_we_have")


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_old_server_is_reported_in_one_line(
    database_url: str, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(database, "OLDEST_VERSION", 99_00_00)

    refused(run(database_url, *command), "PostgreSQL 15 or newer is needed, this is ")


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_role_that_does_not_see_all_orgs_is_refused(database_url: str, command: list[str]) -> None:
    """Nothing would be wrong with what they see, which is nothing."""
    user = f"bursar_test_{uuid4().hex}"
    with small(database_url) as (url, connection, _):
        connection.execute(f"create role {user} login password '{SECRET}'")
        try:
            connection.execute(f"grant select on all tables in schema public to {user}")
            refused(run(make_conninfo(url, user=user, password=SECRET), *command), user)
        finally:
            connection.execute(f"drop owned by {user}")
            connection.execute(f"drop role {user}")


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_verify_creates_no_database(tmp_path: Path, command: list[str]) -> None:
    """To look is not to make, not even a folder."""
    for state in (tmp_path, tmp_path / "new"):
        refused(run(None, *command, "--state", str(state)), "no database", "`bursar up`")

    assert [] == list(tmp_path.iterdir())


# Schemas


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_verify_does_not_migrate(database_url: str, command: list[str]) -> None:
    with small(database_url) as (url, connection, _):
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
        refused(run(url, *command), "no Bursar schema", "`bursar up`")
        tables = "select relname from pg_class where relnamespace = 'public'::regnamespace"
        assert [] == connection.execute(tables).fetchall()


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_database_of_a_newer_version_is_refused(database_url: str, command: list[str]) -> None:
    with small(database_url) as (url, connection, _):
        connection.execute("insert into migrations values (9007, '9007_later.sql', '')")

        refused(run(url, *command), "schema version 9007", "upgrade Bursar")


# Looking and repairing


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_sound_ledger_has_no_problems(database_url: str, command: list[str]) -> None:
    with small(database_url) as (url, _, _):
        told = run(url, *command)

    assert (0, True) == (told.exit_code, told.stdout.startswith("no problems: "))
    assert "1 orgs, 2 events" in told.stdout


def test_damaged_ledger_is_reported_and_repaired_only_on_request(database_url: str) -> None:
    """What is wrong is said with 1, what was repaired with 0 (L1)."""
    with small(database_url) as (url, connection, org):
        connection.execute("update accounts set used = 5")
        freeze(connection, org, "this and that")
        for _ in range(2):
            assert 1 == run(url, "ledger", "verify").exit_code
            rebuilt = run(url, "ledger", "rebuild")
            assert 1 == rebuilt.exit_code
            assert f"{org}: is frozen: this and that\n" in rebuilt.stdout
            assert f"{org}: accounts org: stored org" in rebuilt.stdout
            assert "1 problems: 1 orgs, 2 events\n" in rebuilt.stdout

        repaired = run(url, "ledger", "rebuild", "--repair")
        assert 0 == repaired.exit_code, repaired.output
        assert f"{org}: rows rewritten: 1 of accounts\n" in repaired.stdout
        assert f"{org}: is no longer frozen; it was because: this and that\n" in repaired.stdout
        assert "no problems: 1 orgs, 2 events\n" in repaired.stdout
        for command in LOOKING:
            again = run(url, *command)
            assert (0, 1) == (again.exit_code, again.stdout.count("\n"))


def test_wrong_summaries_are_discarded_by_a_repair(database_url: str) -> None:
    """And only when asked; it is said why."""
    with small(database_url) as (url, connection, org):
        connection.execute(
            "insert into top_list_entries values (%s, 'user', 'used', 'ann', 5)", [org]
        )
        assert 1 == run(url, "ledger", "verify").exit_code
        repaired = run(url, "ledger", "rebuild", "--repair")
        again = run(url, "ledger", "verify")

    assert (0, 0) == (repaired.exit_code, again.exit_code), repaired.output
    assert f"{org}: summaries were discarded" in repaired.stdout
    assert "    top lists of users equal their spending: ann used: 5 stored\n" in repaired.stdout


def test_damage_that_cannot_be_repaired_exits_with_1(database_url: str) -> None:
    with small(database_url) as (url, connection, org):
        connection.execute("update events set kind = 'Gift' where number = 2")
        connection.execute("update accounts set used = 5")
        freeze(connection, org, "this and that")
        told = run(url, "ledger", "rebuild", "--repair")

    assert 1 == told.exit_code
    assert f"{org}: events 2: unknown kind of event: Gift\n" in told.stdout
    assert f"{org}: is frozen: this and that\n" in told.stdout
    assert "rewritten" not in told.stdout


def test_many_problems_are_counted_and_the_first_shown(database_url: str) -> None:
    with small(database_url) as (url, connection, org):
        connection.execute(
            "insert into users (org_id, user_id) select %s, n from generate_series(1, 50) n", [org]
        )
        told = run(url, "ledger", "rebuild")

    assert "… and 30 more\n50 problems: " in told.stdout


# Bringing it up


@contextmanager
def up(url: str | None, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """`bursar up` in a process of its own; stopped at the end."""
    command = [sys.executable, "-m", "bursar", "up", "--port", "0", *arguments]
    environment = {name: one for name, one in os.environ.items() if name != database.URL_VARIABLE}
    with TemporaryDirectory() as folder:
        if url is not None:
            environment[database.URL_VARIABLE] = url
        if url is not None and "--state" not in arguments:
            command += ["--state", folder]  # its secrets are kept there, whosever the database is
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as one:
            try:
                yield one
            finally:
                one.terminate()


def lines(process: "subprocess.Popen[str]", last: str) -> list[str]:
    """What it prints up to a line that begins so."""
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(line)
        if line.startswith(last):
            break
    return found


def test_suggested_commands_work(tmp_path: Path) -> None:
    """In another terminal, which may not know where the program is."""
    program = tmp_path / "a folder" / "bursar"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom bursar.cli import main\n\nmain()\n")
    program.chmod(0o700)
    elsewhere = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with new_state() as state:
        command = [str(program), "up", "--demo", "--port", "0", "--state", str(state)]
        environment = {
            name: one for name, one in os.environ.items() if name != database.URL_VARIABLE
        }
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as one:
            try:
                told = [line.strip() for line in lines(one, "ready") if line.startswith("  ")]
                done = subprocess.run(
                    ["/bin/sh", "-e"],
                    input="\n".join(told),
                    env=elsewhere,
                    capture_output=True,
                    text=True,
                    check=False,
                )
            finally:
                one.terminate()

    assert 0 == done.returncode, done.stderr
    assert 7 == len(told)
    assert told[0].startswith("export PATH=")
    assert "Alfa Labs" in done.stdout
    assert "succeeded" in done.stdout


def test_program_on_the_path_needs_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that is not called by its name."""
    one, other = tmp_path / "one" / "bursar", tmp_path / "other" / "bursar"
    for program in (one, other):
        program.parent.mkdir()
        program.touch(mode=0o700)
    monkeypatch.setenv("PATH", str(one.parent))
    monkeypatch.chdir(tmp_path)

    assert folder_off_path(str(one)) is None
    assert folder_off_path("one/bursar") is None
    assert other.parent == folder_off_path("other/bursar")
    assert folder_off_path("-c") is None
    assert folder_off_path(str(tmp_path / "gone" / "bursar")) is None


def test_password_of_a_configured_server_is_not_shown(database_url: str) -> None:
    """Neither to people nor to programs: who gave it has it."""
    secret = str(conninfo_to_dict(database_url).get("password") or "")
    url = database_url if secret else make_conninfo(database_url, password=SECRET)
    with new_state() as state:  # its secret is the deployment's from now on
        with up(url, "--state", str(state)) as process:
            told = "".join(lines(process, "ready"))
            assert "ready; stop with Ctrl-C\n" in told
        with up(url, "--state", str(state), "--json") as process:
            [line] = lines(process, "{")
    shown = json.loads(line)

    assert (secret or SECRET) not in told + line
    assert shown["embedded"] is False
    assert conninfo_to_dict(url) | {"password": "***"} == conninfo_to_dict(shown["database_url"])


def test_password_of_the_embedded_server_is_in_json_only() -> None:
    """Its folder holds it anyway; a program needs it to connect."""
    with new_state() as state, up(None, "--state", str(state), "--json") as process:
        [line] = lines(process, "{")
        shown = json.loads(line)
        with psycopg.connect(shown["database_url"]) as connection:
            assert (1,) == connection.execute("select 1").fetchone()
        with up(None, "--state", str(state)) as other:
            told = "".join(lines(other, "ready"))

    assert shown["embedded"] is True
    assert str(conninfo_to_dict(shown["database_url"])["password"]) not in told
    assert shown["admin_key"] not in told
    assert "ready; stop with Ctrl-C\n" in told


def test_due_events_are_written_without_a_request(database_url: str) -> None:
    """A grant that has expired has lapsed, seen from outside, while `bursar up` runs (L3)."""
    with small(database_url) as (url, connection, org), up(url) as process:
        lines(process, "ready")
        soon = money_time(connection) + SECOND
        grant = Issue(
            grant=GrantId("g"),
            account=AccountId("org"),
            amount=5,
            kind=CreditKind.PROMO,
            expires_at=soon,
        )
        Batch(connection, PriceBook(), {}).run([CommandRequest(org, "k3", grant)])
        lapsed = "select lapsed from grants where org_id = %s"

        eventually(lambda: connection.execute(lapsed, [org]).fetchone() == (5,), "a lapse")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://a.example", "begins with http"),
        ("https://", "begins with http"),
        ("https://ann@a.example", "no user"),
        ("https://a.example?x=1", "no user, query or fragment"),
        ("http://a.example", "without TLS"),
    ],
)
def test_an_address_that_nodes_must_not_use_is_not_announced(url: str, why: str) -> None:
    """Before anything is started."""
    refused = run(None, "api", "--advertise", url)

    assert 2 == refused.exit_code
    assert why in " ".join(refused.stderr.split()), refused.stderr
