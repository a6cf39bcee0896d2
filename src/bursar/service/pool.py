"""One pool at work: messages of orgs come in, leases are given, nodes report, leases end (D4, M4).

Each method is one transaction with a constant number of statements, however many jobs or readings
it is about; those that do not need each other's answers travel together. What orgs have to know is
written with it, as messages.

    org ── Enqueue, Withdraw, HoldGrew ──▶ receive
                                           lease ──▶ a fence
    node ── fence, run time so far ──────▶ report ──▶ until when, or that it is stale
    node ── fence, why it ended ─────────▶ end
                                           expire     what nobody reported of in time
    org ◀── Started, RanSoFar, Ended, Dropped ──
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from bursar.core.ids import JobId
from bursar.core.instant import MILLISECOND, Instant
from bursar.core.leases import (
    MARGIN,
    Denied,
    goes_on,
    is_own,
    latest,
    provable_ms,
    renewed_until,
    tell_every_ms,
)
from bursar.core.messages import (
    Dropped,
    EndClass,
    Ended,
    Enqueue,
    HoldGrew,
    RanSoFar,
    Started,
    ToOrg,
    Why,
    Withdraw,
)
from bursar.core.refusal import broken
from bursar.store import pool as store
from bursar.store.outbox import Letter, PoolId, ack_pool, by_job
from bursar.store.pool import Attempt, NewNode, Queued, Reading, Slot
from bursar.store.reading import Connection, OrgId, Sent, money_time
from bursar.store.saving import Saving

Job: TypeAlias = tuple[OrgId, JobId]
Sents = TypeVar("Sents")  # questions on their way


class Placement(NamedTuple):
    """Where a job shall run."""

    org: OrgId
    job: JobId
    node: str
    slots: tuple[int, ...]


class Lease(NamedTuple):
    """An attempt's right to its slots."""

    fence: int
    attempt: int
    until: Instant
    run_ms_max: int  # how long it may run, stop grace included


class Report(NamedTuple):
    """How long the attempt that has this fence has run so far."""

    fence: int
    run_ms: int


class Renewed(NamedTuple):
    """A lease goes on."""

    until: Instant
    stop: bool  # the worker is asked to end the attempt


class End(NamedTuple):
    """Why an attempt ended, how long it ran, and what of that is given back."""

    fence: int
    end_class: EndClass
    run_ms: int
    kept_ms: int | None = None  # where its last checkpoint was, if what came after is given back


_WHY: Final = {
    EndClass.USER: Why.FINISHED,
    EndClass.PLATFORM: Why.LOST,
    EndClass.PREEMPTION: Why.PREEMPTED,
    EndClass.LIMIT: Why.TIME_UP,
}
_Say: TypeAlias = Callable[[Attempt], ToOrg]


@dataclass(slots=True)
class _Work:
    """A transaction of the pool: its time, and what it will write."""

    now: Instant
    fence: int
    whose: dict[int, Attempt] = field(default_factory=dict)  # leases that were looked up
    told: list[tuple[OrgId, JobId, ToOrg]] = field(default_factory=list)
    said: list[tuple[int, _Say]] = field(default_factory=list)  # of the lease with this fence
    rows: dict[str, dict[Any, tuple[Any, ...]]] = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)
    changed: dict[Job, Queued] = field(default_factory=dict)
    new: dict[Job, Queued] = field(default_factory=dict)

    def write(self, what: str, *values: Any, key: Any = None) -> None:
        """Write a row, in place of one that was to be written for the same key: a fence."""
        self.rows.setdefault(what, {})[key or values[0]] = values

    def change(self, job: Queued) -> None:
        if (job.org, job.job) not in self.new:
            self.changed[job.org, job.job] = job


