"""Past states of grants: as of one instant, as known at another (L12).

Every posting has the instant at which it took effect and the instant at which it was recorded. A
view sums the postings that were known and had taken effect. Expiry follows from the instant of the
view, whether or not the lapse had been recorded. In every view the compartments add up and none is
negative.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from bursar.core.ids import AccountId, GrantId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.events import Event, GrantExtended, Posting, issued_by
from bursar.core.ledger.values import Compartment, GrantTerms
from bursar.core.money import Micros
from bursar.core.refusal import invariant
from bursar.core.value import replace, value


@value
class GrantView:
    """The compartments of a grant at the instant of the view."""

    terms: GrantTerms
    parts: Mapping[Compartment, Micros]

    def __post_init__(self) -> None:
        figures = {"grant": self.terms.id, "parts": dict(self.parts)}
        invariant(min(self.parts.values()) >= 0, "a past compartment is negative", **figures)
        total = sum(self.parts.values())
        invariant(total == self.terms.amount, "a past view does not add up", **figures)


NO_VIEWS: Final[Mapping[GrantId, GrantView]] = MappingProxyType({})


def view_grants(
    events: Iterable[Event],
    at: Instant,
    known_at: Instant,
    start: Mapping[GrantId, GrantView] = NO_VIEWS,
    account: AccountId | None = None,
) -> dict[GrantId, GrantView]:
    """Every grant that existed at `at`, as of `at`, as known at `known_at`.

    `events` may start in the middle if `start` is the state before them and that state is no later
    than `at`. With an `account`, only its own grants are returned, and events about others may be
    omitted.
    """
    terms, parts = _folded(events, at, known_at, start, account)
    return {
        grant: GrantView(terms=terms[grant], parts=_expired(terms[grant], compartments, at))
        for grant, compartments in parts.items()
        if terms[grant].issued_at <= at
    }


def fold_grants(
    events: Iterable[Event], start: Mapping[GrantId, GrantView] = NO_VIEWS
) -> dict[GrantId, GrantView]:
    """Every grant after the events, starting from `start`; unrecorded expiries do not count."""
    terms, parts = _folded(events, NEVER, NEVER, start)
    return {
        grant: GrantView(terms=terms[grant], parts=compartments)
        for grant, compartments in parts.items()
    }


def _folded(
    events: Iterable[Event],
    at: Instant,
    known_at: Instant,
    start: Mapping[GrantId, GrantView],
    account: AccountId | None = None,
) -> tuple[dict[GrantId, GrantTerms], dict[GrantId, dict[Compartment, Micros]]]:
    """The terms and compartments of grants after the postings that were known and effective."""
    terms = {grant: view.terms for grant, view in start.items()}
    parts = {grant: dict(view.parts) for grant, view in start.items()}

    def is_included(grant: GrantId) -> bool:
        return account is None or grant in terms

    for event in events:
        if event.at > known_at:
            break
        for new in issued_by(event):
            if account is None or account == new.account:
                terms[new.id] = new
                parts[new.id] = dict.fromkeys(Compartment, 0)
        if isinstance(event, GrantExtended) and event.at <= at and is_included(event.grant):
            terms[event.grant] = replace(terms[event.grant], expires_at=event.expires_at)
        for posting in event.postings:
            if posting.effective_at <= at and is_included(posting.grant):
                _post(parts[posting.grant], posting)
    return terms, parts


def sum_owned(views: Mapping[GrantId, GrantView], account: AccountId) -> dict[Compartment, Micros]:
    """The sum of the compartments of one account's grants in a view."""
    mine = [view.parts for view in views.values() if view.terms.account == account]
    return {part: sum(parts[part] for parts in mine) for part in Compartment}


def _post(parts: dict[Compartment, Micros], posting: Posting) -> None:
    if posting.source is not None:
        parts[posting.source] -= posting.amount
    parts[posting.target] += posting.amount


def _expired(
    terms: GrantTerms, parts: dict[Compartment, Micros], at: Instant
) -> dict[Compartment, Micros]:
    if at < terms.expires_at:
        return parts
    available = parts[Compartment.AVAILABLE]
    lapsed = parts[Compartment.LAPSED] + available
    return {**parts, Compartment.AVAILABLE: 0, Compartment.LAPSED: lapsed}
