"""Recorded loads: reads jobs from a table with any column names.

A map names the columns, and the units of times:
`org=vc,gpus=num_gpus,arrives=submit_time:us,runs=duration`. Times without a unit are in seconds;
instants may also be dates. Instants are shifted so that the first job arrives when the world
begins. A limit of 0 or less means no limit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

from bursar.core.ids import JobId
from bursar.core.instant import DAY, SECOND
from bursar.core.value import replace, value
from bursar.sim.loads import T0
from bursar.sim.work import Work, gang, size_of

T = TypeVar("T")
NEEDED: Final = ("arrives", "runs", "gpus")
TIMES: Final = ("arrives", "runs", "limit", "estimate", "checkpoint_every", "checkpoint_cost")
COLUMNS: Final = (
    *NEEDED, "id", "org", "tier", "user", "type", "limit", "estimate", "class",
    "checkpoint_every", "checkpoint_cost",
)  # fmt: skip
UNITS: Final = {  # of times: name and microseconds
    "ns": ("nanoseconds", 0.001),
    "us": ("microseconds", 1),
    "ms": ("milliseconds", 1_000),
    "s": ("seconds", SECOND),
    "min": ("minutes", 60 * SECOND),
    "h": ("hours", 3_600 * SECOND),
}
SPAN_MAX: Final = 366 * DAY  # of arrivals without a unit; more is a unit that was not named
# What is wrong with a cell that cannot be read.
MEANT: Final = {
    "arrives": "neither {unit} nor a date such as 2026-11-16 10:30:00",
    "gpus": "no number of GPUs: a whole one, or a part such as 0.5",
    "class": "no whole number",
}


class TraceError(ValueError):
    """A row, or the map, is invalid."""


@value
class TraceColumn:
    """The column of a table that has a field of a job."""

    what: str  # one of COLUMNS
    name: str
    unit: str | None = None  # one of UNITS; None if the map names none: seconds


@value
class TraceReader:
    """How rows become jobs."""

    columns: tuple[TraceColumn, ...]
    tier: str = "paid"  # of rows that do not say
    slack: float = 2.0  # the bound of a job that names none, by its run
    types: tuple[str, ...]
    node_gpus: int
    checkpoint_every: int = 0  # microseconds, of rows that do not say; 0: they make none
    checkpoint_cost: int = 0

    def __post_init__(self) -> None:
        names = [column.what for column in self.columns]
        unknown = sorted(set(names) - set(COLUMNS))
        if unknown:
            raise TraceError(f"unknown field: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        if missing := [what for what in NEEDED if what not in names]:
            raise TraceError(f"the map has no column for {', '.join(missing)}")


@value
class RecordedLoad:
    """The jobs of a table, and what the table does not specify."""

    works: tuple[Work, ...]  # by arrival
    rows_left_out: int  # without GPUs or run time
    limits_assumed: int  # jobs whose row has no limit
    slack: float  # the bound of these, by their run

    @property
    def span(self) -> int:
        """Microseconds from the first arrival to the last."""
        return self.works[-1].arrives_at - self.works[0].arrives_at

    def figures(self) -> dict[str, float | int]:
        """The properties and assumptions of the load, for the report."""
        return {
            "jobs": len(self.works),
            "rows_left_out": self.rows_left_out,
            "span_s": self.span / SECOND,
            "limits_assumed": self.limits_assumed,
            "limit_by_run": self.slack,
            "with_checkpoints": sum(work.checkpoint_every > 0 for work in self.works),
        }


def columns_of(text: str) -> tuple[TraceColumn, ...]:
    """Parse a map: `field=column,field=column:unit`. By default a column has the field's name."""
    columns = {what: TraceColumn(what=what, name=what) for what in NEEDED}
    for part in filter(None, text.split(",")):
        what, sign, column = (word.strip() for word in part.partition("="))
        if not sign or not column:
            raise TraceError(f"{part!r} is not FIELD=COLUMN")
        name, _, unit = column.rpartition(":")
        if name and what in TIMES and unit in UNITS:
            columns[what] = TraceColumn(what=what, name=name, unit=unit)
        else:
            columns[what] = TraceColumn(what=what, name=column)
    return tuple(columns[what] for what in sorted(columns))


