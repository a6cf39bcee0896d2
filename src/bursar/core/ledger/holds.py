"""Opens, extends, redraws, refunds and releases holds; charges are in `charges` (L5, L6, M1)."""

from collections.abc import Iterator, Mapping
from heapq import merge
from typing import Final, NamedTuple, TypeAlias

from bursar.core.ids import AccountId, DebtId, GrantId, HoldId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.allocation import Parts, Source, fill, fill_beyond_caps
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import (
    Charge,
    EndHold,
    ExtendHold,
    Redraw,
    Refund,
    Release,
    Reserve,
    Settle,
)
from bursar.core.ledger.draft import AVAILABLE, HELD, Draft, move, return_posting
from bursar.core.ledger.due_events import close_hold
from bursar.core.ledger.events import (
    Closing,
    HoldClosed,
    HoldDivided,
    HoldExtended,
    HoldOpened,
    HoldRedrawn,
    HoldReduced,
    Posting,
)
from bursar.core.ledger.limits import all_over, first_over
from bursar.core.ledger.spendable import credits_in_lanes, drawable_credits
from bursar.core.ledger.values import Context, Draw, Grant, Hold, HoldClaim, HoldTerms, Lots
from bursar.core.metering import Meter
from bursar.core.money import AMOUNT_MAX, Micros, usage_price
from bursar.core.pricing import Priced, PriceTerms, attempt_rate, price_of
from bursar.core.refusal import Code, Refusal
from bursar.core.tiers import tier_of_org
from bursar.core.value import replace

_CHANGING: Final = (Charge, ExtendHold, Redraw, Refund, Release, Settle)
Rates: TypeAlias = tuple[tuple[str, Micros], ...]  # GPU type → micro-credits per GPU-hour


class Funding(NamedTuple):
    """How a hold can be paid: GPU types, their rates, the highest rate, and the grants."""

    context: Context
    rates: Rates
    rate: Micros
    parts: Parts


def reserve(draft: Draft, ask: Reserve) -> Refusal | None:
    """Hold the whole amount, or refuse."""
    if refusal := next(_faults(draft, ask), None):
        return refusal
    priced = find_prices(draft.books, ask.context, draft.now)
    if ask.run_ms is not None and not priced:
        return Refusal(Code.PRICE_UNKNOWN, {"gpu_types": ask.context.gpu_types})
    funding = _fund(draft, ask, {kind: price.rate for kind, price in priced.items()})
    if isinstance(funding, Refusal):
        return funding

    # Nothing below may refuse.
    types = ask.context.gpu_types
    draft.record(
        HoldOpened(
            at=draft.now,
            hold=ask.hold,
            terms=HoldTerms(
                id=ask.hold,
                account=ask.account,
                user=ask.user,
                context=funding.context,
                opened_at=draft.now,
                rates=funding.rates,
                price_versions=tuple(priced[kind].version for kind, _ in funding.rates),
                by_time=ask.run_ms is not None,
                capped_key=ask.capped_key,
                for_job=ask.for_job,
            ),
            expires_at=_until(draft, ask),
            rate=funding.rate,
            dropped=tuple(kind for kind in types if kind not in funding.context.gpu_types),
            postings=_held(funding.parts, draft.now),
        )
    )
    if ask.element_count is not None:
        _divide_into_lots(draft, ask, funding)
    return None


def _divide_into_lots(draft: Draft, ask: Reserve, funding: Funding) -> None:
    """Divide the new hold of an array into lots."""
    count = ask.element_count or 1
    amount = sum(funding.parts.values()) // count
    lots = Lots(count=count, at_once=ask.at_once or count, amount=amount)
    draft.record(HoldDivided(at=draft.now, hold=ask.hold, lots=lots))


