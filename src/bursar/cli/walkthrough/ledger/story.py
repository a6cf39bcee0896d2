"""The story of the ledger walkthrough: one org in memory, its clock and its commands."""

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

DAY_START: Final[Instant] = 1_772_438_400_000_000  # Monday 2 March 2026, 9:00 in Berlin
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


def time_of_day(hour: int, minute: int = 0) -> Instant:
    """A time on the first day; hours above 24 are on the following days."""
    return DAY_START + (hour - 9) * HOUR + minute * MINUTE


def minutes_in_ms(minutes: int) -> int:
    """Minutes as milliseconds."""
    return minutes * MINUTE // 1_000


class Story:
    """One org's journal and its current time."""

    def __init__(self) -> None:
        self.journal: Final = Journal(PRICES)
        self.now = DAY_START
        self._charges = 0
        self.run_command(AddAccount(account=LAB, parent=None, name="Lab", time_zone=ZONE))
        self.run_command(AddAccount(account=VISION, parent=LAB, name="Vision team"))
        self.run_command(AddAccount(account=TRAINING, parent=VISION, name="Training"))
        self.run_command(AddUser(user=TRAINER))

    # Commands

    def try_command(self, command: Command) -> tuple[Event, ...] | Refusal:
        """Run a command that may be refused."""
        return self.journal.do(command, self.now)

    def run_command(self, command: Command) -> tuple[Event, ...]:
        """Run a command that must succeed."""
        outcome = self.try_command(command)
        if isinstance(outcome, Refusal):
            raise RuntimeError(f"the walkthrough cannot continue: {command} got {outcome}")
        return outcome

    def issue_grants(self) -> None:
        """Issue paid credits to the lab and promotions to the team and, for H100s, the project."""
        trial = GrantPolicy(gpu_types=frozenset(H100.gpu_types), max_share_ppm=250_000)
        self.run_command(Issue(grant=BOUGHT, account=LAB, amount=50 * CREDIT, kind=CreditKind.PAID))
        self.run_command(
            Issue(
                grant=SPRING,
                account=VISION,
                amount=20 * CREDIT,
                kind=CreditKind.PROMO,
                expires_at=time_of_day(12),
            )
        )
        self.run_command(
            Issue(
                grant=TRIAL,
                account=TRAINING,
                amount=30 * CREDIT,
                kind=CreditKind.PROMO,
                expires_at=time_of_day(12) + 7 * DAY,
                policy=trial,
            )
        )

    def set_budget(self) -> None:
        """Set a hard daily budget for the project."""
        self.run_command(
            SetBudget(
                budget=DAILY,
                target=BudgetTarget(account=TRAINING),
                every=PeriodKind.DAY,
                limit=60 * CREDIT,
                hard=True,
            )
        )

    def make_reserve(self, hold: HoldId, minutes: int) -> Reserve:
        """The command that holds credits for a job on H100s; the hold expires two hours later."""
        return Reserve(
            hold=hold,
            account=TRAINING,
            user=TRAINER,
            run_ms=minutes_in_ms(minutes),
            context=H100,
            expires_at=self.now + (minutes + 120) * MINUTE,
        )

    def send_reading(self, hold: HoldId, minutes: int) -> tuple[Event, ...]:
        """Charge the job's total run time so far."""
        return self.run_command(
            Charge(charge=self._charge_id(), hold=hold, run_ms=minutes_in_ms(minutes))
        )

    def settle(self, hold: HoldId, minutes: int) -> tuple[Event, ...]:
        """Settle the hold with the job's final run time."""
        return self.run_command(
            Settle(charge=self._charge_id(), hold=hold, run_ms=minutes_in_ms(minutes))
        )

    def send_late_reading(self, hold: HoldId, minutes: int) -> tuple[Event, ...]:
        """Book a reading that arrived after the hold was settled."""
        return self.run_command(
            BookLate(charge=self._charge_id(), hold=hold, run_ms=minutes_in_ms(minutes))
        )

    def buy_credits(self) -> tuple[Event, ...]:
        """Buy more credits."""
        return self.run_command(
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

    # Queries

    def grant(self, grant: GrantId) -> Grant:
        """A grant at the current time."""
        with view_at(self.journal.books, self.now) as books:
            return require(books.grants, grant)

    def hold(self, hold: HoldId) -> Hold:
        """A hold at the current time."""
        with view_at(self.journal.books, self.now) as books:
            return require(books.holds, hold)

    def spendable(self, account: AccountId, context: Context) -> list[Grant]:
        """The grants that an account can spend in this context, in spend order."""
        with view_at(self.journal.books, self.now) as books:
            return list(books.spendable(books.path(account), context))

    def counted(self, budget: BudgetId) -> Micros:
        """The amount that counts in a budget now."""
        with view_at(self.journal.books, self.now) as books:
            return counted_in(
                books, ApplicableBudget(require(books.budgets, budget), None), self.now
            )

    def debt(self) -> Debt | None:
        """The oldest open debt, if there is one."""
        with view_at(self.journal.books, self.now) as books:
            return next((debt for _, debt in books.debts.items() if debt.owed), None)


def only_event(kind: type[E], events: tuple[Event, ...]) -> E:
    """The only event of a type."""
    (event_of_kind,) = [event for event in events if isinstance(event, kind)]
    return event_of_kind
