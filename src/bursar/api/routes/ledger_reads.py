"""Routes that only look: balances, single things, pages, events, top lists, quotes."""

import json
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from bursar.api.context import Caller, Service, unknown
from bursar.api.errors import Failed, InvalidCommand, Refused
from bursar.api.execute import encoded
from bursar.api.request_body import StrictRoute
from bursar.api.routes.operations import PROBLEM
from bursar.core.ids import AccountId, UserId
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.ledger.balance import Expiring
from bursar.core.ledger.balance import Owned as CoreOwned
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.history import GrantView
from bursar.core.ledger.values import Compartment, CreditKind
from bursar.core.refusal import Refusal
from bursar.service.keys import DEPLOYMENT, Scope
from bursar.service.keys import KIND as KEY
from bursar.service.org_setup import org_user
from bursar.service.queries.balances import Looking, Seen
from bursar.service.queries.entities import Listing, Page
from bursar.service.queries.top_lists import Measure, Subject, Top
from bursar.wire import requests, responses
from bursar.wire.fields import Context, Id, IdFactory, Time, WireModel
from bursar.wire.strict_json import parsed
from bursar.wire.times import instant_of, instant_text

T = TypeVar("T")

LISTED_MOST: Final = 1_000  # grants, and expirations, that a balance lists

Limit = Annotated[int, Query(ge=1, le=1_000, description="how many, at most")]
After = Annotated[
    str,
    Query(max_length=300, pattern=r"^[!-~]*$", description="`next` of the page before"),
]
At = Annotated[str | None, Query(description="RFC 3339; as of then")]
OrgId = Annotated[Id | None, Query(description="which org; a key of an org need not say")]

READS: Final = {"x-scope": Scope.READ}
router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=PROBLEM)


class Things(WireModel, Generic[T]):
    """A page."""

    items: list[T]
    next: str | None


class Standings(Things[responses.TopEntry]):
    """Who has the most, and as of when that is so."""

    as_of: Time


def _service(request: Request) -> tuple[Service, Caller]:
    service: Service = request.app.state.service
    caller: Caller = request.state.caller
    caller.needs(Scope.READ)
    return service, caller


def seen_response(request: Request, org: str, number: int, body: bytes) -> Response:
    """An answer that says what it knew; nothing at all if the caller has it already."""
    _check_seen(request, org, number)
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {
        "Bursar-Event": f"{org}:{number}",
        "ETag": etag,
        "Cache-Control": "private, no-cache",
    }
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


_EVENT: Final = re.compile(r"([0-9a-f-]{36}):([0-9]{1,18})")
_PLACE: Final = re.compile(r"([0-9]{1,18})\.([0-9a-f-]{36})")


def _check_seen(request: Request, org: str, number: int) -> None:
    """End the call if the caller has seen an event of this org that we have not."""
    told = request.headers.get("bursar-event")
    if told is None:
        return
    for one in told.split(","):
        found = _EVENT.fullmatch(one.strip())
        if found is None:
            raise Failed("invalid_request", "Bursar-Event: it is org:number, as an answer told it")
        if found[1] == org and int(found[2]) > number:
            raise Failed("behind", f"the last event here is {org}:{number}")


def _page(
    request: Request, org: str, seen: Seen[Page[T]], told: Callable[[T], WireModel]
) -> Response:
    items = [json.loads(encoded(told(thing))) for thing in seen.value.things]
    body = json.dumps({"items": items, "next": seen.value.next}, separators=(",", ":"))
    return seen_response(request, org, seen.number, body.encode())


# Single things


def _one(
    path: str,
    table: str,
    answer: type[WireModel],
    told: Callable[[str, Any], WireModel],
    summary: str,
) -> None:
    """A route for a thing that the books have a row of."""

    async def look(request: Request, id: Id) -> Response:
        service, caller = _service(request)
        org = await service.org_of(caller, table, id)
        seen = await service.read(lambda reader: Listing(reader).one(org, table, id))
        if seen.value is None:
            raise unknown(table, id)
        return seen_response(request, org, seen.number, encoded(told(org, seen.value)))

    router.add_api_route(
        path,
        look,
        summary=summary,
        operation_id=f"{table}.get",
        response_model=answer,
        openapi_extra=READS,
    )