def _faults(draft: Draft, ask: Reserve) -> Iterator[Refusal]:
    """Refusals because of the request itself, by precedence."""
    books, now = draft.books, draft.now
    if books.accounts.get(ask.account) is None:
        yield Refusal(Code.ACCOUNT_UNKNOWN, {"account": ask.account})
    for user in (ask.user, ask.capped_key):
        if user is not None and books.users.get(user) is None:
            yield Refusal(Code.USER_UNKNOWN, {"user": user})
    taken = books.holds.get(ask.hold) is not None
    if taken or books.debts.get(DebtId(ask.hold)) is not None:  # a hold's debt has the hold's id
        yield Refusal(Code.ALREADY_EXISTS, {"hold": ask.hold})
    until = _until(draft, ask)
    if until <= now:
        yield Refusal(Code.TIME_INVALID, {"expires_at": until, "now": now})
    if refusal := _too_long(books, ask, now, until):
        yield refusal


def _until(draft: Draft, ask: Reserve) -> Instant:
    """The expiry of a hold that is opened now."""
    if ask.expires_at is not None:
        return ask.expires_at
    lasts = _longest(draft.books, ask) if ask.ttl is None else ask.ttl
    return min(draft.now + lasts, NEVER)


def _longest(books: Books, whose: Reserve | HoldTerms) -> int:
    """How long a hold may last, in microseconds.

    Only `for_job` allows the longer limit. The job id in the context does not: any caller can send
    one (L10).
    """
    policy = books.header.policy
    return policy.job_hold_max if whose.for_job else policy.raw_hold_max


def _too_long(
    books: Books, whose: Reserve | HoldTerms, since: Instant, until: Instant
) -> Refusal | None:
    most = _longest(books, whose)
    if until - since <= most:
        return None
    return Refusal(Code.HOLD_TOO_LONG, {"expires_at": until, "latest": since + most})


def find_prices(books: Books, context: Context, at: Instant) -> dict[str, Priced]:
    """The known prices of a context's GPU types, in order of preference.

    The tier is the org's, whichever tier a job runs in.
    """
    tier = tier_of_org(books.header.tier)
    terms = PriceTerms(region=context.region, tier=tier, priority_class=context.priority_class)
    prices = (
        (kind, price_of(books.deployment, books.header.prices, kind, terms, at))
        for kind in context.gpu_types
    )
    return {kind: priced for kind, priced in prices if priced is not None}


# Funding


def _fund(draft: Draft, ask: Reserve, rates: dict[str, Micros]) -> Funding | Refusal:
    """Find the credits. GPU types that cannot be paid for are dropped (M1)."""
    if ask.run_ms is None:
        return _fund_types(draft, ask, ask.context, tuple(rates.items()))
    alone = {kind: _fund_set(draft, ask, {kind: rate}) for kind, rate in rates.items()}
    left = {kind: rates[kind] for kind, funding in alone.items() if isinstance(funding, Funding)}
    if not left:
        return alone[min(rates, key=lambda kind: rates[kind])]
    while isinstance(funding := _fund_set(draft, ask, left), Refusal):
        dearest = max(left.values())
        del left[[kind for kind, rate in left.items() if rate == dearest][-1]]
    return funding


def _fund_set(draft: Draft, ask: Reserve, rates: dict[str, Micros]) -> Funding | Refusal:
    return _fund_types(
        draft, ask, replace(ask.context, gpu_types=tuple(rates)), tuple(rates.items())
    )


def _fund_types(draft: Draft, ask: Reserve, context: Context, rates: Rates) -> Funding | Refusal:
    """The credits for a set of types: sized by the highest rate, from grants that admit all."""
    claim = _claim(draft, ask, context, rates)
    if refusal := next(_objections(draft, ask, claim), None):
        return refusal
    parts = _all_drawn(draft, ask, context, claim.open)
    if isinstance(parts, Refusal):
        return parts
    return Funding(context, rates, claim.rate, parts)


