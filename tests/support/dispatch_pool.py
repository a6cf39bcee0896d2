"""A pool of two nodes to try things on, one transaction a call."""

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch.pool import Placement
from bursar.core.dispatch.reports import (
    LeaseOrder,
    LeaseOrders,
    NodeReport,
    Reading,
    receive_report,
)
from bursar.core.dispatch.state import (
    Exit,
    JobKey,
    JobMessage,
    Lease,
    Pool,
    PoolJob,
    PoolNode,
    PoolTransaction,
)
from bursar.core.ids import AccountId, JobId, NodeId, UserId
from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.leases import Denied
from bursar.core.messages import Enqueue, JobSpec, ToOrg, ToPool
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Node, Piece
from tests.support.builders import PER_MS, T0

N1, N2 = NodeId("n1"), NodeId("n2")
JOB: JobKey = "acme", JobId("job")
OTHER: JobKey = "other", JobId("job")  # of another org
ON_N1 = (Piece(N1, (0,), 1),)
SPEC = JobSpec(shape=Shape(types=("H100",)), requeues=2)
HALF = JobSpec(shape=Shape(types=("H100",), gpus=0, milli=500), requeues=2)
GANG_SPEC = JobSpec(shape=Shape(types=("H100",), tasks=2), requeues=2)
GANG = (Piece(N1, (0,), 1), Piece(N2, (0,), 1))


def asking(**changes: object) -> Enqueue:
    """A job of one GPU that may run for a minute, and has a micro-credit for each millisecond."""
    given: dict[str, object] = {
        "account": AccountId("root"),
        "user": UserId("ann"),
        "shares": (AccountId("root"),),
        "tier": "paid",
        "rates": (("H100", PER_MS),),
        "run_ms": 60_000,
        "hold_micros": 60_000,
        "hold_until": T0 + 10 * MINUTE,
        "spec": SPEC,
    }
    return Enqueue(**{**given, **changes})  # type: ignore[arg-type]


class Trial:
    """A pool, its clock, and one call for each kind of event."""

    def __init__(self, slots: int = 1) -> None:
        self.pool = Pool()
        self.now: Instant = T0
        self._n = 0
        for name in (N1, N2):
            node = Node(id=name, gpu_type="H100", gpus=2, slots=slots)
            self.pool.machines[name] = PoolNode(node=node)
        work = self.work()
        self.epoch = rules.lead(work, "one") or 0
        work.commit()

    def work(self) -> PoolTransaction:
        return PoolTransaction(self.pool, self.now)

    def pass_by(self, span: int) -> "Trial":
        """Let time pass."""
        self.now += span
        return self

    def post(self, message: ToPool, n: int, key: JobKey = JOB) -> bool:
        """A message of an org; whether it need not come again."""
        work = self.work()
        done = rules.receive(work, JobMessage(*key, n, message))
        work.commit()
        return done

    def place(
        self,
        pieces: tuple[Piece, ...] = ON_N1,
        *,
        key: JobKey = JOB,
        epoch: int | None = None,
        gpu_type: str = "H100",
    ) -> Lease | Denied:
        """The leader gives a job GPUs."""
        work = self.work()
        asked = self.epoch if epoch is None else epoch
        lease = rules.place(work, asked, Placement(key, gpu_type, pieces))
        work.commit()
        return lease

    def preempt(
        self, key: JobKey = JOB, epoch: int | None = None, wanted_by: JobKey = OTHER
    ) -> Denied | None:
        work = self.work()
        denied = rules.preempt(work, self.epoch if epoch is None else epoch, key, wanted_by)
        work.commit()
        return denied

    def report(
        self, *readings: Reading, node: NodeId = N1, boot: int = 1, n: int | None = None
    ) -> LeaseOrders | None:
        """A node reports, and hears."""
        self._n += 1
        number = self._n if n is None else n
        told = NodeReport(
            node=node, boot=boot, number=number, at=self.now, answered_at=None, readings=readings
        )
        work = self.work()
        orders = receive_report(work, told)
        work.commit()
        return orders

    def orders(self, *readings: Reading, node: NodeId = N1) -> tuple[LeaseOrder, ...]:
        """What a node is told when it reports."""
        orders = self.report(*readings, node=node)
        assert orders is not None
        return orders.leases

    def expire(self) -> int:
        work = self.work()
        ended = rules.expire(work)
        work.commit()
        return ended

    def job(self, key: JobKey = JOB) -> PoolJob:
        return self.pool.jobs[key]

    def lease(self, fence: int = 1) -> Lease:
        return self.pool.leases[fence]

    def told(self, key: JobKey = JOB) -> list[ToOrg]:
        """All messages to a job's org, in order."""
        return [self.pool.outbox[key, n] for n in range(1, self.job(key).sent + 1)]


def ran(
    run_ms: int, fence: int = 1, *, saved_ms: int = 0, asked_ms: int | None = None,
    exit: Exit | None = None,
) -> Reading:  # fmt: skip
    """What a node says of a process."""
    return Reading(
        fence=fence, run_ms=run_ms, saved_ms=saved_ms, run_ms_at_stop=asked_ms, exit=exit
    )


def running(pieces: tuple[Piece, ...] = ON_N1, **changes: object) -> Trial:
    """A pool with one job that has run for five seconds."""
    trial = waiting(**changes)
    trial.place(pieces)
    trial.pass_by(5 * SECOND)
    for piece in pieces:
        trial.report(ran(5_000), node=piece.node)
    return trial


def waiting(**changes: object) -> Trial:
    """A pool whose nodes were heard of, and one job that waits."""
    trial = Trial()
    trial.report(node=N1)
    trial.report(node=N2)
    trial.post(asking(**changes), 1)
    return trial
