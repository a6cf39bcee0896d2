"""Routes for statements, reports of usage and cost exports: JSON, CSV, and FOCUS (O3)."""

import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from bursar.api.call import Call
from bursar.api.context import Service, unknown
from bursar.api.errors import CallFailed
from bursar.api.operation import NameInUrl, OperationTable
from bursar.api.pages import Limit, OrgId, read_response
from bursar.core.instant import Instant
from bursar.service.keys import Scope
from bursar.service.queries.bookings import Sort
from bursar.service.queries.costs import CostRow, Costs, Slot
from bursar.service.queries.periods import BadRange, RequestedPeriod
from bursar.service.queries.statements import AccountStatement, Parts, PostingLine, Statements
from bursar.service.queries.usage_reports import (
    Dimension,
    Key,
    Report,
    TooManyRows,
    UsageFigures,
    UsageReports,
)
from bursar.wire import focus
from bursar.wire import statements as shapes
from bursar.wire.fields import Id
from bursar.wire.tables import MEDIA_TYPE, Cell, csv_text
from bursar.wire.times import instant_of, instant_text

T = TypeVar("T")

From = Annotated[
    str | None,
    Field(max_length=64, description="RFC 3339. By default the start of the month of `to`."),
    NameInUrl("from"),
]
To = Annotated[str | None, Field(max_length=64, description="RFC 3339; by default now")]
Format = Annotated[
    Literal["json", "csv"] | None, Field(description="by default what Accept asks for")
]
_AFTER: Final = re.compile(r"(\d{1,18})\.(\d{1,9})", re.ASCII)

operations = OperationTable("Reports")


# Parameters


def _invalid_parameter(parameter: str, why: str) -> CallFailed:
    pointer = f"query/{parameter}"
    errors = [{"pointer": pointer, "detail": why}]
    return CallFailed("invalid_request", f"{pointer}: {why}", errors=errors)


def _period(start: str | None, end: str | None) -> RequestedPeriod:
    return RequestedPeriod(_instant("from", start), _instant("to", end))


def _instant(parameter: str, text: str | None) -> Instant | None:
    if text is None:
        return None
    try:
        return instant_of(text.replace(" ", "+"))  # a plus that the client did not escape
    except ValueError as error:
        raise _invalid_parameter(parameter, str(error)) from None


def _dimensions(text: str) -> tuple[Dimension, ...]:
    """The dimensions of a report, in the order of the parameter `by`."""
    names = text.split(",")
    if len(set(names)) < len(names) or not set(names) <= set(Dimension):
        every = ", ".join(Dimension)
        raise _invalid_parameter(
            "by", f"expected one or more of {every}, separated by commas, each once"
        )
    return tuple(map(Dimension, names))


def _as_csv(call: Call, wanted: str | None) -> bool:
    if wanted is None:
        accepted = call.header("accept", "")
        return "text/csv" in accepted and "application/json" not in accepted
    return wanted == "csv"


async def _read_period(service: Service, read: Any) -> Any:
    """Read something about a period; end the call if the period is invalid or too long."""
    try:
        return await service.read(read)
    except BadRange as error:
        raise _invalid_parameter(error.parameter, str(error)) from None
    except TooManyRows as error:
        raise _invalid_parameter(
            "by", f"{error}: choose a shorter period or fewer dimensions"
        ) from None


def _csv_response(call: Call, org: str, number: int, rows: Iterable[Sequence[Cell]]) -> Response:
    response = read_response(call, org, number, csv_text(rows).encode())
    if response.status_code == 200:
        response.headers["Content-Type"] = MEDIA_TYPE
    return response


# Statements


@operations.get(
    "/v1/accounts/{id}/statement",
    summary="Get a statement",
    name="accounts.statement",
    response=shapes.StatementPage,
    content_types=("application/json", "text/csv"),
    scope=Scope.READ,
)
async def get_statement(
    call: Call,
    id: Id,
    start: From = None,
    to: To = None,
    after: Annotated[
        str | None, Field(max_length=64, description="`next` of the previous page")
    ] = (None),
    limit: Limit = 100,
    format: Format = None,
) -> Response:
    """Return the opening balance, all movements and the closing balance of an account for a
    period, as JSON or CSV.
    """
    service, caller = call.service, call.caller
    wanted, place = _period(start, to), _parse_after(after)
    org = await service.org_of(caller, "accounts", id)
    seen = await _read_period(
        service, lambda reader: Statements(reader).page(org, id, wanted, place, limit)
    )
    statement: AccountStatement | None = seen.value
    if statement is None:
        raise unknown("accounts", id)
    document = _render_statement(id, statement)
    if not _as_csv(call, format):
        response = read_response(call, org, seen.number, _json(document))
    else:
        rows = [list(line.values()) for line in document["items"]]
        header = list(shapes.StatementLine.model_fields)
        response = _csv_response(call, org, seen.number, [header, *rows])
        if document["next"] is not None:
            response.headers["Bursar-Next"] = document["next"]
    response.headers["Vary"] = "Accept"
    return response


