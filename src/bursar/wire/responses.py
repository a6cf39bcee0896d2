"""Responses of the ledger.

The response to a command depends only on the command and its events. So the same key gets the same
bytes again, whatever has happened since. The response to a query is built from what was read.
"""

from collections.abc import Iterable
from typing import Any, Literal, Self, TypeVar

from bursar.core.ledger import balance as reading
from bursar.core.ledger import commands, events
from bursar.core.ledger import values as core
from bursar.core.ledger.quote import Quote
from bursar.core.money import Micros
from bursar.wire.fields import Context, Policy, Time, WireModel
from bursar.wire.problems import problem_from_refusal

E = TypeVar("E", bound=events.Event)
Happened = tuple[events.Event, ...]


def find_event(kind: type[E], happened: Happened, **fields: object) -> E | None:
    """The first event of a kind with these fields; due events may come before it."""
    for event in happened:
        if isinstance(event, kind) and all(
            getattr(event, name) == value for name, value in fields.items()
        ):
            return event
    return None


def require_event(kind: type[E], happened: Happened, **fields: object) -> E:
    """The event of a kind with these fields, which must exist."""
    event = find_event(kind, happened, **fields)
    assert event is not None, f"no {kind.__name__} among what happened"
    return event


class GrantAmount(WireModel):
    """An amount of one grant."""

    grant_id: str
    amount_micros: Micros


def _parts(postings: Iterable[events.Posting], target: core.Compartment) -> list[GrantAmount]:
    amounts: dict[str, Micros] = {}
    for posting in postings:
        if posting.target is target:
            amounts[posting.grant] = amounts.get(posting.grant, 0) + posting.amount
    return [GrantAmount(grant_id=grant, amount_micros=amount) for grant, amount in amounts.items()]


# The org


class Org(WireModel):
    """A tenant."""

    id: str
    account_id: str
    name: str


class Account(WireModel):
    """An account of an org."""

    id: str
    org_id: str
    parent_id: str | None
    name: str
    time_zone: str

    @classmethod
    def from_core(cls, org: str, account: core.Account) -> Self:
        """Build the response from the core's account."""
        return cls(
            id=account.id,
            org_id=org,
            parent_id=account.parent,
            name=account.name,
            time_zone=account.time_zone,
        )


class User(WireModel):
    """A user of an org."""

    id: str
    org_id: str


class Tier(WireModel):
    """The tier of an org."""

    org_id: str
    tier: str


# Credits


class Grant(WireModel):
    """Credits issued once. Each of them is in one compartment."""

    id: str
    account_id: str
    kind: Literal["paid", "grant", "promo"]
    source: str
    priority: int
    issued_at: Time
    starts_at: Time
    expires_at: Time | None
    amount_micros: Micros
    policy: Policy
    external_ref: str | None
    parent_id: str | None
    recurrence_id: str | None

    @classmethod
    def from_core(cls, terms: core.GrantTerms) -> Self:
        """The grant as issued."""
        return cls.model_construct(**_grant(terms))


def _grant(terms: core.GrantTerms) -> dict[str, Any]:
    return {
        "id": terms.id,
        "account_id": terms.account,
        "kind": terms.kind.value,
        "source": terms.source,
        "priority": terms.priority,
        "issued_at": terms.issued_at,
        "starts_at": terms.starts_at,
        "expires_at": terms.expires_at,
        "amount_micros": terms.amount,
        "policy": Policy.from_core(terms.policy),
        "external_ref": terms.external_ref,
        "parent_id": terms.parent,
        "recurrence_id": terms.recurrence,
    }


class Compartments(WireModel):
    """The compartments of grants."""

    available_micros: Micros
    held_micros: Micros
    spent_micros: Micros
    lapsed_micros: Micros
    revoked_micros: Micros
    moved_micros: Micros

    @classmethod
    def from_core(cls, owned: reading.Owned) -> Self:
        """Build the response from the core's compartments."""
        return cls(
            available_micros=owned.available,
            held_micros=owned.held,
            spent_micros=owned.spent,
            lapsed_micros=owned.lapsed,
            revoked_micros=owned.revoked,
            moved_micros=owned.moved,
        )


class GrantDetail(Grant):
    """A grant and its current compartments."""

    owned: Compartments

    @classmethod
    def with_compartments(cls, terms: core.GrantTerms, owned: reading.Owned) -> Self:
        """The grant with its current compartments."""
        return cls.model_construct(**_grant(terms), owned=Compartments.from_core(owned))


