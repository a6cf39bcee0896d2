"""`bursar login`."""

import getpass
import os
import sys
from typing import Annotated
from urllib.parse import urlsplit

import typer

from bursar.cli.credentials import URL_VARIABLE, Access, running_here, save
from bursar.cli.problems import Unusable
from bursar.client import Client, Problem
from bursar.client.http import is_here

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def login(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Of the service; if not given, BURSAR_URL, or here."),
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Send the key without TLS to another machine.")
    ] = False,
) -> None:
    """Keep the URL and key of a service for later commands.

    The key is asked for, or read from standard input; it is tried before it is kept.
    """
    where = _checked(url or os.environ.get(URL_VARIABLE) or _here(), plain_http)
    known = Access(where, _key())
    print(f"{_may(known)} at {known.url}; kept in {save(known)}")


def _here() -> str:
    found = running_here()
    if found is None:
        raise Unusable("no service runs here", "Say its URL: `bursar login https://…`.")
    return found.url


def _checked(url: str, plain_http: bool) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise typer.BadParameter(f"{url!r} is no URL: write it as https://bursar.example.com")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise typer.BadParameter("the URL has a host, a port and perhaps a path, nothing else")
    if parts.scheme == "http" and not is_here(url) and not plain_http:
        raise typer.BadParameter(
            f"the key could be read on its way to {parts.hostname}: use https, or say --plain-http"
        )
    return url.rstrip("/")


def _key() -> str:
    """The key: never from the command line, where everybody on the machine can see it."""
    key = (getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not key.startswith("bsr_") or not key.isascii():
        raise Unusable(
            "that is no key: they begin with bsr_",
            "Paste the key when asked, or `bursar login URL < FILE`.",
        )
    return key


def _may(known: Access) -> str:
    """Whose key it is, as far as the service tells."""
    with Client(known.url, known.key) as client:
        try:
            client.get("/v1/orgs", {"limit": 1})
        except Problem as problem:
            if problem.code != "forbidden":
                raise
            return "logged in with a key of an org"
    return "logged in as an operator"
