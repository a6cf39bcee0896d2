"""Queries of agents about finished jobs, and the progress that jobs report."""

from collections.abc import Sequence

from bursar.core.ids import PoolId
from bursar.core.instant import MILLISECOND
from bursar.store.pools.node_cleanup import keep_progress, over_jobs, progress_of
from bursar.store.sql.connection import Connection, money_time

__all__ = ["keep_progress_now", "over_for_ms", "progress_of"]


def over_for_ms(
    connection: Connection, pool: PoolId, node: str, jobs: Sequence[tuple[str, str]]
) -> list[tuple[str, str, int]]:
    """Which of these jobs of a node have finished, and how long ago."""
    now = money_time(connection)
    finished = over_jobs(connection, pool, node, jobs)
    return [(org, job, max(now - at, 0) // MILLISECOND) for org, job, at in finished]


def keep_progress_now(
    connection: Connection, pool: PoolId, node: str, fence: int, ppm: int
) -> None:
    """Store the progress that a node reports for the process of a lease."""
    keep_progress(connection, pool, node, fence, ppm, money_time(connection))
