"""A command that makes no sense whatever the books say cannot be made (L14)."""

from collections.abc import Callable
from typing import Any

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    JobId,
    SettingId,
    UserId,
)
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import (
    RUN_MS_MAX,
    SETTING_MAX,
    AbsorbDebt,
    AddAccount,
    AddUser,
    BookDebt,
    BookLate,
    ChangeBudget,
    Charge,
    Command,
    DropBudget,
    EndHold,
    ExtendGrant,
    ExtendHold,
    GiveBack,
    Issue,
    Lapse,
    Redraw,
    Refund,
    Release,
    Reserve,
    ReverseCharge,
    RevokeGrant,
    SetBudget,
    SetSetting,
    SetTier,
    Settle,
    StartRecurrence,
    StopRecurrence,
    Transfer,
    VoidGrant,
)
from bursar.core.ledger.values import BudgetTarget, Context, CreditKind
from bursar.core.money import AMOUNT_MAX
from tests.support.builders import T0, days

ORG, ANN = AccountId("org"), UserId("ann")
GPU = Context(gpu_types=("h100",), milli_gpus=1_000)
Make = Callable[..., Command]


def issue(**fields: Any) -> Command:
    """A grant of one micro-credit, but for `fields`."""
    usual: Any = {"grant": GrantId("g"), "account": ORG, "amount": 1, "kind": CreditKind.PAID}
    return Issue(**{**usual, **fields})


def recur(**fields: Any) -> Command:
    """A micro-credit a day, but for `fields`."""
    usual: Any = {"recurrence": "r", "account": ORG, "amount": 1, "kind": CreditKind.PAID}
    return StartRecurrence(**{**usual, "every": PeriodKind.DAY, **fields})


def reserve(**fields: Any) -> Command:
    """A hold by what `fields` say."""
    usual: Any = {"hold": HoldId("h"), "account": ORG, "user": ANN, "expires_at": days(1)}
    return Reserve(**{**usual, **fields})


def budget(**fields: Any) -> Command:
    """A budget of nothing, but for `fields`."""
    usual: Any = {
        "budget": BudgetId("b"),
        "target": BudgetTarget(account=ORG),
        "every": PeriodKind.DAY,
    }
    return SetBudget(**{**usual, "limit": 0, "hard": True, **fields})


def lasting(**fields: Any) -> Command:
    """A hold of one micro-credit that lasts as `fields` say."""
    return reserve(**{"amount": 1, "expires_at": None, **fields})


def keep(**fields: Any) -> Command:
    """A setting of nothing, but for `fields`."""
    usual: Any = {"kind": "webhook", "id": "w", "body": "{}"}
    return SetSetting(**{**usual, **fields})


def charge(**fields: Any) -> Command:
    """A charge of what `fields` say."""
    return Charge(charge=ChargeId("c"), hold=HoldId("h"), **fields)


def settle(**fields: Any) -> Command:
    """A settlement at what `fields` say."""
    return Settle(charge=ChargeId("c"), hold=HoldId("h"), **fields)


def late(**fields: Any) -> Command:
    """Late usage as `fields` say."""
    return BookLate(charge=ChargeId("c"), hold=HoldId("h"), **fields)


def late_amount(**fields: Any) -> Command:
    """A late amount."""
    return late(**{"amount": 1, "effective_at": T0, **fields})


def transfer(**fields: Any) -> Command:
    """A transfer."""
    return Transfer(grant=GrantId("g"), to_grant=GrantId("h"), account=ORG, **fields)


def extend_grant(**fields: Any) -> Command:
    """A later expiry."""
    return ExtendGrant(grant=GrantId("g"), **fields)


def extend_hold(**fields: Any) -> Command:
    """A larger hold."""
    return ExtendHold(hold=HoldId("h"), **fields)


def redraw(**fields: Any) -> Command:
    """The start of an attempt."""
    return Redraw(hold=HoldId("h"), gpu_type="h100", **{"attempt": 1, "run_ms": 1, **fields})


def refund(**fields: Any) -> Command:
    """A partial refund."""
    return Refund(hold=HoldId("h"), **fields)


def give_back(**fields: Any) -> Command:
    """Work given back."""
    return GiveBack(hold=HoldId("h"), **{"attempt": 1, "kept_ms": 1, **fields})


