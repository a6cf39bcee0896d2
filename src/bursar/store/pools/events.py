"""Rows of a pool's audit stream: the inputs and decisions of its leaders (S14).

The text of an event is canonical, so that replayed decisions can be compared byte for byte. Each
event has a digest of its own text and of the digest before it. So an event that is changed, removed
or inserted contradicts all later ones.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple, get_args

import msgspec

import bursar.core
from bursar.core.dispatch.state import AuditEvent
from bursar.core.ids import PoolId
from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Decision
from bursar.core.scheduling.model.jobs import Path
from bursar.core.scheduling.model.recording import Input, RecordedStep
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.value import replace, value
from bursar.store.sql.arrays import Values
from bursar.store.sql.codec import text_of, value_of
from bursar.store.sql.connection import Connection

ADD: Final = """
    insert into pool_events (pool_id, n, at, written_at, epoch, kind, body, digest)
    select u.pool_id, u.n, u.at, u.written_at, u.epoch, u.kind, u.body::json, u.digest
      from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[],
                  %s::text[], %s::text[])
           as u(pool_id, n, at, written_at, epoch, kind, body, digest)
"""
EVENTS: Final = """
    select n, at, written_at, epoch, kind, body::text, digest
      from pool_events
     where pool_id = %s and n > %s
     order by n
     limit %s
"""
WINDOW: Final = """
    -- Where the window of an event begins.
    select n from pool_events
     where pool_id = %s and n <= %s and kind = 'snapshot'
     order by n desc
     limit 1
"""
TRIM: Final = "delete from pool_events where pool_id = %s and n < %s"
TRIMMED: Final = "update pools set trimmed = greatest(trimmed, %s) where pool_id = %s"
OLD: Final = """
    -- The last window that has ended before an instant: the next one had begun by then.
    select n from pool_events
     where pool_id = %s and kind = 'snapshot' and at <= %s
     order by n desc
     limit 1
"""
STREAM: Final = "select audit_events, digest, trimmed from pools where pool_id = %s"

_INPUTS: Final[Mapping[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Input)}
_DECISIONS: Final[Mapping[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Decision)}


class StoredEvent(NamedTuple):
    """An event as stored."""

    n: int
    at: Instant
    written_at: Instant
    epoch: int
    kind: str  # snapshot, part (of one) or round
    body: str
    digest: str


class End(NamedTuple):
    """Where a stream ends."""

    n: int
    digest: str


class Stream(NamedTuple):
    """Where a pool's stream ends, and how many events were taken away from its beginning."""

    end: End
    trimmed: int


@value
class Began:
    """The snapshot at the beginning of a window, or a part of it, as stored."""

    rules: str  # which rules decide: `rules_text`
    part: int
    parts: int
    snapshot: PoolSnapshot
    usage: tuple[tuple[Path, str], ...]  # of the snapshot: numbers beyond 64 bits, as text

    @property
    def whole(self) -> PoolSnapshot:
        """The snapshot, or the part of it, with its numbers restored."""
        usage = tuple((path, int(base)) for path, base in self.usage)
        return replace(self.snapshot, usage=usage)


@value
class _Round:
    """A step as stored."""

    inputs: tuple[msgspec.Raw, ...]
    decisions: msgspec.Raw
    denied: tuple[str, ...]


@cache
def rules_text() -> str:
    """Identifies the version of the rules; it differs if any line of the core does."""
    digest = sha256()
    for name, text in sorted(_sources(files(bursar.core), "")):
        digest.update(f"{name}\n{text}\n".encode())
    return digest.hexdigest()[:16]


def _sources(folder: Traversable, above: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield above + entry.name, entry.read_text()


# Writing


def rows_of(
    pool: PoolId, notes: Iterable[AuditEvent], end: End, now: Instant
) -> tuple[list[Values], End]:
    """New events as rows after the last one, and the new end of the stream."""
    rows: list[Values] = []
    for note in notes:
        kind = (
            "snapshot"
            if note.begins_window
            else "part"
            if isinstance(note.record, PoolSnapshot)
            else "round"
        )
        body = _body(note)
        n, at = end.n + 1, note.record.at
        end = End(n, digest_of(end.digest, n, at, note.epoch, kind, body))
        rows.append((pool, n, at, max(now, at), note.epoch, kind, body, end.digest))
    return rows, end


def digest_of(before: str, n: int, at: Instant, epoch: int, kind: str, body: str) -> str:
    """The digest of an event that follows on another."""
    return sha256(f"{before} {n} {at} {epoch} {kind} {body}".encode()).hexdigest()


def _body(note: AuditEvent) -> str:
    said = note.record
    if isinstance(said, RecordedStep):
        inputs = [_named(entry) for entry in said.inputs]
        return text_of(
            {"inputs": inputs, "decisions": _listed(said.decisions), "denied": note.denied}
        )
    usage = tuple((path, str(base)) for path, base in said.usage)
    began = Began(
        rules=rules_text(),
        part=note.part,
        parts=note.parts,
        snapshot=replace(said, usage=()),
        usage=usage,
    )
    return text_of(began)


def _named(entry: Input | Decision) -> tuple[str, Input | Decision]:
    return type(entry).__name__, entry


def _listed(decisions: tuple[Decision, ...] | None) -> list[Any] | None:
    return None if decisions is None else [_named(decision) for decision in decisions]


def decisions_text(decisions: tuple[Decision, ...] | None) -> str:
    """Decisions in their stored form."""
    return text_of(_listed(decisions))


# Reading


def events(connection: Connection, pool: PoolId, after: int, most: int) -> list[StoredEvent]:
    """Events of a pool after a number, in order."""
    return [StoredEvent(*row) for row in connection.execute(EVENTS, [pool, after, most]).fetchall()]


def window_of(connection: Connection, pool: PoolId, n: int) -> int | None:
    """The first event of the window that contains an event; None if there is none."""
    row = connection.execute(WINDOW, [pool, n]).fetchone()
    return None if row is None else int(row[0])


def stream_of(connection: Connection, pool: PoolId) -> Stream | None:
    """A pool's stream, from the pool's row; None if there is no such pool."""
    row = connection.execute(STREAM, [pool]).fetchone()
    return None if row is None else Stream(End(row[0], row[1]), row[2])


def trim(connection: Connection, pool: PoolId, before: Instant) -> int:
    """Delete the windows that ended before an instant; return how many events. Owner only."""
    with connection.transaction():
        row = connection.execute(OLD, [pool, before]).fetchone()
        if row is None:
            return 0
        connection.execute(TRIMMED, [row[0] - 1, pool])
        return connection.execute(TRIM, [pool, row[0]]).rowcount


def began_of(event: StoredEvent) -> Began:
    """The beginning of a window, or a part of it."""
    return value_of(Began, event.body)


def step_of(event: StoredEvent) -> tuple[RecordedStep, str]:
    """A step, and its decisions in their stored form."""
    step = value_of(_Round, event.body)
    inputs = tuple(_unnamed(_INPUTS, entry) for entry in step.inputs)
    text = str(step.decisions, "utf8")
    written = value_of(list[msgspec.Raw] | None, text)  # type: ignore[arg-type]
    decisions = None if written is None else tuple(_unnamed(_DECISIONS, entry) for entry in written)
    return RecordedStep(at=event.at, inputs=inputs, decisions=decisions), text


def _unnamed(kinds: Mapping[str, type[Any]], raw: msgspec.Raw) -> Any:
    name, fields = value_of(list[msgspec.Raw], str(raw, "utf8"))
    return value_of(kinds[value_of(str, str(name, "utf8"))], str(fields, "utf8"))
