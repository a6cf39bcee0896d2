"""Issues credits; extends, revokes, voids and transfers grants (L2, L11, L20)."""

from itertools import islice

from bursar.core.budgets.periods import PeriodKind, Window
from bursar.core.ids import AccountId
from bursar.core.instant import NEVER
from bursar.core.ledger.books import EXPIRED, require
from bursar.core.ledger.commands import (
    ExtendGrant,
    Issue,
    Lapse,
    RevokeGrant,
    StartRecurrence,
    StopRecurrence,
    Transfer,
    VoidGrant,
)
from bursar.core.ledger.draft import AVAILABLE, LAPSED, MOVED, REVOKED, Draft, issue_posting, move
from bursar.core.ledger.due_events import turn_recurrence
from bursar.core.ledger.events import (
    CreditsMoved,
    GrantExtended,
    GrantIssued,
    GrantRevoked,
    RecurrenceStarted,
    RecurrenceStopped,
)
from bursar.core.ledger.values import Grant, GrantPolicy, GrantTerms, Recurrence
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace


def issue(draft: Draft, ask: Issue) -> Refusal | None:
    """Issue credits."""
    books, now = draft.books, draft.now
    starts_at = now if ask.starts_at is None else ask.starts_at
    if refusal := _unknown_account(draft, ask.account, ask.policy):
        return refusal
    if books.grants.get(ask.grant) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"grant": ask.grant})
    if ask.external_ref is not None and (first := books.refs.get(ask.external_ref)) is not None:
        return Refusal(Code.EXTERNAL_REF_EXISTS, {"external_ref": ask.external_ref, "grant": first})
    if ask.expires_at <= max(starts_at, now):
        return Refusal(Code.TIME_INVALID, {"starts_at": starts_at, "expires_at": ask.expires_at})
    if refusal := _too_much(draft, ask.amount):
        return refusal

    # Nothing below may refuse.
    terms = GrantTerms(
        id=ask.grant,
        account=ask.account,
        kind=ask.kind,
        source=ask.source,
        priority=ask.priority,
        issued_at=now,
        starts_at=starts_at,
        expires_at=ask.expires_at,
        amount=ask.amount,
        policy=ask.policy,
        external_ref=ask.external_ref,
    )
    draft.record(GrantIssued(at=now, terms=terms, postings=(issue_posting(terms),)))
    return None


def start_recurrence(draft: Draft, ask: StartRecurrence) -> Refusal | None:
    """Create a recurring grant; issue the first period at once if it starts now."""
    starts_at = draft.now if ask.starts_at is None else ask.starts_at
    if refusal := _unknown_account(draft, ask.account, ask.policy):
        return refusal
    if draft.books.recurrences.get(ask.recurrence) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"recurrence": ask.recurrence})
    if starts_at < draft.now or ask.every not in (
        PeriodKind.DAY,
        PeriodKind.WEEK,
        PeriodKind.MONTH,
    ):
        return Refusal(Code.TIME_INVALID, {"starts_at": starts_at, "every": ask.every})
    if refusal := _too_much(draft, ask.amount):
        return refusal

    # Nothing below may refuse.
    zone = require(draft.books.accounts, ask.account).time_zone
    recurrence = Recurrence(
        id=ask.recurrence,
        account=ask.account,
        amount=ask.amount,
        kind=ask.kind,
        window=Window(every=ask.every, time_zone=zone),
        roll_over_max=ask.roll_over_max,
        priority=ask.priority,
        policy=ask.policy,
        next_at=starts_at,
    )
    draft.record(RecurrenceStarted(at=draft.now, recurrence=recurrence))
    if starts_at == draft.now:
        turn_recurrence(draft, recurrence, draft.now)
    return None


def stop_recurrence(draft: Draft, ask: StopRecurrence) -> Refusal | None:
    """Stop a recurring grant."""
    recurrence = draft.books.recurrences.get(ask.recurrence)
    if recurrence is None:
        return Refusal(Code.RECURRENCE_UNKNOWN, {"recurrence": ask.recurrence})
    if recurrence.next_at != NEVER:
        draft.record(RecurrenceStopped(at=draft.now, recurrence=ask.recurrence))
    return None


def extend_grant(draft: Draft, ask: ExtendGrant) -> Refusal | None:
    """Move the expiry of a grant to a later instant."""
    grant = draft.books.grants.get(ask.grant)
    if grant is None:
        return Refusal(Code.GRANT_UNKNOWN, {"grant": ask.grant})
    if ask.expires_at <= grant.terms.expires_at:
        return Refusal(
            Code.TIME_INVALID,
            {"expires_at": ask.expires_at, "present_expires_at": grant.terms.expires_at},
        )
    if refusal := _dead(draft, grant):
        return refusal
    draft.record(GrantExtended(at=draft.now, grant=ask.grant, expires_at=ask.expires_at))
    return None


