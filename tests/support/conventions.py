"""What the name of a field says about its value in the API (docs/api.md, Conventions)."""

from typing import Final

# What an integer can be: an amount, a part, a span or a size, by the end of its name …
_UNITS: Final = (
    *("_micros", "_per_gpu_hour", "_per_hour", "_per_day", "_ppm", "_seconds", "_ms", "_us"),
    *("_milli_gpus", "_milli_gpu_hours", "_mib", "_gib", "_per_second", "_per_minute"),
    *("_ms_total", "_ms_max", "_ms_ago", "_ms_left", "_ms_before", "days", "cpu_milli"),
)
# … or something that is counted or numbered, which has no unit.
_COUNTS: Final = frozenset(
    {
        *("number", "event", "attempt", "attempts", "version", "epoch", "boot", "fence", "offset"),
        *("status", "exit_code", "response_code", "position", "priority", "priority_class"),
        *("count", "at_once", "array_index", "taken", "steps", "slots", "nodes", "gpus", "leases"),
        *("queued", "running", "stopping", "succeeded", "failed", "cancelled", "expired"),
        *("out_of_credits", "not_submitted", "nodes_on_order", "running_jobs", "waiting_jobs"),
        *("more_holders", "thresholds_crossed", "gpu_count", "spare_gpus", "weight", "milli_gpus"),
        *("gpus_max", "gpus_max_by_type", "jobs_max", "jobs_queued_max", "jobs_running_max"),
        *("submissions_per_minute_max", "nodes_max", "drains_max", "preemptions_max", "queue_max"),
        *("reservations", "aged_part", "turn_after"),
        "half_life",  # an exponent: usage counts half after 2 to this many minutes
    }
)


def is_time(name: str) -> bool:
    """Whether a field of this name is a time."""
    return name.endswith("_at") or name in ("at", "from", "to", "as_of")


def has_unit(name: str) -> bool:
    """Whether the name of an integer says its unit, or the integer is a count."""
    return name.endswith(_UNITS) or name.startswith("within_") or name in _COUNTS
