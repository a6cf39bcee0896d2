"""Processes under guards: started once, ended in time, whatever becomes of everybody (S10, S17)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar.agent.clock import running_time
from bursar.agent.local import guard, processes
from bursar.core.dispatch.agent import Process
from bursar.core.dispatch.state import Exit
from bursar.core.instant import MINUTE, SECOND
from bursar.core.scheduling.model.nodes import Piece
from tests.support.agent_node import N1, Bench, is_running, order, python
from tests.support.patience import eventually

SLEEPS = python("import time\nprint('up', flush=True)\ntime.sleep(600)")
WAITS = python("import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)")
SOON = 8 * SECOND  # long enough for a guard to be started on a machine with much else to do
# Saves on SIGUSR1 and on SIGTERM, then ends as its argument says. Handlers of Python can be
# interrupted by each other: they only take note.
SAVES = """
import os, signal, sys, time
asked = []
for number in signal.SIGUSR1, signal.SIGTERM:
    signal.signal(number, lambda number, frame: asked.append(signal.Signals(number).name))
print("up", flush=True)
while True:
    time.sleep(0.01)
    while asked:
        path = os.environ["BURSAR_CHECKPOINT_DIR"] + "/saved"
        open(path + ".new", "w").close()
        os.replace(path + ".new", path)
        names, asked = asked, []
        print("saved on", *sorted(names), flush=True)
        if "SIGTERM" in names:
            sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for fence in bench.processes.table():
        bench.processes.kill(fence)
    for fence in bench.processes.table():
        bench.ended(fence)


@pytest.mark.parametrize(
    ("source", "exit", "code"),
    [
        ("pass", Exit.DONE, 0),
        ("raise SystemExit(3)", Exit.FAILED, 3),
        ("import os; os.kill(os.getpid(), 15)", Exit.FAILED, 128 + 15),
        ("raise SystemExit(75)", Exit.FAILED, 75),
    ],
)
def test_exit_of_a_process_is_recorded(bench: Bench, source: str, exit: Exit, code: int) -> None:
    """Zero is done, all else has failed; a signal counts as shells count it."""
    one = bench.ended(bench.run(order(1, *python(source))))

    assert (exit, code, False) == (one.exit, one.exit_code, one.stopping)


@pytest.mark.parametrize("command", [(), ("no-such-program-here",), (os.devnull,)])
def test_command_that_cannot_be_run_fails_and_logs_why(
    bench: Bench, command: tuple[str, ...]
) -> None:
    fence = bench.run(order(1, *command))
    one = bench.ended(fence)

    assert (Exit.FAILED, 127) == (one.exit, one.exit_code)
    assert "bursar: the command cannot be run: " in bench.log(fence)


def test_run_time_counts_from_start_to_end_of_the_process(bench: Bench) -> None:
    """By the node's running time, not by anything that can be put (M2, N2)."""
    before = running_time()
    one = bench.ended(bench.run(order(1, *python("import time; time.sleep(0.3)"))))
    took = running_time() - before

    assert 300 <= one.run_ms <= took // 1_000
    assert before <= one.started_at
    later = bench.processes.table()[1]
    assert one.run_ms == later.run_ms, "it stays what it was"


def test_run_time_grows_while_a_process_runs(bench: Bench) -> None:
    fence = bench.run(order(1, *SLEEPS))
    bench.begun(fence)
    first = bench.processes.table()[fence]

    assert first.exit is None
    assert eventually(lambda: bench.processes.table()[fence].run_ms > first.run_ms + 100)


def test_log_has_all_output_of_a_process(bench: Bench) -> None:
    source = "import sys; print('out', flush=True); print('err', file=sys.stderr); print('é')"
    fence = bench.run(order(1, *python(source), env=(("PYTHONIOENCODING", "utf-8"),)))
    bench.ended(fence)

    assert ["err", "out", "é"] == sorted(bench.log(fence).split())


def test_log_has_a_limit_and_mentions_it(tmp_path: Path) -> None:
    """The process goes on: what it prints beyond is thrown away."""
    bench = Bench(tmp_path, log_bytes_max=1_000)
    source = "for _ in range(20_000): print('x' * 99)\nopen('finished', 'w')"
    fence = bench.run(order(1, *python(source)))

    assert Exit.DONE is bench.ended(fence).exit
    assert (bench.processes.attempts / "1" / "work" / "finished").exists()
    kept, said = bench.log(fence).split("\nbursar: ")
    assert 1_000 == len(kept)
    assert "the log is full (1000 bytes); later output is dropped\n" == said


