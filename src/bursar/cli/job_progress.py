"""A job's progress on a terminal: a bar of spent and held credits, and a line for each step."""

import sys
from collections.abc import Mapping
from typing import Any, Final

from bursar.cli.amounts import told
from bursar.cli.output import emphasized, printable
from bursar.cli.ranges import local_text

WIDE: Final = 24  # width of the bar in characters
_COLOURS: Final[Mapping[str, str]] = {"succeeded": "1;32", "failed": "1;31", "expired": "1;31"}
OVER: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})


def bar(spent: int, held: int) -> str:
    """A bar of the spent part of spent plus held credits."""
    full = WIDE * spent // max(spent + held, 1)
    return f"[{'█' * full}{'░' * (WIDE - full)}] {told(spent)} of {told(spent + held)}"


def step_told(step: Mapping[str, Any]) -> str:
    """Format a step of a job's life as one line."""
    state = emphasized(f"{step['state']:<14}", code=_COLOURS.get(step["state"], "1"))
    parts = [local_text(step["at"]), state, step["why"]]
    if step["attempt"]:
        parts.append(f"attempt {step['attempt']}")
    if step["gpu_type"]:
        parts.append(printable(step["gpu_type"]))
    if step["exit_code"] is not None:
        parts.append(f"exit code {step['exit_code']}")
    if step.get("end_class"):
        parts.append(f"ended by: {step['end_class']}")
    if step.get("other_job_id"):
        parts.append(f"job {step['other_job_id']}")
    parts.append(f"spent {told(step['spent_micros'])}")
    return "  ".join(parts)


class Following:
    """Prints a job's steps. On a terminal the bar stays in the last line."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._bar = ""
        self.state = ""
        self.has_run = False

    def step(self, step: Mapping[str, Any]) -> None:
        """Print a step."""
        self.state = step["state"]
        self.has_run = self.has_run or bool(step["attempt"])
        self._clear()
        print(step_told(step))
        self.spent(step)

    def spent(self, figures: Mapping[str, Any]) -> None:
        """Update the bar with the spent and held credits."""
        self._bar = bar(figures["spent_micros"], figures["held_micros"])
        if self._live and self.state not in OVER:
            print(f"\r{self._bar}\033[K", end="", flush=True)

    def end(self) -> None:
        """Remove the bar from the terminal."""
        self._clear()

    def _clear(self) -> None:
        if self._live and self._bar:
            print("\r\033[K", end="", flush=True)