_one(
    "/accounts/{id}",
    "accounts",
    responses.Account,
    responses.Account.from_core,
    "An account of the tree",
)
_one(
    "/holds/{id}",
    "holds",
    responses.Hold,
    lambda _, one: responses.Hold.from_core(one),
    "A hold as it is",
)
_one(
    "/budgets/{id}",
    "budgets",
    responses.Budget,
    lambda _, one: responses.Budget.from_core(one),
    "A budget",
)
_one("/debts/{id}", "debts", responses.Debt, lambda _, one: responses.Debt.from_core(one), "A debt")


@router.get(
    "/grants/{id}",
    summary="A grant, and what is in it now",
    operation_id="grants.get",
    response_model=responses.GrantDetail,
    openapi_extra=READS,
)
async def grant(request: Request, id: Id) -> Response:
    """A grant, and what is in it now."""
    service, caller = _service(request)
    org = await service.org_of(caller, "grants", id)
    seen = await service.read(lambda reader: Listing(reader).grant(org, id))
    if seen.value is None:
        raise unknown("grants", id)
    return seen_response(
        request, org, seen.number, encoded(responses.GrantDetail.with_compartments(*seen.value))
    )


# Pages


def _list(
    path: str,
    table: str,
    answer: type[WireModel],
    told: Callable[[str, Any], WireModel],
    summary: str,
) -> None:
    """A route for the things of an org, in the order of their ids."""

    async def look(
        request: Request, org_id: OrgId = None, after: After = "", limit: Limit = 100
    ) -> Response:
        service, caller = _service(request)
        org = await service.whole_org(caller, org_id)
        seen = await service.read(lambda reader: Listing(reader).page(org, table, after, limit))
        return _page(request, org, seen, lambda one: told(org, one))

    router.add_api_route(
        path,
        look,
        summary=summary,
        operation_id=f"{table}.list",
        response_model=Things[answer],  # type: ignore[valid-type]
        openapi_extra=READS,
    )


_list(
    "/accounts",
    "accounts",
    responses.Account,
    responses.Account.from_core,
    "The accounts of an org",
)
_list(
    "/users",
    "users",
    responses.User,
    lambda org, one: responses.User(id=one, org_id=org),
    "The users of an org",
)
_list(
    "/holds",
    "holds",
    responses.Hold,
    lambda _, one: responses.Hold.from_core(one),
    "The holds of an org",
)
_list(
    "/budgets",
    "budgets",
    responses.Budget,
    lambda _, one: responses.Budget.from_core(one),
    "The budgets of an org",
)
_list(
    "/debts",
    "debts",
    responses.Debt,
    lambda _, one: responses.Debt.from_core(one),
    "What an org owes",
)


@router.get(
    "/grants",
    summary="The grants an account was issued, the oldest first",
    operation_id="grants.list",
    response_model=Things[responses.GrantDetail],
    openapi_extra=READS,
)
async def grants(
    request: Request,
    account_id: Annotated[Id, Query()],
    after: After = "",
    limit: Limit = 100,
) -> Response:
    """The grants an account was issued, the oldest first."""
    service, caller = _service(request)
    org = await service.org_of(caller, "accounts", account_id)
    place = _place(after)
    seen = await service.read(lambda reader: Listing(reader).grants(org, account_id, place, limit))
    return _page(request, org, seen, lambda one: responses.GrantDetail.with_compartments(*one))


def _place(after: str) -> tuple[Instant, str]:
    """Where a page of grants begins: after the grant that was issued then, of this id."""
    found = _PLACE.fullmatch(after)
    if after and found is None:
        raise Failed("invalid_request", "after: it is `next` of the page before")
    return (0, "") if found is None else (int(found[1]), found[2])


def _without_hashes(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """What is told of an event: of a key nobody needs what is kept of its secret."""
    if kind != SettingSet.__name__ or body["kind"] != KEY or body["body"] is None:
        return body
    key = json.loads(body["body"])
    left = {name: value for name, value in key.items() if not name.endswith("hash")}
    return {**body, "body": json.dumps(left, separators=(",", ":"))}


@router.get(
    "/events",
    summary="What happened to an org, in order; the audit trail",
    operation_id="events.list",
    response_model=Things[responses.EventRecord],
    openapi_extra=READS,
)
async def events(
    request: Request,
    org_id: OrgId = None,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Limit = 100,
) -> Response:
    """What happened to an org, in order."""
    service, caller = _service(request)
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: Listing(reader).events(org, after, limit))
    items = [
        {
            "stream": org,
            "number": one.number,
            "at": instant_text(one.at),
            "kind": one.kind,
            "actor_id": one.actor or None,
            "body": _without_hashes(one.kind, json.loads(one.body)),
        }
        for one in seen.value.things
    ]
    body = json.dumps({"items": items, "next": seen.value.next}, separators=(",", ":"))
    return seen_response(request, org, seen.number, body.encode())