def test_process_gets_its_identity_and_gpus(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the job's variables and nothing of the agent's that is not plain (K32)."""
    monkeypatch.setenv("BURSAR_KEY", "a secret")
    source = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.nice(0)]))"
    env = (("MODEL", "large"), ("CUDA_VISIBLE_DEVICES", "0,1,2"), ("BURSAR_FENCE", "99"))
    fence = bench.run(order(7, *python(source), gpus=(2, 5), env=env))
    bench.ended(fence)
    found, cwd, niceness = json.loads(bench.log(fence))
    folder = bench.processes.attempts / "7"

    assert "BURSAR_KEY" not in found
    assert ("large", "2,5", "PCI_BUS_ID") == tuple(
        found[name] for name in ("MODEL", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    )
    assert ("acme", "job", "7", "7", "n1", "n1", "0") == tuple(
        found[f"BURSAR_{name}"]
        for name in ("ORG_ID", "JOB_ID", "ATTEMPT", "FENCE", "NODE", "NODES", "NODE_RANK")
    )
    assert (str(folder / "work"),) * 2 == (cwd, found["HOME"])
    assert os.nice(0) == niceness, "only its guard is in a hurry"


def test_command_is_not_interpreted_by_a_shell(bench: Bench) -> None:
    """Quotes, newlines and dollars arrive as they were sent (K31)."""
    nasty = ("; echo no", "$(echo no)", "a\nb", "-c", "`no`", "é")
    source = "import json, sys; print(json.dumps(sys.argv[1:]))"
    fence = bench.run(order(1, *python(source, *nasty)))
    bench.ended(fence)

    assert list(nasty) == json.loads(bench.log(fence))


def test_all_attempts_share_one_checkpoint_folder(bench: Bench) -> None:
    """And their time is told, in run time of the attempt."""
    path = "import os; path = os.environ['BURSAR_CHECKPOINT_DIR'] + '/saved'\n"
    first = bench.run(order(1, *python(path + "open(path, 'w').write('step 5')")))
    assert bench.ended(first).run_ms >= bench.ended(first).saved_ms
    source = "import time; print(open(path).read(), flush=True); time.sleep(0.3)\n"
    source += "os.utime(path, (4e9, 4e9))  # by a clock that is wrong"
    second = bench.run(order(2, *python(path + source)))
    one = bench.ended(second)

    assert "step 5\n" == bench.log(second)
    assert 300 <= one.saved_ms <= one.run_ms
    third = bench.run(order(3, *python(path)))
    assert 0 == bench.ended(third).saved_ms, "what an earlier attempt saved is not its own"


@pytest.mark.parametrize(
    ("code", "exit"), [(75, Exit.STOPPED), (1, Exit.STOPPED), (143, Exit.STOPPED)]
)
def test_process_saves_its_work_when_asked_to_stop(bench: Bench, code: int, exit: Exit) -> None:
    """SIGUSR1 and SIGTERM at the start of its grace; how it leaves is its own affair."""
    fence = bench.run(order(1, *python(SAVES, str(code))))
    bench.printed(fence, "up")
    ran_ms = bench.processes.table()[fence].run_ms
    bench.processes.stop(fence, running_time() + 10 * MINUTE)
    one = bench.ended(fence)

    assert (exit, code, True) == (one.exit, one.exit_code, one.stopping)
    assert one.run_ms_at_stop is not None, "what it runs from here on we have asked for (M2)"
    assert ran_ms <= one.run_ms_at_stop <= one.run_ms
    told = bench.log(fence)
    assert told.count("SIGTERM") == told.count("SIGUSR1") == 1, told
    assert 0 < one.saved_ms <= one.run_ms


def test_process_that_saves_when_asked_to_stop_is_stopped_even_with_exit_code_0(
    bench: Bench,
) -> None:
    """Many programs leave with 0 when they are terminated; that must not pass for a result."""
    fence = bench.run(order(1, *python(SAVES, "0")))
    bench.printed(fence, "up")
    bench.processes.stop(fence, running_time() + 10 * MINUTE)

    assert Exit.STOPPED is bench.ended(fence).exit


def test_process_that_finishes_when_asked_to_stop_is_done(bench: Bench) -> None:
    source = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("up", flush=True)
        time.sleep(600)
    """
    fence = bench.run(order(1, *python(source)))
    bench.printed(fence, "up")
    bench.processes.stop(fence, running_time() + 10 * MINUTE)

    assert Exit.DONE is bench.ended(fence).exit


def test_process_without_signal_handlers_is_ended_by_sigterm(bench: Bench) -> None:
    """SIGUSR1 would end it as well, before SIGTERM could be handled: it is not sent to it."""
    source = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked\\n") and sys.exit(75))
        print("up", flush=True)
        time.sleep(600)
    """
    fence = bench.run(order(1, *python(source)))
    bench.printed(fence, "up")
    bench.processes.stop(fence, running_time() + 10 * MINUTE)

    assert (Exit.STOPPED, 75) == (bench.ended(fence).exit, bench.ended(fence).exit_code)
    assert "up\nasked\n" == bench.log(fence)


def test_process_that_does_not_stop_is_killed_after_its_grace(bench: Bench) -> None:
    source = """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked\\n"))
        print("up", flush=True)
        while True:
            time.sleep(1)
    """
    fence = bench.run(order(1, *python(source)))
    bench.printed(fence, "up")
    until = running_time() + SECOND
    bench.processes.stop(fence, until)
    # A busy machine may take so long that it is killed before it can speak.
    eventually(lambda: "asked" in bench.log(fence) or bench.processes.table()[fence].exit)
    bench.processes.prolong(fence, until + 10 * MINUTE)  # nobody does; it would not help
    one = bench.ended(fence)

    assert (Exit.KILLED, 128 + 9) == (one.exit, one.exit_code)
    assert one.started_at + one.run_ms * 1_000 >= until - 1_000, "not before"
    assert "its time was up" in bench.log(fence)


def test_checkpoints_are_requested_at_the_interval_of_the_job(bench: Bench) -> None:
    fence = bench.run(order(1, *python(SAVES, "75"), checkpoint_every_ms=600))
    eventually(lambda: bench.log(fence).count("saved on SIGUSR1") >= 2)

    assert eventually(lambda: bench.processes.table()[fence].saved_ms) >= 500


def test_process_is_killed_at_the_end_of_its_lease_without_a_request(bench: Bench) -> None:
    """The guard alone sees to it: no agent is needed (IS7)."""
    until = running_time() + SOON
    fence = bench.run(order(1, *SLEEPS), until=until)
    one = bench.ended(fence)

    assert Exit.KILLED is one.exit
    assert one.started_at + one.run_ms * 1_000 >= until - 1_000


def test_end_of_a_process_can_be_moved_to_later(bench: Bench) -> None:
    """A later one counts, an earlier one does not."""
    fence = bench.run(order(1, *SLEEPS), until=running_time() + 10 * MINUTE)
    bench.printed(fence, "up")
    bench.processes.prolong(fence, running_time())
    first = bench.processes.table()[fence].run_ms
    eventually(lambda: bench.processes.table()[fence].run_ms > first + 1_000)

    assert bench.processes.table()[fence].exit is None
    soon = running_time() + SOON
    brief = bench.run(order(2, *WAITS), until=soon)
    until = running_time() + 10 * MINUTE
    bench.processes.prolong(brief, until)
    assert until == bench.processes.table()[brief].until
    eventually(lambda: running_time() > soon + SECOND, "what was its last instant")
    (bench.begun(brief) / "work" / "go").touch()
    assert Exit.DONE is bench.ended(brief).exit


def test_full_disk_does_not_end_running_processes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked reaches the guard all the same; it is asked again while nobody can see that."""

    def full(path: str, told: object, *, surely: bool = False) -> None:
        raise OSError(28, "no space left")

    stops = bench.run(order(1, *python(SAVES, "75")))
    bench.printed(stops, "up")
    until = running_time() + SOON
    longer = bench.run(order(2, *WAITS), until=until)
    folder = bench.begun(longer)
    monkeypatch.setattr(processes, "write_json", full)
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            bench.processes.prolong(longer, running_time() + 10 * MINUTE)
        with pytest.raises(OSError, match="no space"):
            bench.processes.stop(stops, running_time() + 10 * MINUTE)

    assert (Exit.STOPPED, 1) == (bench.ended(stops).exit, bench.log(stops).count("SIGTERM"))
    eventually(lambda: running_time() > until + SECOND, "what was its last instant")
    (folder / "work" / "go").touch()
    assert Exit.DONE is bench.ended(longer).exit


def test_process_whose_time_is_up_is_not_started(bench: Bench) -> None:
    """An agent may have slept between its decision and the start."""
    fence = bench.run(order(1, *python("open('ran', 'w')")), until=running_time())
    one = bench.ended(fence)

    assert (Exit.KILLED, None, 0) == (one.exit, one.exit_code, one.run_ms)
    assert not (bench.processes.attempts / "1" / "work" / "ran").exists()


def test_process_without_a_lease_is_killed_at_once(bench: Bench) -> None:
    fence = bench.run(order(1, *SLEEPS))
    bench.printed(fence, "up")
    bench.processes.kill(fence)

    assert Exit.KILLED is bench.ended(fence).exit
    assert "its lease was withdrawn" in bench.log(fence)


ESCAPES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("away", flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
while sys.argv[1] == "stays" or not os.path.exists("leave"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("stays", ["stays", "leaves"])
def test_forking_twice_does_not_escape_the_guard(bench: Bench, stays: str) -> None:
    """A session of its own and a dead parent do not help (K32)."""
    mark = f"escapes-{os.getpid()}-{stays}"
    fence = bench.run(order(1, *python(ESCAPES, stays, mark)))
    bench.printed(fence, "away")
    assert is_running(mark)
    if stays == "stays":
        bench.processes.kill(fence)
    else:
        (bench.processes.attempts / str(fence) / "work" / "leave").touch()
    bench.ended(fence)

    assert not is_running(mark)


def test_process_that_uses_too_much_memory_is_killed(bench: Bench) -> None:
    """Of the process and all that it has started; the log says what it was."""
    source = """
        import os, time
        if os.fork() == 0:
            kept = bytearray(150 << 20)
            time.sleep(600)
        os.wait()
    """
    fence = bench.run(order(1, *python(source), memory_mib=120))
    one = bench.ended(fence)

    assert (Exit.FAILED, 128 + 9) == (one.exit, one.exit_code)
    assert "it used too much memory" in bench.log(fence)
    assert "120 MiB allowed" in bench.log(fence)


def test_terminated_guard_lets_its_process_save(bench: Bench) -> None:
    """As when the machine is shut down."""
    fence = bench.run(order(1, *python(SAVES, "75")))
    bench.printed(fence, "up")
    os.kill(guard_of(bench, fence), signal.SIGTERM)

    assert (Exit.STOPPED, 75) == (bench.ended(fence).exit, bench.ended(fence).exit_code)


def guard_of(bench: Bench, fence: int) -> int:
    """The number of a process's guard."""
    folder = str(bench.processes.attempts / str(fence)).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if folder in path.read_bytes().split(b"\0"):
            return int(path.parent.name)
    raise AssertionError("it has no guard")


def test_killed_guard_ends_its_process(bench: Bench) -> None:
    """What that has started is ended by whoever looks; then it is gone."""
    mark = f"orphan-{os.getpid()}"
    fence = bench.run(order(1, *python(ESCAPES, "stays", mark)))
    bench.printed(fence, "away")
    first = json.loads((bench.processes.attempts / "1" / "started.json").read_text())["pid"]
    os.kill(guard_of(bench, fence), signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{first}/task").exists(), "the kernel's own kill")
    one = bench.ended(fence)

    assert (Exit.GONE, None) == (one.exit, one.exit_code)
    assert not is_running(mark)
    assert Exit.GONE is bench.again().ended(fence).exit


def test_restarted_agent_finds_all_processes(bench: Bench) -> None:
    """Running or not, asked to stop or not; and what it asks is heard (F5)."""
    runs = bench.run(order(1, *SLEEPS, gpus=(3,)))
    stops = bench.run(order(2, *python(SAVES, "75")))
    ended = bench.run(order(3, *python("raise SystemExit(4)")))
    bench.printed(runs, "up")
    bench.printed(stops, "up")
    bench.ended(ended)
    bench.processes.prolong(runs, running_time() + 20 * MINUTE)
    bench.processes.stop(stops, running_time() + 5 * MINUTE)
    bench.ended(stops)
    other = bench.again()
    table = other.processes.table()

    assert without_time(bench.processes.table()) == without_time(table)
    assert (None, Piece(N1, (3,), 1), False) == (
        table[runs].exit, table[runs].piece, table[runs].stopping,
    )  # fmt: skip
    assert (Exit.STOPPED, True) == (table[stops].exit, table[stops].stopping)
    assert (Exit.FAILED, 4) == (table[ended].exit, table[ended].exit_code)
    other.processes.kill(runs)
    assert Exit.KILLED is other.ended(runs).exit


def without_time(table: dict[int, Process]) -> list[tuple[object, ...]]:
    return [
        (one.fence, one.piece, one.started_at, one.until, one.stopping, one.exit, one.exit_code)
        for one in table.values()
    ]


def test_processes_from_before_a_reboot_are_gone(bench: Bench) -> None:
    """Its clock counts from zero again; what was noted of it still counts (M4)."""
    fence = bench.run(order(1, *SLEEPS))
    folder = bench.begun(fence)
    eventually((folder / "notes.json").exists)
    bench.processes.kill(fence)
    bench.ended(fence)
    (folder / "exit.json").unlink()
    told = json.loads((folder / "order.json").read_text())
    (folder / "order.json").write_text(json.dumps({**told, "boot": "another"}))
    (folder / "notes.json").write_text(json.dumps({"run_ms": 1234, "saved_ms": 1000}))
    one = bench.again().processes.table()[fence]

    assert (Exit.GONE, 1234, 1000) == (one.exit, one.run_ms, one.saved_ms)


def test_forgotten_process_is_not_in_the_table(bench: Bench) -> None:
    """Its log is kept until it has been sent."""
    fence = bench.run(order(1, *python("print('hello')")))
    bench.ended(fence)
    bench.processes.forget(fence)

    assert {} == bench.processes.table()
    assert {} == bench.again().processes.table()
    assert "hello\n" == (bench.processes.ended / "1" / "log").read_text()


def test_unfinished_attempt_folder_is_removed(bench: Bench) -> None:
    """An agent was killed while it made a folder: nothing has started in it."""
    (bench.processes.attempts / ".5").mkdir()
    bench.again()

    assert [] == list(bench.processes.attempts.iterdir())


def test_attempt_lost_by_the_disk_is_not_in_the_table(bench: Bench) -> None:
    """A machine lost its power while a folder was made: the agent will say that it is gone."""
    (bench.processes.attempts / "5").mkdir()
    (bench.processes.attempts / "5" / "order.json").touch()
    fence = bench.run(order(6, *python("pass")))
    bench.ended(fence)
    for name in ("exit.json", "lock"):
        (bench.processes.attempts / "6" / name).unlink()

    assert {6: Exit.GONE} == {n: one.exit for n, one in bench.again().processes.table().items()}
    (bench.processes.attempts / "5").rename(bench.processes.ended / "5")


def test_result_comes_with_the_exit(bench: Bench) -> None:
    """S9: where outputs are, with checksum and type, or small ones themselves."""
    manifest = [
        {"uri": "s3://models/final", "sha256": "0" * 64, "type": "application/x-tar"},
        {"inline": "loss 0.1", "type": "text/plain"},
    ]
    source = "import os, sys; open(os.environ['BURSAR_RESULT'], 'w').write(sys.argv[1])"
    fence = bench.run(order(1, *python(source, json.dumps(manifest))))
    one = bench.ended(fence)

    assert one.result is not None
    assert manifest == json.loads(one.result)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ('{"uri": "x"}', "outputs"),
        ('[{"uri": "s3://x"}]', "sha256"),
        ('[{"uri": "s3://x", "inline": "y", "sha256": "' + "0" * 64 + '"}]', "inline"),
        ('[{"inline": "y", "inline": "z"}]', "twice"),
        ('[{"inline": "y", "more": 1}]', "more"),
    ],
)
def test_invalid_result_is_ignored_and_the_log_has_the_reason(
    bench: Bench, text: str, why: str
) -> None:
    source = "import os, sys; open(os.environ['BURSAR_RESULT'], 'w').write(sys.argv[1])"
    fence = bench.run(order(1, *python(source, text)))
    one = bench.ended(fence)

    assert (Exit.DONE, None) == (one.exit, one.result)
    assert "the result is ignored" in bench.log(fence)
    assert why in bench.log(fence)


@pytest.mark.parametrize(
    "source",
    [
        "open('small', 'w').write('[]'); os.symlink(os.path.abspath('small'), path)",
        "os.mkfifo(path)",
        "os.mkdir(path)",
        "open(path, 'w').write(' ' * 65537)",
    ],
)
def test_only_a_small_regular_file_is_a_result(bench: Bench, source: str) -> None:
    """A link could lead to what the process may not read itself (K33)."""
    before = "import os, sys; path = os.environ['BURSAR_RESULT']\n"
    one = bench.ended(bench.run(order(1, *python(before + source))))

    assert (Exit.DONE, None) == (one.exit, one.result)
    assert "the result is ignored" in bench.log(1)


BESIDE = ("files", "guard", "kernel", "sandbox", "trees")


def test_guard_imports_few_modules() -> None:
    """One is started for every process: no package of others, of ours what is beside it, and the
    table of failpoints."""
    source = (
        "import sys; sys.path.append(sys.argv[1]); import bursar.agent.local.guard;"
        "print(*sorted(name for name in sys.modules if name.startswith('bursar')));"
        "print([one for one in sys.modules.values() if 'site-packages' in str(one)])"
    )
    here = str(Path(guard.__file__).parents[3])
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source, here],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    ours = "bursar bursar.agent bursar.agent.local"
    beside = " ".join(f"bursar.agent.local.{name}" for name in BESIDE)

    assert [f"{ours} {beside} bursar.failpoints", "[]"] == told.stdout.splitlines()
