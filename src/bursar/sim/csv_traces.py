"""Recorded demand: jobs from the rows of a table, whatever its columns are called.

A map says which column has what: `org=vc,gpus=num_gpus,arrives=submit_time,runs=duration`. What is
a number is in seconds; instants may be dates, too. Instants are moved so that the first job comes
when the world begins.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.value import altered, value
from bursar.sim.loads import T0
from bursar.sim.work import Work, gang

NEEDED: Final = ("arrives", "runs", "gpus")
COLUMNS: Final = (*NEEDED, "id", "org", "tier", "user", "limit", "estimate", "class")


class TraceWrong(ValueError):
    """A row, or the map, makes no job."""


@value
class Reading:
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
            raise TraceWrong(f"no such part: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        if missing := [what for what in NEEDED if what not in names]:
            raise TraceWrong(f"the map names no column for {', '.join(missing)}")


def columns_of(text: str) -> tuple[tuple[str, str], ...]:
    """A map as it is written: `what=column,what=column`; what is not named has its own name."""
    found = {what: what for what in NEEDED}
    for part in filter(None, text.split(",")):
        what, sign, column = part.partition("=")
        if not sign or not column.strip():
            raise TraceWrong(f"{part!r} is not what=column")
        found[what.strip()] = column.strip()
    return tuple(sorted(found.items()))


def works_from(rows: Iterable[Mapping[str, str]], reading: Reading) -> tuple[Work, ...]:
    """All jobs of a table, by arrival; rows without GPUs or run time are no jobs."""
    columns = dict(reading.columns)
    found: list[Work] = []
    for number, row in enumerate(rows, start=1):
        try:
            work = _work(number, {what: row[column] for what, column in columns.items()}, reading)
        except KeyError as error:
            raise TraceWrong(f"row {number} has no column {error}") from error
        except ValueError as error:
            raise TraceWrong(f"row {number}: {error}") from error
        if work is not None:
            found.append(work)
    if not found:
        raise TraceWrong("there is no job in it")
    first = min(work.arrives_at for work in found)
    moved = (altered(work, arrives_at=T0 + work.arrives_at - first) for work in found)
    return tuple(sorted(moved, key=lambda work: (work.arrives_at, work.id)))


def _work(number: int, row: Mapping[str, str], reading: Reading) -> Work | None:
    gpus, runs = int(float(row["gpus"])), _seconds(row["runs"])
    if gpus < 1 or runs < 1:
        return None
    limit = _seconds(row["limit"]) if row.get("limit") else int(runs * reading.slack)
    tier, org, user = row.get("tier") or reading.tier, row.get("org") or "org", row.get("user")
    return Work(
        id=JobId(row.get("id") or f"row-{number:07}"),
        arrives_at=_instant(row["arrives"]),
        shape=gang(reading.types, gpus, reading.node_gpus),
        path=(tier, org, "jobs", user or "user"),
        runs=runs,
        run_max=max(limit, 1),
        estimate=max(_seconds(row["estimate"]), 1) if row.get("estimate") else None,
        priority_class=int(row.get("class") or 0),
        checkpoint_every=reading.checkpoint_every,
    )


def _seconds(text: str) -> int:
    return round(float(text) * SECOND)


def _instant(text: str) -> int:
    try:
        return _seconds(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * SECOND)
