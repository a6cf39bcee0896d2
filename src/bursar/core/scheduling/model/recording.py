"""Records the inputs and decisions of a scheduler, so that its rounds can be replayed (S14).

A plan depends on its cluster alone, and a cluster on its inputs. So from a snapshot and every later
step, a replay makes the same decisions, and can compare them with the recorded ones.

    recorder = Recorder(cluster)
    recorder.begin_window()                # everything is recorded from here on
    recorder.advance_to(now)
    recorder.enqueue(job)
    recorder.record_decisions(carry_out(cluster, now).decisions)
    recording = recorder.take()            # the first one of a window has a snapshot

A round without inputs and decisions is not recorded: two advances of the clock equal one. A window
is a snapshot and the steps after it. It is long enough once it has twice as many inputs and
decisions as the snapshot has entries. So a replay of the last window is never long, and snapshots
never cost more than steps.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Decision
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Earmark, Job, RunningJob, Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.placement.fragmentation import Fragmentation
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace, value

WINDOW_MIN: Final = 5_000  # inputs and decisions after which a window may be long enough
LIST_FIELDS: Final = ("nodes", "waiting", "running", "earmarks", "usage")  # of a snapshot


@value
class NodeAdded:
    """A node is new, or its state has changed."""

    node: Node

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.add_node(self.node)


@value
class NodeRemoved:
    """A node is gone. Nothing ran on it."""

    node: NodeId

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.remove_node(self.node)


@value
class JobQueued:
    """A job waits, new or back from a run."""

    job: Job

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.enqueue(self.job)


@value
class JobWithdrawn:
    """A waiting job was withdrawn."""

    job: JobId

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.withdraw(self.job)


@value
class JobStarted:
    """A job runs that this cluster did not start."""

    running: RunningJob

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.add_running(self.running)


@value
class JobStopping:
    """A running job is stopping, but not because of a plan."""

    job: JobId
    stops_at: Instant

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.stop(self.job, self.stops_at)


@value
class GpusEarmarked:
    """GPUs are earmarked for a waiting job, by an earlier decision."""

    earmark: Earmark

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.add_earmark(self.earmark)


@value
class JobEnded:
    """A running job has left its GPUs."""

    job: JobId

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.remove_running(self.job)


@value
class JobMixChanged:
    """The typical shapes of jobs have changed."""

    shapes: tuple[tuple[Shape, int], ...]

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.fragments = Fragmentation(self.shapes)


@value
class LimitChanged:
    """A ceiling outside the share tree has changed."""

    name: str
    share: Share

    def apply_to(self, cluster: Cluster) -> None:
        """Apply the input to a cluster."""
        cluster.set_limit(self.name, self.share)


Input: TypeAlias = (
    NodeAdded
    | NodeRemoved
    | JobQueued
    | JobWithdrawn
    | JobStarted
    | JobStopping
    | GpusEarmarked
    | JobEnded
    | JobMixChanged
    | LimitChanged
)


@value
class RecordedStep:
    """The inputs of a cluster at an instant, and the decisions made then."""

    at: Instant
    inputs: tuple[Input, ...]
    decisions: tuple[Decision, ...] | None  # None if no plan was made


class Recording(NamedTuple):
    """The steps since the last recording was taken. The first of a window has a snapshot."""

    snapshot: PoolSnapshot | None
    steps: tuple[RecordedStep, ...]


class Recorder:
    """Applies inputs to a cluster, and records them while a window is open."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._recording = False
        self._snapshot: PoolSnapshot | None = None
        self._inputs: list[Input] = []  # since the last step
        self._steps: list[RecordedStep] = []
        self.size = 0  # inputs and decisions not taken yet
        self._window_left = 0  # inputs and decisions until the window is long enough

    @property
    def is_open(self) -> bool:
        """Whether a window is open that is not long enough yet."""
        return self._recording and self._window_left > 0

    def begin_window(self) -> None:
        """Begin a window with a snapshot of the cluster as it is now."""
        self.discard_window()
        self._recording = True
        self._snapshot = snapshot = self.cluster.snapshot()
        known = sum(len(getattr(snapshot, name)) for name in LIST_FIELDS)
        self._window_left = max(WINDOW_MIN, 2 * known)

    def discard_window(self) -> None:
        """Stop recording, and discard what was not taken."""
        self._recording, self._snapshot, self.size = False, None, 0
        self._inputs, self._steps = [], []

    def advance_to(self, now: Instant) -> None:
        """Move the clock; it never goes back."""
        if self._inputs and now > self.cluster.now:
            self._step(None)
        self.cluster.advance_to(max(now, self.cluster.now))

    def record(self, change: Input) -> None:
        """Apply an input to the cluster, and record it."""
        change.apply_to(self.cluster)
        if self._recording:
            self._inputs.append(change)
            self.size += 1

    def add_node(self, node: Node) -> None:
        """Add a node, or change its state."""
        self.record(NodeAdded(node=node))

    def remove_node(self, node: NodeId) -> None:
        """Remove a node."""
        self.record(NodeRemoved(node=node))

    def enqueue(self, job: Job) -> None:
        """Add a waiting job."""
        self.record(JobQueued(job=job))

    def withdraw(self, job: JobId) -> None:
        """Remove a waiting job."""
        self.record(JobWithdrawn(job=job))

    def add_running(self, running: RunningJob) -> None:
        """Add a running job."""
        self.record(JobStarted(running=running))

    def stop(self, job: JobId, stops_at: Instant) -> None:
        """Stop a running job."""
        self.record(JobStopping(job=job, stops_at=stops_at))

    def add_earmark(self, earmark: Earmark) -> None:
        """Earmark GPUs for a waiting job."""
        self.record(GpusEarmarked(earmark=earmark))

    def remove_running(self, job: JobId) -> None:
        """Remove a running job."""
        self.record(JobEnded(job=job))

    def set_job_mix(self, shapes: tuple[tuple[Shape, int], ...]) -> None:
        """Set the typical shapes of jobs."""
        if shapes != self.cluster.fragments.typical:
            self.record(JobMixChanged(shapes=shapes))

    def set_limit(self, name: str, share: Share) -> None:
        """Set a ceiling outside the share tree."""
        self.record(LimitChanged(name=name, share=share))

    def record_decisions(self, decisions: tuple[Decision, ...]) -> None:
        """Record decisions that are carried out on the cluster."""
        if self._recording and (self._inputs or decisions):
            self.size += len(decisions)
            self._step(decisions)

    def _step(self, decisions: tuple[Decision, ...] | None) -> None:
        self._steps.append(
            RecordedStep(at=self.cluster.now, inputs=tuple(self._inputs), decisions=decisions)
        )
        self._inputs = []

    def take(self) -> Recording:
        """Take what was recorded since the last call."""
        if self._inputs:
            self._step(None)
        recording = Recording(self._snapshot if self._steps else None, tuple(self._steps))
        if self._steps:
            self._window_left -= self.size
            self._snapshot, self._steps, self.size = None, [], 0
        return recording


