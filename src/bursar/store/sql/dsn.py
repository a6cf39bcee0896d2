"""Addresses of databases for messages: checked, and shown without passwords."""

import re
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bursar.store.embedded import StateUnusable

SECRETS: Final = ("password", "sslpassword")
EXAMPLE: Final = "postgresql://user:password@host:5432/database"


def check_address(url: str, name: str) -> None:
    """Raise `StateUnusable` unless libpq understands the address that `name` stands for.

    libpq's own message would quote the address, possibly with the password.
    """
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise StateUnusable(f"{name} is not an address of PostgreSQL, such as {EXAMPLE}") from None
    # libpq would read a part of such a password as the host, and show it.
    if re.match(r"postgres(ql)?://[^/@]*(@[^/?]*@|/[^?]*@)", url):
        raise StateUnusable(
            f"{name} has @ or / in its password: write them as %40 and %2F, as in any address"
        )


def without_password(url: str) -> str:
    """An address for people to read; one with a secret as `name=value`, each secret as ***."""
    parameters = conninfo_to_dict(url)
    secret = [name for name in SECRETS if parameters.get(name)]
    return make_conninfo("", **{**parameters, **dict.fromkeys(secret, "***")}) if secret else url


def error_text(error: psycopg.Error, url: str) -> str:
    """The message of the server or libpq, as one line without the secrets of the address."""
    text = " ".join(str(error).split())
    parameters = conninfo_to_dict(url)
    for name in SECRETS:
        if secret := parameters.get(name):
            text = text.replace(str(secret), "***")
    return text
