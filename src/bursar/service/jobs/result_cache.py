"""Jobs of one org that are alike: one of them runs, the others are given its result (S13).

Whoever asks for it says how old a result may be. Under the org's lock, with the hold, it is decided
what a job does:

    hit      a job that is like it has succeeded, not too long ago: the hold is settled in the
             same transaction, and the job has succeeded
    follows  one that is like it is under way: it has its hold, and is sent to no pool
    leads    neither is so: it goes to its pool like any other

What a follower comes to is in `followers`. Results are never looked for in another org: the digest
means something together with the org alone. What a result costs is the price book's to say
(`cache_hit_ppm`), at the moment of submission, as for everything a hold is opened with; it is never
more than what is held.

Roads not taken. To look before the transaction, and lock less: two that come together would both
run. A result that is copied into each job: ten thousand followers would be ten thousand copies;
they name the job that has it. Whom a follower follows as a column to be kept up: the end of a
leader would write to all its followers at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from bursar.core.dispatch.job_lifecycle import State, after
from bursar.core.dispatch.message_commands import Outcome
from bursar.core.ids import ChargeId, HoldId, JobId, OrgId, derive_id
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Settle
from bursar.core.ledger.events import JobStepped
from bursar.core.messages import EndClass, Why
from bursar.core.money import Micros, share_of
from bursar.core.pricing import PriceBook, hit_ppm_of
from bursar.core.refusal import Refusal
from bursar.service.ledger.batch import Ask, OrgUnknown
from bursar.service.ledger.prices import prices_now
from bursar.store.jobs.result_cache import Alike, Shared, alike
from bursar.store.jobs.result_cache import shared as shared_in
from bursar.store.jobs.rows import Noted, enter, stepped
from bursar.store.ledger.loader import read_org
from bursar.store.sql.connection import Connection, money_time

# Why a job is as it is that shares its result
FOLLOWS: Final = "follows"  # another is under way
TOOK_OVER: Final = "took_over"  # that one did not succeed

KEY: Final = "bursar:cache"  # how the keys of what is asked for such jobs begin


class Met(NamedTuple):
    """What a job finds among those that are like it; nobody, if it is to lead."""

    source: JobId | None = None
    hit: bool = False  # the source has succeeded
    exit_code: int | None = None  # of it, then
    used: Micros = 0  # what it has cost

    @classmethod
    def of(cls, found: Alike) -> "Met":
        """A result before anybody who is under way; those that wait for somebody to lead, too."""
        if found.result is not None:
            return cls(found.result, True, found.exit_code, found.used or 0)
        return cls(found.leader or found.waiting)


def price_of(used: Micros, ppm: int, held: Micros) -> Micros:
    """What a result costs; no more than is held for it."""
    return min(share_of(used, ppm), held)


NOBODY: Final = Met()


@dataclass(slots=True)
class Sharing:
    """That a job shares its result, by what, and whom it has met under the lock."""

    alike: str
    max_age: int  # microseconds
    met: Met = NOBODY

    def look(self, connection: Connection, org: OrgId, noted: Sequence[Noted], at: Instant) -> None:
        """See who is like it: in the database, and among what is not written yet."""
        self.met = self._here(org, noted) or Met.of(
            alike(connection, org, self.alike, at - self.max_age)
        )

    def _here(self, org: OrgId, noted: Sequence[Noted]) -> Met | None:
        """Who leads since this very transaction."""
        for kind, values, _ in noted:
            if kind == "share" and (values[0], values[2], values[4]) == (org, self.alike, None):
                return Met(JobId(values[1]))
        return None

    def rows(self, org: OrgId, first: Noted, books: Books, at: Instant) -> Iterator[Noted]:
        """What is written of it; `first` is the message to its pool, if it is to run."""
        _, job, _, text, _ = first.values
        source = self.met.source
        letter = None if source is None else text
        ppm = _ppm(books, at)
        yield Noted("share", (org, job, self.alike, ppm, source, self.met.hit, letter))
        if source is None:
            yield first
        elif not self.met.hit:
            held = require(books.holds, HoldId(job)).open
            yield Noted("follow", (org, job, at, source, held), _stepped(job, FOLLOWS, at, held))

    def then(self, org: OrgId, job: JobId, books: Books, at: Instant) -> Ask | None:
        """What follows at once when the hold is there: a hit is settled."""
        source, hit, exit_code, used = self.met
        if source is None or not hit:
            return None
        price = price_of(used, _ppm(books, at), require(books.holds, HoldId(job)).open)
        return giving(org, Left.served(job, source, exit_code), price, "at once")


def _ppm(books: Books, at: Instant) -> int:
    return hit_ppm_of(books.deployment, books.header.prices, at)


class Left(NamedTuple):
    """That a job has ended which was in no pool: with another's result, or without one."""

    job: JobId
    why: Why
    end_class: EndClass
    source: JobId | None = None
    exit_code: int | None = None

    @classmethod
    def served(cls, job: JobId, source: JobId, exit_code: int | None) -> "Left":
        """It has what another has left."""
        return cls(job, Why.CACHED, EndClass.USER, source, exit_code)

    @classmethod
    def cancelled(cls, job: JobId) -> "Left":
        """Its org has withdrawn it."""
        return cls(job, Why.CANCELLED, EndClass.USER)

    @classmethod
    def expired(cls, job: JobId) -> "Left":
        """Its hold has come to its limit."""
        return cls(job, Why.HOLD_ENDED, EndClass.LIMIT)

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written; nothing if its hold was closed before, by another's word."""
        if not isinstance(outcome, Refusal):
            yield self.row(org, require(books.holds, HoldId(self.job)).used, at)

    def row(self, org: OrgId, spent: Micros, at: Instant) -> Noted:
        """The end and its step."""
        job, why, end_class, source, exit_code = self
        state = after(State.QUEUED, why).value
        event = JobStepped(
            at=at, job=job, why=why.value, state=state, exit_code=exit_code, spent=spent
        )
        ended = (org, job, at, state, why.value, end_class.value, source, exit_code, spent)
        return Noted("leave", ended, event)