def _objections(draft: Draft, ask: Reserve, claim: HoldClaim) -> Iterator[Refusal]:
    """Refusals because of the size of the hold, other than missing credits, by precedence."""
    if claim.open > AMOUNT_MAX:
        yield Refusal(Code.AMOUNT_TOO_LARGE, {"amount": claim.open, "most": AMOUNT_MAX})
    if ask.max_cost is not None and claim.open > ask.max_cost:
        yield Refusal(Code.MAX_COST_EXCEEDED, {"amount": claim.open, "most": ask.max_cost})
    if refusal := _in_debt(draft, draft.books.path(ask.account)):
        yield refusal
    applying = draft.applying(ask.account, ask.user, ask.capped_key)
    yield from all_over(draft.books, applying, None, claim)


def _all_drawn(draft: Draft, ask: Reserve, context: Context, amount: Micros) -> Parts | Refusal:
    path = draft.books.path(ask.account)
    return _drawn(draft, path, context, amount, total=amount, counted={})


def _claim(draft: Draft, ask: Reserve, context: Context, rates: Rates) -> HoldClaim:
    """The claim that the hold would have on budgets."""
    rate = max((rate for _, rate in rates), default=0)
    milli_gpus, amount = 0, ask.amount
    if amount is None:
        count = ask.element_count or 1
        amount = usage_price(rate, context.milli_gpus, ask.run_ms or 0) * count
        milli_gpus = context.milli_gpus * (ask.at_once or count)
    return HoldClaim(amount, rate, milli_gpus, draft.now, _until(draft, ask), draft.now)


def _in_debt(draft: Draft, path: tuple[AccountId, ...]) -> Refusal | None:
    for account in path:
        if owed := draft.books.owed.get(account):
            return Refusal(Code.DEBT_OUTSTANDING, {"account": account, "owed": owed})
    return None


def _drawn(
    draft: Draft,
    path: tuple[AccountId, ...],
    context: Context,
    amount: Micros,
    *,
    total: Micros,
    counted: Mapping[GrantId, Micros],
) -> Parts | Refusal:
    """Available credits for an amount, in spend order; or a refusal with what is missing.

    If the lanes together have too little, single grants are not read.
    """
    drawable = credits_in_lanes(draft.books, path, context)
    if drawable < amount:
        drawable = drawable_credits(draft.books, path, context, total, counted)
    else:
        parts, missing = fill(draft.sources(path, context, counted), amount, total)
        if missing == 0:
            return parts
        drawable = amount - missing
    figures = {"asked": amount, "spendable": drawable, "short": amount - drawable}
    return Refusal(Code.INSUFFICIENT_CREDITS, figures)


def _held(parts: Parts, at: Instant) -> tuple[Posting, ...]:
    return tuple(move(grant, AVAILABLE, HELD, amount, at) for grant, amount in parts.items())


def refusals(draft: Draft, ask: Reserve) -> tuple[Refusal, ...]:
    """All refusals of a hold on an existing account, by precedence.

    Of several acceptable GPU types, the cheapest one is checked.
    """
    faults = tuple(_faults(draft, ask))
    priced = find_prices(draft.books, ask.context, draft.now)
    rates = {kind: price.rate for kind, price in priced.items()}
    if ask.run_ms is not None and not rates:
        return (*faults, Refusal(Code.PRICE_UNKNOWN, {"gpu_types": ask.context.gpu_types}))
    context = ask.context
    if ask.run_ms is not None:
        cheapest = min(rates, key=lambda kind: rates[kind])
        context, rates = replace(context, gpu_types=(cheapest,)), {cheapest: rates[cheapest]}
    claim = _claim(draft, ask, context, tuple(rates.items()))
    parts = _all_drawn(draft, ask, context, claim.open)
    short = (parts,) if isinstance(parts, Refusal) else ()
    return (*faults, *_objections(draft, ask, claim), *short)


# Changing a hold


def open_hold(draft: Draft, hold_id: HoldId) -> Hold | Refusal:
    """The hold; a refusal if it does not exist or is closed."""
    hold = draft.books.holds.get(hold_id)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": hold_id})
    if hold.closed_at is not None:
        return closed_refusal(hold)
    return hold