def revoke_grant(draft: Draft, ask: RevokeGrant) -> Refusal | None:
    """Revoke the available credits."""
    grant = draft.books.grants.get(ask.grant)
    if grant is None:
        return Refusal(Code.GRANT_UNKNOWN, {"grant": ask.grant})
    if grant.withdrawn:
        return Refusal(Code.GRANT_REVOKED, {"grant": ask.grant})
    draft.lapse(ask.grant)
    available = require(draft.books.grants, ask.grant).available
    taken = (move(ask.grant, AVAILABLE, REVOKED, available, draft.now),) if available else ()
    draft.record(GrantRevoked(at=draft.now, grant=ask.grant, voided=False, postings=taken))
    return None


def void_grant(draft: Draft, ask: VoidGrant) -> Refusal | None:
    """Undo a grant of which nothing is used."""
    grant = draft.books.grants.get(ask.grant)
    if grant is None:
        return Refusal(Code.GRANT_UNKNOWN, {"grant": ask.grant})
    if grant.withdrawn:
        return Refusal(Code.GRANT_REVOKED, {"grant": ask.grant})
    if grant.held or grant.spent or grant.moved:
        used = {"held": grant.held, "spent": grant.spent, "moved": grant.moved}
        return Refusal(Code.GRANT_IN_USE, {"grant": ask.grant, **used})
    draft.lapse(ask.grant)
    grant = require(draft.books.grants, ask.grant)
    lapsed = grant.lapsed - grant.forfeited
    parts = ((AVAILABLE, grant.available), (LAPSED, lapsed))
    taken = tuple(
        move(ask.grant, part, REVOKED, amount, draft.now) for part, amount in parts if amount
    )
    draft.record(GrantRevoked(at=draft.now, grant=ask.grant, voided=True, postings=taken))
    return None


def transfer(draft: Draft, ask: Transfer) -> Refusal | None:
    """Move credits to another account, as a new grant on the same terms."""
    books = draft.books
    if books.accounts.get(ask.account) is None:
        return Refusal(Code.ACCOUNT_UNKNOWN, {"account": ask.account})
    grant = books.grants.get(ask.grant)
    if grant is None:
        return Refusal(Code.GRANT_UNKNOWN, {"grant": ask.grant})
    if books.grants.get(ask.to_grant) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"grant": ask.to_grant})
    if refusal := _dead(draft, grant):
        return refusal
    if ask.amount > grant.available:
        return Refusal(Code.EXCEEDS_GRANT, {"available": grant.available, "asked": ask.amount})

    # Nothing below may refuse.
    terms = replace(
        grant.terms,
        id=ask.to_grant,
        account=ask.account,
        source="transfer",
        issued_at=draft.now,
        amount=ask.amount,
        external_ref=None,
        parent=ask.grant,
        recurrence=None,
    )
    taken = move(ask.grant, AVAILABLE, MOVED, ask.amount, draft.now)
    moved = CreditsMoved(
        at=draft.now, grant=ask.grant, terms=terms, postings=(taken, issue_posting(terms))
    )
    draft.record(moved)
    return None


def lapse(draft: Draft, ask: Lapse) -> Refusal | None:
    """Record expiries, earliest first."""
    for _, grant in list(islice(draft.books.index(EXPIRED).since(), ask.most)):
        draft.lapse(grant)
    return None


def _unknown_account(draft: Draft, account: AccountId, policy: GrantPolicy) -> Refusal | None:
    for account_id in (account, *sorted(policy.accounts)):
        if draft.books.accounts.get(account_id) is None:
            return Refusal(Code.ACCOUNT_UNKNOWN, {"account": account_id})
    return None


def _too_much(draft: Draft, amount: Micros) -> Refusal | None:
    most = AMOUNT_MAX - draft.books.header.issued
    return (
        Refusal(Code.AMOUNT_TOO_LARGE, {"amount": amount, "most": most}) if amount > most else None
    )


def _dead(draft: Draft, grant: Grant) -> Refusal | None:
    """The refusal for a grant that was revoked or has expired; None for a usable one."""
    if grant.withdrawn:
        return Refusal(Code.GRANT_REVOKED, {"grant": grant.terms.id})
    if draft.now >= grant.terms.expires_at:
        figures = {"grant": grant.terms.id, "expires_at": grant.terms.expires_at}
        return Refusal(Code.GRANT_EXPIRED, figures)
    return None
