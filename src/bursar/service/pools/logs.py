"""Logs of jobs: nodes add to them, users read them."""

from typing import NamedTuple

from bursar.core.ids import PoolId
from bursar.store.pools.logs import Chunk, LogPage, LogPosition, add_log, logs_of
from bursar.store.sql.connection import Connection, money_time

__all__ = ["Chunk", "LogPage", "LogPosition", "Part", "keep_log", "read_log"]


class Part(NamedTuple):
    """A part of a log from a node: position of its first byte, number of bytes, text."""

    fence: int
    start: int
    size: int
    text: str
    is_last: bool = False


def keep_log(connection: Connection, pool: PoolId, node: str, part: Part) -> int | None:
    """Store a part that continues the log; return the new end, or None without such a lease."""
    return add_log(connection, pool, node, *part, at=money_time(connection))


def read_log(
    connection: Connection,
    pool: PoolId,
    org: str,
    job: str,
    node: str,
    after: LogPosition,
    limit: int,
) -> LogPage:
    """The output of a job after a position, as of now."""
    return logs_of(connection, pool, org, job, node, after, limit, money_time(connection))