def _parse_after(after: str | None) -> tuple[int, int] | None:
    if not after:
        return None
    match = _AFTER.fullmatch(after)
    if match is None:
        raise _invalid_parameter("after", "use the `next` value of the previous page")
    return int(match[1]), int(match[2])


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _render_statement(account: str, statement: AccountStatement) -> dict[str, Any]:
    behind = statement.next
    return {
        "account_id": account,
        "from": instant_text(statement.period.start),
        "to": instant_text(statement.period.end),
        "period_opening": _compartments(statement.period_opening),
        "period_closing": _compartments(statement.period_closing),
        "opening": _compartments(statement.opening),
        "items": [_render_line(line) for line in statement.lines],
        "closing": _compartments(statement.closing),
        "next": None if behind is None else f"{behind[0]}.{behind[1]}",
    }


def _compartments(parts: Parts) -> dict[str, int]:
    return {f"{part.value}_micros": amount for part, amount in parts.items()}


def _render_line(line: PostingLine) -> dict[str, Any]:
    return {
        "at": instant_text(line.at),
        "effective_at": instant_text(line.effective_at),
        "event": line.number,
        "kind": line.kind,
        "grant_id": line.grant,
        "grant_kind": line.grant_kind,
        "from_compartment": line.source,
        "to_compartment": line.target,
        "amount_micros": line.amount,
        "hold_id": line.hold,
        "charge_id": line.charge,
        "user_id": line.user,
        "job_id": line.job,
        "actor_id": line.actor,
        "cached_from": line.cached_from,
    }


# Usage


@operations.get(
    "/v1/usage",
    summary="Get a usage report",
    name="usage.report",
    response=shapes.UsageReport,
    content_types=("application/json", "text/csv"),
    scope=Scope.READ,
)
async def get_usage(
    call: Call,
    org_id: OrgId = None,
    start: From = None,
    to: To = None,
    by: Annotated[str, Field(max_length=100, description="dimensions, with commas")] = "account",
    level: Annotated[
        int | None, Field(ge=0, le=1_000, description="count accounts below it where it is reached")
    ] = None,
    format: Format = None,
) -> Response:
    """Return charges and usage for a period, by account, user, GPU type, kind of credits, day or
    job, as JSON or CSV.
    """
    service, caller = call.service, call.caller
    wanted, dimensions = _period(start, to), _dimensions(by)
    if level is not None and Dimension.ACCOUNT not in dimensions:
        raise _invalid_parameter("level", "requires by=account")
    org = await service.whole_org(caller, org_id)
    seen = await _read_period(
        service, lambda reader: UsageReports(reader).report(org, wanted, dimensions, level)
    )
    report: Report = seen.value
    rows = [_render_usage(report, key, used) for key, used in report.rows]
    if _as_csv(call, format):
        header = [*_columns(report.by), *_FIGURES]
        table = [header, *([row[name] for name in header] for row in rows)]
        response = _csv_response(call, org, seen.number, table)
    else:
        document = _render_report(org, report, rows)
        response = read_response(call, org, seen.number, _json(document))
    response.headers["Vary"] = "Accept"
    return response


_FIGURES: Final = ("charged_micros", "used_micros", "gpu_ms")
_COLUMN: Final = {
    Dimension.ACCOUNT: "account_id",
    Dimension.USER: "user_id",
    Dimension.GPU_TYPE: "gpu_type",
    Dimension.KIND: "kind",
    Dimension.DAY: "day",
    Dimension.JOB: "job_id",
}


def _columns(by: Sequence[Dimension]) -> list[str]:
    """The columns of the dimensions; an account also has a column for its name."""
    columns: list[str] = []
    for dimension in by:
        columns += (
            ["account_id", "account_name"]
            if dimension is Dimension.ACCOUNT
            else [_COLUMN[dimension]]
        )
    return columns


def _render_usage(report: Report, key: Key, used: UsageFigures) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for by, value in zip(report.by, key, strict=True):
        row[_COLUMN[by]] = value
        if by is Dimension.ACCOUNT:
            row["account_name"] = report.names.get(value or "")
    return row | _figures(used, Dimension.KIND in report.by)


