"""Bodies of ledger requests, and the commands built from them.

A request may omit the id of the object it creates. The id is then derived from the Idempotency-Key
(`IdFactory`), so that a retry builds the same command.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    PriceVersionId,
    RecurrenceId,
    UserId,
)
from bursar.core.instant import NEVER, SECOND
from bursar.core.ledger import commands
from bursar.core.ledger import values as core
from bursar.core.money import AMOUNT_MAX, PPM
from bursar.core.pricing import PriceVersion, Rate
from bursar.wire.fields import (
    Context,
    Id,
    IdFactory,
    Micros,
    Policy,
    SomeMicros,
    Text,
    Time,
    WireModel,
)

RUN_MS_MAX = commands.RUN_MS_MAX
Seconds = Annotated[int, Field(ge=1, le=10 * 366 * 86_400, description="seconds")]
RunMs = Annotated[int, Field(ge=0, le=RUN_MS_MAX, description="milliseconds of run time so far")]
Attempt = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
Priority = Annotated[
    int,
    Field(ge=-commands.PRIORITY_MAX, le=commands.PRIORITY_MAX, description="lower is spent first"),
]
Kind = Literal["paid", "grant", "promo"]


def _check_exactly_one(model: WireModel, *names: str) -> None:
    if sum(getattr(model, name) is not None for name in names) != 1:
        raise ValueError(f"exactly one of {' and '.join(names)} is given")


# The org


class EmptyBody(WireModel):
    """An empty JSON object. The body may also be omitted."""


class OrgRequest(WireModel):
    """Create an org and its root account."""

    name: Text
    id: Id | None = None
    time_zone: Text = "UTC"
    tier: Text | None = None


class AccountRequest(WireModel):
    """Create an account."""

    org_id: Id | None = None
    parent_id: Id
    name: Text
    id: Id | None = None
    time_zone: Text | None = None

    def to_command(self, ids: IdFactory) -> commands.AddAccount:
        """Build the command."""
        return commands.AddAccount(
            account=AccountId(ids.id("account", self.id)),
            parent=AccountId(self.parent_id),
            name=self.name,
            time_zone=self.time_zone,
        )


class UserRequest(WireModel):
    """Create a user, who can then spend credits."""

    org_id: Id | None = None
    id: Id | None = None

    def to_command(self, ids: IdFactory) -> commands.AddUser:
        """Build the command."""
        return commands.AddUser(user=UserId(ids.id("user", self.id)))


class TierRequest(WireModel):
    """Set the tier of an org."""

    org_id: Id
    tier: Text

    def to_command(self, ids: IdFactory) -> commands.SetTier:
        """Build the command."""
        return commands.SetTier(tier=self.tier)


# Credits


class RecurrenceRequest(WireModel):
    """How a recurring grant is issued."""

    every: Literal["day", "week", "month"]
    roll_over_max_micros: Micros = 0


class GrantRequest(WireModel):
    """Issue credits, once or every period."""

    account_id: Id
    amount_micros: SomeMicros
    kind: Kind
    starts_at: Time | None = None
    expires_at: Time | None = None
    priority: Priority = core.PRIORITY_DEFAULT
    policy: Policy = Policy()
    external_ref: Text | None = None
    source: Annotated[str, Field(max_length=255)] = ""
    recurring: RecurrenceRequest | None = None
    id: Id | None = None

    @model_validator(mode="after")
    def _check_recurring(self) -> "GrantRequest":
        if self.recurring is not None and (self.expires_at or self.external_ref or self.source):
            raise ValueError("a recurring grant has no expires_at, external_ref or source")
        return self

    def to_command(self, ids: IdFactory) -> commands.Issue | commands.StartRecurrence:
        """Build the command."""
        if self.recurring is not None:
            return commands.StartRecurrence(
                recurrence=RecurrenceId(ids.id("recurrence", self.id)),
                account=AccountId(self.account_id),
                amount=self.amount_micros,
                kind=core.CreditKind(self.kind),
                every=PeriodKind(self.recurring.every),
                roll_over_max=self.recurring.roll_over_max_micros,
                starts_at=self.starts_at,
                priority=self.priority,
                policy=self.policy.to_core(),
            )
        return commands.Issue(
            grant=GrantId(ids.id("grant", self.id)),
            account=AccountId(self.account_id),
            amount=self.amount_micros,
            kind=core.CreditKind(self.kind),
            source=self.source,
            starts_at=self.starts_at,
            expires_at=NEVER if self.expires_at is None else self.expires_at,
            priority=self.priority,
            policy=self.policy.to_core(),
            external_ref=self.external_ref,
        )


class GrantExtensionRequest(WireModel):
    """Extend the expiry of a grant."""

    expires_at: Time | None

    def to_command(self, grant: str) -> commands.ExtendGrant:
        """Build the command."""
        until = NEVER if self.expires_at is None else self.expires_at
        return commands.ExtendGrant(grant=GrantId(grant), expires_at=until)


class TransferRequest(WireModel):
    """Move credits of a grant to another account of the org."""

    grant_id: Id
    account_id: Id
    amount_micros: SomeMicros
    id: Id | None = None

    def to_command(self, ids: IdFactory) -> commands.Transfer:
        """Build the command."""
        return commands.Transfer(
            grant=GrantId(self.grant_id),
            to_grant=GrantId(ids.id("to_grant", self.id)),
            account=AccountId(self.account_id),
            amount=self.amount_micros,
        )


class DebtRequest(WireModel):
    """Book a debt that no hold covers, such as a payment that was charged back."""

    account_id: Id
    amount_micros: SomeMicros
    id: Id | None = None

    def to_command(self, ids: IdFactory) -> commands.BookDebt:
        """Build the command."""
        return commands.BookDebt(
            debt=DebtId(ids.id("debt", self.id)),
            account=AccountId(self.account_id),
            amount=self.amount_micros,
        )


class AbsorptionRequest(WireModel):
    """Write off a debt at the operator's cost: an amount of it, or all."""

    amount_micros: SomeMicros | None = None

    def to_command(self, debt: str) -> commands.AbsorbDebt:
        """Build the command."""
        return commands.AbsorbDebt(debt=DebtId(debt), amount=self.amount_micros)


