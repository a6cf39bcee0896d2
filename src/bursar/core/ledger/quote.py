"""What a hold would cost and what forbids it, before it is asked for (B1)."""

from dataclasses import dataclass, replace

from bursar.core.instant import Instant
from bursar.core.ledger.balance import spendable_for
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.decide import caught_up, decide
from bursar.core.ledger.events import HoldOpened
from bursar.core.ledger.holds import prices_for, refusals
from bursar.core.money import Micros, usage_price
from bursar.core.refusal import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The price shown is the price charged: the rates are those the hold would keep."""

    held: Micros  # what would be held; 0 if it is forbidden
    likely: Micros  # what is likely to be charged
    spendable: Micros  # the most that could be held for this context now
    rates: tuple[tuple[str, Micros], ...]  # GPU type → micro-credits per GPU-hour
    dropped: tuple[str, ...]  # acceptable types that cannot be priced or funded
    forbidden: tuple[Refusal, ...]  # everything that stands against it, in order of precedence


def quote(books: Books, ask: Reserve, now: Instant, likely_ms: int | None = None) -> Quote:
    """What `ask` would mean now, if it were asked; nothing is changed."""
    view = caught_up(books, now)
    forbidden = refusals(books, ask, now)
    known = view.accounts.get(ask.account) is not None
    spendable = spendable_for(view, ask.account, ask.context, now, ask.user) if known else 0
    outcome = decide(books, ask, now)
    opened = _opened(outcome)
    if opened is None:
        rates = tuple((kind, p.rate) for kind, p in prices_for(view, ask.context, now).items())
        return Quote(
            held=0,
            likely=0,
            spendable=spendable,
            rates=rates,
            dropped=(),
            forbidden=forbidden,
        )
    held = sum(posting.amount for posting in opened.postings)
    first = opened.terms.rates[0][1] if opened.terms.rates else 0
    likely = held
    if likely_ms is not None and opened.terms.metered:
        likely = min(held, usage_price(first, ask.context.milli_gpus, likely_ms))
    return Quote(
        held=held,
        likely=likely,
        spendable=spendable,
        rates=opened.terms.rates,
        dropped=opened.dropped,
        forbidden=(),
    )
