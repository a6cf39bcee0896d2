"""How jobs are kept apart on this machine: by users of their own, by namespaces, or both.

| the agent is | the kernel allows namespaces | jobs have |
|---|---|---|
| root | yes | a user each, and namespaces |
| root | no | a user each |
| another user | yes | namespaces, with the agent's user id |
| another user | no | nothing: they can read the agent's key |

What the kernel allows is tried out, with the same code that starts jobs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from bursar.agent.local.sandbox import SYSTEM_FOLDERS
from bursar.agent.local.trees import remove_tree

# User ids without a name, which no distribution hands out: above the ranges of systemd and of
# subordinate ids, below 2^31.
JOB_UIDS: Final = range(1_900_000_000, 2**31)
CONTAINER_UIDS: Final = range(40_000, 60_000)  # where only 65,536 ids exist
TRIAL_TIMEOUT_S: Final = 60.0
PRIVATE_MODE: Final = 0o700  # of folders above those of jobs
PASSABLE_MODE: Final = 0o711  # the same where jobs have no mount namespace
# The code of a guard process runs without site packages; this package is found after the standard
# library.
IMPORT_CODE: Final = "import sys; sys.path.append(sys.argv[1]);"
SOURCE_FOLDER: Final = str(Path(__file__).resolve().parents[3])
_TRIAL_CODE: Final = f"{IMPORT_CODE} from bursar.agent.local.trial import main; main(sys.argv[2])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """How jobs are kept apart, and why not better."""

    uids: range | None  # of which each job has one; None: they have the agent's
    namespaces: bool
    gap: str = ""  # what this machine does not allow

    @property
    def folder_mode(self) -> int:
        """The mode of the folders above those of jobs, which jobs must not read."""
        return PASSABLE_MODE if self.uids is not None and not self.namespaces else PRIVATE_MODE

    @property
    def is_complete(self) -> bool:
        """Whether a job can reach neither the agent nor another job."""
        return self.uids is not None or self.namespaces

    def describe(self) -> str:
        """What jobs have, in a few words."""
        users = "users of their own" if self.uids is not None else "the user of the agent"
        return f"{users}, {'own' if self.namespaces else 'no own'} namespaces"

    def choose_uid(self, identity: str, taken: Collection[int]) -> int | None:
        """The user id of a job: the same for all its attempts and nodes, unless it is taken."""
        if self.uids is None:
            return None
        start = int.from_bytes(sha256(identity.encode()).digest()[:8])
        for step in range(len(taken) + 1):
            uid = self.uids[(start + step) % len(self.uids)]
            if uid not in taken:
                return uid
        raise OSError(f"all {len(self.uids)} user ids of jobs are taken")


ISOLATION_REMEDY: Final = (
    "Run as root, with a state folder that other users can pass through, or allow user namespaces"
    " (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0). If you trust all jobs,"
    " add --allow-unisolated-jobs."
)


def describe_gap(isolation: Isolation) -> str:
    """What is missing, and what follows."""
    return (
        f"Jobs cannot be isolated on this machine ({isolation.gap}): they could read the keys of"
        " the agent and the service."
    )


NO_ISOLATION: Final = Isolation(uids=None, namespaces=False)


def find_isolation(folder: Path, uids: range | None = None) -> Isolation:
    """What this machine allows for jobs whose folders are in `folder`; `uids` if root has them."""
    is_root = os.geteuid() == 0
    if is_root and uids is None:
        uids = JOB_UIDS if _are_mapped(JOB_UIDS) else CONTAINER_UIDS
    uid = uids[0] if is_root and uids is not None else None
    gap = _try_out(folder, uid, namespaces=True)
    if not gap or uid is None:
        return Isolation(uids=uids if is_root else None, namespaces=not gap, gap=gap)
    user_gap = _try_out(folder, uid, namespaces=False)
    if not user_gap:
        return Isolation(uids=uids, namespaces=False, gap=gap)
    return Isolation(uids=None, namespaces=False, gap=user_gap)


def make_plan(
    *,
    root: Path,
    tmp: Path,
    folders: Collection[Path],
    uid: int | None,
    hidden: Collection[Path] = (),
    readable: Collection[Path] = (),
    writable: Collection[Path] = (),
    devices: Collection[str] = (),
    shm_mib: int = 0,
) -> dict[str, Any]:
    """What `sandbox` needs to build the root of a command. Paths have no symbolic links."""
    return {
        "root": str(root),
        "tmp": str(tmp),
        "uid": uid,
        "system": None if uid is not None else list(SYSTEM_FOLDERS),
        "folders": [str(path) for path in folders],
        "hidden": sorted(map(str, hidden)),
        "readable": [str(path) for path in readable],
        "writable": [str(path) for path in writable],
        "devices": list(devices),
        "shm_mib": shm_mib,
    }


def _are_mapped(uids: range) -> bool:
    """Whether these user ids exist in our user namespace."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= uids[0] and uids[-1] < first + count for first, count in ranges)


def _try_out(folder: Path, uid: int | None, *, namespaces: bool) -> str:
    """Start a command that does nothing; return why that fails, or an empty text."""
    scratch = folder / f".trial-{os.getpid()}"
    try:
        return _start_trial(scratch, uid, namespaces=namespaces)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        remove_tree(str(scratch))


def _start_trial(scratch: Path, uid: int | None, *, namespaces: bool) -> str:
    work, root = scratch / "work", scratch / "root"
    if not namespaces:
        scratch.parent.chmod(PASSABLE_MODE)
    for path in (scratch, work, root):
        path.mkdir()
        path.chmod(PRIVATE_MODE if namespaces else PASSABLE_MODE)
    if uid is not None:
        os.chown(work, uid, uid)
    plan = make_plan(root=root, tmp=work, folders=[work], uid=uid) if namespaces else None
    order = {"uid": uid, "gid": uid, "work": str(work), "sandbox": plan}
    trial = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-X", "utf8", "-c", _TRIAL_CODE),
            *(SOURCE_FOLDER, json.dumps(order)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={},
        text=True,
        timeout=TRIAL_TIMEOUT_S,
        check=False,
    )
    if trial.returncode == 0:
        return ""
    return trial.stderr.strip() or f"the trial ended with status {trial.returncode}"
