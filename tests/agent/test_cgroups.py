"""Groups in the kernel's books, where it lets us have them."""

import json
import os
import signal
from pathlib import Path

import pytest

from bursar.agent.local import cgroups
from bursar.agent.local.kernel import Cgroup
from bursar.core.dispatch.state import Exit
from tests.agent.test_processes import ESCAPES, guard_of
from tests.support.agent_node import Bench, is_running, order, python

MOUNTS = """\
36 35 0:31 / {root}/memory rw,relatime - cgroup cgroup rw,memory
37 35 0:32 / {root} rw,relatime shared:4 - cgroup2 cgroup2 rw
"""


def told(folder: Path, mounts: str, memberships: str) -> Path | None:
    (folder / "mounts").write_text(mounts.format(root=folder))
    (folder / "memberships").write_text(memberships)
    return cgroups.find_own_cgroup(folder / "mounts", folder / "memberships")


def test_own_cgroup_is_found(tmp_path: Path) -> None:
    own = tmp_path / "system.slice" / "agent.service"
    own.mkdir(parents=True)
    (own / "cgroup.procs").touch()
    path = "9:memory:/x\n0::/system.slice/agent.service\n"

    assert own == told(tmp_path, MOUNTS, path)
    assert told(tmp_path, MOUNTS, "9:memory:/x\n") is None
    assert told(tmp_path, MOUNTS, "0::/elsewhere\n") is None
    assert told(tmp_path, MOUNTS.splitlines()[0], path) is None


@pytest.fixture
def group() -> Path:
    """A group in which others can be made."""
    found = cgroups.find_own_cgroup()
    if found is None or not Path(found, "cgroup.procs").exists():
        pytest.skip("the kernel lets us have no group")
    trial = found / f"bursar-trial-{os.getpid()}"
    try:
        trial.mkdir()
        kills = (trial / "cgroup.kill").exists()
        trial.rmdir()
    except OSError:
        pytest.skip("the kernel lets us make no group")
    if not kills:
        pytest.skip("the kernel cannot kill a group")
    return found


# Its grandchild has forgotten whose it is.
FORGETS = ESCAPES.replace(
    'print("away", flush=True)\n        time.sleep(600)',
    "os.execve(sys.executable, [sys.executable, '-I', '-S', '-c',"
    " 'import time; print(\"away\", flush=True); time.sleep(600)', *sys.argv[2:]], {})",
)


def test_orphans_of_a_killed_guard_are_ended_by_their_cgroup(tmp_path: Path, group: Path) -> None:
    """Even what is no longer known by anything else; and the group is given back."""
    assert FORGETS != ESCAPES
    bench = Bench(tmp_path, cgroup=group)
    mark = f"forgets-{os.getpid()}"
    fence = bench.run(order(1, *python(FORGETS, "stays", mark)))
    bench.printed(fence, "away")
    assert group_of(bench, fence).is_dir()
    os.kill(guard_of(bench, fence), signal.SIGKILL)

    assert Exit.GONE is bench.ended(fence).exit
    assert not is_running(mark)
    assert not group_of(bench, fence).exists()


def group_of(bench: Bench, fence: int) -> Path:
    """The group of a process."""
    order = bench.processes.attempts / str(fence) / "order.json"
    return Path(json.loads(order.read_text())["cgroup"])


def test_cgroup_is_removed_at_the_end(tmp_path: Path, group: Path) -> None:
    bench = Bench(tmp_path, cgroup=group)
    fence = bench.run(order(1, *python("import time; time.sleep(600)"), memory_mib=10_000))
    bench.begun(fence)
    assert group == group_of(bench, fence).parent
    assert group_of(bench, fence).is_dir()
    bench.processes.kill(fence)

    assert Exit.KILLED is bench.ended(fence).exit
    assert not group_of(bench, fence).exists()


def test_process_runs_without_a_cgroup_that_cannot_be_created(tmp_path: Path) -> None:
    bench = Bench(tmp_path, cgroup=tmp_path / "no" / "such" / "folder")

    assert Exit.DONE is bench.ended(bench.run(order(1, *python("pass")))).exit


def test_cgroup_of_a_job_bounds_memory_processors_and_processes(tmp_path: Path) -> None:
    """What the job asked for, and what the node allows."""
    folder = tmp_path / "job"
    cgroup = Cgroup(str(folder), memory_mib=3, cpu_milli=1_500, processes_max=9)

    assert cgroup.bounds_memory
    assert {
        "memory.max": str(3 * 2**20), "memory.swap.max": "0", "memory.oom.group": "1",
        "cpu.max": "150000 100000", "pids.max": "9",
    } == {path.name: path.read_text() for path in folder.iterdir()}  # fmt: skip


def test_cgroup_of_a_job_without_limits_has_none(tmp_path: Path) -> None:
    cgroup = Cgroup(str(tmp_path / "job"))

    assert not cgroup.bounds_memory
    assert [] == list((tmp_path / "job").iterdir())
