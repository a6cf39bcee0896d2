"""`bursar login`."""

import getpass
import os
import sys
from typing import Annotated
from urllib.parse import urlsplit

import typer

from bursar.cli.credentials import URL_VARIABLE, Access, find_local_service, save_profile
from bursar.cli.problems import LocalProblem
from bursar.client import Client, Problem
from bursar.client.http import is_local

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def login(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="URL of the service. Default: BURSAR_URL, or the local one."
        ),
    ] = None,
    plain_http: Annotated[
        bool,
        typer.Option("--plain-http", help="Allow sending the key to another machine without TLS."),
    ] = False,
) -> None:
    """Save the URL and key of a service for later commands.

    Prompts for the key, or reads it from standard input, and verifies it before saving.
    """
    checked_url = _check_url(url or os.environ.get(URL_VARIABLE) or _find_local_url(), plain_http)
    access = Access(checked_url, _read_key())
    print(f"{_verify_key(access)} at {access.url}; saved in {save_profile(access)}")


def _find_local_url() -> str:
    service = find_local_service()
    if service is None:
        raise LocalProblem(
            "no service runs on this machine", "Give its URL: `bursar login https://…`."
        )
    return service.url


def _check_url(url: str, plain_http: bool) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise typer.BadParameter(f"{url!r} is not a URL: write https://bursar.example.com")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise typer.BadParameter("the URL may contain a host, a port and a path only")
    if parts.scheme == "http" and not is_local(url) and not plain_http:
        raise typer.BadParameter(
            f"the key would be sent to {parts.hostname} without TLS: use https, or add --plain-http"
        )
    return url.rstrip("/")


def _read_key() -> str:
    """Read the key; never from the command line, which other users of the machine can see."""
    key = (getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not key.startswith("bsr_") or not key.isascii():
        raise LocalProblem(
            "this is not a key: keys begin with bsr_",
            "Paste the key at the prompt, or run `bursar login URL < FILE`.",
        )
    return key


def _verify_key(access: Access) -> str:
    """Verify the key and describe it."""
    with Client(access.url, access.key) as client:
        try:
            client.get("/v1/orgs", {"limit": 1})
        except Problem as problem:
            if problem.code != "forbidden":
                raise
            return "logged in with a key of an org"
    return "logged in as an operator"