class Pool:
    """A pool of machines, on one connection."""

    def __init__(
        self,
        connection: Connection,
        pool: PoolId,
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self.id = pool
        self._connection = connection
        self._clock = clock

    @contextmanager
    def _asking(self, ask: Callable[[], Sents]) -> Iterator[tuple[_Work, Sents]]:
        """A transaction: lock, ask, and ask the time, all in one go; let it be decided, write."""
        connection = self._connection
        save = Saving(connection)
        with connection.transaction():
            with connection.pipeline():
                locking = store.lock_pool(connection, self.id)
                sent = ask()
                now = self._clock(connection)  # the first answer that is awaited
                row = store.locked(locking, self.id)
                work = _Work(max(now, row.now), row.fence)
                yield work, sent
                self._save(work, save)
            save.check()

    @contextmanager
    def _at_work(self) -> Iterator[_Work]:
        """A transaction that has nothing to ask before it knows the time."""
        with self._asking(lambda: None) as (work, _):
            yield work

    @contextmanager
    def _looking(self, ask: Callable[[], Sent]) -> Iterator[Sent]:
        """A transaction that asks, changes nothing, and locks nothing."""
        with self._connection.transaction():
            with self._connection.pipeline():
                store.enter_pool(self._connection, self.id)
                sent = ask()
            yield sent

    def _save(self, work: _Work, save: Saving) -> None:
        new, changed = list(work.new.values()), list(work.changed.values())
        told = [*work.told, *self._said(work)]
        store.save_queued(save, self.id, new, changed, work.now)
        counted = store.count_on(self._connection, self.id, told) if told else None
        store.free_slots(self._connection, self.id, work.freed, work.now)
        for what, rows in work.rows.items():
            store.save_rows(save, self.id, what, list(rows.values()))
        store.move_on(self._connection, self.id, work.now, work.fence)
        if counted is not None:
            store.tell_orgs(save, counted, self.id, told, work.now)

    def _said(self, work: _Work) -> list[tuple[OrgId, JobId, ToOrg]]:
        """The messages about leases, addressed to the orgs whose they are."""
        unknown = dict(work.said).keys() - work.whose.keys()
        if unknown:
            work.whose |= store.attempts(self._ask_attempts(unknown))
        whose = work.whose
        return [(whose[fence].org, whose[fence].job, say(whose[fence])) for fence, say in work.said]

    def _ask_attempts(self, fences: Iterable[int]) -> Sent:
        return store.ask_attempts(self._connection, self.id, fences)

    # Machines and what waits for them

    def add_nodes(self, nodes: Sequence[NewNode]) -> None:
        """Put machines into the pool."""
        with self._at_work():
            store.add_nodes(self._connection, self.id, nodes)

    def waiting(self) -> list[Queued]:
        """The jobs that wait for a place, the first to come first."""
        with self._looking(lambda: store.ask_waiting(self._connection, self.id)) as sent:
            return list(store.queued(sent).values())

    def slots(self, nodes: Sequence[str]) -> dict[str, dict[int, Slot]]:
        """The slots of nodes, and who has them."""
        with self._looking(lambda: store.ask_slots(self._connection, self.id, nodes)) as sent:
            return store.slots(sent)

    def live_on(self, node: str) -> list[tuple[Attempt, Reading]]:
        """The live leases of a node: what a worker that was started again has to look after."""
        with self._looking(lambda: store.ask_live_on(self._connection, self.id, node)) as sent:
            live = store.readings(sent)
            whose = store.attempts(self._ask_attempts(live))
            return [(whose[fence], one) for fence, one in live.items()]

    # Messages of orgs

    def receive(self, letters: Sequence[Letter]) -> list[Letter]:
        """Handle messages of orgs, each once and in order; those that need not come again.

        One that has overtaken another is left alone: it will come again.
        """
        jobs = by_job(letters)
        later = [job for job, told in jobs.items() if told[-1].n > 1]  # may be running by now
        handled: list[Letter] = []

        def ask() -> tuple[Sent, Sent]:
            known = store.ask_queued(self._connection, self.id, jobs)
            return known, store.ask_live_attempts(self._connection, self.id, later)

        with self._asking(ask) as (work, (sent_known, sent_live)):
            known = store.queued(sent_known)
            live = {(one.org, one.job): one for one in store.attempts(sent_live).values()}
            for job, told in jobs.items():
                for letter in told:
                    found = work.new.get(job) or known.get(job)
                    if letter.n > (found.received if found else 0) + 1:
                        break
                    if found is None or letter.n > found.received:
                        _handle(work, letter, found, live.get(job))
                    handled.append(letter)
        return handled

    def acknowledge(self, letters: Sequence[Letter]) -> None:
        """Remember that orgs have these messages of ours."""
        if not letters:
            return
        with self._at_work() as work:
            ack_pool(self._connection, letters, work.now)

    # Leases

    def lease(self, placements: Sequence[Placement]) -> list[Lease | Denied]:
        """Give attempts the right to run, each as far as nothing stands against it."""

        def ask() -> tuple[Sent, Sent]:
            jobs = store.ask_queued(self._connection, self.id, [one[:2] for one in placements])
            nodes = [one.node for one in placements]
            return jobs, store.ask_slots(self._connection, self.id, nodes)

        with self._asking(ask) as (work, (sent_jobs, sent_slots)):
            jobs, slots = store.queued(sent_jobs), store.slots(sent_slots)
            return [
                _lease(work, one, jobs.get((one.org, one.job)), slots.get(one.node))
                for one in placements
            ]

    def report(self, node: str, reports: Sequence[Report]) -> list[Renewed | Denied]:
        """Take a node's readings and renew its leases.

        A stale fence renews nothing, but what it proves is kept, up to the end of its lease (M4).
        """
        newest: dict[int, int] = {}
        for fence, run_ms in reports:
            newest[fence] = max(run_ms, newest.get(fence, 0))

        def ask() -> Sent:
            return store.ask_readings(self._connection, self.id, newest)

        with self._asking(ask) as (work, sent):
            known = store.readings(sent)
            answers = {
                fence: _report(work, node, known.get(fence), run_ms)
                for fence, run_ms in newest.items()
            }
        return [answers[fence] for fence, _ in reports]

    def end(self, node: str, ends: Sequence[End]) -> list[Denied | None]:
        """End attempts; only whoever has a live lease may say how. None if it is done."""
        asked = {one.fence: one for one in ends}

        def ask() -> tuple[Sent, Sent]:
            known = store.ask_readings(self._connection, self.id, asked)
            return known, self._ask_attempts(asked)

        with self._asking(ask) as (work, (sent_known, sent_whose)):
            known = store.readings(sent_known)
            work.whose = store.attempts(sent_whose)
            jobs = self._jobs_of(work)
            answers = {
                fence: _end(work, node, known.get(fence), one, jobs) for fence, one in asked.items()
            }
        return [answers[one.fence] for one in ends]

    def _jobs_of(self, work: _Work) -> dict[int, Queued]:
        """The jobs of the leases that were looked up, by fence."""
        asked = [(one.org, one.job) for one in work.whose.values()]
        jobs = store.queued(store.ask_queued(self._connection, self.id, asked))
        return {fence: jobs[one.org, one.job] for fence, one in work.whose.items()}

    def expire(self) -> int:
        """End what nobody has reported of in time, and what waits without credits; how many.

        An attempt is settled at what was proven last. Its slots come free only now: a worker that
        cannot renew has stopped by itself before its lease ended.
        """
        with self._at_work() as work:
            silent = store.ask_run_out(self._connection, self.id, work.now - MARGIN)
            unheld = store.ask_waiting(self._connection, self.id, work.now)
            lost, ended = store.readings(silent), store.queued(unheld)
            if lost:
                work.whose = store.attempts(self._ask_attempts(lost))
            jobs = self._jobs_of(work) if lost else {}
            for lease in lost.values():
                limit = lease.until >= lease.latest
                why = EndClass.LIMIT if limit else EndClass.PLATFORM
                _close(work, lease, jobs[lease.fence], End(lease.fence, why, lease.run_ms))
            for job in ended.values():
                _drop(work, job, EndClass.LIMIT)
            return len(lost) + len(ended)


# What each of them comes to


def _handle(work: _Work, letter: Letter, job: Queued | None, live: Attempt | None) -> None:
    """Handle the next message about a job."""
    message = letter.message
    if job is None:
        if not isinstance(message, Enqueue):
            broken("a job begins with something else", job=letter.job, message=message)
        work.new[letter.org, letter.job] = Queued(
            org=letter.org,
            job=letter.job,
            ask=message,
            hold_micros=message.hold_micros,
            hold_until=message.hold_until,
            requeues_left=message.spec.requeues,
        )
        return
    job.received = letter.n
    work.change(job)
    if isinstance(message, Withdraw):
        job.withdrawn = True
        if job.state == "queued":
            _drop(work, job, EndClass.USER)
        elif live is not None:
            work.write("stopping", live.fence)
    elif isinstance(message, HoldGrew):
        job.hold_micros += message.added
        job.hold_until = max(job.hold_until, message.until)
        if live is not None:
            work.write("grown", live.fence, job.hold_until, _every_ms(job, live.gpu_type))
    else:
        broken("a pool cannot handle this", job=letter.job, message=message)


def _drop(work: _Work, job: Queued, why: EndClass) -> None:
    """Let a job that waits run no more."""
    job.state = "over"
    work.change(job)
    work.told.append((job.org, job.job, Dropped(end_class=why, why=_WHY[why])))


def _every_ms(job: Queued, gpu_type: str) -> int:
    return tell_every_ms(dict(job.ask.rates)[gpu_type], job.ask.milli_gpus, job.hold_micros)


def _lease(
    work: _Work, place: Placement, job: Queued | None, slots: dict[int, Slot] | None
) -> Lease | Denied:
    denied = _not_leased(work, place, job, slots)
    if denied is not None:
        return denied
    assert job is not None
    assert slots is not None
    work.fence += 1
    job.state, job.attempt = "leased", job.attempt + 1
    work.change(job)
    taken = list(dict.fromkeys(place.slots))
    for one in taken:
        slots[one] = slots[one]._replace(taken=work.fence)
        work.write("new slots", work.fence, place.node, one, key=(place.node, one))
    gpu_type = slots[taken[0]].gpu_type
    until = renewed_until(work.now, job.hold_until)
    lease = (work.fence, job.org, job.job, job.attempt, gpu_type, job.left_ms)
    work.write("new leases", *lease)
    times = (work.now, until, job.hold_until, _every_ms(job, gpu_type), job.left_ms)
    work.write("new readings", work.fence, place.node, *times)
    return Lease(work.fence, job.attempt, until, job.left_ms)


def _not_leased(
    work: _Work, place: Placement, job: Queued | None, slots: dict[int, Slot] | None
) -> Denied | None:
    """What stands against a placement, if something does."""
    if job is None:
        return Denied.JOB_UNKNOWN
    if job.state != "queued":
        return Denied.NOT_QUEUED
    if job.hold_until <= work.now:
        return Denied.HOLD_ENDED
    if slots is None:
        return Denied.NODE_UNKNOWN
    wanted = [slots.get(one) for one in dict.fromkeys(place.slots)]
    if None in wanted:
        return Denied.SLOT_UNKNOWN
    found = [one for one in wanted if one is not None]
    if any(one.taken is not None for one in found):
        return Denied.SLOT_TAKEN
    if any(one.gpu_type not in dict(job.ask.rates) for one in found):
        return Denied.TYPE_NOT_PRICED
    if sum(one.milli_gpus for one in found) != job.ask.milli_gpus:
        return Denied.WRONG_SIZE
    return None


def _report(work: _Work, node: str, known: Reading | None, run_ms: int) -> Renewed | Denied:
    if known is None or known.node != node:
        return Denied.FENCE_UNKNOWN
    if known.ends_at is not None or work.now >= known.until:
        _keep(work, known, _read_late(work, known, run_ms))
        return Denied.FENCE_STALE
    new = _read(work, known, run_ms)
    fence, run_ms = known.fence, new.run_ms
    if run_ms - known.told_ms >= known.every_ms:
        work.said.append((fence, lambda of: RanSoFar(attempt=of.attempt, run_ms=run_ms)))
        new = new._replace(told_ms=run_ms)
    until_max = latest(known.until_max, new.started_at, known.run_ms_max)
    until = max(renewed_until(work.now, until_max), known.until)
    work.write("read", fence, until, *new)
    return Renewed(until, known.stopping or work.now >= until_max)


class _Read(NamedTuple):
    """What is proven of an attempt, and what of that the org was told."""

    started_at: Instant
    run_ms: int
    told_ms: int
    clamped: bool


def _read(work: _Work, known: Reading, run_ms: int) -> _Read:
    """What the reading of a live lease proves. The first one is the start: the org is told."""
    most = provable_ms(known.leased_at, work.now)
    proven = max(min(run_ms, most), known.run_ms)
    started_at = known.started_at
    if started_at is None:
        started_at = work.now - proven * MILLISECOND
        _say_start(work, known.fence, started_at)
    return _Read(started_at, proven, known.told_ms, run_ms > most)


def _read_late(work: _Work, known: Reading, run_ms: int) -> _Read:
    """What a reading proves that comes when its lease has ended, or has run out.

    An end was told to the org; of what is proven beyond it the org is told at once.
    """
    end = known.until if known.ends_at is None else known.ends_at
    most = provable_ms(known.leased_at, end)
    proven = max(min(run_ms, most), known.run_ms)
    started_at, told_ms = known.started_at, known.told_ms
    if started_at is None:
        started_at = end - proven * MILLISECOND
        _say_start(work, known.fence, started_at)
    elif known.ends_at is not None and proven > told_ms:
        work.said.append((known.fence, lambda of: RanSoFar(attempt=of.attempt, run_ms=proven)))
        told_ms = proven
    return _Read(started_at, proven, told_ms, run_ms > most)


def _keep(work: _Work, known: Reading, new: _Read) -> None:
    """Write a reading without renewing the lease, if it brings something new."""
    if new[:3] != (known.started_at, known.run_ms, known.told_ms) or new.clamped:
        work.write("read", known.fence, known.until, *new)


def _say_start(work: _Work, fence: int, at: Instant) -> None:
    def say(of: Attempt) -> ToOrg:
        return Started(attempt=of.attempt, gpu_type=of.gpu_type, at=at, run_ms=of.run_ms_max)

    work.said.append((fence, say))


def _end(
    work: _Work, node: str, known: Reading | None, ask: End, jobs: dict[int, Queued]
) -> Denied | None:
    if known is None or known.node != node:
        return Denied.FENCE_UNKNOWN
    if known.ends_at is not None or work.now >= known.until:
        _keep(work, known, _read_late(work, known, ask.run_ms))
        return Denied.FENCE_STALE
    new = _read(work, known, ask.run_ms)
    proven = known._replace(started_at=new.started_at, run_ms=new.run_ms)
    _close(work, proven, jobs[known.fence], ask, clamped=new.clamped)
    return None


def _close(work: _Work, lease: Reading, job: Queued, end: End, *, clamped: bool = False) -> None:
    """End a live lease: the attempt is settled, the job waits again or is over."""
    started_at, run_ms, why = lease.started_at, lease.run_ms, end.end_class
    if started_at is None:
        started_at = lease.leased_at
        _say_start(work, lease.fence, started_at)
    kept_ms = end.kept_ms
    if kept_ms is not None and (kept_ms >= run_ms or is_own(why)):
        kept_ms = None
    job.ran_ms += run_ms if kept_ms is None else kept_ms
    again = goes_on(why, job.requeues_left, job.left_ms, withdrawn=job.withdrawn)
    job.state = "queued" if again else "over"
    job.requeues_left -= again
    work.change(job)

    def say(of: Attempt) -> ToOrg:
        return Ended(
            attempt=of.attempt,
            end_class=why,
            run_ms=run_ms,
            kept_ms=kept_ms,
            over=not again,
            why=_WHY[why],
        )

    work.said.append((lease.fence, say))
    # Work that was given back is not reported again; else run time counts up to the lease's end.
    ends_at = min(work.now, lease.until) if kept_ms is None else lease.leased_at
    work.write("read", lease.fence, lease.until, started_at, run_ms, run_ms, clamped)
    work.write("ended readings", lease.fence, ends_at)
    work.write("ended leases", lease.fence, work.now, why.value, kept_ms)
    work.freed.append(lease.fence)
