"""The credits of a simulated world: every tenant has books, with the ledger of `bursar.core`.

A job reserves credits when it is submitted, draws when it starts and settles when it ends. Lost
work of an attempt is refunded at once, so tenants do not pay for it. As a second opinion, a plain
sum of the prices of all kept work is maintained; `problems` reports where the two differ.
"""

from bursar.core.ids import AccountId, ChargeId, GrantId, HoldId, PriceVersionId, UserId
from bursar.core.instant import DAY, MILLISECOND, Instant
from bursar.core.ledger.books import COMPARTMENTS, Books
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Charge,
    Command,
    GiveBack,
    Issue,
    Redraw,
    Release,
    Reserve,
    SetPolicy,
    Settle,
)
from bursar.core.ledger.decide import perform
from bursar.core.ledger.events import Event, HoldClosed, HoldOpened, WorkGivenBack
from bursar.core.ledger.values import Compartment, Context, CreditKind, OrgPolicy
from bursar.core.ledger.verify import find_problems
from bursar.core.money import AMOUNT_MAX, CREDIT, Micros, usage_price
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Code, Refusal, fail_invariant, invariant
from bursar.sim.work import Work

ROOT = AccountId("org")
PLENTY: Micros = AMOUNT_MAX // 2  # of a tenant whose credits are not specified
WAITS_MAX = 3_650 * DAY  # no hold ends before its job does, however long that waits


class TenantLedger:
    """One tenant's books, and the plain sum."""

    def __init__(self, prices: PriceBook, credits: Micros, now: Instant) -> None:
        self.books = Books(prices)
        self.users: set[UserId] = set()
        self.kept_value: Micros = 0  # the price of all work that lasted, counted beside the books
        self.given_back: Micros = 0  # of work that was lost
        self.returned: Micros = 0  # set aside and not needed
        self.refused = 0  # jobs for which there was not enough
        self.readings = 0  # that were booked while a job ran
        self.overtaken = 0  # readings that came when their attempt was over
        self.must(AddAccount(account=ROOT, parent=None, name="org"), now)
        self.must(SetPolicy(policy=OrgPolicy(job_hold_max=WAITS_MAX)), now)
        if credits:
            grant = GrantId("grant")
            self.must(Issue(grant=grant, account=ROOT, amount=credits, kind=CreditKind.PAID), now)

    def must(self, command: Command, now: Instant) -> None:
        """Run a command that must not be refused."""
        outcome = self.do(command, now)
        if isinstance(outcome, Refusal):
            raise fail_invariant("the ledger refused", command=command, refusal=outcome)

    def do(self, command: Command, now: Instant) -> tuple[Event, ...] | Refusal:
        """Let the ledger decide, and count the result."""
        outcome = perform(self.books, command, now)
        if not isinstance(outcome, Refusal):
            for event in outcome:
                if isinstance(event, WorkGivenBack):
                    self.given_back += event.amount
                elif isinstance(event, HoldClosed):
                    self.returned += sum(
                        posting.amount
                        for posting in event.postings
                        if posting.target is Compartment.AVAILABLE
                    )
        return outcome

    def sums(self) -> dict[str, Micros]:
        """All credits of the tenant by compartment."""
        sums = dict.fromkeys(COMPARTMENTS, 0)
        for _, grant in self.books.grants.items():
            for part in COMPARTMENTS:
                sums[part] += getattr(grant, part.value)
        return {part.value: amount for part, amount in sums.items()}

    def problems(self, *, over: bool) -> list[str]:
        """The contradictions; `over`: no job is left that could hold anything."""
        problems, sums = find_problems(self.books), self.sums()
        if sum(sums.values()) != self.books.header.issued:
            problems.append(f"{self.books.header.issued} issued, but {sums} are there")
        if over and sums["held"]:
            problems.append(f"{sums['held']} held, but nothing is left to run")
        owed = sum(debt.owed for _, debt in self.books.debts.items())
        if over and sums["spent"] + owed != self.kept_value:
            problems.append(
                f"{sums['spent']} spent, {owed} owed, but work of {self.kept_value} was kept"
            )
        return problems