# Holds


class HoldRequest(WireModel):
    """Reserve an amount, or the cost of a run time; all of it or nothing."""

    account_id: Id
    amount_micros: SomeMicros | None = None
    run_ms_max: RunMs | None = None
    user_id: Id | None = None
    ttl_seconds: Seconds | None = None
    context: Context = Context()
    id: Id | None = None

    @model_validator(mode="after")
    def _check_size(self) -> "HoldRequest":
        _check_exactly_one(self, "amount_micros", "run_ms_max")
        return self

    def to_command(
        self, ids: IdFactory, user: str, capped_key: str | None = None
    ) -> commands.Reserve:
        """Build the command; `user` is used if the body names none.

        `capped_key` is the key of the request, if it has a spend cap.
        """
        return commands.Reserve(
            hold=HoldId(ids.id("hold", self.id)),
            account=AccountId(self.account_id),
            user=UserId(self.user_id or user),
            ttl=None if self.ttl_seconds is None else self.ttl_seconds * SECOND,
            amount=self.amount_micros,
            run_ms=self.run_ms_max,
            context=self.context.to_core(),
            capped_key=None if capped_key is None else UserId(capped_key),
        )


class QuoteRequest(HoldRequest):
    """Request the cost of a hold, and the reasons that would refuse it."""

    likely_run_ms: RunMs | None = None


class HoldExtensionRequest(WireModel):
    """Add credits to a hold, extend its expiry, or both."""

    amount_micros: Micros = 0
    expires_at: Time | None = None

    def to_command(self, hold: str) -> commands.ExtendHold:
        """Build the command."""
        return commands.ExtendHold(
            hold=HoldId(hold), amount=self.amount_micros, expires_at=self.expires_at
        )