def _figures(used: UsageFigures, by_kind: bool) -> dict[str, int | None]:
    """The figures of a row. Run time is not divided by kinds of credits, so it is null there."""
    return {
        "charged_micros": used.charged,
        "used_micros": used.used,
        "gpu_ms": None if by_kind else used.milli_gpu_ms // 1_000,
    }


def _render_report(org: str, report: Report, rows: list[dict[str, Any]]) -> dict[str, Any]:
    total = UsageFigures(
        charged=sum(used.charged for _, used in report.rows),
        used=sum(used.used for _, used in report.rows),
        milli_gpu_ms=sum(used.milli_gpu_ms for _, used in report.rows),
    )
    return {
        "org_id": org,
        "from": instant_text(report.period.start),
        "to": instant_text(report.period.end),
        "by": [dimension.value for dimension in report.by],
        "items": rows,
        "next": None,
        "total": _figures(total, Dimension.KIND in report.by),
    }


# Costs


@operations.get(
    "/v1/exports/focus",
    summary="Export costs (FOCUS)",
    name="exports.focus",
    content_types=("text/csv",),
    scope=Scope.READ,
)
async def export_costs(
    call: Call,
    org_id: OrgId = None,
    start: From = None,
    to: To = None,
    every: Annotated[Slot, Field(description="how long a charge period is")] = Slot.DAY,
    currency: Annotated[
        str, Field(pattern="^[A-Z]{3}$", description="ISO 4217; a credit counts as one of it")
    ] = focus.NO_CURRENCY,
) -> Response:
    """Stream costs as CSV in the FOCUS 1.2 format."""
    service, caller = call.service, call.caller
    wanted = _period(start, to)
    org = await service.whole_org(caller, org_id)
    seen = await _read_period(service, lambda reader: Costs.start(reader, org, wanted, every))
    costs: Costs = seen.value
    # Recorded costs never change: the parameters and the last event identify the export.
    tag = f"{org} {costs.period} {costs.last} {every} {currency} {focus.VERSION}"
    head = read_response(call, org, seen.number, tag.encode())
    if head.status_code != 200:
        return head
    copied = ("Bursar-Event", "ETag", "Cache-Control")
    headers = {name: head.headers[name] for name in copied}
    headers["Content-Disposition"] = 'attachment; filename="focus.csv"'
    first = await service.read(
        costs.read_more
    )  # before the status is sent, so that an error is a problem
    streamed = _stream_rows(service, org, currency, costs, first)
    return StreamingResponse(streamed, headers=headers, media_type=MEDIA_TYPE)


async def _stream_rows(
    service: Service, org: str, currency: str, costs: Costs, first: list[CostRow]
) -> AsyncIterator[str]:
    yield csv_text([list(focus.COLUMNS)])
    rows = first
    while True:
        yield csv_text(
            focus.cells(_cost_row(org, costs.billing_account, currency, cost)) for cost in rows
        )
        if costs.is_done:
            return
        rows = await service.read(costs.read_more)


_CATEGORY: Final = {Sort.USAGE: "Usage", Sort.ISSUED: "Credit", Sort.MOVED: "Credit"}
_DESCRIPTION: Final = {
    Sort.USAGE: "Usage",
    Sort.REVERSAL: "Charges that were reversed",
    Sort.GIVEN_BACK: "Lost work that was given back",
    Sort.ISSUED: "Credits that were issued",
    Sort.MOVED: "Credits that went to another account",
    Sort.LAPSED: "Credits that lapsed",
    Sort.REVOKED: "Credits that were taken back",
}


def _cost_row(org: str, org_name: str, currency: str, cost: CostRow) -> focus.Row:
    line = cost.line
    category = _CATEGORY.get(line.sort, "Adjustment")
    return focus.Row(
        category=category,
        adjustment=line.sort.value if category == "Adjustment" else None,
        correction=line.correction,
        description=_description(line.sort, line.gpu_type, line.rate),
        org=org,
        org_name=org_name,
        account=line.account,
        account_name=cost.account_name,
        user=line.user,
        gpu_type=line.gpu_type,
        region=line.region,
        rate=line.rate,
        grant=line.grant,
        credit_kind=line.kind,
        billed_from=cost.billed.start,
        billed_to=cost.billed.end,
        charged_from=line.start,
        charged_to=cost.end,
        amount=cost.amount,
        milli_gpu_ms=cost.milli_gpu_ms,
        currency=currency,
    )


def _description(sort: Sort, gpu_type: str | None, rate: int | None) -> str:
    text = _DESCRIPTION[sort]
    if gpu_type is not None:
        text = f"{text}: {gpu_type}"
    if rate is not None:
        text = f"{text} at {focus.credits_of(rate):f} credits per GPU-hour"
    return text
