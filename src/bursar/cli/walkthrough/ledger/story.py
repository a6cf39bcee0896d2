"""What happens on the tour: an org, its clock, and the commands it is asked, through the core."""

from typing import Final, TypeVar

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    GrantId,
    HoldId,
    PriceVersionId,
    UserId,
)
from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, Instant
from bursar.core.ledger.books import ApplicableBudget, require
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    BookLate,
    Charge,
    Command,
    Issue,
    Reserve,
    SetBudget,
    Settle,
)
from bursar.core.ledger.decide import view_at
from bursar.core.ledger.events import Event
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.limits import counted_in
from bursar.core.ledger.values import (
    BudgetTarget,
    Context,
    CreditKind,
    Debt,
    Grant,
    GrantPolicy,
    Hold,
)
from bursar.core.money import CREDIT, Micros
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Refusal

NINE: Final[Instant] = 1_772_438_400_000_000  # Monday 2 March 2026, 9:00 in Berlin
ZONE: Final = "Europe/Berlin"

LAB, VISION, TRAINING = AccountId("lab"), AccountId("vision"), AccountId("training")
TRAINER: Final = UserId("trainer")
BOUGHT, SPRING, TRIAL = GrantId("bought"), GrantId("spring"), GrantId("h100-trial")
TOP_UP: Final = GrantId("top-up")
DAILY: Final = BudgetId("daily")
EPOCH_7, EPOCH_8, EPOCH_9 = HoldId("epoch-7"), HoldId("epoch-8"), HoldId("epoch-9")

H100: Final = Context(gpu_types=("H100",), milli_gpus=8_000)
A100: Final = Context(gpu_types=("A100",), milli_gpus=8_000)

PRICES: Final = PriceBook(
    versions=(
        PriceVersion(
            id=PriceVersionId("2026-1"),
            effective_at=0,
            rates=(
                Rate(gpu_type="H100", micros_per_gpu_hour=4 * CREDIT),
                Rate(gpu_type="A100", micros_per_gpu_hour=5 * CREDIT // 2),
            ),
        ),
    )
)

E = TypeVar("E", bound=Event)


def clock(hour: int, minute: int = 0) -> Instant:
    """That time of the tour's first day; hours go on counting after midnight."""
    return NINE + (hour - 9) * HOUR + minute * MINUTE


def ms(minutes: int) -> int:
    """Minutes as milliseconds."""
    return minutes * MINUTE // 1_000


class Story:
    """One org's journal and its present instant."""

    def __init__(self) -> None:
        self.journal: Final = Journal(PRICES)
        self.now = NINE
        self._charges = 0
        self.does(AddAccount(account=LAB, parent=None, name="Lab", time_zone=ZONE))
        self.does(AddAccount(account=VISION, parent=LAB, name="Vision team"))
        self.does(AddAccount(account=TRAINING, parent=VISION, name="Training"))
        self.does(AddUser(user=TRAINER))

    # Asking

    def asks(self, command: Command) -> tuple[Event, ...] | Refusal:
        """Ask for something that may be refused."""
        return self.journal.do(command, self.now)

    def does(self, command: Command) -> tuple[Event, ...]:
        """Ask for something that the tour cannot go on without."""
        outcome = self.asks(command)
        if isinstance(outcome, Refusal):
            raise RuntimeError(f"the tour cannot go on: {command} got {outcome}")
        return outcome

    def issues_three_grants(self) -> None:
        """Paid credits of the lab, a promotion of the team, and one of the project for H100s."""
        trial = GrantPolicy(gpu_types=frozenset(H100.gpu_types), max_share_ppm=250_000)
        self.does(Issue(grant=BOUGHT, account=LAB, amount=50 * CREDIT, kind=CreditKind.PAID))
        self.does(
            Issue(
                grant=SPRING,
                account=VISION,
                amount=20 * CREDIT,
                kind=CreditKind.PROMO,
                expires_at=clock(12),
            )
        )
        self.does(
            Issue(
                grant=TRIAL,
                account=TRAINING,
                amount=30 * CREDIT,
                kind=CreditKind.PROMO,
                expires_at=clock(12) + 7 * DAY,
                policy=trial,
            )
        )

    def sets_a_budget(self) -> None:
        """The project may spend so much a day, and not more."""
        self.does(
            SetBudget(
                budget=DAILY,
                target=BudgetTarget(account=TRAINING),
                every=PeriodKind.DAY,
                limit=60 * CREDIT,
                hard=True,
            )
        )

    def reserve(self, hold: HoldId, minutes: int) -> Reserve:
        """A hold for a job on H100s that runs at most so long; its limit is two hours beyond."""
        return Reserve(
            hold=hold,
            account=TRAINING,
            user=TRAINER,
            run_ms=ms(minutes),
            context=H100,
            expires_at=self.now + (minutes + 120) * MINUTE,
        )

    def reading(self, hold: HoldId, minutes: int) -> tuple[Event, ...]:
        """The job says how long it has run so far."""
        return self.does(Charge(charge=self._charge_id(), hold=hold, run_ms=ms(minutes)))

    def settle(self, hold: HoldId, minutes: int) -> tuple[Event, ...]:
        """The job has ended; this is its last reading."""
        return self.does(Settle(charge=self._charge_id(), hold=hold, run_ms=ms(minutes)))

    def late_reading(self, hold: HoldId, minutes: int) -> tuple[Event, ...]:
        """A reading that was still on its way when the hold was settled."""
        return self.does(BookLate(charge=self._charge_id(), hold=hold, run_ms=ms(minutes)))

    def tops_up(self) -> tuple[Event, ...]:
        """More credits are bought."""
        return self.does(
            Issue(
                grant=TOP_UP,
                account=LAB,
                amount=40 * CREDIT,
                kind=CreditKind.PAID,
                expires_at=NEVER,
            )
        )

    def _charge_id(self) -> ChargeId:
        self._charges += 1
        return ChargeId(f"charge-{self._charges}")

    # Looking

    def grant(self, grant: GrantId) -> Grant:
        """A grant as it is now."""
        with view_at(self.journal.books, self.now) as books:
            return require(books.grants, grant)

    def hold(self, hold: HoldId) -> Hold:
        """A hold as it is now."""
        with view_at(self.journal.books, self.now) as books:
            return require(books.holds, hold)

    def spendable(self, account: AccountId, context: Context) -> list[Grant]:
        """The grants that an account may spend on something now, in spend order."""
        with view_at(self.journal.books, self.now) as books:
            return list(books.spendable(books.path(account), context))

    def counted(self, budget: BudgetId) -> Micros:
        """What a budget counts now."""
        with view_at(self.journal.books, self.now) as books:
            return counted_in(
                books, ApplicableBudget(require(books.budgets, budget), None), self.now
            )

    def debt(self) -> Debt | None:
        """The oldest debt, if something is owed."""
        with view_at(self.journal.books, self.now) as books:
            return next((debt for _, debt in books.debts.items() if debt.owed), None)


def only(kind: type[E], events: tuple[Event, ...]) -> E:
    """The one event of that kind."""
    (found,) = [event for event in events if isinstance(event, kind)]
    return found
