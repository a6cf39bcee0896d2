"""The rules of a node's agent: what it starts, prolongs, stops, ends and forgets (S10, M4)."""

from dataclasses import dataclass, field

import pytest

from bursar.core.dispatch import agent as rules
from bursar.core.dispatch.agent import (
    KILL_SPAN,
    REPORTS_REMEMBERED,
    Action,
    Agent,
    Forget,
    Kill,
    Process,
    Prolong,
    Remember,
    Run,
    Stop,
    safe_span,
)
from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.dispatch.reports import LeaseOrder, LeaseOrders, NodeReport, Reading
from bursar.core.dispatch.state import Exit
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.leases import LEASE_MARGIN, LEASE_TTL
from bursar.core.messages import Program
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace

NODE = NodeId("n1")
SAFE = safe_span(LEASE_TTL)


def order(
    fence: int, *gpus: int, lasts: int = LEASE_TTL, stop: bool = False, run_ms: int = 60_000
) -> LeaseOrder:
    return LeaseOrder(
        fence=fence, org="acme", job=JobId(f"job{fence}"), attempt=1,
        piece=Piece(NODE, gpus or (0,), 1), ttl_us=lasts, run_ms_max=run_ms, stop=stop,
        program=Program(), nodes=(NODE,),
    )  # fmt: skip


@dataclass(slots=True)
class Node:
    """A node whose agent gets answers from the test."""

    agent: Agent = field(default_factory=lambda: Agent(node=NODE, boot=1, fence=0))
    table: dict[int, Process] = field(default_factory=dict)
    now: Instant = 0

    def report(self) -> NodeReport:
        return rules.make_report(self.agent, self.table, self.now)

    def hear(self, *leases: LeaseOrder, n: int | None = None, boot: int = 1) -> list[Action]:
        answered = self.agent.n if n is None else n
        orders = LeaseOrders(
            node=NODE, boot=boot, number=answered, at=10**15 + answered, leases=leases
        )
        return rules.follow_orders(self.agent, orders, self.table, self.now)

    def told(self, *leases: LeaseOrder, takes: int = 0) -> list[Action]:
        """The actions that follow from a report whose answer takes a while."""
        self.report()
        self.now += takes
        return self.hear(*leases)

    def runs(self, fence: int, *gpus: int, until: Instant = SAFE, **changes: object) -> "Node":
        """Add a process to the table."""
        one = Process(fence=fence, piece=Piece(NODE, gpus or (0,), 1), started_at=0, until=until)
        self.table[fence] = replace(one, **changes)
        self.agent.fence = max(self.agent.fence, fence)
        return self


def test_a_report_lists_all_processes_of_the_node() -> None:
    node = Node().runs(2, run_ms=7, saved_ms=3)
    node.runs(1, exit=Exit.DONE, run_ms=9, exit_code=0, result="[]")
    node.now = 5
    told = node.report()

    assert (1, 1, 5, None) == (told.boot, told.number, told.at, told.answered_at)
    assert (
        Reading(fence=1, run_ms=9, exit=Exit.DONE, exit_code=0, result="[]"),
        Reading(fence=2, run_ms=7, saved_ms=3),
    ) == told.readings
    node.hear(order(2))
    assert 10**15 + 1 == node.report().answered_at


@pytest.mark.parametrize(
    ("stopping", "exit", "told"),
    [
        (False, Exit.KILLED, Exit.GONE),
        (True, Exit.KILLED, Exit.KILLED),
        (False, Exit.FAILED, Exit.FAILED),
    ],
)
def test_a_process_that_its_guard_ended_without_a_request_is_reported_as_gone(
    stopping: bool, exit: Exit, told: Exit
) -> None:
    """It was cut off by the platform: that is not the job's failure (M3)."""
    [reading] = Node().runs(1, run_ms=7, stopping=stopping, exit=exit).report().readings

    assert (told, 7) == (reading.exit, reading.run_ms)


def test_a_process_starts_after_its_fence_is_on_disk() -> None:
    """Its guard counts from when the report was sent, not from when the answer arrived (IS7)."""
    node = Node()

    assert [Remember(fence=1), Run(order=order(1), until=SAFE)] == node.told(
        order(1), takes=3 * SECOND
    )
    assert 1 == node.agent.fence


def test_an_agent_uses_less_time_than_the_lease_grants() -> None:
    """The margin covers a clock that is one per cent slow, and the time to end a process (IS7)."""
    assert LEASE_TTL - LEASE_TTL // 100 - KILL_SPAN == SAFE
    slow = SAFE * 100 // 99
    assert slow + KILL_SPAN < LEASE_TTL + LEASE_MARGIN - 9 * SECOND, (
        "even if the pool's clock was put by 9 s"
    )


def test_a_late_answer_starts_nothing() -> None:
    """Nor does it use up the fence: the next answer may be in time."""
    node = Node()

    assert [] == node.told(order(1), takes=SAFE)
    assert [] != node.told(order(1))


