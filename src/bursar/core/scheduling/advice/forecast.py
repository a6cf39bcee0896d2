"""When the jobs that wait start at the latest, one after another: what advice is judged by.

A plan gives future places to the first few alone. Here everybody in turn gets one, up to a number
of jobs, as if nothing else were ever submitted: which of two pools serves a queue better, and by
how much, is then a comparison of dates. Left out are jobs that have GPUs kept for them, those over
a ceiling, and those that may not be tried yet.
"""

from typing import Final

from bursar.core.ids import JobId
from bursar.core.scheduling.decisions import PlannedStart
from bursar.core.scheduling.explain.queue_position import QueueGroup, queue_order
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.placement.backfill import NodeClaims, find_planned_start

FORECAST_JOBS: Final = 64  # jobs in turn that a forecast looks at

Forecast = dict[JobId, PlannedStart | None]  # in turn; None for one that never fits


def forecast(cluster: Cluster, looks: int = FORECAST_JOBS) -> Forecast:
    """The future place of each job in turn."""
    return forecast_with_claims(cluster, NodeClaims(cluster), looks)


def forecast_with_claims(
    cluster: Cluster, claims: NodeClaims, looks: int = FORECAST_JOBS
) -> Forecast:
    """The same, noting what is claimed."""
    found: Forecast = {}
    for group, job in queue_order(cluster):
        if len(found) == looks or group is QueueGroup.BACKING_OFF:
            break
        types = cluster.open_types(job)
        if group is QueueGroup.EARMARKED or not types:
            continue
        found[job.id] = reserved = find_planned_start(cluster, claims, job, types)
        if reserved is not None:
            claims.add(job, reserved)
    return found
