"""What a node must remember: who it is, how often its agent was started, the largest fence.

All of it is on disk before anything is done that relies on it. The folder is locked while an agent
runs: a node never has two.
"""

import fcntl
import os
from pathlib import Path
from typing import Any, Final, Self

from bursar.agent.local.files import loaded, write
from bursar.core.ids import NodeId

_FILE: Final = "node.json"
_LOCK: Final = "lock"


class Occupied(Exception):
    """The folder is another's: of an agent that runs, or of another node."""


class Disk:
    """A node's memory, in a folder that only one agent has at a time."""

    def __init__(self, folder: Path, pool: str, node: NodeId) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._found = self._known(pool, node)
        except BlockingIOError:
            os.close(self._lock)
            raise Occupied(f"another agent works in {folder}") from None
        except Occupied:
            os.close(self._lock)
            raise

    def _known(self, pool: str, node: NodeId) -> dict[str, Any]:
        path = self.folder / _FILE
        mine = {"pool": pool, "node": node}
        found = loaded(str(path))
        if found is None and path.exists():
            raise Occupied(f"{path} cannot be read: give the node another name and folder")
        if found is None:
            return {**mine, "boots": 0, "fence": 0}
        if {name: found[name] for name in mine} != mine:
            raise Occupied(f"{self.folder} is of node {found['node']} in pool {found['pool']}")
        return dict(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @property
    def fence(self) -> int:
        """The largest fence that was ever to be started here."""
        return int(self._found["fence"])

    def begin(self) -> int:
        """Count this start of the agent; the how-manyth it is."""
        self._keep(boots=self._found["boots"] + 1)
        return int(self._found["boots"])

    def remember(self, fence: int) -> None:
        """Keep a fence that is about to be started."""
        self._keep(fence=max(fence, self.fence))

    def _keep(self, **changes: int) -> None:
        found = {**self._found, **changes}
        write(str(self.folder / _FILE), found, surely=True)
        self._found = found