def closed_refusal(hold: Hold) -> Refusal:
    """The refusal for a closed hold."""
    return Refusal(Code.HOLD_CLOSED, {"hold": hold.terms.id, "closed_at": hold.closed_at})


def refuse_change_of_job_hold(books: Books, ask: object) -> Refusal | None:
    """Refuse a change of a job's open hold by an API client (M1).

    The service's own job handling does not make this check.
    """
    if not isinstance(ask, _CHANGING):
        return None
    hold = books.holds.get(ask.hold)
    if hold is None or not hold.terms.for_job or hold.closed_at is not None:
        return None
    return Refusal(Code.HOLD_OF_A_JOB, {"hold": ask.hold})


def extend_hold(draft: Draft, ask: ExtendHold) -> Refusal | None:
    """Add credits to a hold, extend its expiry, or both."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    until = hold.expires_at if ask.expires_at is None else ask.expires_at
    if until < hold.expires_at or (ask.expires_at is not None and until <= draft.now):
        figures = {"expires_at": until, "present_expires_at": hold.expires_at}
        return Refusal(Code.TIME_INVALID, figures)
    if refusal := _not_extendable(draft, hold, ask.amount, until):
        return refusal
    path = draft.books.path(hold.terms.account)
    counted = {draw.grant: draw.charged + draw.open for draw in hold.draws}
    total = hold.used + hold.open + ask.amount
    parts = _drawn(draft, path, hold.context, ask.amount, total=total, counted=counted)
    if isinstance(parts, Refusal):
        return parts
    draft.record(
        HoldExtended(
            at=draft.now, hold=ask.hold, expires_at=until, postings=_held(parts, draft.now)
        )
    )
    return None


def _not_extendable(draft: Draft, hold: Hold, amount: Micros, until: Instant) -> Refusal | None:
    books = draft.books
    if refusal := _too_long(books, hold.terms, hold.terms.opened_at, until):
        return refusal
    most = AMOUNT_MAX - hold.used - hold.open
    if amount > most:
        return Refusal(Code.AMOUNT_TOO_LARGE, {"amount": amount, "most": most})
    if hold.closed_at is not None:
        return closed_refusal(hold)
    if refusal := _in_debt(draft, books.path(hold.terms.account)):
        return refusal
    applying = draft.applying_to(hold)
    before = hold.claim
    after = before._replace(
        open=before.open + amount,
        touched_at=draft.now,
        expires_at=until,
        since=hold.unpaid_since(draft.now),
    )
    return first_over(books, applying, before, after)


def redraw(draft: Draft, ask: Redraw) -> Refusal | None:
    """Start an attempt: draw the open part again for its GPU type."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    if hold.meter(ask.attempt) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"attempt": ask.attempt})
    rates = dict(hold.terms.rates)
    if ask.gpu_type not in rates:
        return Refusal(Code.TYPE_NOT_HELD, {"gpu_type": ask.gpu_type, "held": tuple(rates)})
    if not hold.terms.metered:
        return Refusal(Code.NOT_METERED, {"hold": ask.hold})
    if hold.closed_at is not None and ask.started_at is None:
        return closed_refusal(hold)

    # Nothing below may refuse.
    started_at = _started_at(draft, hold, ask)
    context = replace(hold.terms.context, gpu_types=(ask.gpu_type,))
    in_force = find_prices(draft.books, context, started_at).get(ask.gpu_type)
    rate = attempt_rate(rates[ask.gpu_type], in_force.rate if in_force else None)
    milli_gpus = context.milli_gpus
    amount = min(hold.open, usage_price(rate, milli_gpus, ask.run_ms))
    meter = Meter(gpu_type=ask.gpu_type, started_at=started_at, rate=rate, milli_gpus=milli_gpus)
    draft.record(
        HoldRedrawn(
            at=draft.now,
            hold=ask.hold,
            attempt=ask.attempt,
            meter=meter,
            postings=_redrawn(draft, hold, context, amount),
        )
    )
    return None