def without_comments(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a table, without those that begin with `#`."""
    return (line for line in lines if not line.startswith("#"))


def load_from(rows: Iterable[Mapping[str, str]], reading: TraceReader) -> RecordedLoad:
    """All jobs of a table; rows without GPUs or run time are skipped."""
    works: list[tuple[int, Work]] = []
    left_out = limits_assumed = 0
    for number, row in enumerate(rows, start=1):
        try:
            cells = _RowCells(row, reading)
            if not cells.is_job:
                left_out += 1
                continue
            works.append((cells.read("arrives", cells.instant), _work(number, cells, reading)))
            limits_assumed += cells.limit <= 0
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"row {number}: {error}") from error
    if not works:
        raise TraceError("it contains no jobs")
    first, last = min(at for at, _ in works), max(at for at, _ in works)
    _check_span(last - first, reading)
    moved = (replace(work, arrives_at=T0 + at - first) for at, work in works)
    return RecordedLoad(
        works=tuple(sorted(moved, key=lambda work: (work.arrives_at, work.id))),
        rows_left_out=left_out,
        limits_assumed=limits_assumed,
        slack=reading.slack,
    )


def _check_span(span: int, reading: TraceReader) -> None:
    """Refuse arrivals that are years apart, unless the map names their unit."""
    column = next(column for column in reading.columns if column.what == "arrives")
    if column.unit is None and span > SPAN_MAX:
        raise TraceError(
            f"the jobs arrive over {span / (365 * DAY):,.1f} years if {column.name!r} is in"
            f" seconds; name its unit, such as arrives={column.name}:us ({', '.join(UNITS)})"
        )


class _RowCells:
    """The cells of a row, by field."""

    def __init__(self, row: Mapping[str, str | None], reading: TraceReader) -> None:
        self._cells: dict[str, str] = {}
        self._units: dict[str, str] = {}
        for column in reading.columns:
            if column.name not in row:
                there = ", ".join(str(name) for name in row)
                raise ValueError(
                    f"there is no column {column.name!r} for {column.what}; there are {there}"
                )
            text = row[column.name]
            if text is None:
                raise ValueError(f"it ends before {column.name!r}")
            self._cells[column.what] = text.strip()
            self._units[column.what] = column.unit or "s"

    def get(self, what: str) -> str:
        """The text of a cell; empty if there is no such column."""
        return self._cells.get(what, "")

    def read(self, what: str, read: Callable[[str], T]) -> T:
        """Parse a cell; an error states what it should be."""
        text = self._cells[what]
        try:
            return read(text)
        except (ValueError, OverflowError) as error:
            unit, _ = UNITS[self._units[what]]
            meant = MEANT.get(what, "no number of {unit}").format(unit=unit)
            raise ValueError(f"{what} is {text!r}, {meant}") from error

    def span(self, what: str, default: int = 0) -> int:
        """A time in microseconds; the default if the cell is empty."""
        if not self.get(what):
            return default
        return self.read(what, lambda text: self._scale(what, text))

    def instant(self, text: str) -> int:
        """The time of arrival in microseconds, from a number or a date."""
        try:
            return self._scale("arrives", text)
        except ValueError:
            at = datetime.fromisoformat(text)
            return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * SECOND)

    def _scale(self, what: str, text: str) -> int:
        _, microseconds = UNITS[self._units[what]]
        return round(float(text) * microseconds)

    @property
    def is_job(self) -> bool:
        """Whether the row has GPUs and run time."""
        return all(self.get(what) and self.read(what, float) > 0 for what in ("gpus", "runs"))

    @property
    def limit(self) -> int:
        """The limit of the job in microseconds; 0 or less if the row has none."""
        return self.span("limit")


def _work(number: int, cells: _RowCells, reading: TraceReader) -> Work:
    """The job of a row, as if it arrived at the beginning."""
    runs = max(cells.span("runs"), 1)
    types = (cells.get("type"),) if cells.get("type") else reading.types
    tier, org = cells.get("tier") or reading.tier, cells.get("org") or "org"
    return Work(
        id=JobId(cells.get("id") or f"row-{number:07}"),
        arrives_at=T0,
        shape=gang(types, cells.read("gpus", size_of), reading.node_gpus),
        path=(tier, org, "jobs", cells.get("user") or "user"),
        runs=runs,
        run_max=cells.limit if cells.limit > 0 else int(runs * reading.slack),
        estimate=max(cells.span("estimate"), 1) if cells.get("estimate") else None,
        priority_class=cells.read("class", int) if cells.get("class") else 0,
        checkpoint_every=max(cells.span("checkpoint_every", reading.checkpoint_every), 0),
        checkpoint_cost=max(cells.span("checkpoint_cost", reading.checkpoint_cost), 0),
    )