@router.get(
    "/prices",
    summary="The prices of an org and of the deployment, the first in force first",
    operation_id="prices.list",
    response_model=Things[responses.PriceVersion],
    openapi_extra=READS,
)
async def prices(request: Request, org_id: OrgId = None) -> Response:
    """The prices of an org and of the deployment; of the deployment alone if no org is named."""
    service, caller = _service(request)
    named = org_id or (DEPLOYMENT if caller.is_operator else None)
    org = await service.whole_org(caller, named)
    seen = await service.read(lambda reader: Listing(reader).prices(org))
    page = Seen(value=Page(seen.value, None), number=seen.number, at=seen.at)
    return _page(request, org, page, lambda one: responses.PriceVersion.from_core(*one))


# Balances and quotes


@router.get(
    "/accounts/{id}/balance",
    summary="What an account owns, can spend, has used and owes; now, or as of an instant",
    operation_id="accounts.balance",
    response_model=responses.Balance,
    openapi_extra=READS,
)
async def balance(
    request: Request,
    id: Id,
    at: At = None,
    known_at: Annotated[str | None, Query(description="RFC 3339; as known then")] = None,
    spendable_for: Annotated[
        str | None,
        Query(alias="for", max_length=2_000, description="gpu_type=H100,gpu_count=8 and so on"),
    ] = None,
    user_id: Annotated[Id | None, Query(description="whose budgets count, too")] = None,
) -> Response:
    """What an account owns, can spend, has used and owes."""
    service, caller = _service(request)
    org = await service.org_of(caller, "accounts", id)
    if at is not None or known_at is not None:
        known = NEVER if known_at is None else _time("known_at", known_at)
        then = min(known, NEVER) if at is None else _time("at", at)
        told = await service.read(lambda reader: _past(reader, org, id, then, known))
    else:
        context = _context(spendable_for)
        told = await service.read(lambda reader: _present(reader, org, id, context, user_id))
    return seen_response(request, org, told.event, encoded(told))


def _time(name: str, text: str) -> Instant:
    try:
        return instant_of(text.replace(" ", "+"))  # a plus that was not escaped
    except ValueError as error:
        raise Failed("invalid_request", f"{name}: {error}") from None


def _context(text: str | None) -> Context:
    """A context from `name=value,name=value`, or from JSON."""
    if not text:
        return Context()
    given: dict[str, Any]
    try:
        if text.startswith("{"):
            given = parsed(text.encode())
        else:
            given = {}
            given |= dict(part.split("=", 1) for part in text.split(","))
            if "gpu_count" in given:
                given["gpu_count"] = int(given["gpu_count"])
        return Context.model_validate(given)
    except (ValueError, ValidationError, TypeError) as error:
        said = (
            _wrong(error)
            if isinstance(error, ValidationError)
            else "write it as gpu_type=H100,gpu_count=8"
        )
        raise Failed("invalid_request", f"for: {said}") from None