def reverse(**fields: Any) -> Command:
    """A reversal."""
    return ReverseCharge(charge=ChargeId("c"), **fields)


def debt(**fields: Any) -> Command:
    """A debt."""
    return BookDebt(debt=DebtId("d"), account=ORG, **fields)


def absorb(**fields: Any) -> Command:
    """A debt written off."""
    return AbsorbDebt(debt=DebtId("d"), **fields)


BOUNDS: list[tuple[Make, str, int, int]] = [
    (issue, "amount", 1, AMOUNT_MAX),
    (issue, "starts_at", 0, NEVER),
    (issue, "expires_at", 0, NEVER),
    (recur, "amount", 1, AMOUNT_MAX),
    (recur, "roll_over_max", 0, AMOUNT_MAX),
    (recur, "starts_at", 0, NEVER),
    (extend_grant, "expires_at", 0, NEVER),
    (transfer, "amount", 1, AMOUNT_MAX),
    (reserve, "amount", 1, AMOUNT_MAX),
    (lambda **fields: reserve(context=GPU, **fields), "run_ms", 0, RUN_MS_MAX),
    (lambda **fields: reserve(amount=1, **fields), "expires_at", 0, NEVER),
    (lasting, "ttl", 1, NEVER),
    (keep, "before", 0, AMOUNT_MAX),
    (extend_hold, "amount", 0, AMOUNT_MAX),
    (extend_hold, "expires_at", 0, NEVER),
    (redraw, "attempt", 1, AMOUNT_MAX),
    (redraw, "run_ms", 0, RUN_MS_MAX),
    (charge, "amount", 1, AMOUNT_MAX),
    (charge, "run_ms", 0, RUN_MS_MAX),
    (lambda **fields: charge(run_ms=1, **fields), "attempt", 1, AMOUNT_MAX),
    (settle, "total", 0, AMOUNT_MAX),
    (settle, "run_ms", 0, RUN_MS_MAX),
    (settle, "attempt", 1, AMOUNT_MAX),
    (refund, "amount", 1, AMOUNT_MAX),
    (give_back, "attempt", 1, AMOUNT_MAX),
    (give_back, "kept_ms", 0, RUN_MS_MAX),
    (reverse, "amount", 1, AMOUNT_MAX),
    (reverse, "reissue_until", 0, NEVER),
    (late_amount, "amount", 1, AMOUNT_MAX),
    (late_amount, "effective_at", 0, NEVER),
    (late_amount, "attempt", 1, AMOUNT_MAX),
    (late, "run_ms", 0, RUN_MS_MAX),
    (lambda **fields: Lapse(**fields), "most", 1, AMOUNT_MAX),
    (debt, "amount", 1, AMOUNT_MAX),
    (absorb, "amount", 1, AMOUNT_MAX),
    (budget, "limit", 0, AMOUNT_MAX),
    (budget, "rolling", 0, NEVER),
]


@pytest.mark.parametrize(("make", "field", "least", "most"), BOUNDS)
def test_every_number_has_its_bounds(make: Make, field: str, least: int, most: int) -> None:
    """The bounds are inside; what lies beyond is told with them (L14)."""
    assert least == getattr(make(**{field: least}), field)
    assert most == getattr(make(**{field: most}), field)

    for wrong in (least - 1, most + 1):
        with pytest.raises(ValueError, match=rf"^{field} is {least} to {most}, not {wrong}$"):
            make(**{field: wrong})


@pytest.mark.parametrize("wrong", [1.0, "1", True, float("nan")])
@pytest.mark.parametrize(("make", "field", "least", "most"), BOUNDS)
def test_a_number_is_a_whole_number(
    make: Make, field: str, least: int, most: int, wrong: object
) -> None:
    """No floats, no text, no booleans (L14)."""
    with pytest.raises(TypeError, match=rf"^{field} is a whole number, not {wrong!r}$"):
        make(**{field: wrong})


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (reserve, {}),
        (reserve, {"amount": 1, "run_ms": 1}),
        (charge, {}),
        (charge, {"amount": 1, "run_ms": 1}),
        (late, {}),
        (late, {"amount": 1, "effective_at": T0, "run_ms": 1}),
    ],
)
def test_an_amount_or_a_run_time_is_asked(make: Make, fields: dict[str, int]) -> None:
    """Never both, never neither (L5, L6, L12)."""
    with pytest.raises(ValueError, match=r"^exactly one of amount and run_ms is given$"):
        make(**fields)


