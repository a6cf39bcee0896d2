"""Forecasts the latest starts of waiting jobs, one after another, to compare alternatives.

A plan gives planned starts to the first few jobs only. A forecast gives one to each job in queue
order, up to a number of jobs, as if no more jobs were submitted. Left out are jobs with earmarked
GPUs, jobs over a ceiling, and jobs that back off after a failed start.
"""

from typing import Final

from bursar.core.ids import JobId
from bursar.core.scheduling.decisions import PlannedStart
from bursar.core.scheduling.explain.queue_position import QueueGroup, queue_order
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.placement.backfill import NodeClaims, find_planned_start

FORECAST_JOBS: Final = 64  # jobs that a forecast covers

Forecast = dict[JobId, PlannedStart | None]  # in queue order; None for a job that never fits


def forecast(cluster: Cluster, looks: int = FORECAST_JOBS) -> Forecast:
    """The planned start of each job in queue order."""
    return forecast_with_claims(cluster, NodeClaims(cluster), looks)


def forecast_with_claims(
    cluster: Cluster, claims: NodeClaims, looks: int = FORECAST_JOBS
) -> Forecast:
    """The same; adds the planned starts to `claims`."""
    starts: Forecast = {}
    for group, job in queue_order(cluster):
        if len(starts) == looks or group is QueueGroup.BACKING_OFF:
            break
        types = cluster.open_types(job)
        if group is QueueGroup.EARMARKED or not types:
            continue
        starts[job.id] = reserved = find_planned_start(cluster, claims, job, types)
        if reserved is not None:
            claims.add(job, reserved)
    return starts