def _wrong(error: ValidationError) -> str:
    """The first thing that is wrong with a context."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{where[:40]!r} is none of {', '.join(Context.model_fields)}"
    return f"{where}: {first['msg']}"


def _present(
    reader: Any, org: str, account: str, context: Context, user: str | None
) -> responses.Balance:
    try:
        asked = context.to_core()
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    whose = None if user is None else UserId(user)
    seen = Looking(reader).standing(org, AccountId(account), asked, whose, LISTED_MOST + 1)
    if isinstance(seen.value, Refusal):
        raise Refused(seen.value)
    found, grants, expiring = seen.value
    return responses.Balance.model_construct(
        account_id=account,
        at=found.at,
        known_at=None,
        owned=responses.Compartments.from_core(found.owned),
        spendable_micros=found.spendable,
        used_micros=found.used,
        debt_micros=found.debt,
        by_kind={
            kind.value: responses.Compartments.from_core(owned)
            for kind, owned in found.by_kind.items()
        },
        grants=[responses.GrantDetail.with_compartments(*one) for one in grants[:LISTED_MOST]],
        grants_more=len(grants) > LISTED_MOST,
        expiring=_expirations(expiring, seen.at),
        burn=responses.BurnRate.model_construct(
            micros_per_day=found.burn.per_day, runs_out_at=found.burn.runs_out_at
        ),
        stream=org,
        event=seen.number,
    )


def _expirations(expiring: Sequence[Expiring], now: Instant) -> responses.Expirations:
    """What will lapse; where the list is cut, nothing is said of what lies behind its end."""
    more = len(expiring) > LISTED_MOST
    listed = expiring[:LISTED_MOST]

    def within(days: int) -> int | None:
        until = now + days * DAY
        if more and listed[-1].expires_at <= until:
            return None
        return sum(one.amount for one in listed if one.expires_at <= until)

    return responses.Expirations.model_construct(
        within_24h_micros=within(1),
        within_7d_micros=within(7),
        within_30d_micros=within(30),
        timeline=[
            responses.ExpiringAmount.model_construct(
                grant_id=one.grant, expires_at=one.expires_at, amount_micros=one.amount
            )
            for one in listed
        ],
        more=more,
    )


def _past(reader: Any, org: str, account: str, at: Instant, known_at: Instant) -> responses.Balance:
    seen = Looking(reader).past(org, at, known_at, AccountId(account))
    own = list(seen.value.values())
    by_kind = {
        kind: _summed(view for view in own if view.terms.kind is kind) for kind in CreditKind
    }
    return responses.Balance.model_construct(
        account_id=account,
        at=at,
        known_at=known_at,
        owned=responses.Compartments.from_core(_summed(own)),
        spendable_micros=None,
        used_micros=None,
        debt_micros=None,
        by_kind={
            kind.value: responses.Compartments.from_core(owned) for kind, owned in by_kind.items()
        },
        grants=[
            responses.GrantDetail.with_compartments(view.terms, _summed([view]))
            for view in own[:LISTED_MOST]
        ],
        grants_more=len(own) > LISTED_MOST,
        expiring=None,
        burn=None,
        stream=org,
        event=seen.number,
    )


def _summed(views: Any) -> CoreOwned:
    parts = dict.fromkeys(Compartment, 0)
    view: GrantView
    for view in views:
        for part, amount in view.parts.items():
            parts[part] += amount
    return CoreOwned(**{part.value: amount for part, amount in parts.items()})


@router.post(
    "/quotes",
    summary="What a hold would cost and what forbids it; nothing is changed",
    operation_id="quotes.create",
    response_model=responses.HoldQuote,
    openapi_extra=READS,
)
async def quote(request: Request, body: requests.QuoteRequest) -> Response:
    """What a hold would cost and what forbids it."""
    service, caller = _service(request)
    org = await service.org_of(caller, "accounts", body.account_id)
    making = IdFactory(org, "quote", 0)
    try:
        asked_by = caller.id if caller.key.capped else None
        ask = body.to_command(making, caller.key.user or org_user(org), asked_by)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    seen = await service.read(lambda reader: Looking(reader).quote(org, ask, body.likely_run_ms))
    return seen_response(
        request, org, seen.number, encoded(responses.HoldQuote.from_core(seen.value))
    )


def _top(places: Sequence[Any], at: Instant) -> bytes:
    """A top list, and as of when it is so."""
    items = [
        {"org_id": one.org, "id": one.subject_id, "value_micros": one.value, "event": one.number}
        for one in places
    ]
    told = {"items": items, "next": None, "as_of": instant_text(at)}
    return json.dumps(told, separators=(",", ":")).encode()


@router.get(
    "/top/{subject}",
    summary="Who has, used or burns the most, as of the last sweep",
    operation_id="top",
    response_model=Standings,
    openapi_extra=READS,
)
async def top(
    request: Request,
    subject: Literal["accounts", "users"],
    org_id: OrgId = None,
    by: Literal["available", "used", "day", "week"] = "used",
    limit: Limit = 100,
) -> Response:
    """Who has, used or burns the most, as of the last sweep."""
    service, caller = _service(request)
    of = Subject.ACCOUNT if subject == "accounts" else Subject.USER
    measure = Measure(by)
    if of is Subject.USER and measure is Measure.AVAILABLE:
        raise Failed("invalid_request", "by: users own nothing; ask for used, day or week")
    if caller.is_operator and org_id is None:
        places, at = await service.read(lambda reader: Top(reader).over_all(of, measure, limit))
        return Response(_top(places, at), media_type="application/json")
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: Top(reader).within(org, of, measure, limit))
    return seen_response(request, org, seen.number, _top(seen.value, seen.at))