class TenantLedgers:
    """The books of all tenants of a world."""

    def __init__(
        self,
        prices: tuple[tuple[str, Micros], ...],
        credits: dict[str, Micros],
        now: Instant,
    ) -> None:
        self.accounts: dict[str, TenantLedger] = {}
        self._rates = dict(prices)
        self._credits = credits
        self._since = now
        rates = tuple(Rate(gpu_type=name, micros_per_gpu_hour=price) for name, price in prices)
        version = PriceVersion(id=PriceVersionId("list"), effective_at=0, rates=rates)
        self._prices = PriceBook(versions=(version,))

    def submit(self, work: Work, run: int, now: Instant) -> tuple[str, ...]:
        """Reserve the maximum cost of a job; return the GPU types it can pay for.

        Returns none if the ledger refuses.
        """
        account = self._account(work.org)
        user = UserId(work.path[-1])
        if user not in account.users:
            account.users.add(user)
            account.must(AddUser(user=user), now)
        outcome = account.do(
            Reserve(
                hold=HoldId(work.id), account=ROOT, user=user, run_ms=_ms(run), for_job=True,
                context=Context(
                    gpu_types=work.shape.types, milli_gpus=work.milli_gpus, job=work.id
                ),
            ),
            now,
        )  # fmt: skip
        if isinstance(outcome, Refusal):
            unpaid = outcome.code in (Code.INSUFFICIENT_CREDITS, Code.AMOUNT_TOO_LARGE)
            invariant(unpaid, "the ledger refused a job", refusal=outcome)
            account.refused += 1
            return ()
        opened = next(event for event in outcome if isinstance(event, HoldOpened))
        return opened.terms.context.gpu_types

    def start(self, work: Work, attempt: int, gpu_type: str, run: int, now: Instant) -> None:
        """Draw for an attempt on the GPUs it got."""
        hold = HoldId(work.id)
        self._account(work.org).must(
            Redraw(hold=hold, attempt=attempt, gpu_type=gpu_type, run_ms=_ms(run)), now
        )

    def read(self, work: Work, attempt: int, run: int, now: Instant) -> None:
        """Charge the run time of an attempt so far; a late reading adds nothing."""
        account = self._account(work.org)
        charge = ChargeId(f"{work.id}/{attempt}/{_ms(run)}")
        outcome = account.do(
            Charge(charge=charge, hold=HoldId(work.id), attempt=attempt, run_ms=_ms(run)), now
        )
        if not isinstance(outcome, Refusal):
            account.readings += 1
            return
        over = outcome.code in (Code.ATTEMPT_SETTLED, Code.HOLD_CLOSED)
        invariant(over, "the ledger refused a reading", refusal=outcome)
        account.overtaken += 1

    def stop(
        self, work: Work, attempt: int, gpu_type: str, run: int, kept_run: int, now: Instant
    ) -> None:
        """Charge the run time of an attempt, and refund the lost part."""
        account, hold = self._account(work.org), HoldId(work.id)
        charge = ChargeId(f"{work.id}/{attempt}")
        account.must(
            Charge(charge=charge, hold=hold, attempt=attempt, run_ms=_ms(run), final=True), now
        )
        if _ms(kept_run) < _ms(run):
            account.must(GiveBack(hold=hold, attempt=attempt, kept_ms=_ms(kept_run)), now)
        account.kept_value += usage_price(self._rates[gpu_type], work.milli_gpus, _ms(kept_run))

    def finish(
        self, work: Work, attempt: int, gpu_type: str, run: int, kept_run: int, now: Instant
    ) -> None:
        """Charge the last attempt; the rest of the hold is refunded."""
        self.stop(work, attempt, gpu_type, run, kept_run, now)
        charge = ChargeId(f"{work.id}/end")
        self._account(work.org).must(Settle(charge=charge, hold=HoldId(work.id)), now)

    def drop(self, work: Work, now: Instant) -> None:
        """Release the hold of a job that does not run any more."""
        self._account(work.org).must(Release(hold=HoldId(work.id)), now)

    def _account(self, org: str) -> TenantLedger:
        ledger = self.accounts.get(org)
        if ledger is None:
            credits = self._credits.get(org, PLENTY)
            ledger = self.accounts[org] = TenantLedger(self._prices, credits, self._since)
        return ledger


def _ms(span: int) -> int:
    return span // MILLISECOND


def credits_of(amount: Micros) -> float:
    """An amount in credits, for display."""
    return amount / CREDIT
