"""Sample data for `up --demo`: three orgs in three tiers, with accounts, credits, budgets, prices.

All ids and idempotency keys are fixed, so a second start adds nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    GrantId,
    HoldId,
    PriceVersionId,
    RecurrenceId,
    UserId,
    make_id,
)
from bursar.core.instant import DAY, HOUR, Instant
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Charge,
    Command,
    Issue,
    Reserve,
    SetBudget,
    SetPrice,
    Settle,
    StartRecurrence,
)
from bursar.core.ledger.values import BudgetTarget, Context, CreditKind, GrantPolicy
from bursar.core.money import CREDIT, PPM, Micros
from bursar.core.pricing import PriceVersion, Rate
from bursar.core.refusal import Code, Refusal
from bursar.service.database import Connection
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.ledger import Ledger
from bursar.service.org_setup import begin_books, begin_org, listed, org_account, org_user

CREATED_MS: Final = 1_794_700_800_000  # 2026-11-15; the creation time in all ids
# Micro-credits per GPU-hour, for orgs without their own prices.
PRICES: Final = {"H100": 2_500_000, "A100": 1_200_000, "L4": 400_000}


@dataclass(frozen=True, slots=True)
class DemoOrg:
    """An org of the demo."""

    id: str
    name: str
    time_zone: str
    tier: str
    teams: dict[str, tuple[str, ...]]  # team → its projects
    paid: int  # credits
    budget: int  # credits per month, for the whole org
    rolling_limit: Micros = 0  # per hour, for the first team; 0: no such budget
    own_prices: Mapping[str, int] = field(default_factory=dict)

    def account(self, name: str) -> AccountId:
        """The account with this name; the root account for an empty name."""
        return AccountId(self._id("account", name) if name else org_account(self.id))

    @property
    def users(self) -> tuple[UserId, UserId]:
        """The two users of the org."""
        return UserId(org_user(self.id)), UserId(self._id("user", "second"))

    @property
    def purchase(self) -> Micros:
        """The amount of one purchase."""
        return self.paid * CREDIT

    def _id(self, what: str, name: str) -> str:
        return make_id(self.id, f"bursar:demo:{name}", what, CREATED_MS)

    def commands(self, now: Instant) -> Iterator[tuple[str, Command]]:
        """The commands that set up the org, each with the name of its idempotency key."""
        yield "user", AddUser(user=self.users[1])
        for team, projects in self.teams.items():
            yield f"team-{team}", self._add(team, "")
            for project in projects:
                yield f"project-{project}", self._add(project, team)
        if self.own_prices:
            yield "prices", _set_price(self._id("price", "own"), self.own_prices)
        yield from self._credits(now)
        yield from self._work()
        yield from self._budgets()

    def _add(self, name: str, parent: str) -> AddAccount:
        return AddAccount(account=self.account(name), parent=self.account(parent), name=name)

    def _credits(self, now: Instant) -> Iterator[tuple[str, Command]]:
        day = now - now % DAY  # the same for all starts of a day
        yield (
            "paid",
            Issue(
                grant=GrantId(self._id("grant", "paid")),
                account=self.account(""),
                amount=self.purchase,
                kind=CreditKind.PAID,
                source="invoice 1001",
                external_ref="invoice-1001",
                expires_at=day + 365 * DAY,
            ),
        )
        team = next(iter(self.teams))
        yield (
            "promo",
            Issue(
                grant=GrantId(self._id("grant", "promo")),
                account=self.account(team),
                amount=self.purchase // 20,
                kind=CreditKind.PROMO,
                source="try the H100",
                expires_at=day + 5 * DAY,
                policy=GrantPolicy(gpu_types=frozenset({"H100"}), max_share_ppm=PPM // 2),
            ),
        )
        yield (
            "monthly",
            StartRecurrence(
                recurrence=RecurrenceId(self._id("recurrence", "monthly")),
                account=self.account(team),
                amount=self.purchase // 50,
                kind=CreditKind.GRANT,
                every=PeriodKind.MONTH,
                roll_over_max=self.purchase // 100,
            ),
        )

    def _budgets(self) -> Iterator[tuple[str, Command]]:
        team = next(iter(self.teams))
        limits = (
            ("month", "", PeriodKind.MONTH, self.budget, True),
            ("week", team, PeriodKind.WEEK, self.budget // 3, False),
        )
        for name, account, every, limit, hard in limits:
            yield (
                f"budget-{name}",
                SetBudget(
                    budget=BudgetId(self._id("budget", name)),
                    target=BudgetTarget(account=self.account(account)),
                    every=every,
                    limit=limit * CREDIT,
                    hard=hard,
                ),
            )
        if self.rolling_limit:
            yield (
                "budget-rolling",
                SetBudget(
                    budget=BudgetId(self._id("budget", "rolling")),
                    target=BudgetTarget(account=self.account(team)),
                    every=PeriodKind.ROLLING,
                    rolling=HOUR,
                    limit=self.rolling_limit,
                    hard=True,
                ),
            )

    def _work(self) -> Iterator[tuple[str, Command]]:
        """Three holds: two settled, one open."""
        projects = [project for projects in self.teams.values() for project in projects]
        hour = 4 * self.own_prices.get("H100", PRICES["H100"])
        for number, project in enumerate(projects[:3]):
            hold = HoldId(self._id("hold", project))
            yield (
                f"hold-{number}",
                Reserve(
                    hold=hold,
                    account=self.account(project),
                    user=UserId(org_user(self.id)),
                    run_ms=2 * HOUR // 1_000,
                    context=Context(gpu_types=("H100",), milli_gpus=4_000, region="eu-west"),
                ),
            )
            charge = ChargeId(self._id("charge", project))
            if number == 2:
                yield f"charge-{number}", Charge(charge=charge, hold=hold, amount=hour // 10)
            else:
                yield (
                    f"settle-{number}",
                    Settle(charge=charge, hold=hold, total=hour * (7 + number) // 10),
                )


def _set_price(id: str, rates_by_type: Mapping[str, int]) -> SetPrice:
    rates = tuple(
        Rate(gpu_type=gpu_type, micros_per_gpu_hour=rate)
        for gpu_type, rate in rates_by_type.items()
    )
    return SetPrice(version=PriceVersion(id=PriceVersionId(id), effective_at=0, rates=rates))


ORGS: Final = (
    DemoOrg(
        id="01930f3c-0000-7000-8000-0000000a1fa0",
        name="Alfa Labs",
        time_zone="Europe/Berlin",
        tier="enterprise",
        teams={"research": ("vision", "language"), "platform": ("serving",)},
        paid=50_000,
        budget=20_000,
        own_prices={"A100": 1_000_000},
    ),
    DemoOrg(
        id="01930f3c-0000-7000-8000-0000000b2a50",
        name="Bravo Robotics",
        time_zone="America/New_York",
        tier="paid",
        teams={"control": ("arms", "legs"), "maps": ("tiles",)},
        paid=2_000,
        budget=25_000,
    ),
    DemoOrg(
        id="01930f3c-0000-7000-8000-0000000c4a22",
        name="Charlie's Notebook",
        time_zone="Asia/Tokyo",
        tier="free",
        teams={"hobby": ("toy-model",)},
        paid=100,
        budget=200,
        rolling_limit=400_000,
        own_prices={"H100": 250_000, "A100": 120_000},  # for teaching
    ),
)


def seed_sample_data(connection: Connection, ledger: Ledger, now: Instant) -> None:
    """Create the orgs of the demo and the deployment's prices."""
    prices = _set_price(make_id(DEPLOYMENT, "bursar:demo", "price", CREATED_MS), PRICES)
    ledger.ask(DEPLOYMENT, "bursar:demo:prices", prices)
    for org in ORGS:
        command = listed(org.id, org.name, org.time_zone, org.tier)
        ledger.ask(DEPLOYMENT, f"bursar:demo:{org.id}", command)
        begin_books(connection, org.id)
        begin_org(ledger, org.id, org.name, org.time_zone, org.tier)
        pending = [
            (name, ledger.submit(org.id, f"bursar:demo:{name}", command))
            for name, command in org.commands(now)
        ]
        for name, answer in pending:
            outcome = answer.result().outcome
            # On another day, the request with the same key has another expiry.
            if isinstance(outcome, Refusal) and outcome.code is not Code.KEY_REUSED:
                raise RuntimeError(f"the demo cannot be set up: {name}: {outcome}")
