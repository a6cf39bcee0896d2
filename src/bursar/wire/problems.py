"""Every problem code in one table: status, title and remedy (RFC 9457).

The table holds the codes of the rules (`bursar.core.refusal.Code`) and the codes of the HTTP layer.
A client handles both alike. A code never changes its meaning.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bursar.core.refusal import Code, Refusal
from bursar.wire.times import instant_text

MEDIA_TYPE: Final = "application/problem+json"


class ProblemType(NamedTuple):
    """What one problem code means."""

    status: int
    title: str
    remedy: str


def _unknown(noun: str) -> ProblemType:
    return ProblemType(
        404,
        f"The {noun} does not exist",
        f"Check the id, and that your key may see the {noun}.",
    )


# Decided by the rules under the org's lock. Stored: the same Idempotency-Key gets the same refusal.
RULE_PROBLEMS: Final[Mapping[str, ProblemType]] = MappingProxyType(
    {
        Code.ACCOUNT_UNKNOWN: _unknown("account"),
        Code.USER_UNKNOWN: _unknown("user"),
        Code.GRANT_UNKNOWN: _unknown("grant"),
        Code.HOLD_UNKNOWN: _unknown("hold"),
        Code.CHARGE_UNKNOWN: _unknown("charge"),
        Code.DEBT_UNKNOWN: _unknown("debt"),
        Code.BUDGET_UNKNOWN: _unknown("budget"),
        Code.RECURRENCE_UNKNOWN: _unknown("recurring grant"),
        Code.SETTING_UNKNOWN: ProblemType(
            404,
            "The setting does not exist",
            "The figures give its kind (such as quota or webhook) and id. Check the id, and that"
            " your key may see it.",
        ),
        Code.ATTEMPT_UNKNOWN: ProblemType(
            404, "The hold has no such attempt", "Check the attempt number of the job."
        ),
        Code.ALREADY_EXISTS: ProblemType(
            409,
            "The id is already in use",
            "Choose another id, or omit it. If this is a retry, send the original Idempotency-Key"
            " to get the original response.",
        ),
        Code.EXTERNAL_REF_EXISTS: ProblemType(
            409,
            "A grant with this external_ref already exists",
            "If it is the same payment, there is nothing to do: the figures name its grant.",
        ),
        Code.KEY_REUSED: ProblemType(
            422,
            "The Idempotency-Key was used for a different request",
            "Use a new key for a new request. The figures name the first field that differs.",
        ),
        Code.TIME_INVALID: ProblemType(
            422, "A time is out of range", "The figures give the allowed range."
        ),
        Code.EXCEEDS_HOLD_AGE: ProblemType(
            422,
            "The run time is longer than the hold has existed",
            "Send the milliseconds that the work has run since the hold was opened, at most max_ms"
            " of the figures. Charge earlier work as an amount_micros.",
        ),
        Code.HOLD_TOO_LONG: ProblemType(
            422,
            "The hold would last too long",
            "Send a shorter ttl_seconds. The figures give the latest possible end.",
        ),
        Code.BUDGET_DIFFERS: ProblemType(
            409,
            "The budget has another target or period",
            "The target and period of a budget never change. Delete it and create a new one.",
        ),
        Code.TIER_NOT_ALLOWED: ProblemType(
            403,
            "The org may not use this tier",
            "Leave `tier` out, or ask for one of the allowed tiers in the figures. An operator can"
            " give the org another tier: POST /v1/tiers.",
        ),
        Code.PRICE_UNKNOWN: ProblemType(
            422,
            "No price is set for these GPU types",
            "Set a price for one of the GPU types, or reserve an amount.",
        ),
        Code.TYPE_NOT_HELD: ProblemType(
            422,
            "The hold does not cover this GPU type",
            "The figures list the GPU types the hold covers. If no pool has the requested types,"
            " request only the others.",
        ),
        Code.NOT_METERED: ProblemType(
            409,
            "The hold has no rate for run time",
            "Charge an amount_micros, or open the hold with gpu_type and gpu_count.",
        ),
        Code.AMOUNT_TOO_LARGE: ProblemType(
            422,
            "The amount is too large",
            "Amounts and totals are at most 2^53−1 micro-credits, about 9 billion credits.",
        ),
        Code.MAX_COST_EXCEEDED: ProblemType(
            402,
            "Maximum cost exceeded",
            "Raise max_cost_micros to the amount in the figures, or request a shorter run, fewer"
            " GPUs or cheaper ones. A submitted job keeps its max_cost_micros: extend it by a"
            " smaller amount.",
        ),
        Code.CHANGED_SINCE: ProblemType(
            412,
            "The object has changed since you read it",
            "Read it again, and send its new ETag in If-Match.",
        ),
        Code.HOLD_OF_A_JOB: ProblemType(
            409,
            "The hold belongs to a job",
            "Cancel or extend the job instead: /v1/jobs/{id}/cancel, /v1/jobs/{id}/extend.",
        ),
        Code.HOLD_OF_AN_ARRAY: ProblemType(
            409,
            "The hold belongs to an array",
            "Extend an element of the array instead. /v1/jobs/{id}/elements lists them.",
        ),
        Code.HOLD_OPEN: ProblemType(
            409,
            "The hold is still open",
            "An end is corrected after the job has finished. Retry then, with a new"
            " Idempotency-Key. Follow /v1/jobs/{id}/events to know when.",
        ),
        Code.HOLD_CLOSED: ProblemType(
            409,
            "The hold is closed",
            "Open a new hold. To book late usage on a closed hold, send effective_at.",
        ),
        Code.ATTEMPT_SETTLED: ProblemType(
            409, "The attempt is settled", "Charge the next attempt instead."
        ),
        Code.CORRECTION_PENDING: ProblemType(
            409,
            "An earlier correction is still in progress",
            "Retry with a new Idempotency-Key after the step `corrected`. Follow"
            " /v1/jobs/{id}/events to know when.",
        ),
        Code.CHARGE_REVERSED: ProblemType(
            409,
            "Some charges of the job were reversed or absorbed",
            "The job can no longer be corrected automatically. Reverse more charges, or book a"
            " debt.",
        ),
        Code.CREDITS_GONE: ProblemType(
            409,
            "The refunded credits are no longer available",
            "The grant is non-refundable or was revoked. Book a debt for the amount instead.",
        ),
        Code.GRANT_REVOKED: ProblemType(409, "The grant was revoked", "Issue a new grant."),
        Code.GRANT_EXPIRED: ProblemType(409, "The grant has expired", "Issue a new grant."),
        Code.GRANT_IN_USE: ProblemType(
            409,
            "Some credits of the grant are held, spent or moved",
            "Revoke the grant instead. Book a debt for what a charge-back leaves unpaid.",
        ),
        Code.EXCEEDS_HOLD: ProblemType(
            409,
            "The amount exceeds what the hold has open",
            "Send a smaller amount. The figures give what is open.",
        ),
        Code.EXCEEDS_GRANT: ProblemType(
            409,
            "The amount exceeds what the grant has available",
            "Send a smaller amount. The figures give what is available.",
        ),
        Code.EXCEEDS_CHARGE: ProblemType(
            409,
            "The amount exceeds the charge",
            "Send a smaller amount. The figures give what can still be reversed.",
        ),
        Code.EXCEEDS_DEBT: ProblemType(
            409,
            "The amount exceeds the debt",
            "Send a smaller amount. The figures give what is owed.",
        ),
        Code.QUOTA_EXCEEDED: ProblemType(
            409,
            "Quota exceeded",
            "Wait until other jobs have started or finished, request fewer GPUs, or raise the"
            " quota that the figures name.",
        ),
        Code.DEBT_OUTSTANDING: ProblemType(
            402,
            "The account is in debt",
            "Issue credits. They repay debts first; after that, holds can be opened again.",
        ),
        Code.BUDGET_EXCEEDED: ProblemType(
            402,
            "Hard budget exceeded",
            "Wait for the next period, request less, or raise the budget that the figures name.",
        ),
        Code.INSUFFICIENT_CREDITS: ProblemType(
            402,
            "Not enough credits",
            "Request at most the spendable amount, or issue credits to the account or to an"
            " account above it.",
        ),
    }
)

# Decided by the HTTP layer. Never stored. Problems with a `Retry-After` may be retried unchanged.
HTTP_PROBLEMS: Final[Mapping[str, ProblemType]] = MappingProxyType(
    {
        "malformed": ProblemType(
            400, "The body is not valid JSON", "Send one JSON object, without duplicate names."
        ),
        "not_http": ProblemType(
            400,
            "The request is not valid HTTP",
            "Send a request as defined by RFC 9112, with ASCII headers.",
        ),
        "invalid_request": ProblemType(
            422,
            "The request is invalid",
            "Correct the fields that the detail and the entries of errors point at.",
        ),
        "idempotency_key_missing": ProblemType(
            400,
            "The Idempotency-Key header is missing",
            "Send an Idempotency-Key header: a new random text for each new request, the same"
            " text for a retry.",
        ),
        "idempotency_key_invalid": ProblemType(
            400,
            "The Idempotency-Key is invalid",
            "Use 1 to 255 visible ASCII characters that do not start with `bursar:`, `pool:` or"
            " `sweep/`.",
        ),
        "unauthenticated": ProblemType(
            401,
            "The API key is missing or invalid",
            "Send the header Authorization: Bearer bsr_… with a key that is neither expired nor"
            " revoked.",
        ),
        "forbidden": ProblemType(
            403,
            "The key does not have the required scope",
            "Use a key with the scope that the detail names.",
        ),
        "not_found": ProblemType(
            404, "Not found", "Check the path against /openapi.json, and the id."
        ),
        "org_unknown": _unknown("org"),
        "job_unknown": _unknown("job"),
        "no_pool": ProblemType(
            409,
            "No pool can take the job",
            "Ask an operator to add a pool, or name an existing one in `pool`.",
        ),
        "node_busy": ProblemType(
            409,
            "The node cannot be redefined or reset while jobs run on it",
            "Drain the node and wait until it is empty, or register it under another name.",
        ),
        "node_returned": ProblemType(
            409,
            "The ordered node has been returned",
            "Shut the machine down. A new node is ordered under a new name when one is needed.",
        ),
        "job_not_finished": ProblemType(
            409,
            "The job has not finished",
            "Retry when the job has finished. Follow /v1/jobs/{id}/events to know when.",
        ),
        "method_not_allowed": ProblemType(
            405, "Method not allowed", "Use one of the methods in the Allow header."
        ),
        "timeout": ProblemType(
            408, "The request arrived too slowly", "Send the request again, without pauses."
        ),
        "behind": ProblemType(
            409,
            "This server has not seen that event yet",
            "Retry. If the problem persists, the database has lost acknowledged events: contact"
            " the operator.",
        ),
        "too_large": ProblemType(
            413,
            "The body is too large",
            "Send at most 1 MiB: a smaller body, or fewer operations in one batch.",
        ),
        "address_too_long": ProblemType(
            414, "The URL is too long", "Use shorter parameters. The URL has at most 8 KiB."
        ),
        "unsupported_media_type": ProblemType(
            415, "The body is not JSON", "Send Content-Type: application/json."
        ),
        "never_fits": ProblemType(
            422,
            "No pool can ever run this job",
            "Request what one of the pools has: the figures give what each pool lacks. Or name a"
            " pool, and the job waits there until the pool has grown.",
        ),
        "exceeds_ceiling": ProblemType(
            422,
            "The job needs more GPUs at once than its ceiling allows",
            "Request at most the number of GPUs in the figures, or have the ceiling raised.",
        ),
        "too_fast": ProblemType(
            429,
            "The org submits jobs too fast",
            "Wait for the number of seconds in Retry-After. The figures give the allowed rate.",
        ),
        "queue_full": ProblemType(
            429,
            "The org has reached its maximum of waiting jobs",
            "Wait until some jobs have started, or cancel some. If a single array exceeds the"
            " maximum, submit it with a smaller at_once.",
        ),
        "tier_full": ProblemType(
            429,
            "The tier's queue is full and the org uses its share of it",
            "Wait until some jobs have started, or cancel some.",
        ),
        "overloaded": ProblemType(
            503,
            "Jobs of this tier start too late; new ones are rejected",
            "Wait for the number of seconds in Retry-After. The figures give the current delay.",
        ),
        "rate_limited": ProblemType(
            429, "Too many requests", "Wait for the number of seconds in Retry-After."
        ),
        "head_too_large": ProblemType(
            431,
            "The request headers are too large",
            "Send fewer or shorter headers: 8 KiB for one header, 32 KiB for all of them.",
        ),
        "internal_error": ProblemType(
            500,
            "Internal error",
            "Retry with the same Idempotency-Key. The request takes effect at most once.",
        ),
        "busy": ProblemType(
            503,
            "The server is overloaded",
            "Nothing was changed. Retry with the same Idempotency-Key.",
        ),
        "unreachable": ProblemType(
            503,
            "The database cannot be reached",
            "The request may have taken effect. Retry with the same Idempotency-Key.",
        ),
        "not_ready": ProblemType(
            503,
            "The process is not ready",
            "Nothing can be written now. The checks say what failed; send calls to another process,"
            " or retry later.",
        ),
        "clock_refused": ProblemType(
            503,
            "The database's clock is not trusted",
            "Nothing was changed. Retry later with the same Idempotency-Key. An operator checks the"
            " clocks of the database and of the service: `bursar ledger clock`.",
        ),
        "database_full": ProblemType(
            503,
            "The database has no space left",
            "Nothing was changed. An operator must free space.",
        ),
        "org_frozen": ProblemType(
            503,
            "The org is frozen",
            "Its books are inconsistent, so it accepts no commands. An operator runs"
            " `bursar ledger rebuild`.",
        ),
    }
)

PROBLEMS: Final[Mapping[str, ProblemType]] = MappingProxyType({**RULE_PROBLEMS, **HTTP_PROBLEMS})


def problem(code: str, detail: str = "", **more: Any) -> dict[str, Any]:
    """Build a problem document; `more` adds members, such as `figures`."""
    kind = PROBLEMS[code]
    return {
        "type": f"/problems/{code}",
        "title": kind.title,
        "status": kind.status,
        "code": str(code),
        "detail": detail or kind.title,
        "remedy": kind.remedy,
        **more,
    }


def problem_from_refusal(refusal: Refusal) -> dict[str, Any]:
    """Build the problem document for a refusal."""
    # Sorted: the database returns the figures of a stored refusal in another order.
    ordered = sorted(refusal.figures.items())
    figures = {_NAMES.get(name, name): _figure(name, value) for name, value in ordered}
    return problem(refusal.code, _detail(refusal.code, figures), figures=figures)


# JSON has no types for units, so a figure carries its unit in its name.
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{
            name: f"{name}_micros"
            for name in (
                *("spendable", "owed", "open", "amount", "limit", "available", "reversible"),
                *("counted", "headroom", "held", "spent", "moved"),
            )
        },
        "asked": "requested_micros",
        "short": "missing_micros",
        "most": "max_micros",
        **{
            name: f"{name}_id"
            for name in ("account", "user", "grant", "hold", "charge", "debt", "budget")
        },
    }
)

_INSTANTS: Final = frozenset({"now", "earliest", "latest", "period_start", "period_end"})


def _figure(name: str, value: Any) -> Any:
    is_instant = name.endswith("_at") or name in _INSTANTS
    if is_instant and isinstance(value, int):
        return instant_text(value)
    return list(value) if isinstance(value, tuple) else value


def _detail(code: str, figures: Mapping[str, Any]) -> str:
    """Join the title and the figures to one readable line."""
    text = ", ".join(f"{name} {value}" for name, value in figures.items() if value is not None)
    title = PROBLEMS[code].title
    return f"{title}: {text}" if text else title


def render_reference() -> str:
    """Render all codes as Markdown; docs/problems.md is this text."""
    lines = [
        "# Problems",
        "",
        "The API reports every error as a problem document (RFC 9457). This page lists all codes.",
        "A code never changes its meaning. Refusals of the ledger are stored: the same",
        "`Idempotency-Key` returns the same refusal. Errors of the HTTP layer are not stored.",
    ]
    for title, kinds in (
        ("Refusals of the ledger", RULE_PROBLEMS),
        ("Errors of the HTTP layer", HTTP_PROBLEMS),
    ):
        lines += [
            "",
            f"## {title}",
            "| code | status | meaning | what to do |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{code}` | {kind.status} | {kind.title} | {kind.remedy} |"
            for code, kind in kinds.items()
        ]
    return "\n".join(lines) + "\n"
