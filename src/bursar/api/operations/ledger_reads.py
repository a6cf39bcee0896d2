"""Reads of the ledger: objects, lists, balances, events, top lists, quotes."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import unknown
from bursar.api.errors import CallFailed, CallRefused, InvalidCommand
from bursar.api.execute import to_json
from bursar.api.operation import NameInUrl, OperationTable
from bursar.api.pages import After, Limit, OrgId, Paginated, page_response, read_response
from bursar.core.ids import AccountId, UserId
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.ledger.balance import Expiring, sum_expiring, sum_views
from bursar.core.ledger.values import CreditKind
from bursar.core.refusal import Refusal
from bursar.service.database import Connection
from bursar.service.keys import DEPLOYMENT, Scope
from bursar.service.org_setup import org_user
from bursar.service.queries.balances import AsOf, LedgerReads
from bursar.service.queries.entities import Entities
from bursar.service.queries.entities import ResultPage as EntityPage
from bursar.service.queries.top_lists import Measure, Subject, TopLists
from bursar.wire import requests, responses
from bursar.wire.events.stream import EventPage, record_of
from bursar.wire.fields import Context, Id, IdFactory, Time, WireModel
from bursar.wire.strict_json import parse_json
from bursar.wire.times import instant_of, instant_text

LISTED_MAX: Final = 1_000  # grants, and expirations, that a balance lists

At = Annotated[str | None, Field(description="RFC 3339; as of then")]
operations = OperationTable("Accounts")


class TopList(Paginated[responses.TopEntry]):
    """The accounts or users with the highest values, and the time of the values."""

    as_of: Time


_AFTER: Final = re.compile(r"([0-9]{1,18})\.([0-9a-f-]{36})")


# Single things


def _add_get(
    table: str,
    tag: str,
    noun: str,
    response: type[WireModel],
    render: Callable[[str, Any], WireModel],
) -> None:
    """Add the operation that returns one object of a table."""

    async def get(call: Call, id: Id) -> Response:
        service, caller = call.service, call.caller
        org = await service.org_of(caller, table, id)
        seen = await service.read(lambda reader: Entities(reader).row(org, table, id))
        if seen.value is None:
            raise unknown(table, id)
        return read_response(call, org, seen.number, to_json(render(org, seen.value)))

    get.__doc__ = f"Return {noun} by its id, as it is now."
    operations.get(
        f"/v1/{table}/{{id}}",
        name=f"{table}.get",
        tag=tag,
        summary=f"Get {noun}",
        response=response,
        scope=Scope.READ,
    )(get)


_add_get("accounts", "Accounts", "an account", responses.Account, responses.Account.from_core)
_add_get("holds", "Holds", "a hold", responses.Hold, lambda _, hold: responses.Hold.from_core(hold))
_add_get(
    "budgets",
    "Budgets",
    "a budget",
    responses.Budget,
    lambda _, budget: responses.Budget.from_core(budget),
)
_add_get("debts", "Debts", "a debt", responses.Debt, lambda _, debt: responses.Debt.from_core(debt))


@operations.get(
    "/v1/grants/{id}",
    summary="Get a grant",
    name="grants.get",
    response=responses.GrantDetail,
    scope=Scope.READ,
    tag="Grants",
)
async def get_grant(call: Call, id: Id) -> Response:
    """Return a grant and the current state of its credits."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "grants", id)
    seen = await service.read(lambda reader: Entities(reader).grant(org, id))
    if seen.value is None:
        raise unknown("grants", id)
    return read_response(
        call, org, seen.number, to_json(responses.GrantDetail.with_compartments(*seen.value))
    )


# Pages