class ChargeRequest(WireModel):
    """Charge an amount, or the run time of an attempt so far.

    With `effective_at`, an amount of late usage is booked, also on a closed hold.
    """

    amount_micros: SomeMicros | None = None
    run_ms_total: RunMs | None = None
    attempt: Attempt = 1
    effective_at: Time | None = None
    id: Id | None = None

    @model_validator(mode="after")
    def _check_size(self) -> "ChargeRequest":
        _check_exactly_one(self, "amount_micros", "run_ms_total")
        if self.effective_at is not None and self.amount_micros is None:
            raise ValueError("effective_at is given with an amount_micros")
        return self

    def to_command(self, hold: str, ids: IdFactory) -> commands.Charge | commands.BookLate:
        """Build the command."""
        charge = ChargeId(ids.id("charge", self.id))
        if self.effective_at is not None:
            return commands.BookLate(
                charge=charge,
                hold=HoldId(hold),
                amount=self.amount_micros,
                effective_at=self.effective_at,
            )
        return commands.Charge(
            charge=charge,
            hold=HoldId(hold),
            amount=self.amount_micros,
            attempt=self.attempt,
            run_ms=self.run_ms_total,
        )


class SettlementRequest(WireModel):
    """Charge up to a total or a last reading, or nothing more. The rest is refunded."""

    total_micros: Micros | None = None
    run_ms_total: RunMs | None = None
    attempt: Attempt = 1
    id: Id | None = None

    @model_validator(mode="after")
    def _check_size(self) -> "SettlementRequest":
        if self.total_micros is not None and self.run_ms_total is not None:
            raise ValueError("at most one of total_micros and run_ms_total is given")
        return self

    def to_command(self, hold: str, ids: IdFactory) -> commands.Settle:
        """Build the command."""
        return commands.Settle(
            charge=ChargeId(ids.id("charge", self.id)),
            hold=HoldId(hold),
            total=self.total_micros,
            attempt=self.attempt,
            run_ms=self.run_ms_total,
        )


class RefundRequest(WireModel):
    """Refund a part of what is open."""

    amount_micros: SomeMicros

    def to_command(self, hold: str) -> commands.Refund:
        """Build the command."""
        return commands.Refund(hold=HoldId(hold), amount=self.amount_micros)


class ReversalRequest(WireModel):
    """Undo a charge, or an amount of it.

    Credits that lapse because their grant has expired are issued again until `reissue_until`, if
    set.
    """

    amount_micros: SomeMicros | None = None
    reissue_until: Time | None = None

    def to_command(self, charge: str) -> commands.ReverseCharge:
        """Build the command."""
        return commands.ReverseCharge(
            charge=ChargeId(charge), amount=self.amount_micros, reissue_until=self.reissue_until
        )


# Limits and prices


class BudgetRequest(WireModel):
    """Limit what an account, a user, the pair, or each user below an account spends in a period."""

    account_id: Id | None = None
    user_id: Id | None = None
    each_user: bool = False
    every: Literal["day", "week", "month", "rolling", "lifetime"]
    rolling_seconds: Seconds | None = None
    limit_micros: Micros
    hard: Annotated[
        bool | None,
        Field(description="Whether the budget refuses holds. Default: unchanged; true if new."),
    ] = None
    thresholds_ppm: Annotated[
        list[int] | None,
        Field(
            max_length=16,
            description="Parts of the limit that raise an alert, in millionths."
            " Default: unchanged; 50 %, 80 % and 100 % if new.",
        ),
    ] = None
    id: Id | None = None

    def to_command(self, ids: IdFactory) -> commands.SetBudget:
        """Build the command."""
        return commands.SetBudget(
            budget=BudgetId(ids.id("budget", self.id)),
            target=core.BudgetTarget(
                account=None if self.account_id is None else AccountId(self.account_id),
                user=None if self.user_id is None else UserId(self.user_id),
                each_user=self.each_user,
            ),
            every=PeriodKind(self.every),
            limit=self.limit_micros,
            hard=self.hard,
            rolling=(self.rolling_seconds or 0) * SECOND,
            thresholds_ppm=None if self.thresholds_ppm is None else tuple(self.thresholds_ppm),
        )


