"""Addresses of databases as people see them: never with a password, and with a word on what is
wrong with one that cannot be used."""

import re
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bursar.store.embedded import StateUnusable

SECRETS: Final = ("password", "sslpassword")
EXAMPLE: Final = "postgresql://user:password@host:5432/database"


def check_address(url: str, name: str) -> None:
    """Raise `StateUnusable` unless libpq understands the address that `name` stands for.

    What libpq says of one that it does not understand quotes it, with the password perhaps.
    """
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise StateUnusable(f"{name} is not an address of PostgreSQL, such as {EXAMPLE}") from None
    # libpq would take a part of such a password for the host, and name it.
    if re.match(r"postgres(ql)?://[^/@]*(@[^/?]*@|/[^?]*@)", url):
        raise StateUnusable(
            f"{name} has @ or / in its password: write them as %40 and %2F, as in any address"
        )


def without_password(url: str) -> str:
    """An address for people to read; one with a secret as `name=value`, each secret as ***."""
    found = conninfo_to_dict(url)
    secret = [name for name in SECRETS if found.get(name)]
    return make_conninfo("", **{**found, **dict.fromkeys(secret, "***")}) if secret else url


def said_by(error: psycopg.Error, url: str) -> str:
    """What the server or libpq said, as one line without the secrets of the address."""
    told = " ".join(str(error).split())
    found = conninfo_to_dict(url)
    for name in SECRETS:
        if secret := found.get(name):
            told = told.replace(str(secret), "***")
    return told
