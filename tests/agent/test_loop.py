"""A whole node against the rules of a pool: real processes, lost messages, agents that die."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bursar.agent.local.processes import LocalBackend
from bursar.agent.loop import (
    IN_FLIGHT_MAX,
    RESULTS_BYTES_MAX,
    AgentLoop,
    _SentReport,
    limit_results,
)
from bursar.agent.state_dir import StateDir
from bursar.agent.transport import NoAnswer, Transport
from bursar.core.dispatch.agent import Process
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.reports import LeaseOrders, NodeReport
from bursar.core.dispatch.state import Exit, JobKey
from bursar.core.instant import HOUR, MILLISECOND
from bursar.core.messages import Cause
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace
from tests.support.agent_node import N1, python, settings, shared_file
from tests.support.agent_pool import InMemory, RealPool, is_news
from tests.support.patience import eventually

EVERY = 200 * MILLISECOND
# Counts to ten, one step in each file; begins after the last that is there.
RESUMES = """
import os, signal, sys, time
here = os.environ["BURSAR_CHECKPOINT_DIR"]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
step = int(open(here + "/step").read()) if os.path.exists(here + "/step") else 0
print("from", step, flush=True)
while step < 10:
    time.sleep(0.05)
    step += 1
    if step == 5 and not os.path.exists(here + "/go"):
        while not asked:
            time.sleep(0.01)
    if asked:
        open(here + "/step", "w").write(str(step))
        open(here + "/saved", "w").close()
        sys.exit(75)
open(os.environ["BURSAR_RESULT"], "w").write('[{"inline": "10"}]')
"""


@contextmanager
def agent(
    folder: Path, transport: Transport, every: int = EVERY, *, writable: tuple[Path, ...] = ()
) -> Iterator[LocalBackend]:
    """An agent that works on a node until the end of the block; what it runs goes on."""
    stopped = threading.Event()
    with StateDir(folder, "p1", N1) as disk:
        processes = LocalBackend(settings(disk.folder, writable=writable))
        running = AgentLoop(
            N1, disk, processes, transport, interval_us=every, random_fraction=lambda: 0.5
        )
        thread = threading.Thread(target=running.run, args=(stopped,))
        thread.start()
        try:
            yield processes
        finally:
            stopped.set()
            thread.join()


@pytest.fixture
def pool() -> RealPool:
    return RealPool()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    processes = LocalBackend(settings(tmp_path))
    for fence in processes.table():
        processes.kill(fence)
    eventually(lambda: all(one.exit for one in processes.table().values()))


def heard(pool: RealPool) -> None:
    eventually(lambda: pool.reports, "a report")


def until(pool: RealPool, key: JobKey, *states: JobState) -> None:
    eventually(lambda: pool.job(key).state in states, f"{states} of {pool.job(key)}")


def test_change_of_a_process_and_the_end_of_an_outage_are_signalled(
    pool: RealPool, folder: Path
) -> None:
    """The last lines of a log are sent at once, not at the end of an interval."""
    changes: list[str] = []
    with StateDir(folder, "p1", N1) as disk:
        processes = LocalBackend(settings(disk.folder))
        loop = AgentLoop(
            N1, disk, processes, InMemory(pool), on_change=lambda: changes.append("change")
        )
        loop._handle_answer(_SentReport(1, may_wait=False), NoAnswer("down"))
        assert [] == changes
        loop._handle_answer(_SentReport(2, may_wait=False), None)
        assert ["change"] == changes
        table = {1: Process(fence=1, piece=Piece(N1, (0,), 1), started_at=0, until=1, run_ms=5)}
        loop._send_report(table)
        loop._send_report(table)
        assert ["change"] * 2 == changes
        loop._send_report({1: replace(table[1], exit=Exit.DONE)})
    assert ["change"] * 3 == changes


def test_job_runs_and_its_result_is_reported(pool: RealPool, folder: Path) -> None:
    """S9, S10: from its lease to its end, with code and manifest; then the node forgets it."""
    source = """
        import os
        open(os.environ["BURSAR_RESULT"], "w").write('[{"inline": "42", "type": "text/plain"}]')
    """
    with agent(folder, InMemory(pool)) as processes:
        heard(pool)
        key = pool.enqueue("job", *python(source))
        pool.place(key)
        until(pool, key, JobState.SUCCEEDED)
        eventually(lambda: not processes.table(), "an empty table")
    (end,) = pool.ends(key)

    assert (Cause.FINISHED, 0, '[{"inline": "42", "type": "text/plain"}]', True) == (
        end.why, end.exit_code, end.result, end.job_finished,
    )  # fmt: skip


def test_failed_job_is_reported_with_its_exit_code(pool: RealPool, folder: Path) -> None:
    with agent(folder, InMemory(pool)):
        heard(pool)
        key = pool.enqueue("job", *python("raise SystemExit(9)"))
        pool.place(key)
        until(pool, key, JobState.FAILED)
    (end,) = pool.ends(key)

    assert (Cause.FAILED, 9, None) == (end.why, end.exit_code, end.result)


def test_preempted_job_resumes_from_its_checkpoint(pool: RealPool, folder: Path) -> None:
    """It is asked to stop, saves, waits, and resumes: what it had saved is kept (M3)."""
    with agent(folder, InMemory(pool)):
        heard(pool)
        key = pool.enqueue("job", *python(RESUMES))
        first = pool.place(key)
        until(pool, key, JobState.RUNNING)
        eventually(lambda: "from 0" in log(folder, first), "a start")
        pool.preempt(key)
        until(pool, key, JobState.QUEUED)
        (folder / "checkpoints" / "acme" / "job" / "go").touch()
        pool.place(key)
        until(pool, key, JobState.SUCCEEDED)
    stopped, finished = pool.ends(key)

    assert (Cause.PREEMPTED, 75, False) == (stopped.why, stopped.exit_code, stopped.job_finished)
    assert stopped.kept_ms is None or stopped.kept_ms > 0
    assert (Cause.FINISHED, '[{"inline": "10"}]') == (finished.why, finished.result)


def log(folder: Path, fence: object) -> str:
    for kind in ("attempts", "ended"):
        path = folder / kind / str(fence) / "log"
        if path.exists():
            return path.read_text()
    return ""


def test_cancelled_job_is_stopped(pool: RealPool, folder: Path) -> None:
    with agent(folder, InMemory(pool)):
        heard(pool)
        key = pool.enqueue("job", *python("import time; time.sleep(600)"))
        pool.place(key)
        until(pool, key, JobState.RUNNING)
        pool.withdraw(key)
        until(pool, key, JobState.CANCELLED)

    assert [Cause.CANCELLED] == [end.why for end in pool.ends(key)]


APPENDS = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(os.environ["BURSAR_FENCE"] + "\\n")
time.sleep(0.3)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_each_attempt_starts_once_whatever_messages_are_lost(
    pool: RealPool, folder: Path, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A third of all reports and of all answers get lost; every job finishes at last (IS3)."""
    starts = shared_file(tmp_path_factory.mktemp("starts"))
    keys = [pool.enqueue(f"job{n}", *python(APPENDS, str(starts))) for n in range(6)]
    with agent(folder, InMemory(pool, lost=0.33, seed=seed), writable=(starts.parent,)):
        heard(pool)
        eventually(lambda: placed_until_finished(pool, keys), "the end of all")
    fences = starts.read_text().split()

    assert len(keys) <= len(fences) == len(set(fences))
    finished = [one for key in keys for one in pool.ends(key) if one.why is Cause.FINISHED]
    assert len(keys) == len(finished)


