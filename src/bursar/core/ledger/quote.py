"""Computes what a hold would cost and what would refuse it (B1)."""

from bursar.core.ids import PriceVersionId
from bursar.core.instant import Instant
from bursar.core.ledger.balance import spendable_for
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.due_events import draft_at
from bursar.core.ledger.events import Event, HoldOpened
from bursar.core.ledger.holds import find_prices, refusals, reserve
from bursar.core.money import Micros, usage_price
from bursar.core.refusal import Refusal
from bursar.core.value import value


@value
class Quote:
    """The answer for a hold that is not opened; an opened hold would have the same rates."""

    held: Micros  # what would be held; 0 if it is forbidden
    likely: Micros  # what is likely to be charged
    spendable: Micros  # the most that could be held for this context now
    rates: tuple[tuple[str, Micros], ...]  # GPU type → micro-credits per GPU-hour
    price_versions: tuple[PriceVersionId, ...]  # which version each of the rates is from
    dropped: tuple[str, ...]  # acceptable types that cannot be priced or funded
    forbidden: tuple[Refusal, ...]  # all refusals, by precedence


def quote(books: Books, ask: Reserve, now: Instant, likely_ms: int | None = None) -> Quote:
    """The cost and the refusals of `ask` at `now`; changes nothing.

    `likely_ms` is the expected run time (for an array, of each element). Without it, everything
    held counts as likely.
    """
    with books.trial():
        draft = draft_at(books, now)
        known = draft.books.accounts.get(ask.account) is not None
        spendable = _spendable(draft.books, ask, now) if known else 0
        refusal = reserve(draft, ask)
        if refusal is None:
            return _granted(draft.events, spendable, likely_ms, ask.element_count or 1)
        rates = find_prices(draft.books, ask.context, now)
        return Quote(
            held=0,
            likely=0,
            spendable=spendable,
            rates=tuple((gpu_type, priced.rate) for gpu_type, priced in rates.items()),
            price_versions=tuple(priced.version for priced in rates.values()),
            dropped=(),
            forbidden=refusals(draft, ask) if known else (refusal,),
        )


def _spendable(view: Books, ask: Reserve, now: Instant) -> Micros:
    return spendable_for(view, ask.account, ask.context, now, ask.user)


def _granted(events: list[Event], spendable: Micros, likely_ms: int | None, runs: int) -> Quote:
    opened = next(event for event in events if isinstance(event, HoldOpened))
    held = sum(posting.amount for posting in opened.postings)
    return Quote(
        held=held,
        likely=_likely(opened, held, likely_ms, runs),
        spendable=spendable,
        rates=opened.terms.rates,
        price_versions=opened.terms.price_versions,
        dropped=opened.dropped,
        forbidden=(),
    )


def _likely(opened: HoldOpened, held: Micros, likely_ms: int | None, runs: int) -> Micros:
    """The price of the expected run time on the preferred type, at most what is held."""
    terms = opened.terms
    if likely_ms is None or not terms.metered:
        return held
    return min(held, usage_price(terms.rates[0][1], terms.context.milli_gpus, likely_ms) * runs)