def test_processes_start_in_the_order_of_their_fences() -> None:
    node = Node()
    first, second = order(1, 0), order(2, 1)

    assert [1, 2] == [one.order.fence for one in node.told(second, first) if isinstance(one, Run)]


def test_a_larger_fence_waits_for_a_smaller_one() -> None:
    """Otherwise the smaller one could never start."""
    node = Node().runs(1, 0)  # without a lease: it is ended first

    assert [Kill(fence=1)] == node.told(order(2, 0), order(3, 1))


def test_a_process_without_a_lease_blocks_its_gpus_until_it_has_ended() -> None:
    """A process with a lease does not block another part of the same GPU (IS1)."""
    busy, other, shared, ended = Node().runs(1, 0), Node().runs(1, 1), Node().runs(1, 0), Node()
    ended.runs(1, 0, exit=Exit.KILLED)

    assert [Kill(fence=1)] == busy.told(order(2, 0))
    assert [Kill, Remember, Run] == [type(one) for one in other.told(order(2, 0))]
    assert [Remember, Run] == [type(one) for one in shared.told(order(1, 0), order(2, 0))]
    assert [Forget, Remember, Run] == [type(one) for one in ended.told(order(2, 0))]


def test_an_attempt_starts_at_most_once() -> None:
    """One that was started and has no process is reported as gone, until the pool knows (IS3)."""
    node = Node(agent=Agent(node=NODE, boot=2, fence=5))
    node.report()

    assert [] == node.hear(order(5), boot=2)
    assert (Reading(fence=5, run_ms=0, exit=Exit.GONE),) == node.report().readings
    assert [] == node.hear(order(5), boot=2)
    assert 1 == len(node.report().readings)
    assert [] == node.hear(boot=2)
    assert () == node.report().readings


def test_a_lease_with_a_stop_request_is_not_started() -> None:
    node = Node()

    assert [Remember(fence=1)] == node.told(order(1, stop=True))
    assert (Reading(fence=1, run_ms=0, exit=Exit.STOPPED),) == node.report().readings


@pytest.mark.parametrize("what", ["an old one", "one of another start", "one never asked for"])
def test_answers_to_other_reports_are_ignored(what: str) -> None:
    node = Node()
    node.report()
    node.report()
    node.hear(n=2)
    answer = {"an old one": (1, 1), "one of another start": (2, 3), "one never asked for": (1, 9)}
    boot, n = answer[what]
    node.report()

    assert [] == node.hear(order(1), boot=boot, n=n)
    assert 2 == node.agent.answered


def test_an_answer_to_a_report_long_ago_is_ignored() -> None:
    node = Node()
    for _ in range(REPORTS_REMEMBERED + 1):
        node.report()

    assert [] == node.hear(order(1), n=1)
    assert [] != node.hear(order(1), n=2)


def test_a_renewed_lease_prolongs_its_process() -> None:
    node = Node().runs(1)
    node.now = 5 * SECOND

    assert [Prolong(fence=1, until=5 * SECOND + SAFE)] == node.told(order(1))


def test_the_end_of_a_process_moves_earlier_only_for_a_stop() -> None:
    node = Node().runs(1, until=SAFE)

    assert [] == node.told(order(1, lasts=SECOND))


def test_no_process_runs_longer_than_its_limit() -> None:
    """By the node's own clock, with a margin for ending the process (M1)."""
    node = Node().runs(1, until=SECOND)

    assert [Prolong(fence=1, until=10 * SECOND - KILL_SPAN)] == node.told(order(1, run_ms=10_000))


def test_a_process_without_time_left_is_not_prolonged() -> None:
    """Its guard is about to end it; the lease may have been lost (IS7)."""
    node = Node().runs(1, until=SECOND)
    node.now = SECOND

    assert [] == node.told(order(1))


def test_a_process_is_asked_to_stop_once() -> None:
    """Its guard ends it after the grace at the latest."""
    node = Node().runs(1)
    node.now = 5 * SECOND

    assert [Stop(fence=1, until=5 * SECOND + STOP_GRACE)] == node.told(order(1, stop=True))
    node.runs(1, stopping=True)
    assert [] == node.told(order(1, stop=True))
    late = Node().runs(1, until=MINUTE)
    late.now = MINUTE - SECOND
    assert [Stop(fence=1, until=MINUTE)] == late.told(order(1, lasts=0, stop=True))


def test_a_process_without_a_lease_is_killed() -> None:
    assert [Kill(fence=1)] == Node().runs(1).told()


def test_an_end_is_reported_until_the_pool_knows_it() -> None:
    """It is forgotten when a report with the end was answered, and it has no lease any more."""
    node = Node().runs(1)
    node.report()
    node.runs(1, exit=Exit.DONE)
    assert [] == node.hear()  # the answered report did not tell of the end
    node.report()
    assert [] == node.hear(order(1))  # a gang of which others still run
    node.report()

    assert [Forget(fence=1)] == node.hear()
