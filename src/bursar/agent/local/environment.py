"""What a process finds when it starts: its folders, its GPUs, and who it is."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bursar.core.dispatch.attempt_end import GRACE_MS
from bursar.core.dispatch.reports import LeaseOrder

# What of the agent's own environment a process gets. Nothing else: there may be keys in it.
PASSED: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def environment(
    order: LeaseOrder, folder: Path, checkpoints: Path, own: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables of a process; what the job says comes before the rest, and after who it is."""
    usual = {name: own[name] for name in PASSED if name in own}
    return {
        "PATH": os.defpath,
        **usual,
        "HOME": str(folder / "work"),
        "TMPDIR": str(folder / "tmp"),
        **dict(order.program.env),
        # As NVML counts them, so that a number means the same GPU to everybody.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, order.piece.gpus)),
        "BURSAR_ORG_ID": order.org,
        "BURSAR_JOB_ID": order.job,
        "BURSAR_ATTEMPT": str(order.attempt),
        "BURSAR_FENCE": str(order.fence),
        "BURSAR_GPU_SLOTS": str(order.piece.slots),
        "BURSAR_NODE": order.piece.node,
        "BURSAR_NODES": ",".join(order.nodes),
        "BURSAR_NODE_RANK": str(order.nodes.index(order.piece.node)),
        "BURSAR_DIR": str(folder),
        "BURSAR_CHECKPOINT_DIR": str(checkpoints),
        "BURSAR_CHECKPOINT_EVERY_MS": str(order.program.checkpoint_every_ms),
        "BURSAR_GRACE_MS": str(GRACE_MS),
        "BURSAR_RUN_MS_MAX": str(order.run_ms_max),
        "BURSAR_PROGRESS": str(folder / "out" / "progress"),
        "BURSAR_RESULT": str(folder / "out" / "result.json"),
    }


def checkpoints_of(root: Path, order: LeaseOrder) -> Path:
    """The folder of a job's checkpoints: the same for all its attempts."""
    return root / named(order.org) / named(order.job)


def named(id: str) -> str:
    """An id as a name of a folder: as it is if it is plain, else a hash that leads nowhere else."""
    if _PLAIN.fullmatch(id):
        return id
    return "~" + hashlib.sha256(id.encode()).hexdigest()[:40]
