"""`bursar agent` as a program: over HTTP, killed, started again (F5, S10)."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bursar.agent.local.processes import LocalBackend
from bursar.core import leases
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.instant import MINUTE
from bursar.core.messages import Cause
from tests.support.agent_node import PYTHON_FOLDERS, python, settings, shared_file
from tests.support.agent_pool import OverHttp, RealPool
from tests.support.embedded_guests import only_root
from tests.support.patience import eventually

APPENDS = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(os.environ["BURSAR_FENCE"] + "\\n")
print("started", flush=True)
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.02)
print("done")
"""


@contextmanager
def agent(
    office: OverHttp,
    state: Path,
    *options: str,
    key: str = OverHttp.KEY,
    prefix: tuple[str, ...] = (),
) -> Iterator["subprocess.Popen[str]"]:
    """The program, which has said that it is ready, or has ended."""
    command = [*prefix, sys.executable, "-m", "bursar", "agent", "--server", office.url]
    command += ["--pool", "p1"]
    command += ["--node", "n1", "--gpus", "2xH100", "--state", str(state), *options]
    for folder in PYTHON_FOLDERS:
        command += ["--readable", str(folder)]
    with subprocess.Popen(
        command,
        env={**os.environ, "BURSAR_KEY": key},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        try:
            yield program
        finally:
            if program.poll() is None:
                program.terminate()
            program.communicate(timeout=120)


@pytest.fixture
def office() -> Iterator[OverHttp]:
    with OverHttp(RealPool()) as office:
        yield office


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "state"
    yield folder
    if folder.exists():
        processes = LocalBackend(settings(folder))
        for fence in processes.table():
            processes.kill(fence)
        eventually(lambda: all(one.exit for one in processes.table().values()))


@pytest.mark.slow
def test_agent_continues_after_a_kill_and_a_restart(
    office: OverHttp, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with -9: its process runs on, is adopted, ends once, and its log is there."""
    monkeypatch.setattr(leases, "LEASE_TTL", 10 * MINUTE)  # however long the second takes to start
    pool, starts = office.pool, shared_file(tmp_path / "starts")
    options = ("--writable", str(starts.parent))
    key = pool.enqueue("job", *python(APPENDS, str(starts)))
    with agent(office, state, *options) as first:
        node = office.nodes["n1"]
        assert ("H100", 2) == (node.gpu_type, node.gpus)
        assert node.cpu_milli > 0
        eventually(lambda: pool.reports, "a report")
        pool.place(key)
        eventually(lambda: pool.job(key).state is JobState.RUNNING, "a start")
        first.kill()
    with agent(office, state, *options):
        eventually(lambda: {1, 2} == {told.boot for told in pool.reports}, "a second agent")
        Path(f"{starts}.go").touch()
        eventually(lambda: pool.job(key).state is JobState.SUCCEEDED, "the end")
        eventually(lambda: "started\ndone\n" in office.logs.values(), "the log")
        eventually(lambda: not any((state / "ended").iterdir()), "an empty folder")

    assert 1 == len(starts.read_text().split())
    assert [Cause.FINISHED] == [end.why for end in pool.ends(key)]
    assert {"wait_ms=5000"} == set(office.waits)


@pytest.mark.slow
def test_no_process_outlives_its_lease_after_the_agent_is_killed(
    office: OverHttp, state: Path, tmp_path: Path
) -> None:
    """Its guard ends the process when the lease is over by the node's clock (IS7)."""
    pool, starts = office.pool, shared_file(tmp_path / "starts")
    key = pool.enqueue("job", *python(APPENDS, str(starts)))
    with agent(office, state, "--writable", str(starts.parent)) as first:
        eventually(lambda: pool.reports, "a report")
        fence = pool.place(key)
        eventually(lambda: pool.job(key).state is JobState.RUNNING, "a start")
        first.kill()
    ended = state / "attempts" / str(fence) / "exit.json"
    eventually(ended.exists, "the end")

    assert '"exit": "killed"' in ended.read_text()


@pytest.mark.slow
def test_agent_suspended_for_too_long_has_lost_its_processes(
    office: OverHttp, state: Path, tmp_path: Path
) -> None:
    """Its guard has not waited for it; when it goes on it says so, and the job waits again (F7)."""
    pool, starts = office.pool, shared_file(tmp_path / "starts")
    key = pool.enqueue("job", *python(APPENDS, str(starts)))
    with agent(office, state, "--writable", str(starts.parent)) as stopped:
        eventually(lambda: pool.reports, "a report")
        fence = pool.place(key)
        eventually(lambda: pool.job(key).state is JobState.RUNNING, "a start")
        stopped.send_signal(signal.SIGSTOP)
        eventually((state / "attempts" / str(fence) / "exit.json").exists, "the end")
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda: pool.job(key).state is JobState.QUEUED, "another turn")
        eventually(lambda: not any((state / "attempts").iterdir()), "an empty table")

    assert [Cause.LOST] == [end.why for end in pool.ends(key)]


def test_second_agent_is_refused(office: OverHttp, state: Path) -> None:
    with agent(office, state), agent(office, state) as second:
        _, said = second.communicate(timeout=120)

    assert 2 == second.returncode
    assert "another agent uses" in said


def test_wrong_key_is_reported(office: OverHttp, state: Path) -> None:
    """And not tried for ever: waiting does not help."""
    with agent(office, state, key="another") as program:
        _, said = program.communicate(timeout=120)

    assert 7 == program.returncode, said
    assert "nope" in said


def test_agent_waits_for_a_service_that_is_down(office: OverHttp, state: Path) -> None:
    office.down = True
    command = [sys.executable, "-m", "bursar", "agent", "--server", office.url, "--pool", "p1"]
    command += ["--node", "n1", "--gpus", "2xH100", "--state", str(state)]
    with subprocess.Popen(
        command,
        env={**os.environ, "BURSAR_KEY": OverHttp.KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stderr is not None
            assert "cannot be registered now" in program.stderr.readline()
            office.down = False
            assert program.stdout is not None
            assert "ready: node n1 with 2 × H100" in program.stdout.readline()
            program.send_signal(signal.SIGTERM)
            said, _ = program.communicate(timeout=120)
        finally:
            program.kill()

    assert 0 == program.returncode
    assert "running jobs continue" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpus", "8 cards"), "write 8xH100"),
        (("--job-uids", "0-99"), "is no range of user ids"),
        (("--job-uids", "all"), "is no range of user ids"),
        (("--cgroup", "/nowhere"), "/nowhere is not a version 2 cgroup"),
        (("--state", "/proc/nowhere"), "/proc/nowhere cannot be used"),
        (("--server", "http://bursar.example.com"), "without TLS"),
    ],
)
def test_unusable_options_are_refused(
    office: OverHttp, state: Path, options: tuple[str, ...], said: str
) -> None:
    with agent(office, state, *options) as program:
        _, errors = program.communicate(timeout=120)

    assert 2 == program.returncode
    assert said in " ".join(errors.split())


@only_root
def test_agent_that_cannot_isolate_jobs_refuses_unless_that_is_allowed(
    office: OverHttp, state: Path
) -> None:
    """As in a container that has lost its capabilities; the option says what it means (N4)."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv, to give capabilities up")
    powerless = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
    with agent(office, state, prefix=powerless) as program:
        _, errors = program.communicate(timeout=120)
    assert 2 == program.returncode
    said = " ".join(errors.split())
    assert "Jobs cannot be isolated on this machine" in said
    assert "add --allow-unisolated-jobs" in said

    pool = office.pool
    key = pool.enqueue("job", *python("print('hello')"))
    with agent(office, state, "--allow-unisolated-jobs", prefix=powerless):
        eventually(lambda: pool.reports, "a report")
        pool.place(key)
        eventually(lambda: pool.job(key).state is JobState.SUCCEEDED, "the end")
