"""Addresses as people see them: no password is ever shown, whatever is wrong with them."""

import psycopg
import pytest

from bursar.store.embedded import StateUnusable
from bursar.store.sql.dsn import check_address, error_text, without_password

GOOD = (
    "postgresql://ann:s3cret@localhost:5432/db",
    "postgres://localhost",
    "postgresql://ann:s3?cret@localhost/db",
    "postgresql:///db?host=/run/postgresql&user=ann%40home",
    "postgresql://ann:s3%40cret@one,two/db?target_session_attrs=read-write",
    "postgresql://ann@[::1]:5432/db?application_name=a@b",
    "host=localhost password='s3cret with spaces' dbname=db",
)
BAD = (
    "s3cret",
    "postgres//ann:s3cret@localhost/db",
    "postgresql://ann:s3cret@host%zz/db",
    "postgresql://ann:s3@cret@localhost/db",
    "postgresql://ann:s3/cret@localhost/db",
    "postgresql://ann:s3?@cret@localhost/db",
    "postgresql://localhost/db?passwort=s3cret",
    "host=localhost passwort=s3cret",
)


@pytest.mark.parametrize("url", GOOD)
def test_an_address_that_libpq_understands_is_accepted(url: str) -> None:
    check_address(url, "THE_URL")


@pytest.mark.parametrize("url", BAD)
def test_an_invalid_address_is_refused_without_quoting_it(url: str) -> None:
    """What was meant as the password may stand anywhere in it."""
    with pytest.raises(StateUnusable) as told:
        check_address(url, "THE_URL")

    assert str(told.value).startswith("THE_URL ")
    assert "s3" not in str(told.value)
    assert "cret" not in str(told.value)


@pytest.mark.parametrize("url", GOOD)
def test_an_address_is_shown_without_its_password(url: str) -> None:
    """And is the same but for that."""
    shown = without_password(url)

    assert "s3" not in shown
    given = psycopg.conninfo.conninfo_to_dict(url)
    if "password" in given:
        given["password"] = "***"
    assert given == psycopg.conninfo.conninfo_to_dict(shown)


def test_an_address_without_a_password_is_shown_unchanged() -> None:
    assert GOOD[1] == without_password(GOOD[1])


def test_an_error_of_the_server_is_one_line_without_the_password() -> None:
    error = psycopg.OperationalError("no\n\tentry for s3cret,\nsorry\n")

    assert "no entry for ***, sorry" == error_text(error, GOOD[0])
    assert "no entry for s3cret, sorry" == error_text(error, GOOD[1])
