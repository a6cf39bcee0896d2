"""What a scheduler was told and what it decided, so that it can be done again (S14).

A plan follows from its cluster alone, and a cluster from what it was told. So whoever keeps a
snapshot, and from there on every step, can let the same rules decide once more and compare.

    recorder = Recorder(cluster)
    recorder.begin()                       # from here on all of it is kept
    recorder.at(now)
    recorder.queue(job)
    recorder.decided(carry_out(cluster, now).decisions)
    kept = recorder.taken()                # a snapshot the first time, and the steps since

Nothing is kept of rounds that were told nothing and decided nothing: time that passes in two steps
has passed as in one. A window (a snapshot and the steps from there on) ends when as much has been
told as two snapshots would say: so a replay of the last window is never long, and snapshots never
cost more than the steps do.
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

WINDOW_MIN: Final = (
    5_000  # a window has at least so many inputs and decisions, if nobody else begins
)
LIST_FIELDS: Final = (
    "nodes",
    "waiting",
    "running",
    "earmarks",
    "usage",
)  # of a snapshot, that are many


@value
class NodeAdded:
    """A node is there, or was changed in what it can be used for."""

    node: Node

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.add_node(self.node)


@value
class NodeRemoved:
    """A node is there no more; nothing runs on it."""

    node: NodeId

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.remove_node(self.node)


@value
class JobQueued:
    """A job waits, from now on or again."""

    job: Job

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.enqueue(self.job)


@value
class JobWithdrawn:
    """A job waits no more, and does not run either."""

    job: JobId

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.withdraw(self.job)


@value
class JobStarted:
    """A job has GPUs, by somebody else's decision."""

    running: RunningJob

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.add_running(self.running)


@value
class JobStopping:
    """A running job was asked to stop, not by a plan."""

    job: JobId
    stops_at: Instant

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.stop(self.job, self.stops_at)


@value
class GpusEarmarked:
    """Others leave GPUs to a job that waits, by an earlier decision."""

    earmark: Earmark

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.add_earmark(self.earmark)


@value
class JobEnded:
    """A running job has left its GPUs."""

    job: JobId

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.remove_running(self.job)


@value
class JobMixChanged:
    """Other shapes are typically seen."""

    shapes: tuple[tuple[Shape, int], ...]

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.fragments = Fragmentation(self.shapes)


@value
class LimitChanged:
    """A ceiling outside the tree of shares is another."""

    name: str
    share: Share

    def apply_to(self, cluster: Cluster) -> None:
        """Let a cluster know."""
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
    """What a cluster was told at an instant, and what was decided then."""

    at: Instant
    inputs: tuple[Input, ...]
    decisions: tuple[Decision, ...] | None  # None if nobody looked for any


class Recording(NamedTuple):
    """What has become known since it was last taken; a window begins with a snapshot."""

    snapshot: PoolSnapshot | None
    steps: tuple[RecordedStep, ...]


class Recorder:
    """Passes on what a cluster is told, and keeps it for as long as somebody takes it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._recording = False
        self._snapshot: PoolSnapshot | None = None
        self._inputs: list[Input] = []  # since the last step
        self._steps: list[RecordedStep] = []
        self.size = 0  # inputs and decisions that wait to be taken
        self._window_left = 0  # before the window is long enough

    @property
    def is_open(self) -> bool:
        """Whether a window is open that is not too long."""
        return self._recording and self._window_left > 0

    def begin_window(self) -> None:
        """Begin a window: all that is known by now is its snapshot, what comes are its steps."""
        self.discard_window()
        self._recording = True
        self._snapshot = snapshot = self.cluster.snapshot()
        known = sum(len(getattr(snapshot, name)) for name in LIST_FIELDS)
        self._window_left = max(WINDOW_MIN, 2 * known)

    def discard_window(self) -> None:
        """Keep nothing until somebody begins."""
        self._recording, self._snapshot, self.size = False, None, 0
        self._inputs, self._steps = [], []

    def advance_to(self, now: Instant) -> None:
        """Let time pass; it does not go back."""
        if self._inputs and now > self.cluster.now:
            self._step(None)
        self.cluster.advance_to(max(now, self.cluster.now))

    def record(self, change: Input) -> None:
        """Tell the cluster something."""
        change.apply_to(self.cluster)
        if self._recording:
            self._inputs.append(change)
            self.size += 1

    def add_node(self, node: Node) -> None:
        """A node is there, or was changed."""
        self.record(NodeAdded(node=node))

    def remove_node(self, node: NodeId) -> None:
        """A node is gone."""
        self.record(NodeRemoved(node=node))

    def enqueue(self, job: Job) -> None:
        """A job waits."""
        self.record(JobQueued(job=job))

    def withdraw(self, job: JobId) -> None:
        """A job waits no more."""
        self.record(JobWithdrawn(job=job))

    def add_running(self, running: RunningJob) -> None:
        """A job runs."""
        self.record(JobStarted(running=running))

    def stop(self, job: JobId, stops_at: Instant) -> None:
        """A running job was asked to stop."""
        self.record(JobStopping(job=job, stops_at=stops_at))

    def add_earmark(self, earmark: Earmark) -> None:
        """Others leave GPUs to a job."""
        self.record(GpusEarmarked(earmark=earmark))

    def remove_running(self, job: JobId) -> None:
        """A running job has left its GPUs."""
        self.record(JobEnded(job=job))

    def set_job_mix(self, shapes: tuple[tuple[Shape, int], ...]) -> None:
        """These shapes are typically seen."""
        if shapes != self.cluster.fragments.typical:
            self.record(JobMixChanged(shapes=shapes))

    def set_limit(self, name: str, share: Share) -> None:
        """A ceiling outside the tree is another."""
        self.record(LimitChanged(name=name, share=share))

    def record_decisions(self, decisions: tuple[Decision, ...]) -> None:
        """This was decided, and is carried out."""
        if self._recording and (self._inputs or decisions):
            self.size += len(decisions)
            self._step(decisions)

    def _step(self, decisions: tuple[Decision, ...] | None) -> None:
        self._steps.append(
            RecordedStep(at=self.cluster.now, inputs=tuple(self._inputs), decisions=decisions)
        )
        self._inputs = []

    def take(self) -> Recording:
        """What has become known since this was last asked."""
        if self._inputs:
            self._step(None)
        recording = Recording(self._snapshot if self._steps else None, tuple(self._steps))
        if self._steps:
            self._window_left -= self.size
            self._snapshot, self._steps, self.size = None, [], 0
        return recording


def replay_step(cluster: Cluster, step: RecordedStep) -> tuple[Decision, ...] | None:
    """Tell a cluster what another was told, and decide as it did; what comes of it now."""
    cluster.advance_to(step.at)
    for change in step.inputs:
        change.apply_to(cluster)
    return None if step.decisions is None else carry_out(cluster, step.at).decisions


def split_snapshot(snapshot: PoolSnapshot, rows_max: int) -> list[PoolSnapshot]:
    """The same in parts, each with so many nodes and jobs at most: `joined` makes it whole."""
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
    """The snapshot that was split into these."""
    part_list = list(parts)
    whole = {
        name: tuple(chain.from_iterable(getattr(part, name) for part in part_list))
        for name in LIST_FIELDS
    }
    return replace(part_list[0], **whole)
