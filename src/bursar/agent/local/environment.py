"""The environment variables and the checkpoint folder of a process."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bursar.core.dispatch.attempt_end import STOP_GRACE_MS
from bursar.core.dispatch.reports import LeaseOrder

# A process inherits only these variables of the agent: others may contain keys.
INHERITED_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
USER_NAME: Final = "job"  # the user id of a process has no name; programs look here first
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def build_environment(
    order: LeaseOrder,
    folder: Path,
    checkpoints: Path,
    agent_environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The variables of a process. Those of the job override inherited ones, not BURSAR_ ones."""
    inherited = {
        name: agent_environment[name] for name in INHERITED_VARIABLES if name in agent_environment
    }
    return {
        "PATH": os.defpath,
        **inherited,
        "HOME": str(folder / "work"),
        "TMPDIR": str(folder / "tmp"),
        "USER": USER_NAME,
        "LOGNAME": USER_NAME,
        **dict(order.program.env),
        # The order in which NVML numbers GPUs, so that a number means the same GPU everywhere.
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
        "BURSAR_GRACE_MS": str(STOP_GRACE_MS),
        "BURSAR_RUN_MS_MAX": str(order.run_ms_max),
        "BURSAR_PROGRESS": str(folder / "out" / "progress"),
        "BURSAR_RESULT": str(folder / "out" / "result.json"),
    }


def checkpoint_folder(root: Path, order: LeaseOrder) -> Path:
    """The folder of a job's checkpoints, which all its attempts share."""
    return root / folder_name(order.org) / folder_name(order.job)


def folder_name(id: str) -> str:
    """An id as a folder name: unchanged if it is a plain word, else a hash of it."""
    if _PLAIN_ID.fullmatch(id):
        return id
    return "~" + hashlib.sha256(id.encode()).hexdigest()[:40]
