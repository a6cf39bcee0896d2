"""Short words for tests: a small org whose commands read like sentences.

    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.later(minutes=5)
    org.charge("h1", 20)
    assert Parts(available=40, held=40, spent=20) == org.parts("g1")

Amounts are micro-credits. The clock starts at `T0` and only goes on when a test says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    JobId,
    PriceVersionId,
    UserId,
)
from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, SECOND, Instant
from bursar.core.ledger.books import ApplicableBudget
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    BookLate,
    Charge,
    Command,
    Issue,
    Redraw,
    Refund,
    Release,
    Reserve,
    SetBudget,
    SetPrice,
    Settle,
)
from bursar.core.ledger.decide import view_at
from bursar.core.ledger.events import Event
from bursar.core.ledger.journal import Journal, rebuild
from bursar.core.ledger.limits import counted_in
from bursar.core.ledger.values import BudgetTarget, Context, CreditKind, Grant, GrantPolicy, Hold
from bursar.core.ledger.verify import find_problems
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Refusal

T0: Final[Instant] = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z, a Thursday
PER_MS: Final = 3_600_000  # the rate at which one GPU costs one micro-credit a millisecond


def seconds(count: int) -> Instant:
    """The instant that many seconds after T0."""
    return T0 + count * SECOND


def minutes(count: int) -> Instant:
    """The instant that many minutes after T0."""
    return T0 + count * MINUTE


def hours(count: int) -> Instant:
    """The instant that many hours after T0."""
    return T0 + count * HOUR


def days(count: int) -> Instant:
    """The instant that many days after T0."""
    return T0 + count * DAY


def prices(version: str = "v1", effective_at: Instant = 0, **rates: int) -> PriceVersion:
    """A version of a price book: micro-credits per GPU-hour by GPU type."""
    return PriceVersion(
        id=PriceVersionId(version),
        effective_at=effective_at,
        rates=tuple(Rate(gpu_type=kind, micros_per_gpu_hour=rate) for kind, rate in rates.items()),
    )


def gpus(*types: str, count: int = 1, job: str | None = None, **more: Any) -> Context:
    """A context that asks for GPUs of any of these types, the preferred first."""
    return Context(
        gpu_types=types,
        milli_gpus=count * 1_000,
        job=None if job is None else JobId(job),
        **more,
    )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is in a grant's compartments; what is not named is nothing."""

    available: int = 0
    held: int = 0
    spent: int = 0
    lapsed: int = 0
    revoked: int = 0
    moved: int = 0


def moves(events: Iterable[Event]) -> list[tuple[str, str, int, Instant]]:
    """What events moved: (grant, "from → to", amount, effective at), in order."""
    return [
        (
            posting.grant,
            f"{posting.source or 'new'} → {posting.target}",
            posting.amount,
            posting.effective_at,
        )
        for event in events
        for posting in event.postings
    ]