class Recurrence(WireModel):
    """A grant that is issued again every period."""

    id: str
    account_id: str
    amount_micros: Micros
    kind: Literal["paid", "grant", "promo"]
    every: str
    time_zone: str
    roll_over_max_micros: Micros
    priority: int
    policy: Policy
    next_at: Time | None

    @classmethod
    def from_core(cls, recurrence: core.Recurrence) -> Self:
        """Build the response from the core's recurrence."""
        return cls.model_construct(
            id=recurrence.id,
            account_id=recurrence.account,
            amount_micros=recurrence.amount,
            kind=recurrence.kind.value,
            every=recurrence.window.every.value,
            time_zone=recurrence.window.time_zone,
            roll_over_max_micros=recurrence.roll_over_max,
            priority=recurrence.priority,
            policy=Policy.from_core(recurrence.policy),
            next_at=recurrence.next_at,
        )


class GrantRevocation(WireModel):
    """Credits that were revoked."""

    grant_id: str
    revoked_micros: Micros
    voided: bool

    @classmethod
    def from_core(cls, event: events.GrantRevoked) -> Self:
        """Build the response from the core's revocation."""
        taken = sum(
            posting.amount
            for posting in event.postings
            if posting.target is core.Compartment.REVOKED
        )
        return cls(grant_id=event.grant, revoked_micros=taken, voided=event.voided)


class GrantExtension(WireModel):
    """A grant with a later expiry."""

    grant_id: str
    expires_at: Time | None


class Debt(WireModel):
    """A debt."""

    id: str
    account_id: str
    hold_id: str | None
    owed_micros: Micros
    booked_at: Time

    @classmethod
    def from_core(cls, debt: core.Debt) -> Self:
        """Build the response from the core's debt."""
        return cls.model_construct(
            id=debt.id,
            account_id=debt.account,
            hold_id=debt.hold,
            owed_micros=debt.owed,
            booked_at=debt.booked_at,
        )


class DebtAbsorption(WireModel):
    """Debt that was written off at the operator's cost."""

    debt_id: str
    absorbed_micros: Micros


# Holds


class Rate(WireModel):
    """The price of a GPU-hour of a type in a hold."""

    gpu_type: str
    micros_per_gpu_hour: Micros
    price_version: str | None = None


def render_rates(rates: Iterable[tuple[str, int]], versions: Iterable[str]) -> list[Rate]:
    """Rates by GPU type, each with the price version that it comes from."""
    return [
        Rate(gpu_type=gpu_type, micros_per_gpu_hour=rate, price_version=version)
        for (gpu_type, rate), version in zip(rates, versions, strict=True)
    ]


class Draw(WireModel):
    """The part of a hold that came from one grant."""

    grant_id: str
    drawn_micros: Micros
    charged_micros: Micros
    returned_micros: Micros
    open_micros: Micros


class Hold(WireModel):
    """Credits reserved for a purpose."""

    id: str
    account_id: str
    user_id: str
    state: Literal["open", "closed"]
    open_micros: Micros
    charged_micros: Micros
    owed_micros: Micros
    absorbed_micros: Micros
    opened_at: Time
    expires_at: Time
    closed_at: Time | None
    context: Context
    rates: list[Rate]
    draws: list[Draw]

    @classmethod
    def from_core(cls, hold: core.Hold) -> Self:
        """The current state of a hold."""
        return cls.model_construct(
            **_terms(hold.terms),
            state="open" if hold.closed_at is None else "closed",
            open_micros=hold.open,
            charged_micros=hold.used,
            owed_micros=hold.owed,
            absorbed_micros=hold.absorbed,
            expires_at=hold.expires_at,
            closed_at=hold.closed_at,
            draws=[
                Draw(
                    grant_id=draw.grant,
                    drawn_micros=draw.drawn,
                    charged_micros=draw.charged,
                    returned_micros=draw.returned,
                    open_micros=draw.open,
                )
                for draw in hold.draws
            ],
        )

    @classmethod
    def from_event(cls, event: events.HoldOpened) -> Self:
        """The hold as it was opened."""
        return cls.model_construct(
            **_terms(event.terms),
            state="open",
            open_micros=event.open,
            charged_micros=0,
            owed_micros=0,
            absorbed_micros=0,
            expires_at=event.expires_at,
            closed_at=None,
            draws=[
                Draw(
                    grant_id=part.grant_id,
                    drawn_micros=part.amount_micros,
                    charged_micros=0,
                    returned_micros=0,
                    open_micros=part.amount_micros,
                )
                for part in _parts(event.postings, core.Compartment.HELD)
            ],
        )


