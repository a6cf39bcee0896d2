"""Every way a call can fail, in one table: code, status, what it means, how to mend it (RFC 9457).

Codes of the rules (`bursar.core.refusal.Code`) and codes of the edge stand side by side; a caller
need not care who said no. A code never changes its meaning.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bursar.core.refusal import Code, Refusal
from bursar.wire.times import instant_text

MEDIA_TYPE: Final = "application/problem+json"


class Kind(NamedTuple):
    """What one code means."""

    status: int
    title: str
    remedy: str


def _unknown(what: str) -> Kind:
    return Kind(
        404,
        f"There is no such {what}",
        f"Check the id, and that your key may see that {what}.",
    )


# Said by the rules, under the org's lock: stored, and given again to the same key.
OF_THE_RULES: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        Code.ACCOUNT_UNKNOWN: _unknown("account"),
        Code.USER_UNKNOWN: _unknown("user"),
        Code.GRANT_UNKNOWN: _unknown("grant"),
        Code.HOLD_UNKNOWN: _unknown("hold"),
        Code.CHARGE_UNKNOWN: _unknown("charge"),
        Code.DEBT_UNKNOWN: _unknown("debt"),
        Code.BUDGET_UNKNOWN: _unknown("budget"),
        Code.RECURRENCE_UNKNOWN: _unknown("recurring grant"),
        Code.SETTING_UNKNOWN: _unknown("object"),
        Code.ATTEMPT_UNKNOWN: _unknown("attempt of this hold"),
        Code.ALREADY_EXISTS: Kind(
            409,
            "The id is taken",
            "Choose another id, or leave it out. If this was a retry, send the first"
            " Idempotency-Key again: the first answer comes back.",
        ),
        Code.EXTERNAL_REF_EXISTS: Kind(
            409,
            "This payment was reported before",
            "Nothing to do if it is the same payment: the figures name its grant.",
        ),
        Code.KEY_REUSED: Kind(
            422,
            "The Idempotency-Key stands for another request",
            "Use a new key for a new request. The figures name the first field that differs.",
        ),
        Code.TIME_INVALID: Kind(
            422, "A time is out of bounds", "The figures tell which times are possible."
        ),
        Code.HOLD_TOO_LONG: Kind(
            422,
            "The hold would last too long",
            "Ask for a shorter ttl_seconds; the figures tell the latest end.",
        ),
        Code.BUDGET_DIFFERS: Kind(
            409,
            "The budget is for something else",
            "Target and period of a budget never change: drop it and set a new one.",
        ),
        Code.PRICE_UNKNOWN: Kind(
            422, "There is no price", "Set a price for one of the GPU types, or ask for an amount."
        ),
        Code.TYPE_NOT_HELD: Kind(
            422,
            "The hold is for other GPU types",
            "The figures list the types it was opened for, or would be. A job that no pool has"
            " these for: ask for the other types alone.",
        ),
        Code.NOT_METERED: Kind(
            409,
            "The hold has no price to charge run time at",
            "Charge an amount_micros, or open the hold with gpu_type and gpu_count.",
        ),
        Code.AMOUNT_TOO_LARGE: Kind(
            422, "The amount is too large", "No amount, and no total, goes beyond 2^53−1."
        ),
        Code.MAX_COST_EXCEEDED: Kind(
            402,
            "It can cost more than it may",
            "Raise max_cost_micros to the amount in the figures, or ask for a shorter run, fewer"
            " or cheaper GPUs. A job that is there keeps what was said: extend it by less.",
        ),
        Code.CHANGED_SINCE: Kind(
            412, "Somebody else has changed it", "Read it again, and send If-Match with its ETag."
        ),
        Code.HOLD_OF_A_JOB: Kind(
            409,
            "The hold is a job's",
            "Cancel or extend the job: /v1/jobs/{id}/cancel, /v1/jobs/{id}/extend.",
        ),
        Code.HOLD_OPEN: Kind(
            409, "The hold is not closed yet", "Ask again when its job is over; /events tells when."
        ),
        Code.HOLD_CLOSED: Kind(
            409,
            "The hold is closed",
            "Open a new hold; usage that became known late can be booked with effective_at.",
        ),
        Code.ATTEMPT_SETTLED: Kind(409, "The attempt is settled", "Charge the attempt after it."),
        Code.CORRECTION_PENDING: Kind(
            409,
            "Its pool has not carried out the correction before",
            "Ask again, with a new key, when the step `corrected` is there; /events tells when.",
        ),
        Code.CHARGE_REVERSED: Kind(
            409,
            "Some charges of the job were reversed or absorbed",
            "Who pays was settled otherwise: reverse more, or book a debt.",
        ),
        Code.CREDITS_GONE: Kind(
            409,
            "What was given back cannot be charged again",
            "The grant is non-refundable or was revoked: book a debt if it is to be paid.",
        ),
        Code.GRANT_REVOKED: Kind(409, "The grant was taken back", "Issue a new grant."),
        Code.GRANT_EXPIRED: Kind(409, "The grant has expired", "Issue a new grant."),
        Code.GRANT_IN_USE: Kind(
            409,
            "Something of the grant is held, spent or moved",
            "Revoke it instead; what a charge-back leaves open is booked as a debt.",
        ),
        Code.EXCEEDS_HOLD: Kind(
            409, "The hold has less than that", "The figures tell what is open."
        ),
        Code.EXCEEDS_GRANT: Kind(
            409, "The grant has less than that available", "The figures tell what is available."
        ),
        Code.EXCEEDS_CHARGE: Kind(
            409, "The charge was less than that", "The figures tell what is left of it."
        ),
        Code.EXCEEDS_DEBT: Kind(
            409, "The debt is less than that", "The figures tell what is owed."
        ),
        Code.QUOTA_EXCEEDED: Kind(
            409,
            "A quota has no room for it",
            "Wait until jobs have started or are over, ask for fewer GPUs, or raise the quota that"
            " the figures name.",
        ),
        Code.DEBT_OUTSTANDING: Kind(
            402,
            "The account is in debt",
            "Issue credits: debts are repaid from them first, then holds are possible again.",
        ),
        Code.BUDGET_EXCEEDED: Kind(
            402,
            "A hard budget has no room for it",
            "Wait for the next period, ask for less, or raise the budget in the figures.",
        ),
        Code.INSUFFICIENT_CREDITS: Kind(
            402,
            "There are not enough credits",
            "Ask for at most what is spendable, or issue credits to the account or one above it.",
        ),
    }
)

# Said at the edge: never stored. Those with a `Retry-After` may be sent again as they are.
OF_THE_EDGE: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "malformed": Kind(400, "The body is not what JSON should be", "Send one JSON object."),
        "not_http": Kind(
            400, "That is not HTTP", "Send a request as RFC 9112 has it, with headers in ASCII."
        ),
        "invalid_request": Kind(
            422, "The request makes no sense", "Each entry of errors points at a field."
        ),
        "idempotency_key_missing": Kind(
            400,
            "The Idempotency-Key is missing",
            "Send a header Idempotency-Key with a new random text for each new request, and the"
            " same one when you try again.",
        ),
        "idempotency_key_invalid": Kind(
            400,
            "The Idempotency-Key cannot be used",
            "1 to 255 visible ASCII characters, not beginning with `bursar:`, `pool:` or `sweep/`.",
        ),
        "unauthenticated": Kind(
            401,
            "No valid key",
            "Send a header Authorization: Bearer bsr_… with a key that is neither expired nor"
            " revoked.",
        ),
        "forbidden": Kind(
            403, "The key may not do this", "Use a key with the scope that the detail names."
        ),
        "not_found": Kind(
            404, "There is no such thing", "Check the path against /v1/openapi.json."
        ),
        "org_unknown": _unknown("org"),
        "job_unknown": _unknown("job"),
        "no_pool": Kind(
            409,
            "There is no pool to run jobs in",
            "An operator adds one. If the detail names several, say which in `pool`.",
        ),
        "node_busy": Kind(
            409,
            "The node cannot be described so while jobs run on it",
            "Drain it and wait until it is empty, or register it under another name.",
        ),
        "node_given_back": Kind(
            409,
            "The node was ordered and has been given back",
            "End the machine: whoever needs another one orders it anew, under another name.",
        ),
        "job_not_over": Kind(
            409, "The job is not over yet", "Ask again when it is over; /events tells when."
        ),
        "method_not_allowed": Kind(
            405, "The method does not apply here", "The Allow header lists those that do."
        ),
        "timeout": Kind(408, "The request came too slowly", "Send it again, in one go."),
        "behind": Kind(
            409,
            "This server has not seen that event",
            "If it persists, the database has lost events that were told: tell the operator.",
        ),
        "too_large": Kind(413, "The request is too large", "Send fewer commands at a time."),
        "address_too_long": Kind(
            414, "The request's address is too long", "Use shorter parameters, at most 8 KiB."
        ),
        "unsupported_media_type": Kind(
            415, "The body is not JSON", "Send Content-Type: application/json."
        ),
        "never_fits": Kind(
            422,
            "No pool could ever run it",
            "Ask for what one of the pools has: the figures tell what each lacks. Or name a pool,"
            " and the job waits there until it has it.",
        ),
        "exceeds_ceiling": Kind(
            422,
            "It needs more GPUs at once than it may have",
            "Ask for no more GPUs than the figures allow, or have the ceiling raised.",
        ),
        "too_fast": Kind(
            429,
            "The org submits jobs too fast",
            "Wait as long as Retry-After says, in seconds; the figures tell the rate.",
        ),
        "queue_full": Kind(
            429,
            "The org has as many jobs waiting as it may",
            "Wait until some of them have started, or cancel some; an array that is more than that"
            " by itself needs a smaller at_once.",
        ),
        "tier_full": Kind(
            429,
            "The tier's queue is full, and the org has its part of it",
            "Wait until some jobs have started, or cancel some.",
        ),
        "overloaded": Kind(
            503,
            "Starts are so late that this tier is turned away",
            "Wait as long as Retry-After says, in seconds; the figures tell how late starts are.",
        ),
        "rate_limited": Kind(
            429, "Too many requests", "Wait as long as Retry-After says, in seconds."
        ),
        "head_too_large": Kind(
            431,
            "The request's headers are too large",
            "Send fewer or shorter ones: a header has at most 8 KiB, all together 32 KiB.",
        ),
        "internal_error": Kind(
            500,
            "Something broke on our side",
            "Send the same request with the same Idempotency-Key again; it has one effect.",
        ),
        "busy": Kind(
            503, "Too much is asked at once", "Nothing has happened. Send it again, same key."
        ),
        "unreachable": Kind(
            503,
            "The database cannot be reached",
            "It may have happened or not. Send it again with the same Idempotency-Key.",
        ),
        "clock_jumped": Kind(
            503,
            "The database's clock has jumped",
            "Nothing has happened. An operator must look at the clock.",
        ),
        "database_full": Kind(
            503,
            "The database has no room left",
            "Nothing has happened. An operator must make room.",
        ),
        "org_frozen": Kind(
            503,
            "The org takes no commands",
            "Its books contradict themselves. An operator runs `bursar ledger rebuild`.",
        ),
    }
)

KINDS: Final[Mapping[str, Kind]] = MappingProxyType({**OF_THE_RULES, **OF_THE_EDGE})


def problem(code: str, detail: str = "", **more: Any) -> dict[str, Any]:
    """A problem document; `more` are members of its own, such as figures."""
    kind = KINDS[code]
    return {
        "type": f"/problems/{code}",
        "title": kind.title,
        "status": kind.status,
        "code": str(code),
        "detail": detail or kind.title,
        "remedy": kind.remedy,
        **more,
    }


def of_refusal(refusal: Refusal) -> dict[str, Any]:
    """The problem that a refusal is."""
    # Sorted: a refusal that comes back from the database has its figures in another order.
    told = sorted(refusal.figures.items())
    figures = {_NAMES.get(name, name): _figure(name, it) for name, it in told}
    return problem(refusal.code, _told(refusal.code, figures), figures=figures)


# What figures are called where no type tells their unit.
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{
            name: f"{name}_micros"
            for name in (
                *("asked", "spendable", "short", "owed", "open", "amount", "most", "limit"),
                *("available", "reversible", "counted", "headroom", "held", "spent", "moved"),
            )
        },
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


def _told(code: str, figures: Mapping[str, Any]) -> str:
    """The title with the figures behind it, for people."""
    told = ", ".join(f"{name} {value}" for name, value in figures.items() if value is not None)
    title = KINDS[code].title
    return f"{title}: {told}" if told else title


def page() -> str:
    """All codes for people to read; docs/problems.md is this text."""
    lines = [
        "# Problems",
        "",
        "Every code that a call can be answered with. A code never changes its meaning. Those of",
        "the rules are stored and come again with the same `Idempotency-Key`; those of the edge",
        "are not.",
    ]
    for title, kinds in (("Said by the rules", OF_THE_RULES), ("Said at the edge", OF_THE_EDGE)):
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
