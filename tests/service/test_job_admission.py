"""Job admission, with a pool that answers when the test says so (S8, S10)."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from bursar.core.instant import MINUTE
from bursar.core.messages import JobSpec
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.value import replace
from bursar.service.cache import Directory
from bursar.service.jobs import admission, routing
from bursar.service.jobs.admission import AdmissionRequest, AdmissionResult, JobAdmission
from bursar.service.jobs.routing import Router
from bursar.service.ledger.clock import wall_time
from bursar.service.queries.read_pool import ReadPool
from tests.service.test_routing import Pools, Scheduler, Ticks
from tests.support.databases import connected, migrated
from tests.support.scheduling_cases import T0, Case


class NoRate:
    """A submission rate that no dry run may count in."""

    async def submit(self, org: str, per_minute: int, jobs: int) -> int:
        """Fail: a dry run is not counted."""
        raise AssertionError(f"{org} was counted {jobs}")


class Stage:
    """The admission of one pool, and the scheduler of that pool."""

    def __init__(self, readers: ReadPool, runner: asyncio.Runner, nodes: str, **case: Any) -> None:
        self.clock = Ticks()
        self._runner = runner
        self.scheduler = Scheduler(nodes=nodes, **case)
        pools = Pools({"a": self.scheduler})
        router = Router(pools, self.clock)
        parts = readers, Directory(), pools, router
        self._admission = JobAdmission(NoRate(), *parts, wall_time)  # type: ignore[arg-type]

    def has(self, nodes: str) -> None:
        """Give the pool other nodes."""
        self.scheduler.case = Case(want="", nodes=nodes)

    def asks(self, *types: str, jobs: int = 1, priority_class: int = 0) -> AdmissionResult:
        """A dry run of so many jobs."""
        spec = JobSpec(shape=Shape(types=types), priority_class=priority_class)
        who = "acme", "key", "job", "root", "ann", None
        request = AdmissionRequest(*who, None, spec, run_ms=600_000, jobs=jobs, dry=True)
        return self._runner.run(self._admission.admit(request))


def code(result: AdmissionResult) -> str | None:
    """Why a job is refused, if it is."""
    return None if result.refusal is None else result.refusal.code


def when(result: AdmissionResult) -> tuple[int, int]:
    """The range in which a job would start."""
    assert result.start is not None
    first, last = result.start.earliest, result.start.latest
    assert first is not None
    assert last is not None
    return first, last


@pytest.fixture(scope="module")
def readers(database_url: str) -> Iterator[ReadPool]:
    with migrated(database_url) as address:
        readers = ReadPool(lambda: connected(address))
        yield readers
        readers.close()


Staging = Callable[..., Stage]


@pytest.fixture
def stage(readers: ReadPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staging]:
    """Makes a stage, at which nobody waits for long."""
    monkeypatch.setattr(admission, "WAIT_S", 0.05)
    monkeypatch.setattr(admission, "tier_of", lambda *_: "paid")
    with asyncio.Runner() as runner:
        yield partial(Stage, readers, runner)


def test_a_job_is_never_refused_for_good_by_an_old_report(stage: Staging) -> None:
    """Who asks when a look is due waits for it, and is told to come again if it takes too long."""
    one = stage("n1=8xA100")
    assert "never_fits" == code(one.asks("H100"))
    one.has("n1=8xA100 n2=8xH100")
    one.clock.now += routing.FRESH_S
    assert ("a", None) == (one.asks("H100").pool, code(one.asks("H100"))), "it was looked at anew"
    one.scheduler.waits = True
    one.clock.now += routing.FRESH_S
    assert "busy" == code(one.asks("B200")), "a look is under way"
    one.scheduler.answer()
    assert "never_fits" == code(one.asks("B200"))


def test_a_failing_scheduler_refuses_no_job_for_good(stage: Staging) -> None:
    """However old what was known is."""
    one = stage("n1=8xA100")
    assert "never_fits" == code(one.asks("H100"))
    one.scheduler.waits = True
    one.clock.now += routing.OLD_S + 1
    one.asks("H100")
    one.scheduler.asked[-1][1].set_exception(RuntimeError("it is led by nobody"))

    assert "busy" == code(one.asks("H100"))
    assert None is code(one.asks("A100")), "what was known serves who fits there"


def test_the_estimated_wait_agrees_with_the_estimated_start(stage: Staging) -> None:
    """A job that may ask others to leave does not wait for their end (S8, S14)."""
    runs = "low@n1:8/batch/ends=60m/who=paid.acme.x"
    one = stage("n1=8xH100", running=runs)
    waits, asks = one.asks("H100"), one.asks("H100", priority_class=1_000)

    for result in (waits, asks):
        first, last = when(result)
        assert first <= T0 + (result.wait or 0) <= last
    assert (asks.wait or 0) < MINUTE < (waits.wait or 0)
    assert "it starts first there, on H100: in about 30 s" == asks.why


def test_an_array_that_may_fit_a_limit_later_is_refused_with_a_retry(stage: Staging) -> None:
    """That it is more than a queue is told for good only by what is known now."""
    short = replace(PoolPolicy(), tiers=(replace(PAID, queue_max=3),))
    one = stage("n1=8xA100", policy=short)
    refusal = one.asks("A100", jobs=5).refusal
    assert refusal is not None
    assert refusal.figures is not None
    assert ("queue_full", None) == (refusal.code, refusal.figures["retry_after_seconds"])
    one.scheduler.waits = True
    one.clock.now += routing.FRESH_S

    assert "busy" == code(one.asks("A100", jobs=5))