def _terms(terms: core.HoldTerms) -> dict[str, Any]:
    return {
        "id": terms.id,
        "account_id": terms.account,
        "user_id": terms.user,
        "opened_at": terms.opened_at,
        "context": Context.from_core(terms.context),
        "rates": render_rates(terms.rates, terms.price_versions),
    }


class HoldUpdate(WireModel):
    """The state of a hold after a change."""

    hold_id: str
    state: Literal["open", "closed"]
    open_micros: Micros
    charged_micros: Micros
    refunded_micros: Micros
    expires_at: Time | None = None

    @classmethod
    def from_core(cls, event: events.HoldChanged) -> Self:
        """Build the response. Refunds include amounts that lapsed on return."""
        held = core.Compartment.HELD
        refunded = sum(posting.amount for posting in event.postings if posting.source is held)
        return cls.model_construct(
            hold_id=event.hold,
            state="closed" if isinstance(event, events.HoldClosed) else "open",
            open_micros=event.open,
            charged_micros=event.used,
            refunded_micros=refunded,
            expires_at=event.expires_at if isinstance(event, events.HoldExtended) else None,
        )


class BookedCharge(WireModel):
    """Usage that was charged, and the state of the hold after it."""

    id: str
    hold_id: str
    amount_micros: Micros
    spent: list[GrantAmount]
    owed_micros: Micros
    absorbed_micros: Micros
    effective_at: Time | None
    attempt: int | None
    run_ms_total: int | None
    late: bool
    budgets_exceeded: list[str]
    hold_open_micros: Micros | None
    hold_charged_micros: Micros | None

    @classmethod
    def from_core(cls, event: events.ChargeBooked) -> Self:
        """Build the response from the core's charge."""
        return cls.model_construct(
            id=event.charge,
            hold_id=event.hold,
            amount_micros=event.amount,
            spent=_parts(event.postings, core.Compartment.SPENT),
            owed_micros=event.owed,
            absorbed_micros=event.absorbed,
            effective_at=event.effective_at,
            attempt=event.attempt,
            run_ms_total=None if event.meter is None else event.meter.run_ms,
            late=event.late,
            budgets_exceeded=list(event.over),
            hold_open_micros=event.open,
            hold_charged_micros=event.used,
        )

    @classmethod
    def zero(cls, command: commands.Charge | commands.BookLate) -> Self:
        """The response for a reading that adds nothing."""
        return cls.model_construct(
            id=command.charge,
            hold_id=command.hold,
            amount_micros=0,
            spent=[],
            owed_micros=0,
            absorbed_micros=0,
            effective_at=None,
            attempt=command.attempt,
            run_ms_total=command.run_ms,
            late=False,
            budgets_exceeded=[],
            hold_open_micros=None,
            hold_charged_micros=None,
        )


class Settlement(HoldUpdate):
    """A hold that was settled, and its last charge if there was one."""

    charge: BookedCharge | None

    @classmethod
    def from_events(cls, happened: Happened, hold: str) -> Self:
        """Build the response from the core's settlement."""
        closed = require_event(events.HoldClosed, happened, hold=hold)
        booked = find_event(events.ChargeBooked, happened, hold=hold)
        update = HoldUpdate.from_core(closed)
        return cls.model_construct(
            **{name: getattr(update, name) for name in HoldUpdate.model_fields},
            charge=None if booked is None else BookedCharge.from_core(booked),
        )


class Reversal(WireModel):
    """A charge that was undone, or a part of it."""

    charge_id: str
    amount_micros: Micros
    forgiven_micros: Micros
    returned: list[GrantAmount]
    lapsed: list[GrantAmount]
    issued: list[Grant]

    @classmethod
    def from_core(cls, event: events.ChargeReversed) -> Self:
        """Build the response from the core's reversal."""
        spent = core.Compartment.SPENT
        back = [posting for posting in event.postings if posting.source is spent]
        return cls.model_construct(
            charge_id=event.charge,
            amount_micros=event.amount,
            forgiven_micros=event.forgiven,
            returned=_parts(back, core.Compartment.AVAILABLE),
            lapsed=_parts(back, core.Compartment.LAPSED),
            issued=[Grant.from_core(terms) for terms in event.issued],
        )


