"""A job's progress on a terminal: a bar of spent and held credits, and a line for each step."""

import sys
from collections.abc import Mapping
from typing import Any, Final

from bursar.cli.amounts import format_credits
from bursar.cli.output import emphasize, make_printable
from bursar.cli.ranges import format_local

BAR_WIDTH: Final = 24  # width of the bar in characters
_COLOURS: Final[Mapping[str, str]] = {"succeeded": "1;32", "failed": "1;31", "expired": "1;31"}
FINISHED_STATES: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})


def draw_bar(spent: int, held: int) -> str:
    """A bar of the spent part of spent plus held credits."""
    full = BAR_WIDTH * spent // max(spent + held, 1)
    total = format_credits(spent + held)
    return f"[{'█' * full}{'░' * (BAR_WIDTH - full)}] {format_credits(spent)} of {total}"


def format_step(step: Mapping[str, Any]) -> str:
    """Format a step of a job's life as one line."""
    state = emphasize(f"{step['state']:<14}", code=_COLOURS.get(step["state"], "1"))
    parts = [format_local(step["at"]), state, step["why"]]
    if step["attempt"]:
        parts.append(f"attempt {step['attempt']}")
    if step["gpu_type"]:
        parts.append(make_printable(step["gpu_type"]))
    if step["exit_code"] is not None:
        parts.append(f"exit code {step['exit_code']}")
    if step.get("end_class"):
        parts.append(f"ended by: {step['end_class']}")
    if step.get("other_job_id"):
        parts.append(f"job {step['other_job_id']}")
    parts.append(f"spent {format_credits(step['spent_micros'])}")
    return "  ".join(parts)


class ProgressPrinter:
    """Prints a job's steps. On a terminal the bar stays in the last line."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._bar = ""
        self.state = ""
        self.has_run = False

    def print_step(self, step: Mapping[str, Any]) -> None:
        """Print a step."""
        self.state = step["state"]
        self.has_run = self.has_run or bool(step["attempt"])
        self._clear()
        print(format_step(step))
        self.update_bar(step)

    def update_bar(self, figures: Mapping[str, Any]) -> None:
        """Update the bar with the spent and held credits."""
        self._bar = draw_bar(figures["spent_micros"], figures["held_micros"])
        if self._is_terminal and self.state not in FINISHED_STATES:
            print(f"\r{self._bar}\033[K", end="", flush=True)

    def clear(self) -> None:
        """Remove the bar from the terminal."""
        self._clear()

    def _clear(self) -> None:
        if self._is_terminal and self._bar:
            print("\r\033[K", end="", flush=True)