def replay_step(cluster: Cluster, step: RecordedStep) -> tuple[Decision, ...] | None:
    """Apply a recorded step to a cluster. Returns the decisions made now; None if it had none."""
    cluster.advance_to(step.at)
    for change in step.inputs:
        change.apply_to(cluster)
    return None if step.decisions is None else carry_out(cluster, step.at).decisions


def split_snapshot(snapshot: PoolSnapshot, rows_max: int) -> list[PoolSnapshot]:
    """Split a snapshot into parts of at most so many rows. `join_snapshots` undoes it."""
    remaining = {name: getattr(snapshot, name) for name in LIST_FIELDS}
    parts: list[PoolSnapshot] = []
    template = replace(snapshot, **dict.fromkeys(LIST_FIELDS, ()))
    while not parts or any(remaining.values()):
        free, rows_by_field = rows_max, {}
        for name, rows in remaining.items():
            rows_by_field[name], remaining[name] = rows[:free], rows[free:]
            free -= len(rows_by_field[name])
        parts.append(replace(template, **rows_by_field))
        template = replace(template, policy=PoolPolicy(), typical=())
    return parts


def join_snapshots(parts: Iterable[PoolSnapshot]) -> PoolSnapshot:
    """Join the parts that `split_snapshot` made."""
    part_list = list(parts)
    whole = {
        name: tuple(chain.from_iterable(getattr(part, name) for part in part_list))
        for name in LIST_FIELDS
    }
    return replace(part_list[0], **whole)
