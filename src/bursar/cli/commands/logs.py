"""`bursar logs`."""

import sys
from functools import partial
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Id, connected
from bursar.cli.output import note
from bursar.client import Client
from bursar.client.event_stream import retry_patiently

app = typer.Typer(add_completion=False, rich_markup_mode=None)

WAIT_MS: Final = 10_000  # that one request waits for more output


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
) -> None:
    """Print the output of all attempts of a job."""
    with connected() as client:
        attempt, after = 0, None
        while True:
            wait_ms = WAIT_MS if follow and after else 0
            ask = partial(_told, client, id, node, after, wait_ms=wait_ms)
            told = retry_patiently(ask) if wait_ms else ask()
            for part in told["data"]:
                if attempt and part["attempt"] != attempt:
                    print(f"--- attempt {part['attempt']} on {part['node']}", file=sys.stderr)
                attempt = part["attempt"]
                sys.stdout.write(part["text"])
            sys.stdout.flush()
            after = told["next"]
            if told["complete"] or not (follow or told["data"]):
                break
    if not attempt:
        note(_nothing(node))


def _nothing(node: str | None) -> str:
    where = "" if node is None else f" on {node}"
    return f"no output{where}; for an array, use the ids of its elements"


def _told(client: Client, id: str, node: str | None, after: str | None, *, wait_ms: int) -> Any:
    params = {"after": after, "node": node, "wait_ms": wait_ms or None}
    return client.get(f"/v1/jobs/{id}/logs", params).body