def _add_list(
    table: str, tag: str, response: type[WireModel], render: Callable[[str, Any], WireModel]
) -> None:
    """Add the operation that lists the objects of a table."""

    async def list_page(
        call: Call, org_id: OrgId = None, after: After = "", limit: Limit = 100
    ) -> Response:
        org = await call.service.whole_org(call.caller, org_id)
        seen = await call.service.read(
            lambda reader: Entities(reader).page(org, table, after, limit)
        )
        return page_response(call, org, seen, lambda row: render(org, row))

    list_page.__doc__ = (
        f"Return the {table} of an org, ordered by id. Needs a key for the whole org."
    )
    operations.get(
        f"/v1/{table}",
        name=f"{table}.list",
        tag=tag,
        summary=f"List {table}",
        response=Paginated[response],  # type: ignore[valid-type]
        scope=Scope.READ,
    )(list_page)


@operations.get(
    "/v1/accounts",
    name="accounts.list",
    tag="Accounts",
    summary="List accounts",
    response=Paginated[responses.Account],
    scope=Scope.READ,
)
async def list_accounts(
    call: Call, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """Return the accounts of an org, ordered by id. A key for an account gets that account and
    those below it.
    """
    org, account = await call.service.visible_part(call.caller, org_id)
    seen = await call.service.read(
        lambda reader: Entities(reader).accounts(org, account, after, limit)
    )
    return page_response(call, org, seen, lambda row: responses.Account.from_core(org, row))


_add_list(
    "users", "Accounts", responses.User, lambda org, user: responses.User(id=user, org_id=org)
)
_add_list("holds", "Holds", responses.Hold, lambda _, hold: responses.Hold.from_core(hold))
_add_list(
    "budgets", "Budgets", responses.Budget, lambda _, budget: responses.Budget.from_core(budget)
)
_add_list("debts", "Debts", responses.Debt, lambda _, debt: responses.Debt.from_core(debt))


@operations.get(
    "/v1/grants",
    summary="List grants",
    name="grants.list",
    response=Paginated[responses.GrantDetail],
    scope=Scope.READ,
    tag="Grants",
)
async def list_grants(
    call: Call,
    account_id: Annotated[Id, Field()],
    after: After = "",
    limit: Limit = 100,
) -> Response:
    """Return the grants of an account, the oldest first."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "accounts", account_id)
    place = _parse_after(after)
    seen = await service.read(lambda reader: Entities(reader).grants(org, account_id, place, limit))
    return page_response(call, org, seen, lambda row: responses.GrantDetail.with_compartments(*row))


def _parse_after(after: str) -> tuple[Instant, str]:
    """The position after which a page of grants begins: issue time and id."""
    match = _AFTER.fullmatch(after)
    if after and match is None:
        raise CallFailed("invalid_request", "after: use the `next` value of the previous page")
    return (0, "") if match is None else (int(match[1]), match[2])


@operations.get(
    "/v1/events",
    summary="List events",
    name="events.list",
    response=EventPage,
    scope=Scope.READ,
    tag="Events",
)
async def list_events(
    call: Call,
    org_id: OrgId = None,
    after: Annotated[int, Field(ge=0, le=2**62)] = 0,
    limit: Limit = 100,
) -> Response:
    """Return the events of an org in order: the audit trail."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)

    def read(reader: Connection) -> tuple[int, str]:
        seen = Entities(reader).events(org, after, limit)
        items = ",".join(record_of(org, row).model_dump_json() for row in seen.value.items)
        return seen.number, f'{{"items":[{items}],"next":{json.dumps(seen.value.next)}}}'

    number, body = await service.read(read)
    return read_response(call, org, number, body.encode())


@operations.get(
    "/v1/prices",
    summary="List prices",
    name="prices.list",
    response=Paginated[responses.PriceVersion],
    scope=Scope.READ,
    tag="Prices",
)
async def list_prices(call: Call, org_id: OrgId = None) -> Response:
    """Return the price versions of the org and of the deployment, in the order in which they
    take effect.
    """
    service, caller = call.service, call.caller
    named = org_id or (DEPLOYMENT if caller.is_operator else None)
    org = await service.whole_org(caller, named)
    seen = await service.read(lambda reader: Entities(reader).prices(org))
    page = AsOf(value=EntityPage(seen.value, None), number=seen.number, at=seen.at)
    return page_response(call, org, page, lambda row: responses.PriceVersion.from_core(*row))


# Balances and quotes


@operations.get(
    "/v1/accounts/{id}/balance",
    summary="Get a balance",
    name="accounts.balance",
    response=responses.Balance,
    scope=Scope.READ,
)
async def get_balance(
    call: Call,
    id: Id,
    at: At = None,
    known_at: Annotated[str | None, Field(description="RFC 3339; as known then")] = None,
    spendable_for: Annotated[
        str | None,
        Field(
            max_length=2_000,
            description="What the credits are for, such as `gpu_type=H100,gpu_count=8`.",
        ),
        NameInUrl("for"),
    ] = None,
    user_id: Annotated[Id | None, Field(description="whose budgets count, too")] = None,
) -> Response:
    """Return what an account owns, can spend, has used and owes, now or at a time in the past."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "accounts", id)
    if at is not None or known_at is not None:
        known = NEVER if known_at is None else _parse_time("known_at", known_at)
        then = min(known, NEVER) if at is None else _parse_time("at", at)
        document = await service.read(lambda reader: _past_balance(reader, org, id, then, known))
    else:
        context = _parse_context(spendable_for)
        document = await service.read(
            lambda reader: _current_balance(reader, org, id, context, user_id)
        )
    return read_response(call, org, document.event, to_json(document))


def _parse_time(name: str, text: str) -> Instant:
    try:
        return instant_of(text.replace(" ", "+"))  # a plus that was not escaped
    except ValueError as error:
        raise CallFailed("invalid_request", f"{name}: {error}") from None


def _parse_context(text: str | None) -> Context:
    """A context from `name=value,name=value`, or from JSON."""
    if not text:
        return Context()
    fields: dict[str, Any]
    try:
        if text.startswith("{"):
            fields = parse_json(text.encode())
        else:
            fields = {}
            fields |= dict(part.split("=", 1) for part in text.split(","))
            if "gpu_count" in fields:
                fields["gpu_count"] = int(fields["gpu_count"])
        return Context.model_validate(fields)
    except (ValueError, ValidationError, TypeError) as error:
        reason = (
            _first_error(error)
            if isinstance(error, ValidationError)
            else "write it as gpu_type=H100,gpu_count=8"
        )
        raise CallFailed("invalid_request", f"for: {reason}") from None


def _first_error(error: ValidationError) -> str:
    """The first error in a context."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{where[:40]!r} is none of {', '.join(Context.model_fields)}"
    return f"{where}: {first['msg']}"


def _current_balance(
    reader: Any, org: str, account: str, context: Context, user: str | None
) -> responses.Balance:
    try:
        wanted = context.to_core()
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    whose = None if user is None else UserId(user)
    seen = LedgerReads(reader).summary(org, AccountId(account), wanted, whose, LISTED_MAX + 1)
    if isinstance(seen.value, Refusal):
        raise CallRefused(seen.value)
    current, grants, expiring = seen.value
    return responses.Balance.model_construct(
        account_id=account,
        at=current.at,
        known_at=None,
        owned=responses.Compartments.from_core(current.owned),
        spendable_micros=current.spendable,
        used_micros=current.used,
        debt_micros=current.debt,
        by_kind={
            kind.value: responses.Compartments.from_core(owned)
            for kind, owned in current.by_kind.items()
        },
        grants=[responses.GrantDetail.with_compartments(*row) for row in grants[:LISTED_MAX]],
        has_more_grants=len(grants) > LISTED_MAX,
        expiring=_render_expirations(expiring, seen.at),
        burn=responses.BurnRate.model_construct(
            micros_per_day=current.burn.per_day, runs_out_at=current.burn.runs_out_at
        ),
        stream=org,
        event=seen.number,
    )


def _render_expirations(expiring: Sequence[Expiring], now: Instant) -> responses.Expirations:
    """The amounts that will expire; a sum is null if the list is cut off before its end."""
    listed, has_more = expiring[:LISTED_MAX], len(expiring) > LISTED_MAX
    day, week, month = (
        sum_expiring(listed, now + days * DAY, is_cut=has_more) for days in (1, 7, 30)
    )
    return responses.Expirations.model_construct(
        within_24h_micros=day,
        within_7d_micros=week,
        within_30d_micros=month,
        timeline=[
            responses.ExpiringAmount.model_construct(
                grant_id=credits.grant,
                expires_at=credits.expires_at,
                amount_micros=credits.amount,
            )
            for credits in listed
        ],
        has_more=has_more,
    )


def _past_balance(
    reader: Any, org: str, account: str, at: Instant, known_at: Instant
) -> responses.Balance:
    seen = LedgerReads(reader).past(org, at, known_at, AccountId(account))
    own = list(seen.value.values())
    by_kind = {
        kind: sum_views(view for view in own if view.terms.kind is kind) for kind in CreditKind
    }
    return responses.Balance.model_construct(
        account_id=account,
        at=at,
        known_at=known_at,
        owned=responses.Compartments.from_core(sum_views(own)),
        spendable_micros=None,
        used_micros=None,
        debt_micros=None,
        by_kind={
            kind.value: responses.Compartments.from_core(owned) for kind, owned in by_kind.items()
        },
        grants=[
            responses.GrantDetail.with_compartments(view.terms, sum_views([view]))
            for view in own[:LISTED_MAX]
        ],
        has_more_grants=len(own) > LISTED_MAX,
        expiring=None,
        burn=None,
        stream=org,
        event=seen.number,
    )


@operations.post(
    "/v1/quotes",
    summary="Quote a hold",
    name="quotes.create",
    response=responses.HoldQuote,
    scope=Scope.READ,
    tag="Holds",
    example={
        "account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
        "run_ms_max": 3600000,
        "context": {"gpu_type": "H100", "gpu_count": 8},
    },
)
async def create_quote(call: Call, body: requests.QuoteRequest) -> Response:
    """Return what a hold would cost and what would refuse it. Nothing is changed."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "accounts", body.account_id)
    ids = IdFactory(org, "quote", 0)
    try:
        capped_key = caller.id if caller.key.capped else None
        ask = body.to_command(ids, caller.key.user or org_user(org), capped_key)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    seen = await service.read(
        lambda reader: LedgerReads(reader).quote(org, ask, body.likely_run_ms)
    )
    return read_response(call, org, seen.number, to_json(responses.HoldQuote.from_core(seen.value)))


def _render_top(places: Sequence[Any], at: Instant) -> bytes:
    """A top list, and the time of its values."""
    items = [
        {
            "org_id": place.org,
            "id": place.subject_id,
            "value_micros": place.value,
            "event": place.number,
        }
        for place in places
    ]
    document = {"items": items, "next": None, "as_of": instant_text(at)}
    return json.dumps(document, separators=(",", ":")).encode()


@operations.get(
    "/v1/top/{subject}",
    summary="Top accounts or users",
    name="top",
    response=TopList,
    scope=Scope.READ,
    tag="Reports",
)
async def list_top(
    call: Call,
    subject: Literal["accounts", "users"],
    org_id: OrgId = None,
    by: Literal["available", "used", "day", "week"] = "used",
    limit: Limit = 100,
) -> Response:
    """Return the accounts or users with the highest balance or spending, as of the last sweep."""
    service, caller = call.service, call.caller
    of = Subject.ACCOUNT if subject == "accounts" else Subject.USER
    measure = Measure(by)
    if of is Subject.USER and measure is Measure.AVAILABLE:
        raise CallFailed(
            "invalid_request", "by: users have no balance of their own; use used, day or week"
        )
    if caller.is_operator and org_id is None:
        places, at = await service.read(
            lambda reader: TopLists(reader).over_all(of, measure, limit)
        )
        return Response(_render_top(places, at), media_type="application/json")
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: TopLists(reader).within(org, of, measure, limit))
    return read_response(call, org, seen.number, _render_top(seen.value, seen.at))
