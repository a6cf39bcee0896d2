"""`bursar logs`."""

import sys
from functools import partial
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Id, connect
from bursar.cli.output import clean_for_terminal, print_note
from bursar.client import Client
from bursar.client.event_stream import retry_patiently

app = typer.Typer(add_completion=False, rich_markup_mode=None)

LONG_POLL_MS: Final = 10_000  # that one request waits for more output


@app.command()
def logs(
    id: Id,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the job finishes.")
    ] = False,
    node: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Node of a multi-node job. Default: its first node."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print escape sequences of the job on a terminal, too.")
    ] = False,
) -> None:
    """Print the output of all attempts of a job. Of a finished job, wait for the last lines.

    On a terminal, colours and other escape sequences of the job are left out."""
    clean = clean_for_terminal if sys.stdout.isatty() and not raw else str
    with connect() as client:
        attempt, after, waits = 0, None, False
        while True:
            wait_ms = LONG_POLL_MS if waits else 0
            load = partial(_load_page, client, id, node, after, wait_ms=wait_ms)
            page = retry_patiently(load) if wait_ms else load()
            for part in page["items"]:
                if attempt and part["attempt"] != attempt:
                    print(f"--- attempt {part['attempt']} on {part['node']}", file=sys.stderr)
                attempt = part["attempt"]
                sys.stdout.write(clean(part["text"]))
            sys.stdout.flush()
            after = page["next"]
            waits = follow or page["finished"]
            if page["complete"] or not (waits or page["items"]):
                break
        if not attempt:
            print_note(_describe_no_output(client.get(f"/v1/jobs/{id}").body, node))


def _describe_no_output(job: Any, node: str | None) -> str:
    """Why a log is empty, as far as the job says so."""
    if job["array"] is not None:
        return "no output: the job is an array; use the ids of its elements"
    if job["cached_from"] is not None:
        return f"no output: the job got the result of job {job['cached_from']}; see its log"
    return "no output" if node is None else f"no output on {node}"


def _load_page(
    client: Client, id: str, node: str | None, after: str | None, *, wait_ms: int
) -> Any:
    params = {"after": after, "node": node, "wait_ms": wait_ms or None}
    return client.get(f"/v1/jobs/{id}/logs", params).body
