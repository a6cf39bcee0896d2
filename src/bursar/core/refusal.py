"""The three kinds of failure: refusals are values, faults and bugs are exceptions.

Refusal            the rules say no: a stable code and the figures behind it
Fault              the environment failed; the whole batch may be run again
InvariantBroken    our own state contradicts itself: a bug, caught at the outermost loop only
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn


class Fault(Exception):
    """The environment failed (connection, serialisation, lost lease); a retry is safe."""


class InvariantBroken(Exception):
    """State contradicts itself; the command that detects it is rolled back."""


def invariant(holds: bool, what: str, **figures: object) -> None:
    """Raise `InvariantBroken` unless `holds`; cannot be switched off."""
    if not holds:
        fail_invariant(what, **figures)


def fail_invariant(what: str, **figures: object) -> NoReturn:
    """Raise `InvariantBroken` with the figures that contradict each other."""
    details = ", ".join(f"{name}={value!r}" for name, value in figures.items())
    raise InvariantBroken(f"{what} ({details})" if details else what)


class Code(StrEnum):
    """The code of each refusal, in the order in which they are checked.

    If several apply, the first in this list is returned.
    """

    # what is named does not exist, or exists already
    ACCOUNT_UNKNOWN = "account_unknown"
    USER_UNKNOWN = "user_unknown"
    GRANT_UNKNOWN = "grant_unknown"
    HOLD_UNKNOWN = "hold_unknown"
    CHARGE_UNKNOWN = "charge_unknown"
    DEBT_UNKNOWN = "debt_unknown"
    BUDGET_UNKNOWN = "budget_unknown"
    RECURRENCE_UNKNOWN = "recurrence_unknown"
    SETTING_UNKNOWN = "setting_unknown"
    ATTEMPT_UNKNOWN = "attempt_unknown"
    ALREADY_EXISTS = "already_exists"
    EXTERNAL_REF_EXISTS = "external_ref_exists"
    KEY_REUSED = "key_reused"
    # what is asked is out of the bounds that are set for it
    TIME_INVALID = "time_invalid"
    EXCEEDS_HOLD_AGE = "exceeds_hold_age"
    HOLD_TOO_LONG = "hold_too_long"
    BUDGET_DIFFERS = "budget_differs"
    TIER_NOT_ALLOWED = "tier_not_allowed"
    PRICE_UNKNOWN = "price_unknown"
    TYPE_NOT_HELD = "type_not_held"
    NOT_METERED = "not_metered"
    AMOUNT_TOO_LARGE = "amount_too_large"
    MAX_COST_EXCEEDED = "max_cost_exceeded"
    # what is named is not in a state that allows it
    CHANGED_SINCE = "changed_since"
    HOLD_OF_A_JOB = "hold_of_a_job"
    HOLD_OF_AN_ARRAY = "hold_of_an_array"
    HOLD_OPEN = "hold_open"
    HOLD_CLOSED = "hold_closed"
    ATTEMPT_SETTLED = "attempt_settled"
    CORRECTION_PENDING = "correction_pending"
    CHARGE_REVERSED = "charge_reversed"
    CREDITS_GONE = "credits_gone"
    GRANT_REVOKED = "grant_revoked"
    GRANT_EXPIRED = "grant_expired"
    GRANT_IN_USE = "grant_in_use"
    EXCEEDS_HOLD = "exceeds_hold"
    EXCEEDS_GRANT = "exceeds_grant"
    EXCEEDS_CHARGE = "exceeds_charge"
    EXCEEDS_DEBT = "exceeds_debt"
    # others of the same have taken what there is
    QUOTA_EXCEEDED = "quota_exceeded"
    # the credits are not to be had
    DEBT_OUTSTANDING = "debt_outstanding"
    BUDGET_EXCEEDED = "budget_exceeded"
    INSUFFICIENT_CREDITS = "insufficient_credits"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The rules refuse a command: the code, and the figures behind it. Nothing has changed."""

    code: Code
    figures: Mapping[str, Any] = field(default_factory=dict)
