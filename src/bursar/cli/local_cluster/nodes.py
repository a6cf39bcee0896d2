"""Nodes on this machine with simulated GPUs. The jobs on them are real processes."""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bursar.cli.local_cluster.children import ChildProgram
from bursar.client import Client
from bursar.core.ids import make_id
from bursar.service.keys import DEPLOYMENT
from bursar.service.secrets import read_or_create

POOL: Final = "main"
NODES_FOLDER: Final = "nodes"  # of the state folder
DEMO_NODES: Final = "2x8xH100,2x8xA100"
DEMO_PROGRAMS: Final = Path(__file__).parent / "demo_load" / "jobs"
NODES_MAX: Final = 32
SLOTS_PER_GPU: Final = 4  # per GPU, so that jobs can request quarters
# Memory per GPU in GiB, for jobs that require a minimum.
MEMORY_GIB: Final[Mapping[str, int]] = MappingProxyType(
    {"L4": 24, "L40S": 48, "A100": 80, "H100": 80, "H200": 141, "B200": 192}
)
_NODE_GROUP: Final = re.compile(
    r"(?:(\d{1,2})x)?(\d{1,2})x([A-Za-z][A-Za-z0-9.+-]{0,31})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A simulated node."""

    name: str
    gpus: int
    gpu_type: str
    slots: int = SLOTS_PER_GPU  # per GPU
    memory_gib: int = 0  # per GPU


def parse_nodes(text: str) -> tuple[LocalNode, ...]:
    """Parse nodes: 2x8xH100,8xA100 are two nodes with 8 H100 each and one with 8 A100."""
    numbers: Counter[str] = Counter()
    nodes: list[LocalNode] = []
    for part in text.split(","):
        match = _NODE_GROUP.fullmatch(part.strip())
        if match is None or "0" in (match[1], match[2]):
            raise ValueError(
                f"{part[:40]!r} is not valid: write 2x8xH100 for two nodes with 8 GPUs each"
            )
        for _ in range(int(match[1] or 1)):
            plain = re.sub(r"[^a-z0-9]+", "-", match[3].lower()).strip("-")
            numbers[plain] += 1
            name, memory_gib = f"{plain}-{numbers[plain]}", MEMORY_GIB.get(match[3], 0)
            nodes.append(LocalNode(name, int(match[2]), match[3], memory_gib=memory_gib))
    if len(nodes) > NODES_MAX:
        raise ValueError(f"{len(nodes)} nodes are too many: the maximum is {NODES_MAX}")
    return tuple(nodes)


def describe_nodes(nodes: Sequence[LocalNode]) -> str:
    """Describe nodes: 2 with 8 H100 each, 1 with 8 A100."""
    groups = Counter((node.gpus, node.gpu_type) for node in nodes)
    return ", ".join(
        f"{count} with {gpus} {gpu_type}{' each' if count > 1 else ''}"
        for (gpus, gpu_type), count in groups.items()
    )


def checkpoint_folder(state: Path) -> Path:
    """The checkpoint folder of all nodes, by org and job."""
    return state / NODES_FOLDER / "checkpoints"


def create_pool(operator: Client) -> None:
    """Create the nodes' pool if it does not exist."""
    operator.post("/v1/pools", {"id": POOL}, key=f"up:pool:{POOL}")


def node_folder(node: str, state: Path) -> Path:
    """The state folder of a node."""
    return state / NODES_FOLDER / node


def readable_options(*folders: Path) -> tuple[str, ...]:
    """Options of an agent whose jobs run this Python, and programs in these folders."""
    paths = (Path(sys.prefix), Path(sys.base_prefix), *folders)
    return tuple(word for path in paths for word in ("--readable", str(path.resolve())))


def make_agent(
    node: LocalNode,
    operator: Client,
    state: Path,
    pool: str = POOL,
    *,
    allow_unisolated_jobs: bool = False,
) -> ChildProgram:
    """The agent program of a node, with a key for that node only."""
    folder = node_folder(node.name, state)
    for passable in (folder.parent, folder):  # for jobs without namespaces; files have own modes
        passable.mkdir(mode=0o711, parents=True, exist_ok=True)
        passable.chmod(0o711)
    full_name = f"{pool}/{node.name}"
    idempotency_key = f"up:node:{full_name}"
    body = {
        "id": make_id(DEPLOYMENT, idempotency_key, "key", 0),
        "name": f"node {full_name}",
        "scopes": ["work"],
        "node": full_name,
    }
    key = read_or_create(
        folder / "worker.key", operator.post("/v1/keys", body, key=idempotency_key).body["key"]
    )
    return ChildProgram(
        name=f"node {node.name}",
        arguments=(
            *("-P", "-m", "bursar", "agent", "--pool", pool, "--node", node.name),
            *("--gpus", f"{node.gpus}x{node.gpu_type}", "--state", str(folder / "agent")),
            *("--slots", str(node.slots), "--memory-gib", str(node.memory_gib)),
            # All nodes share this disk, so a job that moves finds its checkpoints.
            *("--checkpoints", str(checkpoint_folder(state)), "--hide", str(state)),
            *readable_options(DEMO_PROGRAMS),
            *(("--allow-unisolated-jobs",) if allow_unisolated_jobs else ()),
        ),
        environment={"BURSAR_URL": operator.url, "BURSAR_KEY": key},
        log=folder / "agent.log",
    )
