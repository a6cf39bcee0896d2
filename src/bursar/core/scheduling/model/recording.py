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
from bursar.core.scheduling.model.jobs import Earmark, Job, Running, Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import Policy, Share
from bursar.core.scheduling.model.snapshot import Snapshot
from bursar.core.scheduling.placement.fragmentation import Fragments
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace, value

WINDOW: Final = 5_000  # a window has at least so many inputs and decisions, if nobody else begins
PARTS: Final = ("nodes", "waiting", "running", "earmarks", "usage")  # of a snapshot, that are many


@value
class NodeIs:
    """A node is there, or was changed in what it can be used for."""

    node: Node

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.add_node(self.node)


@value
class NodeGone:
    """A node is there no more; nothing runs on it."""

    node: NodeId

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.drop_node(self.node)


@value
class JobWaits:
    """A job waits, from now on or again."""

    job: Job

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.queue(self.job)


@value
class WaitsNoMore:
    """A job waits no more, and does not run either."""

    job: JobId

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.withdraw(self.job)


@value
class JobRuns:
    """A job has GPUs, by somebody else's decision."""

    running: Running

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.run(self.running)


@value
class JobStops:
    """A running job was asked to stop, not by a plan."""

    job: JobId
    stops_at: Instant

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.stop(self.job, self.stops_at)


@value
class GpusKept:
    """Others leave GPUs to a job that waits, by an earlier decision."""

    earmark: Earmark

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.mark(self.earmark)


@value
class JobEnded:
    """A running job has left its GPUs."""

    job: JobId

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.end(self.job)


@value
class Typically:
    """Other shapes are typically seen."""

    shapes: tuple[tuple[Shape, int], ...]

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.fragments = Fragments(self.shapes)


@value
class Limited:
    """A ceiling outside the tree of shares is another."""

    name: str
    share: Share

    def tell(self, cluster: Cluster) -> None:
        """Let a cluster know."""
        cluster.limit(self.name, self.share)


Input: TypeAlias = (
    NodeIs
    | NodeGone
    | JobWaits
    | WaitsNoMore
    | JobRuns
    | JobStops
    | GpusKept
    | JobEnded
    | Typically
    | Limited
)


@value
class Step:
    """What a cluster was told at an instant, and what was decided then."""

    at: Instant
    inputs: tuple[Input, ...]
    decisions: tuple[Decision, ...] | None  # None if nobody looked for any


class Recorded(NamedTuple):
    """What has become known since it was last taken; a window begins with a snapshot."""

    snapshot: Snapshot | None
    steps: tuple[Step, ...]


class Recorder:
    """Passes on what a cluster is told, and keeps it for as long as somebody takes it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._on = False
        self._snapshot: Snapshot | None = None
        self._inputs: list[Input] = []  # since the last step
        self._steps: list[Step] = []
        self.size = 0  # inputs and decisions that wait to be taken
        self._left = 0  # before the window is long enough

    @property
    def begun(self) -> bool:
        """Whether a window is open that is not too long."""
        return self._on and self._left > 0

    def begin(self) -> None:
        """Begin a window: all that is known by now is its snapshot, what comes are its steps."""
        self.forget()
        self._on = True
        self._snapshot = snapshot = self.cluster.snapshot()
        known = sum(len(getattr(snapshot, name)) for name in PARTS)
        self._left = max(WINDOW, 2 * known)

    def forget(self) -> None:
        """Keep nothing until somebody begins."""
        self._on, self._snapshot, self.size = False, None, 0
        self._inputs, self._steps = [], []

    def at(self, now: Instant) -> None:
        """Let time pass; it does not go back."""
        if self._inputs and now > self.cluster.now:
            self._step(None)
        self.cluster.at(max(now, self.cluster.now))

    def tell(self, told: Input) -> None:
        """Tell the cluster something."""
        told.tell(self.cluster)
        if self._on:
            self._inputs.append(told)
            self.size += 1

    def add_node(self, node: Node) -> None:
        """A node is there, or was changed."""
        self.tell(NodeIs(node=node))

    def drop_node(self, node: NodeId) -> None:
        """A node is gone."""
        self.tell(NodeGone(node=node))

    def queue(self, job: Job) -> None:
        """A job waits."""
        self.tell(JobWaits(job=job))

    def withdraw(self, job: JobId) -> None:
        """A job waits no more."""
        self.tell(WaitsNoMore(job=job))

    def run(self, running: Running) -> None:
        """A job runs."""
        self.tell(JobRuns(running=running))

    def stop(self, job: JobId, stops_at: Instant) -> None:
        """A running job was asked to stop."""
        self.tell(JobStops(job=job, stops_at=stops_at))

    def mark(self, earmark: Earmark) -> None:
        """Others leave GPUs to a job."""
        self.tell(GpusKept(earmark=earmark))

    def end(self, job: JobId) -> None:
        """A running job has left its GPUs."""
        self.tell(JobEnded(job=job))

    def typically(self, shapes: tuple[tuple[Shape, int], ...]) -> None:
        """These shapes are typically seen."""
        if shapes != self.cluster.fragments.typical:
            self.tell(Typically(shapes=shapes))

    def limit(self, name: str, share: Share) -> None:
        """A ceiling outside the tree is another."""
        self.tell(Limited(name=name, share=share))

    def decided(self, decisions: tuple[Decision, ...]) -> None:
        """This was decided, and is carried out."""
        if self._on and (self._inputs or decisions):
            self.size += len(decisions)
            self._step(decisions)

    def _step(self, decisions: tuple[Decision, ...] | None) -> None:
        self._steps.append(
            Step(at=self.cluster.now, inputs=tuple(self._inputs), decisions=decisions)
        )
        self._inputs = []

    def taken(self) -> Recorded:
        """What has become known since this was last asked."""
        if self._inputs:
            self._step(None)
        found = Recorded(self._snapshot if self._steps else None, tuple(self._steps))
        if self._steps:
            self._left -= self.size
            self._snapshot, self._steps, self.size = None, [], 0
        return found


def decide_again(cluster: Cluster, step: Step) -> tuple[Decision, ...] | None:
    """Tell a cluster what another was told, and decide as it did; what comes of it now."""
    cluster.at(step.at)
    for one in step.inputs:
        one.tell(cluster)
    return None if step.decisions is None else carry_out(cluster, step.at).decisions


def split(snapshot: Snapshot, most: int) -> list[Snapshot]:
    """The same in parts, each with so many nodes and jobs at most: `joined` makes it whole."""
    left = {name: getattr(snapshot, name) for name in PARTS}
    parts: list[Snapshot] = []
    rest = replace(snapshot, **dict.fromkeys(PARTS, ()))
    while not parts or any(left.values()):
        free, given = most, {}
        for name, rows in left.items():
            given[name], left[name] = rows[:free], rows[free:]
            free -= len(given[name])
        parts.append(replace(rest, **given))
        rest = replace(rest, policy=Policy(), typical=())
    return parts


def joined(parts: Iterable[Snapshot]) -> Snapshot:
    """The snapshot that was split into these."""
    given = list(parts)
    whole = {
        name: tuple(chain.from_iterable(getattr(one, name) for one in given)) for name in PARTS
    }
    return replace(given[0], **whole)
