"""The priority classes inside each org: where a higher class waits than the lowest that runs."""

from bursar.core.ids import JobId
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.order.share import ShareTree
from bursar.core.sorted_set import SortedSet


class OrgClasses:
    """The classes of running jobs that can be preempted, beside those of waiting jobs, by org."""

    def __init__(self, tree: ShareTree) -> None:
        self._tree = tree  # it has the classes of waiting jobs
        self._running: dict[Path, SortedSet[tuple[int, JobId]]] = {}
        # Orgs in which a job waits whose class is above that of a running, preemptible job.
        self.urgent: set[Path] = set()

    def add_running(self, job: Job) -> None:
        """Add a running job that can be preempted."""
        org = job.path[:2]
        self._running.setdefault(org, SortedSet()).add((job.priority_class, job.id))
        self.refresh(org)

    def remove_running(self, job: Job) -> None:
        """Remove a running job that could be preempted."""
        self._running[job.path[:2]].discard((job.priority_class, job.id))
        self.refresh(job.path[:2])

    def lowest_running(self, org: Path) -> int | None:
        """The lowest class of an org's running jobs that can be preempted."""
        classes = self._running.get(org)
        first = classes.first() if classes is not None else None
        return None if first is None else first[0]

    def refresh(self, org: Path) -> None:
        """Update whether an org is urgent."""
        lowest, highest = self.lowest_running(org), self._tree.queues.highest_waiting_class(org)
        if lowest is not None and highest is not None and highest > lowest:
            self.urgent.add(org)
        else:
            self.urgent.discard(org)
