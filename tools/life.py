"""The diagram of a job's life, drawn from the table of its steps: python -m tools.life

`docs/jobs.md` has it between two marks; a test compares. With --write it is put there anew.
"""

import sys
from collections import defaultdict
from pathlib import Path

from bursar.core.dispatch.job_lifecycle import LIVE, OVER, TABLE, State

PAGE = Path(__file__).parent.parent / "docs" / "jobs.md"
BEGIN, END = "<!-- life: begin -->\n", "<!-- life: end -->\n"
ATTEMPT = "attempt"  # stands for all states that have a lease


def diagram() -> str:
    """All states and steps in Mermaid's words; what every live state may do, the attempt does."""
    inside, outside = _edges()
    lines = ["stateDiagram-v2", "    [*] --> queued: submitted", f"    state {ATTEMPT} {{"]
    lines += [f"        {line}" for line in inside]
    lines += ["    }", *(f"    {line}" for line in outside)]
    lines += [f"    {state} --> [*]" for state in sorted(OVER)]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def _edges() -> tuple[list[str], list[str]]:
    """The steps from one live state to another, and all others."""
    whys: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (state, why), to in TABLE.items():
        common = all(TABLE.get((live, why)) is to for live in LIVE)
        source = ATTEMPT if state in LIVE and common else state.value
        if why not in whys[source, to.value]:
            whys[source, to.value].append(why)
    inside: list[str] = []
    outside: list[str] = []
    for (left, reached), found in sorted(whys.items(), key=_by_state):
        line = f"{left} --> {reached}: {', '.join(found)}"
        (inside if {left, reached} <= LIVE else outside).append(line)
    return inside, outside


def _by_state(edge: tuple[tuple[str, str], list[str]]) -> tuple[int, int]:
    order = [state.value for state in State]
    source, to = edge[0]
    return order.index("starting" if source == ATTEMPT else source), order.index(to)


def page_with(text: str) -> str:
    """The page with the diagram as it is now."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + diagram() + END + rest.partition(END)[2]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(diagram())
