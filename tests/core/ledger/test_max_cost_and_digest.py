"""Maximum cost of a hold, digest of its request, and who may change a job's hold (M1, L7)."""

import pytest

from bursar.core.ids import HoldId, JobId, make_id
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.events import HoldOpened
from bursar.core.ledger.holds import refuse_change_of_job_hold
from bursar.core.ledger.idempotency import Reply, replay
from bursar.core.ledger.quote import quote
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, gpus, prices


def test_hold_above_its_max_cost_is_refused() -> None:
    """A hold of exactly the maximum is accepted."""
    org = Org(prices(h100=5 * PER_MS))
    org.issue("g1", 100_000)
    asked = org.asking("h1", run_ms=1_000, context=gpus("h100"))

    refusal = org.refuses(replace(asked, max_cost=4_999))
    assert Refusal(Code.MAX_COST_EXCEEDED, {"amount": 5_000, "most": 4_999}) == refusal
    told = quote(org.journal.books, replace(asked, max_cost=4_999), org.now)
    assert (refusal,) == told.forbidden
    org.does(replace(asked, max_cost=5_000))
    assert 5_000 == org.hold("h1").open


def test_gpu_types_above_the_max_cost_are_dropped_and_reported() -> None:
    """As those are that cannot be funded: refused only if none is left (M1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS))
    org.issue("g1", 100_000)
    asked = org.asking("h1", run_ms=1_000, context=gpus("h100", "a100"))

    events = org.does(replace(asked, max_cost=2_000))

    assert isinstance(events[0], HoldOpened)
    assert (("h100",), 2_000) == (events[0].dropped, org.hold("h1").open)
    refusal = org.refuses(replace(asked, hold=HoldId("h2"), max_cost=1_999))
    assert Refusal(Code.MAX_COST_EXCEEDED, {"amount": 2_000, "most": 1_999}) == refusal


@pytest.mark.parametrize(
    ("field", "value"), [("max_cost", -1), ("request_digest", ""), ("request_digest", "x" * 256)]
)
def test_invalid_max_cost_or_digest_is_rejected(field: str, value: object) -> None:
    org = Org(prices(h100=PER_MS))
    asked = org.asking("h1", run_ms=1, context=gpus("h100"))

    with pytest.raises(ValueError, match=field):
        replace(asked, **{field: value})


def job(at_ms: int, digest: str = "one", key: str = "k") -> Reserve:
    """A job's hold, whose id is made for a key at a time."""
    id = make_id("acme", key, "hold", at_ms)
    asked = Org(prices(h100=PER_MS)).asking(id, run_ms=5, context=gpus("h100"))
    context = replace(asked.context, job=JobId(id))
    return replace(asked, context=context, for_job=True, request_digest=digest)


def test_idempotency_key_covers_the_digest_of_a_job_request() -> None:
    """The generated id may differ in its time; the digest may not (L7)."""
    now, later = T0 // 1_000, T0 // 1_000 + 5
    first = Reply(command=job(now), outcome=(), number=1)
    made = ("hold", "context")

    assert first is replay("k", first, job(later), made)
    for other, field in (
        (job(later, "other"), "request_digest"),
        (job(later, key="x"), "hold"),
        (replace(job(later), for_job=False, context=gpus("h100")), "context"),
        (replace(job(later), context=replace(job(later).context, milli_gpus=5)), "context"),
    ):
        refusal = Refusal(Code.KEY_REUSED, {"key": "k", "field": field})
        assert refusal == replay("k", first, other, made)


def test_open_hold_of_a_job_cannot_be_changed_directly() -> None:
    """Others may change what is no job's, and ask about what is closed or not there (M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 100_000)
    own = org.asking("job", run_ms=5, context=replace(gpus("h100"), job=JobId("job")))
    org.does(replace(own, for_job=True))
    org.does(org.asking("raw", run_ms=5, context=gpus("h100")))
    books = org.journal.books
    refusal = Refusal(Code.HOLD_OF_A_JOB, {"hold": "job"})

    for change in (
        *(ask.release("job"), ask.extend("job"), ask.refund("job", 1), ask.settle("job")),
        *(ask.charge("job", 1), ask.start("job", "h100", run_ms=1)),
    ):
        assert refusal == refuse_change_of_job_hold(books, change)
    for other in (ask.release("raw"), ask.release("none"), ask.revoke("g1")):
        assert refuse_change_of_job_hold(books, other) is None
    org.does(ask.release("job"))
    assert refuse_change_of_job_hold(books, ask.release("job")) is None
