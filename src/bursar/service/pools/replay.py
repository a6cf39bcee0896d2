"""Replays the decisions of a pool's leaders from their recorded inputs, byte for byte (S14).

A window of the stream begins with a snapshot of its leader's cluster. The replay builds that
cluster, applies the recorded inputs, plans again, and compares the decisions with the recorded
ones. Windows that were decided by another version of the rules are counted but not replayed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bursar.core.ids import PoolId
from bursar.core.refusal import InvariantBroken
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.recording import join_snapshots, replay_step
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.store.pools.events import (
    End,
    StoredEvent,
    began_of,
    decisions_text,
    digest_of,
    events,
    rules_text,
    step_of,
    stream_of,
    trim,
    window_of,
)
from bursar.store.pools.loader import PoolUnknown, enter_pool
from bursar.store.sql.connection import Connection

__all__ = ["PoolUnknown", "ReplayResult", "StoredEvent", "events_of", "replay", "trim"]

PAGE_SIZE: Final = 200  # events that are read at once


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay."""

    first: int = 0  # the first and last event that were replayed
    last: int = 0
    windows: int = 0
    rounds: int = 0  # that decided something, or could have
    decisions: int = 0
    others: int = 0  # windows of other versions of the rules
    difference: str | None = None  # the first one

    @property
    def summary(self) -> str:
        """The result in one line."""
        if not self.first:
            return self.difference or "there are no events"
        figures = (
            f"events {self.first} to {self.last}: {self.windows} windows, {self.rounds} rounds,"
            f" {self.decisions} decisions"
        )
        if self.others:
            figures += f", {self.others} windows of other versions not replayed"
        return f"{figures}: {self.difference or 'all decisions are the same'}"


class _Differs(Exception):
    """The replay differs from the record."""


def replay(
    connection: Connection, pool: PoolId, start: int = 0, *, last_only: bool = False
) -> ReplayResult:
    """Replay from the window of an event on, or only the last window.

    Raises `PoolUnknown` if there is no such pool.
    """
    stream = stream_of(connection, pool)
    if stream is None:
        raise PoolUnknown(pool)
    result = ReplayResult()
    first = window_of(connection, pool, stream.end.n if last_only else start)
    first = first or stream.trimmed + 1
    try:
        before = _before(connection, pool, first, stream.trimmed)
        last = _replay(_events(connection, pool, first, stream.end.n), before, result)
        if last != stream.end:
            raise _Differs(f"the stream ends with {result.last}, its pool says {stream.end.n}")
    except _Differs as differs:
        result.difference = str(differs)
    return result


def events_of(connection: Connection, pool: PoolId, after: int, most: int) -> list[StoredEvent]:
    """Events of a pool after a number, in order."""
    with connection.transaction():
        enter_pool(connection, pool)
        return events(connection, pool, after, most)


def _events(connection: Connection, pool: PoolId, first: int, last: int) -> Iterator[StoredEvent]:
    """The events from `first` to `last`; leaders may append more meanwhile."""
    after = first - 1
    while page := events(connection, pool, after, min(PAGE_SIZE, last - after)):
        yield from page
        after = page[-1].n


def _before(connection: Connection, pool: PoolId, first: int, trimmed: int) -> End | None:
    """The event before the first one; None if it was trimmed."""
    if first == 1:
        return End(0, "")
    if first <= trimmed + 1:
        return None
    return next(
        (End(event.n, event.digest) for event in events(connection, pool, first - 2, 1)), None
    )


def _replay(stream: Iterator[StoredEvent], end: End | None, result: ReplayResult) -> End | None:
    """Replay the events after `end`; return the last one."""
    window = _Window(result)
    for event in stream:
        if end is not None:
            _check_follows(event, end)
        end = End(event.n, event.digest)
        result.first, result.last = result.first or event.n, event.n
        try:
            window.take(event)
        except (ValueError, KeyError, TypeError, InvariantBroken) as error:
            said = " ".join(str(error).split())
            raise _Differs(f"event {event.n} contradicts those before it: {said}") from error
    return end


def _check_follows(event: StoredEvent, end: End) -> None:
    """Check that an event is the unchanged successor of the one before."""
    if event.n != end.n + 1:
        raise _Differs(f"event {end.n + 1} is missing")
    digest = digest_of(end.digest, event.n, event.at, event.epoch, event.kind, event.body)
    if digest != event.digest:
        raise _Differs(f"event {event.n} was changed after it was written")


class _Window:
    """A snapshot and the steps after it."""

    def __init__(self, result: ReplayResult) -> None:
        self._result = result
        self._parts: list[PoolSnapshot] = []
        self._cluster: Cluster | None = None
        self._ours = False

    def take(self, event: StoredEvent) -> None:
        """Replay the next event."""
        if event.kind == "round":
            self._step(event)
        else:
            self._begin(event)

    def _begin(self, event: StoredEvent) -> None:
        began = began_of(event)
        if began.part == 0:
            self._parts, self._cluster = [], None
            self._ours = began.rules == rules_text()
            self._result.windows += 1
            self._result.others += not self._ours
        if began.part != len(self._parts):
            raise _Differs(f"event {event.n} is part {began.part}, not {len(self._parts)}")
        self._parts.append(began.whole)
        if self._ours and began.parts == len(self._parts):
            self._cluster = Cluster.from_snapshot(join_snapshots(self._parts))

    def _step(self, event: StoredEvent) -> None:
        if not self._ours:
            return
        if self._cluster is None:
            raise _Differs(f"event {event.n} has no snapshot before it")
        step, written = step_of(event)
        again = decisions_text(replay_step(self._cluster, step))
        if again != written:
            raise _Differs(f"event {event.n}: replayed {again}, recorded {written}")
        if step.decisions is not None:
            self._result.rounds += 1
            self._result.decisions += len(step.decisions)
