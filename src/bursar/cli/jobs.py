"""What the commands about jobs have in common: columns, following one to its end."""

from typing import Final

from bursar.cli.following import Following
from bursar.cli.output import Format
from bursar.cli.problems import FAILED_CHECK, OK
from bursar.client import Client
from bursar.client.watching import watched

LISTED: Final = (
    "id",
    "state",
    "why",
    "gpu_type",
    "attempt",
    "spent_micros",
    "held_micros",
    "submitted_at",
    "command",
)
ELEMENTS: Final = (
    "array_index",
    "id",
    "state",
    "why",
    "gpu_type",
    "attempt",
    "exit_code",
    "spent_micros",
    "held_micros",
)
WHOLE: Final = (
    "id",
    "state",
    "why",
    "follows",
    "cached_from",
    "cancelling",
    "account_id",
    "user_id",
    "pool",
    "command",
    "gpus",
    "gpu_type",
    "attempt",
    "priority_class",
    "preemptible",
    "labels",
    "env_names",
    "submitted_at",
    "started_at",
    "ended_at",
    "end_class",
    "exit_code",
    "max_run_seconds",
    "array",
    "array_id",
    "array_index",
    "spent_micros",
    "held_micros",
    "owed_micros",
    "max_cost_micros",
    "hold",
    "hold_expires_at",
    "rates",
)


def followed(client: Client, id: str, form: Format) -> int:
    """Show a job until it is over; the status to exit with: 1 unless it succeeded."""
    shown = Following()
    try:
        for one in watched(client, f"/v1/jobs/{id}/events"):
            if form is not Format.TABLE:
                _print(one.kind, one.body)
                if one.kind == "step":
                    shown.state = one.body["state"]
            elif one.kind == "step":
                shown.step(one.body)
            elif one.kind == "spent":
                shown.spent(one.body)
    finally:
        if form is Format.TABLE:
            shown.end()
    return OK if shown.state == "succeeded" else FAILED_CHECK


def _print(kind: str, body: object) -> None:
    import json

    print(json.dumps({"event": kind, "data": body}, ensure_ascii=False), flush=True)