def giving(org: OrgId, end: Left, price: Micros, when: str) -> Ask:
    """The command that gives a job another's result, for a price."""
    charge = ChargeId(derive_id(end.job, end.why.value))
    command = Settle(charge=charge, hold=HoldId(end.job), total=price)
    return Ask(org, f"{KEY}/{end.job}/{when}", command, end)


def _stepped(job: JobId, why: str, at: Instant, held: Micros) -> JobStepped:
    """A step of a job that has not run, as the org's stream tells it."""
    return JobStepped(at=at, job=job, why=why, state=State.QUEUED.value, held=held)


def took_over(org: OrgId, job: JobId, held: Micros, at: Instant) -> Noted:
    """The step of a job that has followed, and leads."""
    event = _stepped(job, TOOK_OVER, at, held)
    return stepped(org, event)


# For those who look


def shared(connection: Connection, org: OrgId, job: str) -> Shared:
    """How a job was submitted: whom it followed, or whose result was there."""
    with connection.transaction():
        enter(connection, [org])
        return shared_in(connection, org, job)


class Quoted(NamedTuple):
    """What would become of a job now; a moment later it may be another's turn."""

    outcome: Literal["hit", "follow", "run"]
    source: JobId | None
    price: Micros | None  # of a hit


def quoted_now(connection: Connection, org: OrgId, sharing: Sharing, held: Micros) -> Quoted:
    """What a job that would hold so much would meet."""
    with connection.transaction():
        row = read_org(connection, org)
        if row is None:
            raise OrgUnknown(org)
        now = money_time(connection)
        source, hit, _, used = Met.of(alike(connection, org, sharing.alike, now - sharing.max_age))
        if source is None or not hit:
            return Quoted("run" if source is None else "follow", source, None)
        books = Books(prices_now(connection, PriceBook()), complete=False)
        row.fill(books)
        return Quoted("hit", source, price_of(used, _ppm(books, now), held))
