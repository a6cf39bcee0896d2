"""An operator says who answers for the end of an attempt (M3).

No credits move by that: the attempt's pool tells how much work was lost, and then it is given back,
or charged after all. What the books cannot undo exactly is refused before its pool hears of it.
"""

import pytest

from bursar.core.ids import HoldId
from bursar.core.ledger.events import EndCorrected
from bursar.core.ledger.values import CreditKind, GrantPolicy, OrgPolicy
from bursar.core.messages import EndClass
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, days, gpus, hours, minutes, prices

PAYS = (EndClass.USER, EndClass.LIMIT)
GIVEN_BACK = (EndClass.PLATFORM, EndClass.PREEMPTION)


def over(*, ran: int = 120, granted: int = 200, policy: OrgPolicy | None = None) -> Org:
    """An org whose hold is closed, at one micro-credit a millisecond."""
    org = Org(prices(h100=PER_MS))
    if policy is not None:
        org.does(ask.bounds(policy))
    org.issue("g1", granted)
    org.reserve("h1", min(150, granted), context=gpus("h100"), until=hours(24))
    org.reading("h1", ran, final=True)
    org.release("h1")
    return org


@pytest.mark.parametrize("end_class", EndClass)
def test_a_correction_is_recorded_and_moves_no_credits(end_class: EndClass) -> None:
    org = over()
    org.later(minutes=1)

    assert (
        EndCorrected(at=minutes(1), hold=HoldId("h1"), attempt=1, end_class=end_class),
    ) == org.does(ask.correct_end("h1", end_class))
    org.rebuilds()


def test_unknown_or_open_holds_cannot_be_corrected() -> None:
    """An unfinished job may still use its hold."""
    org = over()
    org.reserve("h2", 10, context=gpus("h100"), until=hours(24))

    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "h3"}) == org.refuses(
        ask.correct_end("h3", EndClass.USER)
    )
    assert Refusal(Code.ATTEMPT_UNKNOWN, {"hold": "h1", "attempt": 2}) == org.refuses(
        ask.correct_end("h1", EndClass.USER, attempt=2)
    )
    assert Refusal(Code.HOLD_OPEN, {"hold": "h2"}) == org.refuses(
        ask.correct_end("h2", EndClass.PLATFORM)
    )


@pytest.mark.parametrize("end_class", EndClass)
def test_a_job_with_reversed_charges_cannot_be_corrected(end_class: EndClass) -> None:
    """Credits would be refunded twice, or charged again (L11)."""
    org = over()
    org.does(ask.reverse("c1", 20))

    assert Refusal(Code.CHARGE_REVERSED, {"reversed": 20, "absorbed": 0}) == org.refuses(
        ask.correct_end("h1", end_class)
    )


@pytest.mark.parametrize("end_class", EndClass)
def test_a_job_with_absorbed_charges_cannot_be_corrected(end_class: EndClass) -> None:
    org = over(granted=100, policy=OrgPolicy(debt_max=0))

    assert Refusal(Code.CHARGE_REVERSED, {"reversed": 0, "absorbed": 20}) == org.refuses(
        ask.correct_end("h1", end_class)
    )


@pytest.mark.parametrize("end_class", PAYS)
def test_refunded_credits_that_were_lost_are_not_charged_to_other_grants(
    end_class: EndClass,
) -> None:
    """Non-refundable or revoked grants cannot use returned credits again (L9, L11)."""
    org = Org(prices(h100=PER_MS))
    org.issue(
        "g1", 50, kind=CreditKind.PROMO, expires=hours(1), policy=GrantPolicy(refundable=False)
    )
    org.issue("g2", 100)
    org.reserve("h1", 100, context=gpus("h100"), until=hours(24))
    org.reading("h1", 100, final=True)
    org.release("h1")

    gone = Refusal(Code.CREDITS_GONE, {"grant": "g1"})
    assert gone == org.refuses(ask.correct_end("h1", end_class))
    revoked = over()
    revoked.does(ask.revoke("g1"))
    assert gone == revoked.refuses(ask.correct_end("h1", end_class))
    for given_back in GIVEN_BACK:
        assert org.does(ask.correct_end("h1", given_back))


@pytest.mark.parametrize("end_class", PAYS)
def test_lost_work_that_is_too_old_is_not_charged(end_class: EndClass) -> None:
    """Like all late usage; a refund has no such limit (L12)."""
    org = over()
    late_max = OrgPolicy().late_max
    org.later(days=35)
    assert org.does(ask.correct_end("h1", end_class))
    org.later(minutes=1)

    refusal = org.refuses(ask.correct_end("h1", end_class))

    assert (
        Refusal(
            Code.TIME_INVALID,
            {
                "effective_at": T0 + 120_000,
                "earliest": days(35) + minutes(1) - T0 - late_max,
                "latest": days(35) + minutes(1) - T0,
            },
        )
        == refusal
    )
    for given_back in GIVEN_BACK:
        assert org.does(ask.correct_end("h1", given_back))
