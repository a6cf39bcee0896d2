"""What a job can reach on its node: nothing that is not its own (N4, K32)."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bursar.agent.clock import running_time
from bursar.agent.local import isolation as isolations
from bursar.agent.local import processes
from bursar.agent.local.isolation import CONTAINER_UIDS, JOB_UIDS, NO_ISOLATION, Isolation
from bursar.agent.local.processes import default_processes_max
from bursar.core.dispatch.state import Exit
from bursar.core.instant import MILLISECOND, SECOND
from bursar.store.embedded.os_user import CONTAINER_UID, DATABASE_UID, database_user
from tests.support.agent_node import PYTHON_FOLDERS, Bench, isolation, order, python
from tests.support.embedded_guests import (
    environment_for,
    new_room,
    only_root,
    plain_user,
    python_for,
)
from tests.support.hostile_node import MARK, PROCESSES_MAX
from tests.support.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder that other users can pass through."""
    room = new_room()
    room.chmod(0o711)
    yield room
    shutil.rmtree(room)


def attacked(room: Path, mode: str, *, as_root: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What came of an attack, and what the hostile job says."""
    user, state = plain_user(), room / "state"
    state.mkdir(mode=0o711)
    if not as_root:
        user.take(state)
    [interpreter] = python_for(user)
    environment = environment_for(user, room)
    environment["PYTHONPATH"] += os.pathsep + str(REPOSITORY)
    done = subprocess.run(
        [interpreter, "-m", "tests.support.hostile_node", str(state), mode, interpreter],
        env={**environment, "BURSAR_KEY": MARK},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **({} if as_root else user.spawn_options()),
    )
    assert 0 == done.returncode, done.stderr
    result = json.loads(done.stdout)
    assert Exit.DONE == result["exit"], result["log"]
    return result, json.loads(result["log"])


@pytest.mark.parametrize(
    ("mode", "as_root"),
    [
        pytest.param("users,namespaces", True, marks=only_root),
        pytest.param("users", True, marks=only_root),
        pytest.param("namespaces", False, id="namespaces of another user than root"),
    ],
)
def test_hostile_job_reaches_nothing_that_is_not_its_own(
    room: Path, mode: str, as_root: bool
) -> None:
    """It reads keys, other jobs and its guard's files, signals them, removes its folder, forks
    without end, gains rights in namespaces. It is refused, and the other job goes on."""
    result, report = attacked(room, mode, as_root=as_root)

    assert ["users" in mode, "namespaces" in mode] == result["isolation"]
    assert (True, True, []) == (
        result["victim_is_alive"], result["is_cleaned"], result["written"],
    )  # fmt: skip
    for attack in ("secrets", "signalled", "mark", "root", "limit", "unmounted"):
        assert not report[attack], attack
    assert not report["removed"]
    assert {"2", "attempts", "checkpoints", "node", "written"} >= set(report["listed"])
    assert report["forked"] < PROCESSES_MAX
    if as_root:
        assert ([], True) == (report["groups"], report["uid"] in JOB_UIDS)
        visible = result["gpus"][1:] if "namespaces" in mode else result["gpus"]
        assert visible == report["devices"], "of two GPUs it has one"
    if "namespaces" in mode:
        assert not [name for name in report["tmp"] if name.startswith("bursar-visible")]


def test_longest_path_decides_what_a_job_sees(tmp_path: Path) -> None:
    """A state folder inside a folder that jobs may read stays hidden."""
    shared = tmp_path / "data"
    for name in ("data/hidden/shown", "data/other", "node"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (shared / "hidden" / "file").touch()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777)
    source = """
        import os, sys
        for folder, _, names in os.walk(sys.argv[1]):
            print(*(os.path.relpath(f"{folder}/{name}", sys.argv[1]) for name in names))
        for name in "other/new", "new":
            try:
                open(f"{sys.argv[1]}/{name}", "w")
                print("wrote", name)
            except OSError:
                pass
    """
    bench = Bench(
        tmp_path / "node",
        readable=(*PYTHON_FOLDERS, shared, shared / "hidden" / "shown"),
        writable=(shared / "other",),
        hidden=(shared / "hidden",),
    )
    if not bench.place.isolation.namespaces:
        pytest.skip("this machine allows no namespaces")
    fence = bench.run(order(1, *python(source, str(shared))))

    assert Exit.DONE is bench.ended(fence).exit, bench.log(fence)
    assert ["hidden/shown/file", "other/file", "wrote other/new"] == sorted(
        filter(None, bench.log(fence).splitlines())
    )


@only_root
def test_each_job_has_a_user_id_of_its_own() -> None:
    """All its attempts and all nodes of a gang have the same; none is the database's."""
    apart = Isolation(uids=range(7_000, 7_004), namespaces=True)
    first = apart.choose_uid("acme/job", ())
    assert first is not None
    second = apart.choose_uid("acme/job", {first})
    assert second is not None

    assert first == apart.choose_uid("acme/job", {second})
    assert apart.uids is not None
    assert {*apart.uids} == {
        apart.choose_uid("acme/job", {*apart.uids} - {free}) for free in apart.uids
    }
    with pytest.raises(OSError, match="all 4 user ids"):
        apart.choose_uid("acme/job", {*apart.uids})
    assert NO_ISOLATION.choose_uid("acme/job", ()) is None
    assert DATABASE_UID not in JOB_UIDS
    assert CONTAINER_UID not in CONTAINER_UIDS
    assert database_user().uid not in JOB_UIDS


@only_root
def test_job_resumes_as_another_user(tmp_path: Path) -> None:
    """Its checkpoint is handed over, whatever modes it has; files of others stay theirs."""
    writes = """
        import os
        os.chdir(os.environ["BURSAR_CHECKPOINT_DIR"])
        os.mkdir("weights", 0o700)
        open("weights/step", "w").write("7")
        os.symlink("/etc/passwd", "link")
        os.chmod("weights/step", 0o400)
    """
    reads = """
        import os
        os.chdir(os.environ["BURSAR_CHECKPOINT_DIR"])
        print(os.getuid(), open("weights/step").read())
        os.remove("weights/step")
    """
    first = Bench(tmp_path, isolation=replace(isolation(), uids=JOB_UIDS[5:6]))
    assert Exit.DONE is first.ended(first.run(order(1, *python(writes)))).exit, first.log(1)
    foreign = tmp_path / "checkpoints" / "acme" / "job" / "foreign"
    foreign.touch(mode=0o600)
    second = Bench(tmp_path, isolation=replace(isolation(), uids=JOB_UIDS))
    fence = second.run(order(2, *python(reads)))

    assert Exit.DONE is second.ended(fence).exit, second.log(2)
    uid, step = second.log(2).split()
    assert (True, "7") == (int(uid) not in (0, JOB_UIDS[5]), step)
    assert (0, 0) == (foreign.stat().st_uid, Path("/etc/passwd").stat().st_uid)


def test_job_that_suspends_its_guard_is_ended_and_pays_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it can without isolation: the agent ends it at the end of its longest run (M2)."""
    monkeypatch.setattr(processes, "OVERDUE_US", 300 * MILLISECOND)
    bench = Bench(tmp_path, isolation=NO_ISOLATION)
    source = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)"
    until = running_time() + 2 * SECOND
    ended = bench.ended(bench.run(order(1, *python(source)), until=until))

    assert (Exit.KILLED, (until - ended.started_at) // MILLISECOND) == (ended.exit, ended.run_ms)


def test_job_that_kills_its_guard_has_failed(tmp_path: Path) -> None:
    """As it can without isolation: it is charged for what it ran, and its node is not blamed."""
    bench = Bench(tmp_path, isolation=NO_ISOLATION)
    source = "import os, signal, time\ntime.sleep(0.5)\nos.kill(os.getppid(), signal.SIGKILL)"
    fence = bench.run(order(1, *python(source)))
    ended = bench.ended(fence)

    assert (Exit.FAILED, 137) == (ended.exit, ended.exit_code)
    assert ended.run_ms > 0
    assert "its guard was killed" in bench.log(fence)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for little."""
    options = ("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    if subprocess.run(["mount", *options, tmp_path], check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_end_of_a_job_that_fills_the_disk_is_recorded(small_disk: Path) -> None:
    """Else its attempt would count as lost, and cost nothing (M3)."""
    fills = """
        import os
        open(os.environ["BURSAR_RESULT"], "w").write('[{"inline": "done"}]')
        with open("large", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1_000))
            except OSError:
                raise SystemExit(3)
    """
    bench = Bench(small_disk)
    ended = bench.ended(bench.run(order(1, *python(fills))))

    assert (Exit.FAILED, 3) == (ended.exit, ended.exit_code)
    assert '[{"inline": "done"}]' == ended.result


@only_root
def test_node_that_cannot_prepare_a_job_is_to_blame(tmp_path: Path) -> None:
    """The job has not run: its attempt is lost, and its log has the reason."""
    no_change = range(2**32 - 1, 2**32)  # the kernel takes this user id for "stay who you are"
    bench = Bench(tmp_path, isolation=Isolation(uids=no_change, namespaces=False))
    ended = bench.ended(bench.run(order(1, *python("pass"))))

    assert (Exit.GONE, 0) == (ended.exit, ended.run_ms)
    assert "the node could not prepare it: [Errno 22] the user has not changed" in bench.log(1)


def test_machine_without_isolation_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is told, and what an operator can do."""
    monkeypatch.setattr(isolations, "SOURCE_FOLDER", str(tmp_path))
    found = isolations.find_isolation(tmp_path)

    assert (False, None, False) == (found.is_complete, found.uids, found.namespaces)
    assert "No module named" in isolations.describe_gap(found)
    assert "the user of the agent, no own namespaces" == found.describe()
    assert [] == list(tmp_path.iterdir())


def test_job_has_a_part_of_the_processes_of_its_machine() -> None:
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())

    assert 16 * default_processes_max() <= pid_max