def _started_at(draft: Draft, hold: Hold, ask: Redraw) -> Instant:
    """When an attempt started, clamped to the time in which its hold was open."""
    if ask.started_at is None:
        return draft.now
    latest = draft.now if hold.closed_at is None else hold.closed_at
    return max(min(ask.started_at, latest), hold.terms.opened_at)


def _redrawn(draft: Draft, hold: Hold, context: Context, amount: Micros) -> tuple[Posting, ...]:
    """The postings after which exactly `amount` is open, drawn in current spend order."""
    own = [(draw, grant) for draw, grant in draft.drawn(hold) if draw.open]
    candidates = _own_and_available(draft, hold, context, own)
    parts, missing = fill(candidates, amount, hold.used + amount)
    old = {draw.grant: draw.open for draw, _ in own}
    for grant_id, still_open in old.items():  # what caps leave missing, the old draws cover
        more = min(missing, max(still_open - parts.get(grant_id, 0), 0))
        parts[grant_id] = parts.get(grant_id, 0) + more
        missing -= more
    postings = [
        return_posting(grant, draw.open - parts[draw.grant], draft.now)
        for draw, grant in reversed(own)
        if draw.open > parts[draw.grant]
    ]
    postings += [
        move(grant_id, AVAILABLE, HELD, part - old.get(grant_id, 0), draft.now)
        for grant_id, part in parts.items()
        if part > old.get(grant_id, 0)
    ]
    return tuple(postings)


def _own_and_available(
    draft: Draft, hold: Hold, context: Context, own: list[tuple[Draw, Grant]]
) -> Iterator[Source]:
    """What the hold has open, even of expired grants, and what is available, by spend order."""
    books, path = draft.books, draft.books.path(hold.terms.account)
    charged = {draw.grant: draw.charged for draw in hold.draws}
    held = {draw.grant: draw.open for draw, _ in own}

    def source(grant: Grant) -> Source:
        terms = grant.terms
        usable = terms.valid_at(draft.now) and terms.policy.admits(context, path)
        room = held.get(terms.id, 0) + (grant.available if usable else 0)
        return Source(grant, room, charged.get(terms.id, 0))

    others = (grant for grant in books.spendable(path, context) if grant.terms.id not in held)
    both = merge(
        (grant for _, grant in own), others, key=lambda grant: books.spend_key(grant.terms, path)
    )
    return map(source, both)


def release(draft: Draft, ask: Release) -> Refusal | None:
    """Return everything that is open and close the hold."""
    hold = open_hold(draft, ask.hold)
    if isinstance(hold, Refusal):
        return hold
    close_hold(draft, hold, Closing.RELEASED, draft.now)
    return None


def end_hold(draft: Draft, ask: EndHold) -> Refusal | None:
    """Close a hold that has expired. Catching up has already closed it; this only checks."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    if hold.closed_at is None:  # or it would have ended just now
        return Refusal(Code.TIME_INVALID, {"expires_at": hold.expires_at, "now": draft.now})
    ended = any(isinstance(event, HoldClosed) and event.hold == ask.hold for event in draft.events)
    return None if ended else closed_refusal(hold)


def refund(draft: Draft, ask: Refund) -> Refusal | None:
    """Return a part of what is open."""
    hold = open_hold(draft, ask.hold)
    if isinstance(hold, Refusal):
        return hold
    if ask.amount > hold.open:
        return Refusal(Code.EXCEEDS_HOLD, {"open": hold.open, "asked": ask.amount})
    drawn = draft.drawn(hold)
    sources = [Source(grant, draw.open, draw.charged) for draw, grant in drawn]
    left = hold.open - ask.amount
    still_held = fill_beyond_caps(sources, left, hold.used + left)
    postings = tuple(
        return_posting(grant, draw.open - still_held.get(draw.grant, 0), draft.now)
        for draw, grant in reversed(drawn)
        if draw.open > still_held.get(draw.grant, 0)
    )
    draft.record(HoldReduced(at=draft.now, hold=ask.hold, postings=postings))
    return None