def test_a_hold_lasts_until_an_instant_or_so_long_or_as_long_as_it_may() -> None:
    """Never until two limits (L5)."""
    lasting()
    lasting(expires_at=days(1))
    lasting(ttl=1)
    with pytest.raises(ValueError, match=r"^exactly one of expires_at and ttl is given$"):
        lasting(expires_at=days(1), ttl=1)


def test_a_setting_is_text_of_a_size_that_can_be_kept() -> None:
    """Or nothing at all: then it is dropped, and what is new cannot be."""
    long = '"' + "x" * (SETTING_MAX - 2) + '"'
    for good in ("{}", long, '"' + "\u20ac" * (SETTING_MAX // 3 - 1) + '"', None):
        assert SetSetting(kind="k", id=SettingId("s"), body=good).body == good

    with pytest.raises(TypeError, match=r"^body is text, not int$"):
        keep(body=5)
    for bad, why in (
        ("x" * (SETTING_MAX + 1), "is at most 16384 bytes long, not 16385"),
        ("\u20ac" * (SETTING_MAX // 3 + 1), "is at most 16384 bytes long, not 16386"),
        ("a\0b", "contains a character that cannot be stored"),
        ("\ud800", "contains a character that cannot be stored"),
    ):
        with pytest.raises(ValueError, match=rf"^body {why}$"):
            keep(body=bad)
    for bad in ("", "{", "NaN", '{"a": Infinity}', "{} {}"):
        with pytest.raises(ValueError, match=r"Expecting|is not JSON|Extra data"):
            keep(body=bad)
    with pytest.raises(ValueError, match=r"^a new setting needs a body$"):
        keep(body=None, before=0)


def test_a_hold_is_settled_at_a_total_or_a_reading_or_as_it_is() -> None:
    """Never at both (L6)."""
    settle()
    with pytest.raises(ValueError, match=r"^exactly one of total and run_ms is given$"):
        settle(total=1, run_ms=1)


@pytest.mark.parametrize("fields", [{"amount": 1}, {"run_ms": 1, "effective_at": T0}])
def test_a_late_amount_has_its_time_and_a_late_reading_has_none(fields: dict[str, int]) -> None:
    """A reading is effective where its new stretch begins (L12)."""
    with pytest.raises(ValueError, match=r"^effective_at is required with an amount"):
        late(**fields)


@pytest.mark.parametrize(
    ("thresholds", "why"),
    [
        ((0,), "threshold is 1 to 1000000000, not 0"),
        ((5, 10**9 + 1), "threshold is 1 to 1000000000, not 1000000001"),
        ((5, 5), r"thresholds rise: \(5, 5\)"),
        ((1, 9, 8), r"thresholds rise: \(1, 9, 8\)"),
    ],
)
def test_thresholds_rise_from_above_zero(thresholds: tuple[int, ...], why: str) -> None:
    """So that each is reported once, in order (B3)."""
    budget(thresholds_ppm=())
    budget(thresholds_ppm=(1, 2, 10**9))
    with pytest.raises(ValueError, match=f"^{why}$"):
        budget(thresholds_ppm=thresholds)
    with pytest.raises(ValueError, match=f"^{why}$"):
        ChangeBudget(budget=BudgetId("b"), thresholds_ppm=thresholds)


def test_a_run_time_is_asked_for_gpus() -> None:
    """Without any there is nothing that could run (M1)."""
    with pytest.raises(ValueError, match=r"^run_ms requires GPUs, but milli_gpus is 0$"):
        reserve(run_ms=5, context=Context(gpu_types=("h100",)))


def test_a_jobs_hold_names_its_job() -> None:
    """It is submitted with the job (M1)."""
    reserve(amount=1, for_job=True, context=Context(job=JobId("j")))
    with pytest.raises(ValueError, match=r"^the context of a job's hold must name the job$"):
        reserve(amount=1, for_job=True)


TEXTS: list[tuple[Make, str]] = [
    (lambda **fields: AddAccount(**{"account": ORG, "parent": None, "name": "", **fields}), field)
    for field in ("account", "parent", "time_zone")
]
TEXTS += [
    (lambda **fields: AddUser(**fields), "user"),
    (lambda **fields: SetTier(**fields), "tier"),
    (issue, "grant"),
    (issue, "account"),
    (issue, "external_ref"),
    (recur, "recurrence"),
    (recur, "account"),
    (lambda **fields: StopRecurrence(**fields), "recurrence"),
    (lambda **fields: ExtendGrant(**{"expires_at": T0, **fields}), "grant"),
    (lambda **fields: RevokeGrant(**fields), "grant"),
    (lambda **fields: VoidGrant(**fields), "grant"),
    *((lambda **fields: reserve(amount=1, **fields), one) for one in ("hold", "account", "user")),
    *(
        (lambda **fields: Transfer(**{**MOVE, **fields}), one)
        for one in ("grant", "to_grant", "account")
    ),
    (lambda **fields: ExtendHold(**fields), "hold"),
    *((lambda **fields: Redraw(**{**START, **fields}), one) for one in ("hold", "gpu_type")),
    *(
        (lambda **fields: Charge(**{"charge": "c", "hold": "h", "amount": 1, **fields}), one)
        for one in ("charge", "hold")
    ),
    *(
        (lambda **fields: Settle(**{"charge": "c", "hold": "h", **fields}), one)
        for one in ("charge", "hold")
    ),
    (lambda **fields: Release(**fields), "hold"),
    (lambda **fields: Refund(**{"amount": 1, **fields}), "hold"),
    (lambda **fields: EndHold(**fields), "hold"),
    (lambda **fields: GiveBack(**{"attempt": 1, "kept_ms": 0, **fields}), "hold"),
    (lambda **fields: ReverseCharge(**fields), "charge"),
    *(
        (lambda **fields: BookLate(**{"charge": "c", "hold": "h", "run_ms": 1, **fields}), one)
        for one in ("charge", "hold")
    ),
    *(
        (lambda **fields: BookDebt(**{"debt": "d", "account": ORG, "amount": 1, **fields}), one)
        for one in ("debt", "account")
    ),
    (lambda **fields: AbsorbDebt(**fields), "debt"),
    (budget, "budget"),
    (keep, "kind"),
    (keep, "id"),
    (lambda **fields: DropBudget(**fields), "budget"),
]
MOVE: dict[str, Any] = {"grant": "g", "to_grant": "h", "account": ORG, "amount": 1}
START: dict[str, Any] = {"hold": "h", "attempt": 1, "gpu_type": "h100", "run_ms": 1}


@pytest.mark.parametrize(("make", "field"), TEXTS)
def test_every_name_is_text_that_can_be_kept(make: Make, field: str) -> None:
    """Neither empty nor too long, no NUL, no half a character (L14, F43)."""
    for good in ("x", "x" * 255, "ä \U0001f600"):
        assert good == getattr(make(**{field: good}), field)

    with pytest.raises(TypeError, match=rf"^{field} is text, not 5$"):
        make(**{field: 5})
    for bad, why in (
        ("", "is 1 to 255 bytes long, not 0"),
        ("x" * 256, "is 1 to 255 bytes long, not 256"),
        ("\u20ac" * 86, "is 1 to 255 bytes long, not 258"),
        ("a\0b", "contains a character that cannot be stored"),
        ("\ud800", "contains a character that cannot be stored"),
    ):
        with pytest.raises(ValueError, match=rf"^{field} {why}"):
            make(**{field: bad})


@pytest.mark.parametrize(
    ("make", "field"),
    [(issue, "source"), (lambda **fields: AddAccount(account=ORG, parent=None, **fields), "name")],
)
def test_words_for_people_may_be_empty(make: Make, field: str) -> None:
    """But are text all the same."""
    assert "" == getattr(make(**{field: ""}), field)
    with pytest.raises(ValueError, match=rf"^{field} is 0 to 255 bytes long, not 256$"):
        make(**{field: "x" * 256})


@pytest.mark.parametrize("make", [issue, recur])
def test_a_priority_is_a_number(make: Make) -> None:
    """Of a size that can be kept (L4)."""
    for good in (-(2**31), 0, 2**31):
        assert good == getattr(make(priority=good), "priority")  # noqa: B009
    for bad in (-(2**31) - 1, 2**31 + 1):
        with pytest.raises(ValueError, match=r"^priority is "):
            make(priority=bad)
    with pytest.raises(TypeError, match=r"^priority is a whole number"):
        make(priority="x")
