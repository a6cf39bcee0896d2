"""The state folder of a node: its name and pool, the number of agent starts, the largest fence.

Each of these is on disk before the agent acts on it. The folder is locked while an agent runs, so a
node never has two agents. It also keeps the addresses of the service that the agent has learned.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from bursar.agent.local.files import load_json, write_json
from bursar.core.ids import NodeId

_FILE: Final = "node.json"
_LOCK: Final = "lock"
_ADDRESSES: Final = "addresses.json"


class StateDirInUse(Exception):
    """The folder is in use by a running agent, or belongs to another node."""


class StateDir:
    """A node's state, in a folder that one agent at a time uses."""

    def __init__(self, folder: Path, pool: str, node: NodeId) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._node = self._load_node(pool, node)
        except BlockingIOError:
            os.close(self._lock)
            raise StateDirInUse(f"another agent uses {folder}") from None
        except StateDirInUse:
            os.close(self._lock)
            raise

    def _load_node(self, pool: str, node: NodeId) -> dict[str, Any]:
        path = self.folder / _FILE
        identity = {"pool": pool, "node": node}
        node_file = load_json(str(path))
        if node_file is None and path.exists():
            raise StateDirInUse(f"{path} is damaged: give the node another name and folder")
        if node_file is None:
            return {**identity, "boots": 0, "fence": 0}
        if {name: node_file[name] for name in identity} != identity:
            raise StateDirInUse(
                f"{self.folder} belongs to node {node_file['node']} in pool {node_file['pool']}"
            )
        return dict(node_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @property
    def fence(self) -> int:
        """The largest fence that this node ever accepted for a start."""
        return int(self._node["fence"])

    def count_start(self) -> int:
        """Count this start of the agent and return the count."""
        self._save(boots=self._node["boots"] + 1)
        return int(self._node["boots"])

    def remember_fence(self, fence: int) -> None:
        """Save the fence of a process that is about to be started."""
        self._save(fence=max(fence, self.fence))

    def load_addresses(self) -> list[str]:
        """The addresses that the service named before the last stop; none if that is unknown."""
        stored = load_json(str(self.folder / _ADDRESSES))
        urls = stored if isinstance(stored, list) else []
        return [url for url in urls if isinstance(url, str)]

    def save_addresses(self, urls: Sequence[str]) -> None:
        """Keep the addresses that the service names for the next start."""
        write_json(str(self.folder / _ADDRESSES), list(urls))

    def _save(self, **changes: int) -> None:
        changed = {**self._node, **changes}
        write_json(str(self.folder / _FILE), changed, durable=True)
        self._node = changed
