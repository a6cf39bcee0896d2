"""When the jobs that wait start at the latest, one after another: what advice is judged by.

A plan gives future places to the first few alone. Here everybody in turn gets one, up to a number
of jobs, as if nothing else were ever submitted: which of two pools serves a queue better, and by
how much, is then a comparison of dates. Left out are jobs that have GPUs kept for them, those over
a ceiling, and those that may not be tried yet.
"""

from typing import Final

from bursar.core.ids import JobId
from bursar.core.scheduling.decisions import Reserved
from bursar.core.scheduling.explain.queue_position import Group, in_turn
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.placement.backfill import Claims, earliest

LOOKS: Final = 64  # jobs in turn that a forecast looks at

Forecast = dict[JobId, Reserved | None]  # in turn; None for one that never fits


def forecast(cluster: Cluster, looks: int = LOOKS) -> Forecast:
    """The future place of each job in turn."""
    return places(cluster, Claims(cluster), looks)


def places(cluster: Cluster, claims: Claims, looks: int = LOOKS) -> Forecast:
    """The same, noting what is claimed."""
    found: Forecast = {}
    for group, job in in_turn(cluster):
        if len(found) == looks or group is Group.LATER:
            break
        types = cluster.open_types(job)
        if group is Group.KEPT or not types:
            continue
        found[job.id] = reserved = earliest(cluster, claims, job, types)
        if reserved is not None:
            claims.reserve(job, reserved)
    return found
