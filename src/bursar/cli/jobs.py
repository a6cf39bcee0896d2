"""Shared by the job commands: columns, formatting, and following a job until it finishes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bursar.cli.amounts import told
from bursar.cli.job_progress import Following
from bursar.cli.output import NOTHING, Format, at, card, cell, label, note, printable
from bursar.cli.problems import FAILED_CHECK, OK
from bursar.client import Client
from bursar.client.event_stream import follow

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
_CALLED: Final = {"array_id": "element of", "env_names": "variables", "rates": "per GPU-hour"}


def shown_with(columns: Sequence[str]) -> Callable[[Any], str]:
    """A renderer for jobs that leaves out empty columns."""

    def lines(job: Mapping[str, Any]) -> str:
        parts = ((_CALLED.get(path, label(path)), _cell(path, at(job, path))) for path in columns)
        return card([(name, text) for name, text in parts if text != NOTHING])

    return lines


def _cell(path: str, value: Any) -> str:
    match path, value:
        case "gpus", {}:
            return gpus_told(value)
        case "labels", {}:
            return printable(", ".join(f"{name}={text}" for name, text in value.items())) or NOTHING
        case "rates", [*rates]:
            priced = (f"{one['gpu_type']} {told(one['micros_per_gpu_hour'])}" for one in rates)
            return printable(", ".join(priced)) or NOTHING
        case ("cancelling", False) | ("owed_micros", 0):
            return NOTHING  # the usual value
    return cell(path, value)


def gpus_told(gpus: Mapping[str, Any], types: Sequence[str] = ()) -> str:
    """Describe a GPU request: 16 × H100 on 2 nodes within one rack."""
    milli = gpus.get("fraction_milli")
    count = gpus.get("count", 1) if milli is None else f"{milli / 1_000:g}"
    parts = [f"{count} × {' or '.join(types or gpus['types'])}"]
    if least := gpus.get("memory_gib_min"):
        parts.append(f"with {least} GiB each")
    topology = gpus.get("topology") or {}
    if (nodes := topology.get("nodes") or 1) > 1:
        parts.append(f"on {nodes} nodes")
    if (within := topology.get("within") or "pool") != "pool":
        parts.append(f"within one {within}")
    return printable(" ".join(parts))


def followed(client: Client, id: str, form: Format) -> int:
    """Print a job's progress until it finishes; the exit status is 1 unless it succeeded."""
    shown = Following()
    try:
        for one in follow(client, f"/v1/jobs/{id}/events"):
            if form is not Format.TABLE:
                _print(one.kind, one.body)
                if one.kind == "step":
                    shown.state = one.body["state"]
            elif one.kind == "step":
                shown.step(one.body)
            elif one.kind == "spent":
                shown.spent(one.body)
    except KeyboardInterrupt:
        if form is Format.TABLE:
            shown.end()
            note(f"the job continues; follow it: bursar watch {id}; cancel it: bursar cancel {id}")
        raise
    finally:
        if form is Format.TABLE:
            shown.end()
    if form is Format.TABLE and shown.has_run:
        note(f"to see its output: bursar logs {id}")
    return OK if shown.state == "succeeded" else FAILED_CHECK


def _print(kind: str, body: object) -> None:
    import json

    print(json.dumps({"event": kind, "data": body}, ensure_ascii=False), flush=True)