class BudgetChangeRequest(WireModel):
    """Change the limit, the hardness or the thresholds of a budget. What is left out stays."""

    limit_micros: Micros | None = None
    hard: Annotated[
        bool | None, Field(description="Whether the budget refuses holds. Default: unchanged.")
    ] = None
    thresholds_ppm: Annotated[
        list[int] | None,
        Field(
            max_length=16,
            description="Parts of the limit that raise an alert, in millionths."
            " Default: unchanged.",
        ),
    ] = None

    @model_validator(mode="after")
    def _check_change(self) -> "BudgetChangeRequest":
        names = ("limit_micros", "hard", "thresholds_ppm")
        if all(getattr(self, name) is None for name in names):
            raise ValueError(f"nothing to change: name one of {', '.join(names)}")
        return self

    def to_command(self, budget: str) -> commands.ChangeBudget:
        """Build the command."""
        return commands.ChangeBudget(
            budget=BudgetId(budget),
            limit=self.limit_micros,
            hard=self.hard,
            thresholds_ppm=None if self.thresholds_ppm is None else tuple(self.thresholds_ppm),
        )


class RateRequest(WireModel):
    """The price of one GPU-hour."""

    gpu_type: Text
    micros_per_gpu_hour: Micros
    region: Text | None = None
    tier: Text | None = None
    priority_class: Text | None = None


class PriceRequest(WireModel):
    """Add a version to an org's prices; without an org, to the deployment's default prices."""

    org_id: Id | None = None
    rates: Annotated[list[RateRequest], Field(min_length=1, max_length=1_000)]
    effective_at: Time | None = None
    cache_hit_ppm: Annotated[int | None, Field(ge=0, le=PPM)] = None
    keep_others: Annotated[
        bool,
        Field(
            description="Keep the rates that `rates` does not name: those of the version before"
            " this one, also if they change until it takes effect. Otherwise the version has no"
            " other rates."
        ),
    ] = False
    id: Id | None = None

    def to_command(self, ids: IdFactory) -> commands.SetPrice:
        """Build the command; without a time, the version is in force from now on."""
        rates = tuple(
            Rate(
                gpu_type=rate.gpu_type,
                region=rate.region,
                tier=rate.tier,
                priority_class=rate.priority_class,
                micros_per_gpu_hour=rate.micros_per_gpu_hour,
            )
            for rate in self.rates
        )
        return commands.SetPrice(
            version=PriceVersion(
                id=PriceVersionId(ids.id("version", self.id)),
                effective_at=self.effective_at or 0,
                rates=rates,
                cache_hit_ppm=self.cache_hit_ppm,
                keeps_others=self.keep_others,
            ),
            from_now=self.effective_at is None,
        )


# What callers call the fields of commands; what a command is about is `id`, in path or body.
_FIELD_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("grant", "hold", "charge", "debt", "budget", "recurrence"), "id"),
        "account": "account_id",
        "amount": "amount_micros",
        "command": "operation",
        "from_now": "effective_at",
        "limit": "limit_micros",
        "parent": "parent_id",
        "roll_over_max": "recurring",
        "rolling": "rolling_seconds",
        "run_ms": "run_ms_total",
        "target": "account_id",
        "to_grant": "id",
        "total": "total_micros",
        "ttl": "ttl_seconds",
        "user": "user_id",
        "version": "rates",
    }
)
_FIELD_NAMES_BY_COMMAND: Final[Mapping[tuple[type[commands.Command], str], str]] = MappingProxyType(
    {
        (commands.AddAccount, "account"): "id",
        (commands.AddUser, "user"): "id",
        (commands.Reserve, "run_ms"): "run_ms_max",
        (commands.StartRecurrence, "every"): "recurring",
        (commands.Transfer, "grant"): "grant_id",
    }
)


def api_field_name(command: commands.Command, field: str) -> str:
    """The API's name for a field of a command."""
    return _FIELD_NAMES_BY_COMMAND.get((type(command), field)) or _FIELD_NAMES.get(field, field)
