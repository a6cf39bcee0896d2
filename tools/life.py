"""Draws the state diagram of a job from the table of its transitions: python -m tools.life

`docs/jobs.md` contains the diagram between two marks, and a test compares it. --write updates it.
"""

import sys
from collections import defaultdict
from pathlib import Path

from bursar.core.dispatch.job_lifecycle import FINISHED, LIVE, TRANSITIONS, JobState

PAGE = Path(__file__).parent.parent / "docs" / "jobs.md"
BEGIN, END = "<!-- life: begin -->\n", "<!-- life: end -->\n"
ATTEMPT = "attempt"  # stands for all states that have a lease


def draw_diagram() -> str:
    """The diagram in Mermaid. A transition of all live states starts at the group `attempt`."""
    inside, outside = _collect_edges()
    lines = ["stateDiagram-v2", "    [*] --> queued: submitted", f"    state {ATTEMPT} {{"]
    lines += [f"        {line}" for line in inside]
    lines += ["    }", *(f"    {line}" for line in outside)]
    lines += [f"    {state} --> [*]" for state in sorted(FINISHED)]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def _collect_edges() -> tuple[list[str], list[str]]:
    """The transitions between two live states, and all others."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (state, reason), to in TRANSITIONS.items():
        is_common = all(TRANSITIONS.get((live, reason)) is to for live in LIVE)
        source = ATTEMPT if state in LIVE and is_common else state.value
        if reason not in reasons[source, to.value]:
            reasons[source, to.value].append(reason)
    inside: list[str] = []
    outside: list[str] = []
    for (source, target), names in sorted(reasons.items(), key=_state_order):
        line = f"{source} --> {target}: {', '.join(names)}"
        (inside if {source, target} <= LIVE else outside).append(line)
    return inside, outside


def _state_order(edge: tuple[tuple[str, str], list[str]]) -> tuple[int, int]:
    order = [state.value for state in JobState]
    source, to = edge[0]
    return order.index("starting" if source == ATTEMPT else source), order.index(to)


def insert_diagram(text: str) -> str:
    """The text of the page with the current diagram."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + draw_diagram() + END + rest.partition(END)[2]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(insert_diagram(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(draw_diagram())
