"""PostgreSQL with a clock of its own, which a test puts wrong while the server runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.postgres import Cluster, migrated_cluster


def faked_environment(offset: str) -> dict[str, str]:
    """What gives a process a time of day that is off by so much: "-1d". Its running time is not."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        pytest.skip("libfaketime is not installed")
    return {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME": offset,
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@dataclass
class FakedServer:
    """A server under libfaketime, and a database on it that has our schema."""

    server: Cluster
    url: str
    _offset: Path

    def put(self, by: str) -> None:
        """Put the server's clock off the true one by so much: "+1d"; "+0" puts it right."""
        self._offset.write_text(by)


@contextmanager
def faked_server() -> Iterator[FakedServer]:
    """Such a server; libfaketime reads its offset from a file at every call."""
    environment = faked_environment("+0")
    del environment["FAKETIME"]  # it would count more than the file
    with migrated_cluster() as (server, url):
        offset = server.room / "offset"
        offset.write_text("+0")
        server.stop()
        server.environment = environment | {"FAKETIME_TIMESTAMP_FILE": str(offset)}
        server.start()
        yield FakedServer(server, url, offset)
