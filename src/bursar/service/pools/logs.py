"""Logs of jobs: nodes add to them, users read them."""

from typing import NamedTuple

from bursar.core.ids import PoolId
from bursar.store.pools.logs import Chunk, LogPosition, add_log, logs_of
from bursar.store.sql.connection import Connection, money_time

__all__ = ["Chunk", "LogPosition", "Part", "keep_log", "logs_of"]


class Part(NamedTuple):
    """What a node has sent of a log: from where on, how many bytes, and their text."""

    fence: int
    start: int
    size: int
    text: str


def keep_log(connection: Connection, pool: PoolId, node: str, part: Part) -> int | None:
    """Keep a part that follows on what is there; where that ends. None without such a lease."""
    return add_log(connection, pool, node, *part, at=money_time(connection))
