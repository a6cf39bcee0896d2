"""Recorded demand: jobs from the rows of a table, whatever its columns are called.

A map says which column has what: `org=vc,gpus=num_gpus,arrives=submit_time,runs=duration`. What is
a number is in seconds; instants may be dates, too. Instants are moved so that the first job comes
when the world begins. A limit of nothing, or of less, is none.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.value import replace, value
from bursar.sim.loads import T0
from bursar.sim.work import Work, gang, size_of

T = TypeVar("T")
NEEDED: Final = ("arrives", "runs", "gpus")
COLUMNS: Final = (*NEEDED, "id", "org", "tier", "user", "type", "limit", "estimate", "class")
# What is wrong with a cell that cannot be read.
MEANT: Final = {
    "arrives": "neither seconds nor a date such as 2026-11-16 10:30:00",
    "gpus": "no number of GPUs: a whole one, or a part such as 0.5",
    "class": "no whole number",
    "runs": "no number of seconds",
    "limit": "no number of seconds",
    "estimate": "no number of seconds",
}


class TraceError(ValueError):
    """A row, or the map, makes no job."""


@value
class TraceReader:
    """How rows become jobs."""

    columns: tuple[tuple[str, str], ...]  # what → the column that has it
    tier: str = "paid"  # of rows that do not say
    slack: float = 2.0  # the bound of a job that names none, by its run
    types: tuple[str, ...]
    node_gpus: int
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        names = [what for what, _ in self.columns]
        unknown = sorted(set(names) - set(COLUMNS))
        if unknown:
            raise TraceError(f"no such part: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        if missing := [what for what in NEEDED if what not in names]:
            raise TraceError(f"the map names no column for {', '.join(missing)}")


def columns_of(text: str) -> tuple[tuple[str, str], ...]:
    """A map as it is written: `what=column,what=column`; what is not named has its own name."""
    columns = {what: what for what in NEEDED}
    for part in filter(None, text.split(",")):
        what, sign, column = part.partition("=")
        if not sign or not column.strip():
            raise TraceError(f"{part!r} is not what=column")
        columns[what.strip()] = column.strip()
    return tuple(sorted(columns.items()))


def works_from(rows: Iterable[Mapping[str, str]], reading: TraceReader) -> tuple[Work, ...]:
    """All jobs of a table, by arrival; rows without GPUs or run time are no jobs."""
    works: list[tuple[int, Work]] = []
    for number, row in enumerate(rows, start=1):
        try:
            cells = _cells(row, reading)
            if _is_job(cells):
                works.append((_read(cells, "arrives", _instant), _work(number, cells, reading)))
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"row {number}: {error}") from error
    if not works:
        raise TraceError("there is no job in it")
    first = min(at for at, _ in works)
    moved = (replace(work, arrives_at=T0 + at - first) for at, work in works)
    return tuple(sorted(moved, key=lambda work: (work.arrives_at, work.id)))


def _cells(row: Mapping[str, str | None], reading: TraceReader) -> dict[str, str]:
    """What a row says, by what it is."""
    cells = {}
    for what, column in reading.columns:
        if column not in row:
            there = ", ".join(str(name) for name in row)
            raise ValueError(f"there is no column {column!r} for {what}; there are {there}")
        text = row[column]
        if text is None:
            raise ValueError(f"it ends before {column!r}")
        cells[what] = text.strip()
    return cells


def _is_job(cells: Mapping[str, str]) -> bool:
    """Whether a row has GPUs and run time."""
    return all(cells[what] and _read(cells, what, float) > 0 for what in ("gpus", "runs"))


def _work(number: int, cells: Mapping[str, str], reading: TraceReader) -> Work:
    """The job of a row, as if it came at the beginning."""
    runs = max(_read(cells, "runs", _seconds), 1)
    limit = _read(cells, "limit", _seconds) if cells.get("limit") else 0
    types = (cells["type"],) if cells.get("type") else reading.types
    tier, org = cells.get("tier") or reading.tier, cells.get("org") or "org"
    return Work(
        id=JobId(cells.get("id") or f"row-{number:07}"),
        arrives_at=T0,
        shape=gang(types, _read(cells, "gpus", size_of), reading.node_gpus),
        path=(tier, org, "jobs", cells.get("user") or "user"),
        runs=runs,
        run_max=limit if limit > 0 else int(runs * reading.slack),
        estimate=max(_read(cells, "estimate", _seconds), 1) if cells.get("estimate") else None,
        priority_class=_read(cells, "class", int) if cells.get("class") else 0,
        checkpoint_every=reading.checkpoint_every,
    )


def _read(cells: Mapping[str, str], what: str, read: Callable[[str], T]) -> T:
    try:
        return read(cells[what])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{what} is {cells[what]!r}, {MEANT[what]}") from error


def _seconds(text: str) -> int:
    return round(float(text) * SECOND)


def _instant(text: str) -> int:
    try:
        return _seconds(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * SECOND)