class Org:
    """An org with a root account `org`, a team, a project below it, and two users."""

    def __init__(self, *versions: PriceVersion, time_zone: str = "UTC") -> None:
        book = PriceBook()
        for version in versions:
            book = book.with_version(version)
        self.prices = book
        self.journal = Journal(book)
        self.now = T0
        self._charges = 0
        self.does(AddAccount(account=AccountId("org"), parent=None, name="o", time_zone=time_zone))
        self.does(AddAccount(account=AccountId("team"), parent=AccountId("org"), name="t"))
        self.does(AddAccount(account=AccountId("project"), parent=AccountId("team"), name="p"))
        self.does(AddUser(user=UserId("ann")))
        self.does(AddUser(user=UserId("bob")))

    # Time

    def later(self, **span: int) -> None:
        """Let time pass: `later(hours=2)`, `later(ms=5)`, `later(us=1)`."""
        units = {
            "us": 1,
            "ms": 1_000,
            "seconds": SECOND,
            "minutes": MINUTE,
            "hours": HOUR,
            "days": DAY,
        }
        self.now += sum(units[unit] * count for unit, count in span.items())

    def at(self, instant: Instant) -> None:
        """Let time pass until an instant."""
        self.now = instant

    # Asking

    def asks(self, command: Command) -> tuple[Event, ...] | Refusal:
        """Ask for something that may be refused; everything is checked afterwards."""
        before = self.journal.books.facts()
        outcome = self.journal.do(command, self.now)
        if isinstance(outcome, Refusal):
            assert before == self.journal.books.facts(), "a refusal changed something (IL18)"
        assert [] == find_problems(self.journal.books), "the books do not add up"
        return outcome

    def does(self, command: Command) -> tuple[Event, ...]:
        """Ask for something that must not be refused."""
        outcome = self.asks(command)
        assert not isinstance(outcome, Refusal), outcome
        return outcome

    def refuses(self, command: Command) -> Refusal:
        """Ask for something that must be refused."""
        outcome = self.asks(command)
        assert isinstance(outcome, Refusal), outcome
        return outcome

    def issue(
        self,
        grant: str,
        amount: int,
        *,
        to: str = "org",
        kind: CreditKind = CreditKind.PAID,
        starts: Instant | None = None,
        expires: Instant = NEVER,
        priority: int = 100,
        policy: GrantPolicy = GrantPolicy(),  # noqa: B008  # frozen
    ) -> tuple[Event, ...]:
        """Issue credits to an account."""
        return self.does(
            Issue(
                grant=GrantId(grant),
                account=AccountId(to),
                amount=amount,
                kind=kind,
                starts_at=starts,
                expires_at=expires,
                priority=priority,
                policy=policy,
            )
        )

    def asking(
        self,
        hold: str,
        amount: int | None = None,
        *,
        by: str = "project",
        user: str = "ann",
        run_ms: int | None = None,
        context: Context = Context(),  # noqa: B008  # frozen
        until: Instant | None = None,
        for_job: bool | None = None,
    ) -> Reserve:
        """A hold to be asked for; it lasts twelve hours if not told otherwise.

        If its context names a job, it is that job's unless told otherwise.
        """
        return Reserve(
            hold=HoldId(hold),
            account=AccountId(by),
            user=UserId(user),
            amount=amount,
            run_ms=run_ms,
            context=context,
            expires_at=self.now + 12 * HOUR if until is None else until,
            for_job=context.job is not None if for_job is None else for_job,
        )

    def reserve(self, hold: str, amount: int | None = None, **more: Any) -> tuple[Event, ...]:
        """Open a hold; the words are those of `asking`."""
        return self.does(self.asking(hold, amount, **more))

    def charge(self, hold: str, amount: int, charge: str | None = None) -> tuple[Event, ...]:
        """Charge an amount to a hold."""
        return self.does(Charge(charge=self._charge_id(charge), hold=HoldId(hold), amount=amount))

    def reading(
        self, hold: str, run_ms: int, *, attempt: int = 1, final: bool = False
    ) -> tuple[Event, ...]:
        """Charge what an attempt has run so far."""
        return self.does(
            Charge(
                charge=self._charge_id(None),
                hold=HoldId(hold),
                attempt=attempt,
                run_ms=run_ms,
                final=final,
            )
        )

    def starts(
        self, hold: str, gpu_type: str, *, run_ms: int, attempt: int = 1
    ) -> tuple[Event, ...]:
        """Start an attempt on a GPU type."""
        return self.does(
            Redraw(hold=HoldId(hold), attempt=attempt, gpu_type=gpu_type, run_ms=run_ms)
        )

    def settle(self, hold: str, total: int | None = None) -> tuple[Event, ...]:
        """Charge up to a total, return the rest and close."""
        return self.does(Settle(charge=self._charge_id(None), hold=HoldId(hold), total=total))

    def release(self, hold: str) -> tuple[Event, ...]:
        """Return everything and close."""
        return self.does(Release(hold=HoldId(hold)))

    def refund(self, hold: str, amount: int) -> tuple[Event, ...]:
        """Return a part."""
        return self.does(Refund(hold=HoldId(hold), amount=amount))

    def late(
        self, hold: str, amount: int, *, when: Instant, charge: str | None = None
    ) -> tuple[Event, ...]:
        """Book usage of a past instant."""
        return self.does(
            BookLate(
                charge=self._charge_id(charge),
                hold=HoldId(hold),
                amount=amount,
                effective_at=when,
            )
        )

    def budget(
        self,
        budget: str,
        limit: int,
        every: PeriodKind = PeriodKind.DAY,
        *,
        account: str | None = None,
        user: str | None = None,
        each_user: bool = False,
        hard: bool = True,
        rolling: int = 0,
        thresholds: tuple[int, ...] = (500_000, 800_000, 1_000_000),
    ) -> tuple[Event, ...]:
        """Set a budget, or change one."""
        target = BudgetTarget(
            account=None if account is None else AccountId(account),
            user=None if user is None else UserId(user),
            each_user=each_user,
        )
        return self.does(
            SetBudget(
                budget=BudgetId(budget),
                target=target,
                every=every,
                limit=limit,
                hard=hard,
                rolling=rolling,
                thresholds_ppm=thresholds,
            )
        )

    def price(self, version: PriceVersion) -> tuple[Event, ...]:
        """Add a version to the org's own prices."""
        return self.does(SetPrice(version=version))

    # Looking

    def parts(self, grant: str) -> Parts:
        """A grant's compartments as they are now; what has expired is lapsed."""
        found = self.grant(grant)
        gone = found.available if self.now >= found.terms.expires_at else 0
        return Parts(
            available=found.available - gone,
            held=found.held,
            spent=found.spent,
            lapsed=found.lapsed + gone,
            revoked=found.revoked,
            moved=found.moved,
        )

    def grant(self, grant: str) -> Grant:
        """A grant as it is now, with what has fallen due."""
        with view_at(self.journal.books, self.now) as books:
            found = books.grants.get(GrantId(grant))
        assert found is not None, grant
        return found

    def hold(self, hold: str) -> Hold:
        """A hold as it is now, with what has fallen due."""
        with view_at(self.journal.books, self.now) as books:
            found = books.holds.get(HoldId(hold))
        assert found is not None, hold
        return found

    def draws(self, hold: str) -> dict[str, int]:
        """What a hold has open, by grant."""
        return {draw.grant: draw.open for draw in self.hold(hold).draws if draw.open}

    def owed(self, debt: str) -> int:
        """What is left of a debt (a hold's debt has the hold's id)."""
        with view_at(self.journal.books, self.now) as books:
            found = books.debts.get(DebtId(debt))
        return 0 if found is None else found.owed

    def counted(self, budget: str, user: str | None = None) -> int:
        """What a budget counts now; of one user if it counts each."""
        whose = None if user is None else UserId(user)
        with view_at(self.journal.books, self.now) as books:
            found = books.budgets.get(BudgetId(budget))
            assert found is not None, budget
            return counted_in(books, ApplicableBudget(found, whose), self.now)

    def rebuilds(self) -> None:
        """The events alone give the same books (L1)."""
        rebuilt = rebuild(self.journal.events, self.prices)
        assert self.journal.books == rebuilt
        assert self.prices is rebuilt.deployment

    def _charge_id(self, charge: str | None) -> ChargeId:
        self._charges += 1
        return ChargeId(charge or f"c{self._charges}")
