"""A node: its processes under their guards, its disk, and an agent that may restart."""

from bursar.core.dispatch.agent import Agent, Process, Run
from bursar.core.dispatch.state import Exit, JobKey
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, Instant
from bursar.core.scheduling.model.nodes import Piece
from bursar.sim.faults.clocks import SimulatedClock


class HostedProcess:
    """A process that really runs or ran, and its entry in the node's table."""

    def __init__(self, run: Run, started_at: Instant, truly_started_at: Instant) -> None:
        self.fence = run.order.fence
        self.key: JobKey = run.order.org, run.order.job
        self.attempt = run.order.attempt
        self.piece: Piece = run.order.piece
        self.started_at = started_at  # by the node's clock
        self.truly_started_at = truly_started_at
        self.truly_ended_at: Instant | None = None  # truly
        self.until = run.until
        self.ends_ms = 0  # it ends by itself when it has run so long
        self.ends_as = Exit.DONE
        self.checkpoint_ms = 0  # it makes one so often
        self.asked_ms: int | None = None  # when it had run so long it was asked to stop
        self.stops_ms = 0  # and has done so when it has run so long
        self.misses_gang = False  # it fails because another process of its gang is gone
        self.exit: Exit | None = None
        self.run_ms = 0  # once it has ended
        self.saved_ms = 0
        self.outlived_at: Instant | None = None  # its node thawed after its time was over

    def __repr__(self) -> str:
        return f"{self.key[1]}.{self.attempt}/{self.fence}"

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.exit is None

    def ran_ms(self, now: Instant) -> int:
        """How long it has run, by the node's clock."""
        return self.run_ms if self.exit is not None else (now - self.started_at) // MILLISECOND

    def end(self, exit: Exit, now: Instant, at: Instant) -> None:
        """End the process, at an instant of the node's clock and of true time."""
        self.run_ms = self.ran_ms(now)
        self.saved_ms = self.saved(self.run_ms)
        if exit is Exit.DONE:
            self.saved_ms = self.run_ms
        elif exit is Exit.STOPPED and self.asked_ms is not None:
            self.saved_ms = self.asked_ms
        self.exit, self.truly_ended_at = exit, at

    def saved(self, run_ms: int) -> int:
        """The run time at its last checkpoint."""
        return run_ms - run_ms % self.checkpoint_ms if self.checkpoint_ms else 0

    def table_entry(self, now: Instant) -> Process:
        """Its entry in the node's table."""
        run_ms = self.ran_ms(now)
        return Process(
            fence=self.fence,
            piece=self.piece,
            started_at=self.started_at,
            until=self.until,
            run_ms=run_ms,
            saved_ms=self.saved_ms if self.exit is not None else self.saved(run_ms),
            stopping=self.asked_ms is not None,
            run_ms_at_stop=self.asked_ms,
            exit=self.exit,
        )


class NodeHost:
    """One node of the world."""

    def __init__(self, name: NodeId, pool: str, slots: int, clock: SimulatedClock) -> None:
        self.id = name
        self.pool = pool  # its name
        self.slots = slots  # of each GPU
        self.clock = clock
        self.tasks: dict[int, HostedProcess] = {}  # by fence; ends when the agent forgets it
        self.boot = 0  # on its disk
        self.fence = 0  # on its disk
        self.agent: Agent | None = None  # none while it is down
        self.has_power = True  # the machine
        self.frozen_until = 0  # the machine, guards and all
        self.paused_until = 0  # the agent

    def __repr__(self) -> str:
        return self.id

    def start_agent(self) -> None:
        """Start or restart the agent."""
        self.boot += 1
        self.agent = Agent(node=self.id, boot=self.boot, fence=self.fence)

    def table(self, at: Instant) -> dict[int, Process]:
        """The node's table of processes, at a true instant."""
        now = self.clock.now(at)
        return {fence: task.table_entry(now) for fence, task in self.tasks.items()}