def placed_until_finished(pool: RealPool, keys: list[JobKey]) -> bool:
    """Play the scheduler: whoever waits gets one of two GPUs."""
    for n, key in enumerate(keys):
        if pool.job(key).state is JobState.QUEUED:
            pool.place(key, n % 2)
    return all(pool.job(key).state is JobState.SUCCEEDED for key in keys)


def test_restarted_agent_takes_over_running_processes(
    pool: RealPool, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One attempt, one start, one end, although two agents saw to it (F5)."""
    starts = shared_file(tmp_path_factory.mktemp("starts"))
    source = APPENDS.replace("time.sleep(0.3)", "while not os.path.exists('go'): time.sleep(0.02)")
    with agent(folder, InMemory(pool), writable=(starts.parent,)):
        heard(pool)
        key = pool.enqueue("job", *python(source, str(starts)))
        fence = pool.place(key)
        until(pool, key, JobState.RUNNING)
    with agent(folder, InMemory(pool)):
        eventually(lambda: {1, 2} == {told.boot for told in pool.reports}, "a second agent")
        (folder / "attempts" / str(fence) / "work" / "go").touch()
        until(pool, key, JobState.SUCCEEDED)

    assert 1 == len(starts.read_text().split())
    assert [Cause.FINISHED] == [end.why for end in pool.ends(key)]


def test_older_fence_is_not_started(pool: RealPool, folder: Path) -> None:
    """Whoever has begun a later one says that it is gone (IS6)."""
    with StateDir(folder, "p1", N1) as disk:
        disk.remember_fence(5)
    with agent(folder, InMemory(pool)) as processes:
        heard(pool)
        key = pool.enqueue("job", *python("pass"))
        assert 1 == pool.place(key)
        until(pool, key, JobState.QUEUED)
        assert {} == processes.table()

    assert [Cause.LOST] == [end.why for end in pool.ends(key)]


def test_start_and_end_are_reported_at_once(pool: RealPool, folder: Path) -> None:
    """However long it is until the next report would go out by itself."""
    with StateDir(folder, "p1", N1) as disk:
        pool.take(NodeReport(node=N1, boot=disk.count_start(), number=1, at=0, answered_at=None))
    key = pool.enqueue("job", *python("pass"))
    pool.place(key)
    with agent(folder, InMemory(pool), every=HOUR):
        until(pool, key, JobState.SUCCEEDED)


class Scripted:
    """A way to the pool that does as it is told."""

    def __init__(self, does: Callable[[NodeReport, int], LeaseOrders | None]) -> None:
        self.does = does
        self.waits: list[int] = []

    def exchange(self, told: NodeReport, wait_ms: int) -> LeaseOrders | None:
        self.waits.append(wait_ms)
        return self.does(told, wait_ms)


def test_reports_continue_while_the_pool_does_not_answer(pool: RealPool, folder: Path) -> None:
    """However it fails; and the pool is not asked to wait until it answers again."""
    failures = [*[RuntimeError("a bug")] * IN_FLIGHT_MAX, NoAnswer("gone"), NoAnswer("gone")]

    def fails_first(told: NodeReport, wait_ms: int) -> LeaseOrders | None:
        if failures:
            raise failures.pop()
        return pool.take(told)

    transport = Scripted(fails_first)
    with agent(folder, transport):
        eventually(lambda: len(pool.reports) >= 2 and transport.waits[-1] > 0)

    assert EVERY // MILLISECOND == transport.waits[0]
    assert 0 in transport.waits
    assert [] == failures


def test_missing_answer_does_not_delay_reports(pool: RealPool, folder: Path) -> None:
    """Later reports go out beside it; what comes late is not followed."""
    silent = threading.Event()

    def first_hangs(told: NodeReport, wait_ms: int) -> LeaseOrders | None:
        orders = pool.take(told)
        if told.number == 1:
            silent.wait(60)
        return orders

    key = pool.enqueue("job", *python("import time; time.sleep(600)"))
    with agent(folder, Scripted(first_hangs)) as processes:
        heard(pool)
        pool.place(key)
        until(pool, key, JobState.RUNNING)
        silent.set()  # the old answer knows of no lease: it must not end the process
        time.sleep(0.5)
        assert [None] == [one.exit for one in processes.table().values()]


def test_long_polls_do_not_delay_reports(pool: RealPool, folder: Path) -> None:
    """A pool may keep every answer that it may keep: starts and ends are told nevertheless."""
    over = threading.Event()

    def keeps(told: NodeReport, wait_ms: int) -> LeaseOrders | None:
        orders = pool.take(told)
        if wait_ms and (orders is None or not is_news(orders, told)):
            over.wait(60)
        return orders

    keys = [pool.enqueue(f"job{n}", *python("import time; time.sleep(0.3)")) for n in range(4)]
    with agent(folder, Scripted(keeps)):
        heard(pool)
        eventually(lambda: placed_until_finished(pool, keys), "the end of all")
        over.set()


def test_pool_that_ignores_reports_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that came back without its disk would never be heard."""
    with agent(folder, Scripted(lambda told, wait_ms: None)):
        eventually(lambda: "--reset" in caplog.text)


def test_nothing_starts_on_a_full_disk(
    pool: RealPool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fence that cannot be kept is not started; the pool hears that it is gone."""

    def full(self: StateDir, fence: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(StateDir, "remember_fence", full)
    with agent(folder, InMemory(pool)) as processes:
        heard(pool)
        key = pool.enqueue("job", *python("pass"))
        pool.place(key)
        until(pool, key, JobState.QUEUED)
        assert {} == processes.table()

    assert [Cause.LOST] == [end.why for end in pool.ends(key)]


def test_results_that_do_not_fit_follow_in_a_later_report() -> None:
    """No report is too long for the pool; who has to wait seems to run for a little longer."""
    half = "x" * (RESULTS_BYTES_MAX // 2)
    table = {
        fence: Process(
            fence=fence, piece=Piece(N1, (0,), 1), started_at=0, until=1, run_ms=5,
            exit=Exit.DONE, exit_code=0, result=half if fence < 4 else None,
        )
        for fence in (1, 2, 3, 4)
    }  # fmt: skip
    told = limit_results(table)

    assert [Exit.DONE, Exit.DONE, None, Exit.DONE] == [told[n].exit for n in (1, 2, 3, 4)]
    assert (None, None, 5) == (told[3].result, told[3].exit_code, told[3].run_ms)
    del table[1]
    assert table == limit_results(table)
