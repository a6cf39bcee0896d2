"""A node with two jobs of different orgs, one of which attacks: prints what came of it as JSON.

    python -m tests.support.hostile_node STATE MODE PYTHON

STATE is the folder of a service, with a key in it; the node has its folder below. MODE is `users`,
`namespaces` or both, separated by a comma: what keeps the jobs apart. PYTHON runs the jobs.
"""

import json
import os
import stat
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bursar.agent.local.isolation import find_isolation
from bursar.agent.local.trees import remove_tree
from bursar.core.value import replace as replace_value
from tests.support import hostile_job
from tests.support.agent_node import PYTHON_FOLDERS, Bench, order

MARK = "a secret of the agent"
PROCESSES_MAX = 40
FILES = ("environ", "mem", "root/etc/hostname")  # of a process, which are secret
JOB = Path(hostile_job.__file__).resolve()


def find_guards(folder: Path) -> list[int]:
    """The pids of all guards below a folder."""
    words = str(folder).encode()
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if words in path.read_bytes() and b"local.guard" in path.read_bytes()
    ]


def attack(state: Path, mode: str, python: str) -> dict[str, Any]:
    """Let the two jobs run until the hostile one has ended."""
    key = state / "admin.key"
    key.touch(mode=0o600)
    isolation = find_isolation(state)
    if "namespaces" not in mode:
        isolation = replace(isolation, namespaces=False)
    gpus = tuple(f"/dev/bursar-{os.getpid()}-{number}" for number in range(2))
    bench = Bench(
        state / "node",
        isolation=isolation,
        hidden=(state,),
        readable=(*PYTHON_FOLDERS, JOB.parent),
        gpu_devices=gpus,
        processes_max=PROCESSES_MAX,
    )
    victim = order(1, python, "-IS", "-c", "import time; time.sleep(600)")
    bench.run(replace_value(victim, org="victim"))
    other = bench.begun(1)
    secret = other / "work" / "secret"
    secret.touch(mode=0o600)
    os.chown(secret, other.joinpath("work").stat().st_uid, -1)
    pid = json.loads((other / "started.json").read_text())["pid"]
    guards = find_guards(state)
    own = bench.processes.attempts / "2"
    plan = {
        "secrets": [
            *map(str, (key, secret, other / "order.json", own / "order.json", own / "log")),
            *(f"/proc/{one}/{name}" for one in (os.getpid(), *guards, pid) for name in FILES),
        ],
        "folders": [str(path) for path in (state, state / "node", other.parent, other)],
        "mark": MARK[::-1],
        "victims": [os.getpid(), *guards, pid],
        "devices": f"bursar-{os.getpid()}-*",
    }
    bench.run(order(2, python, "-IS", str(JOB), json.dumps(plan), gpus=(1,)))
    ended = bench.ended(2)
    is_alive = bench.processes.table()[1].exit is None
    bench.processes.kill(1)
    bench.ended(1)
    return {
        "exit": ended.exit,
        "log": bench.log(2),
        "isolation": [isolation.uids is not None, isolation.namespaces],
        "victim_is_alive": is_alive,
        "written": [path for path in plan["folders"] if Path(path, "written").exists()],
        "is_cleaned": remove_tree(str(own / "work")),
        "gpus": [Path(gpu).name for gpu in gpus],
    }


def main(state: Path, mode: str, python: str) -> None:
    """Attack, and print what came of it."""
    gpus = [Path(f"/dev/bursar-{os.getpid()}-{number}") for number in range(2)]
    with tempfile.NamedTemporaryFile(prefix="bursar-visible-"):
        try:
            for gpu in gpus if os.geteuid() == 0 else ():
                os.mknod(gpu, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            sys.stdout.write(json.dumps(attack(state, mode, python)))
        finally:
            for gpu in gpus if os.geteuid() == 0 else ():
                gpu.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
