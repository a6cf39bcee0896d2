"""Shared by the job commands: columns, formatting, and following a job until it finishes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bursar.cli.amounts import format_credits
from bursar.cli.job_progress import ProgressPrinter
from bursar.cli.output import (
    NO_VALUE,
    Format,
    column_label,
    format_value,
    make_printable,
    print_note,
    render_card,
    value_at,
)
from bursar.cli.problems import FAILED_CHECK, OK
from bursar.client import Client
from bursar.client.event_stream import follow

LIST_COLUMNS: Final = (
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
ELEMENT_COLUMNS: Final = (
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
JOB_COLUMNS: Final = (
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
_LABELS: Final = {"array_id": "element of", "env_names": "variables", "rates": "per GPU-hour"}


def make_renderer(columns: Sequence[str]) -> Callable[[Any], str]:
    """A renderer for jobs that leaves out empty columns."""

    def render(job: Mapping[str, Any]) -> str:
        parts = (
            (_LABELS.get(path, column_label(path)), _format_field(path, value_at(job, path)))
            for path in columns
        )
        return render_card([(name, text) for name, text in parts if text != NO_VALUE])

    return render


def _format_field(path: str, value: Any) -> str:
    match path, value:
        case "gpus", {}:
            return format_gpus(value)
        case "labels", {}:
            return (
                make_printable(", ".join(f"{name}={text}" for name, text in value.items()))
                or NO_VALUE
            )
        case "rates", [*rates]:
            priced = (
                f"{rate['gpu_type']} {format_credits(rate['micros_per_gpu_hour'])}"
                for rate in rates
            )
            return make_printable(", ".join(priced)) or NO_VALUE
        case ("cancelling", False) | ("owed_micros", 0):
            return NO_VALUE  # the usual value
    return format_value(path, value)


def format_gpus(gpus: Mapping[str, Any], types: Sequence[str] = ()) -> str:
    """Describe a GPU request: 16 × H100 on 2 nodes within one rack."""
    milli = gpus.get("fraction_milli")
    count = gpus.get("count", 1) if milli is None else f"{milli / 1_000:g}"
    parts = [f"{count} × {' or '.join(types or gpus['types'])}"]
    if memory_gib := gpus.get("memory_gib_min"):
        parts.append(f"with {memory_gib} GiB each")
    topology = gpus.get("topology") or {}
    if (nodes := topology.get("nodes") or 1) > 1:
        parts.append(f"on {nodes} nodes")
    if (within := topology.get("within") or "pool") != "pool":
        parts.append(f"within one {within}")
    return make_printable(" ".join(parts))


def follow_job(client: Client, id: str, format: Format) -> int:
    """Print a job's progress until it finishes; the exit status is 1 unless it succeeded."""
    printer = ProgressPrinter()
    try:
        for event in follow(client, f"/v1/jobs/{id}/events"):
            if format is not Format.TABLE:
                _print_json(event.kind, event.body)
                if event.kind == "step":
                    printer.state = event.body["state"]
            elif event.kind == "step":
                printer.print_step(event.body)
            elif event.kind == "spent":
                printer.update_bar(event.body)
    except KeyboardInterrupt:
        if format is Format.TABLE:
            printer.clear()
            print_note(
                f"the job continues; follow it: bursar watch {id}; cancel it: bursar cancel {id}"
            )
        raise
    finally:
        if format is Format.TABLE:
            printer.clear()
    if format is Format.TABLE and printer.has_run:
        print_note(f"to see its output: bursar logs {id}")
    return OK if printer.state == "succeeded" else FAILED_CHECK


def _print_json(kind: str, body: object) -> None:
    import json

    print(json.dumps({"event": kind, "data": body}, ensure_ascii=False), flush=True)