class HoldQuote(WireModel):
    """What a hold would reserve, and all reasons that would refuse it."""

    held_micros: Micros
    likely_micros: Micros
    spendable_micros: Micros
    rates: list[Rate]
    dropped_gpu_types: list[str]
    problems: list[dict[str, Any]]

    @classmethod
    def from_core(cls, quote: Quote) -> Self:
        """Build the response from the core's quote."""
        return cls(
            held_micros=quote.held,
            likely_micros=quote.likely,
            spendable_micros=quote.spendable,
            rates=render_rates(quote.rates, quote.price_versions),
            dropped_gpu_types=list(quote.dropped),
            problems=[problem_from_refusal(refusal) for refusal in quote.forbidden],
        )


# Limits and prices


class Budget(WireModel):
    """Credits per period."""

    id: str
    account_id: str | None
    user_id: str | None
    each_user: bool
    every: str
    rolling_seconds: int | None
    time_zone: str
    limit_micros: Micros
    hard: bool
    thresholds_ppm: list[int]
    tier: str | None
    deleted: bool

    @classmethod
    def from_core(cls, budget: core.Budget) -> Self:
        """Build the response from the core's budget."""
        return cls(
            id=budget.id,
            account_id=budget.target.account,
            user_id=budget.target.user,
            each_user=budget.target.each_user,
            every=budget.window.every.value,
            rolling_seconds=budget.window.length // 1_000_000 or None,
            time_zone=budget.window.time_zone,
            limit_micros=budget.limit,
            hard=budget.hard,
            thresholds_ppm=list(budget.thresholds_ppm),
            tier=budget.tier,
            deleted=budget.dropped,
        )


class Deleted(WireModel):
    """The id of the deleted object."""

    id: str


class PriceVersionRate(WireModel):
    """What a GPU-hour costs, where and for whom; null: any."""

    gpu_type: str
    region: str | None
    tier: str | None
    priority_class: str | None
    micros_per_gpu_hour: Micros


class PriceVersion(WireModel):
    """Rates that come into force together."""

    id: str
    org_id: str | None  # whose price book it is in; None if it is the deployment's
    effective_at: Time
    cache_hit_ppm: int | None  # of what a run has cost: what its result costs another job
    keep_others: bool
    rates: list[PriceVersionRate]

    @classmethod
    def from_core(cls, org: str | None, version: Any) -> Self:
        """Build the response from the core's price version in full."""
        return cls.model_construct(
            id=version.id,
            org_id=org,
            effective_at=version.effective_at,
            cache_hit_ppm=version.cache_hit_ppm,
            keep_others=version.keeps_others,
            rates=[
                PriceVersionRate(
                    gpu_type=rate.gpu_type,
                    region=rate.region,
                    tier=rate.tier,
                    priority_class=rate.priority_class,
                    micros_per_gpu_hour=rate.micros_per_gpu_hour,
                )
                for rate in version.rates
            ],
        )


# Balances


class ExpiringAmount(WireModel):
    """Credits that lapse if they are not spent before."""

    grant_id: str
    expires_at: Time
    amount_micros: Micros


class Expirations(WireModel):
    """Credits that will lapse within a day, a week, a month, and the list by date."""

    within_24h_micros: Micros | None  # None beyond a list that is cut
    within_7d_micros: Micros | None
    within_30d_micros: Micros | None
    timeline: list[ExpiringAmount]  # the first thousand
    has_more: bool


class BurnRate(WireModel):
    """How fast an account and those below it spend, over the last seven days."""

    micros_per_day: Micros
    runs_out_at: Time | None


class Balance(WireModel):
    """What an account owns, can spend, has used and owes.

    For a time in the past, only what was owned is known.
    """

    account_id: str
    at: Time
    known_at: Time | None
    owned: Compartments
    spendable_micros: Micros | None
    used_micros: Micros | None
    debt_micros: Micros | None
    by_kind: dict[str, Compartments]
    grants: list[GrantDetail]  # the first thousand that were issued
    has_more_grants: bool
    expiring: Expirations | None
    burn: BurnRate | None
    stream: str
    event: int


class TopEntry(WireModel):
    """A place in a top list."""

    org_id: str
    id: str
    value_micros: Micros
    event: int
