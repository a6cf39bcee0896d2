"""`bursar logs`."""

import sys
from typing import Annotated, Any, Final

import typer

from bursar.cli.calling import Id, connected
from bursar.client import Client

app = typer.Typer(add_completion=False, rich_markup_mode=None)

WAIT_MS: Final = 10_000  # that one question may wait for more


@app.command()
def logs(
    id: Id,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job is over.")
    ] = False,
    node: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Of a gang, this node; else the one that leads."),
    ] = None,
) -> None:
    """What a job has printed, in all its attempts."""
    with connected() as client:
        attempt, after = 0, None
        while True:
            told = _told(client, id, node, after, wait_ms=WAIT_MS if follow and after else 0)
            for part in told["data"]:
                if attempt and part["attempt"] != attempt:
                    print(f"--- attempt {part['attempt']} on {part['node']}", file=sys.stderr)
                attempt = part["attempt"]
                sys.stdout.write(part["text"])
            sys.stdout.flush()
            after = told["next"]
            if told["over"] or not (follow or told["data"]):
                return


def _told(client: Client, id: str, node: str | None, after: str | None, *, wait_ms: int) -> Any:
    params = {"after": after, "node": node, "wait_ms": wait_ms or None}
    return client.get(f"/v1/jobs/{id}/logs", params).body
