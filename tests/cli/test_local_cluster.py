"""What runs beside a service on one machine: nodes, children, and the jobs of a demonstration."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from bursar.cli.local_cluster.children import ChildProgram, Children
from bursar.cli.local_cluster.demo_load import programs
from bursar.cli.local_cluster.demo_load.mix import HABITS, DemoJob, TenantHabit
from bursar.cli.local_cluster.demo_load.sender import TenantKeys, format_keys, load_keys
from bursar.cli.local_cluster.launcher import remove_checkpoints
from bursar.cli.local_cluster.nodes import (
    DEMO_NODES,
    NODES_MAX,
    LocalNode,
    checkpoint_folder,
    describe_nodes,
    parse_nodes,
)
from bursar.cli.local_cluster.provisioning import LocalProvisioner
from bursar.cli.sample_data import ORGS, PRICES
from bursar.client import Client
from bursar.core.budgets.tiers import TIERS
from bursar.core.dispatch.node_orders import NodeOrder, ProviderReply
from bursar.core.ids import NodeId
from bursar.core.money import CREDIT, usage_price
from bursar.core.scheduling.model.nodes import Node as Machine
from bursar.service.pools.provisioning import NotDone
from bursar.wire.fields import IdFactory
from bursar.wire.jobs import JobRequest
from tests.support.patience import PATIENCE_S, eventually


def runs(pid: int) -> bool:
    """Whether a process is there, and not merely unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Nodes


def test_nodes_are_parsed() -> None:
    assert (
        LocalNode("h100-1", 8, "H100", memory_gib=80),
        LocalNode("h100-2", 8, "H100", memory_gib=80),
        LocalNode("k80-1", 4, "K80"),
        LocalNode("h100-3", 1, "H100", memory_gib=80),
    ) == parse_nodes("2x8xH100, 4xK80,1xH100")
    assert "2 with 8 H100 each, 2 with 8 A100 each" == describe_nodes(parse_nodes(DEMO_NODES))
    assert "1 with 4 L40S" == describe_nodes(parse_nodes("4xL40S"))


@pytest.mark.parametrize(
    "text",
    ["", "H100", "8", "0x8xH100", "2x0xH100", "8xH100,", "2x8xH/100", f"{NODES_MAX + 1}x1xL4"],
)
def test_invalid_nodes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 2x8xH100|the maximum is 32"):
        parse_nodes(text)


# Children


def program(folder: Path, name: str = "one", code: str = "") -> ChildProgram:
    """A program that leaves its number, and stays."""
    text = (
        f"import os, time; open({str(folder / name)!r}, 'a').write(f'{{os.getpid()}}\\n'); {code}"
    )
    return ChildProgram(
        name=name,
        arguments=("-I", "-S", "-c", f"{text}\ntime.sleep(600)"),
        environment={"GIVEN": "this"},
        log=folder / "logs" / f"{name}.log",
    )


def numbers(folder: Path, name: str = "one") -> list[int]:
    """The numbers of all that were started, in turn."""
    try:
        return [int(line) for line in (folder / name).read_text().splitlines()]
    except FileNotFoundError:
        return []


@contextmanager
def kept(*all: ChildProgram) -> Iterator[Children]:
    """Programs that run for a while."""
    children = Children(all)
    children.start()
    try:
        yield children
    finally:
        children.wait()


def test_exited_program_is_restarted_and_all_stop_with_the_parent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with kept(program(tmp_path), program(tmp_path, "other")):
        eventually(lambda: len(numbers(tmp_path)) == 1, "it is started")
        first = numbers(tmp_path)[0]
        assert os.getpgid(first) != os.getpgid(0), "Ctrl-C in our terminal must not reach it"
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len(numbers(tmp_path)) == 2, "it is started again")
        eventually(lambda: len(numbers(tmp_path, "other")) == 1, "the other runs")

    assert "one exited with status -9 and will be restarted; see" in capfd.readouterr().err
    assert not [pid for pid in (*numbers(tmp_path), *numbers(tmp_path, "other")) if runs(pid)]
    assert 1 == len(numbers(tmp_path, "other")), "who did not end is left alone"


def test_child_does_not_inherit_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets its own key, and what we have in our environment but for what is the service's."""
    monkeypatch.setenv("BURSAR_SECRET_KEY", "s" * 32)
    monkeypatch.setenv("BURSAR_DATABASE_URL", "postgresql://somewhere")
    monkeypatch.setenv("HARMLESS", "that")
    with kept(program(tmp_path, code="print(sorted(os.environ.items()), flush=True)")):
        log = tmp_path / "logs" / "one.log"
        eventually(lambda: log.exists() and log.read_text().endswith("\n"), "it has said it")

    told = log.read_text()
    assert "('GIVEN', 'this')" in told
    assert "('HARMLESS', 'that')" in told
    assert "BURSAR_SECRET_KEY" not in told
    assert "BURSAR_DATABASE_URL" not in told
    assert 0o600 == log.stat().st_mode & 0o777


def test_children_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    """The kernel sees to it: nobody of us is left to."""
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tests.cli.test_local_cluster import program\n"
        "from bursar.cli.local_cluster.children import Children\n"
        "Children([program(Path(sys.argv[1]))]).start()\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as parent:
        try:
            eventually(lambda: bool(numbers(tmp_path)), "it is started")
            child = numbers(tmp_path)[0]
            assert runs(child)
        finally:
            parent.kill()
    eventually(lambda: not runs(child), "it has ended")


# Jobs


def draws(habit: TenantHabit, seed: str, count: int = 500) -> list[DemoJob]:
    chance = Random(seed)
    return [habit.draw(chance) for _ in range(count)]


def test_same_seed_gives_the_same_demo_jobs() -> None:
    for habit in HABITS:
        assert draws(habit, "1") == draws(habit, "1")
        assert draws(habit, "1") != draws(habit, "2")


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.org)
def test_every_demo_job_is_valid_and_fits_a_node(habit: TenantHabit) -> None:
    """As the HTTP interface reads it, in a project that its org has."""
    [org] = [one for one in ORGS if one.name == habit.org]
    projects = {project for projects in org.teams.values() for project in projects}
    for wish in draws(habit, "1"):
        assert wish.project in projects
        ask = JobRequest.model_validate(wish.body(org.account(wish.project), org.users[0]))
        ask.to_command(IdFactory(org.id, "key", 0), org.users[0], None)
        assert ask.spec().shape.tasks == wish.nodes
        assert wish.gpus // wish.nodes <= 8
        assert set(wish.types) <= set(PRICES)


def test_demo_load_has_every_kind_of_job() -> None:
    """Gangs, whole nodes, urgent ones, checkpoints and none, failures, changes of mind, too little
    time, and more than a budget allows."""
    wishes = [wish for habit in HABITS for wish in draws(habit, "1")]
    seen = Counter[str]()
    for wish in wishes:
        seen["gang"] += wish.nodes > 1
        seen["whole node"] += wish.gpus == 8
        seen["urgent"] += wish.priority_class > 0 and not wish.preemptible
        seen["checkpoints"] += wish.checkpoint_s is not None
        seen["none"] += wish.checkpoint_s is None
        seen["fails"] += "exit 3" in wish.command[-1]
        seen["changes its mind"] += wish.cancel_after_s is not None
        seen["too little time"] += wish.max_s < wish.expected_s
        seen["more than its budget"] += wish.name == "all night"

    assert not [what for what, count in seen.items() if count < 10], seen


def test_demo_has_three_tenants_in_three_tiers() -> None:
    assert set(TIERS) == {org.tier for org in ORGS}
    assert {org.name for org in ORGS} == {habit.org for habit in HABITS}


def test_a_day_of_small_jobs_is_within_the_budgets_of_the_free_tier() -> None:
    """Else its tenant would be shut out from noon on."""
    [org] = [one for one in ORGS if one.tier == "free"]
    [budget] = TIERS["free"]
    hourly = usage_price(org.own_prices["A100"], 1_000, 3_600_000)

    assert 24 * org.rolling_limit <= len(org.users) * budget.limit
    assert org.rolling_limit > hourly, "at least a GPU all the time"
    assert usage_price(org.own_prices["A100"], 8_000, 8 * 3_600_000) > org.rolling_limit, (
        "no whole night"
    )
    assert org.purchase >= CREDIT


def test_keys_survive_a_round_trip_through_their_file(tmp_path: Path) -> None:
    keys = {"one": TenantKeys("a", "b"), "two": TenantKeys("c", "d")}
    (tmp_path / "keys").write_text(format_keys(keys))

    assert keys == load_keys(tmp_path / "keys")


def test_old_checkpoints_of_the_demo_are_removed(tmp_path: Path) -> None:
    """And no others: whose jobs they are of may want them."""
    root, hour = checkpoint_folder(tmp_path), 3_600
    ours, theirs = root / ORGS[0].id, root / "another org"
    for folder in (ours / "old", ours / "new", theirs / "old"):
        folder.mkdir(parents=True)
        (folder / "saved").touch()
    for folder in (ours / "old", theirs / "old"):
        os.utime(folder, (time.time() - hour, time.time() - hour))
    remove_checkpoints(tmp_path, time.time() - hour / 2)

    assert [ours / "new"] == list(ours.iterdir())
    assert [theirs / "old"] == list(theirs.iterdir())


# Programs


def environment(folder: Path) -> dict[str, str]:
    """What an agent gives to a process."""
    return {
        "BURSAR_NODE": "n1",
        "BURSAR_NODE_RANK": "0",
        "BURSAR_ATTEMPT": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "BURSAR_CHECKPOINT_DIR": str(folder),
        "BURSAR_PROGRESS": str(folder / "progress"),
        "BURSAR_RESULT": str(folder / "result.json"),
    }


def test_training_saves_when_asked_to_stop_and_resumes(tmp_path: Path) -> None:
    given = environment(tmp_path)
    with subprocess.Popen(
        programs.train_command(10_000), env=given, stdout=subprocess.PIPE
    ) as first:
        eventually((tmp_path / "progress").exists, "it has begun")
        first.terminate()
        assert 1 == first.wait(PATIENCE_S)
    saved = int((tmp_path / "step.0").read_text())
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "result.json").exists()
    more = programs.train_command(saved + 2)
    told = subprocess.run(more, env=given, capture_output=True, text=True, check=True)

    assert saved > 0
    assert f"attempt 1 on n1, GPUs 0,1 from step {saved}\n" in told.stdout
    assert "1.0" == (tmp_path / "progress").read_text()
    assert "loss" == json.loads((tmp_path / "result.json").read_text())[0]["name"]


def test_processes_of_a_gang_save_together(tmp_path: Path) -> None:
    """All its processes tell of a checkpoint in one folder, at the same time, again and again."""
    gang = []
    for rank in range(4):
        given = {**environment(tmp_path), "BURSAR_NODE_RANK": str(rank)}
        given["BURSAR_PROGRESS"] += str(rank)
        gang.append(
            subprocess.Popen(programs.train_command(10_000), env=given, stdout=subprocess.DEVNULL)
        )
    eventually(lambda: 4 == len([*tmp_path.glob("progress?")]), "all have begun")
    for _ in range(3):
        (tmp_path / "saved").unlink(missing_ok=True)
        for one in gang:
            one.send_signal(signal.SIGUSR1)
        eventually((tmp_path / "saved").exists, "a checkpoint")
    assert [None] * 4 == [one.poll() for one in gang]
    for one in gang:
        one.terminate()

    assert [1] * 4 == [one.wait(PATIENCE_S) for one in gang], "and they say that they were asked"
    assert {f"step.{rank}" for rank in range(4)} <= {path.name for path in tmp_path.iterdir()}


def test_search_writes_no_checkpoint_and_failing_program_fails(tmp_path: Path) -> None:
    told = subprocess.run(programs.sweep_command(1), capture_output=True, text=True, check=True)
    failed = subprocess.run(
        programs.failing_command(0), capture_output=True, text=True, check=False
    )

    assert "trial 0\n" == told.stdout
    assert 3 == failed.returncode
    assert [] == list(tmp_path.iterdir())


# Nodes that come and go


def test_children_can_be_added_and_removed_later(tmp_path: Path) -> None:
    """One is started when its time has come, once; asked to go, it is not started again."""
    mark = tmp_path / "began"
    sleeper = "import sys, time; open(sys.argv[1], 'a').write('x'); time.sleep(600)"
    program = ChildProgram(
        name="late",
        arguments=("-I", "-S", "-c", sleeper, str(mark)),
        environment={},
        log=tmp_path / "log",
    )
    never = ChildProgram(name="never", arguments=("-c", ""), environment={}, log=tmp_path / "never")
    children = Children([])
    children.start()
    try:
        children.add(never, after_s=600.0)
        children.add(program, after_s=0.1)
        children.add(program)
        assert {"late", "never"} == children.names()
        eventually(lambda: mark.exists() and mark.read_text() == "x", "it has begun")
        assert children.remove("nobody")
        eventually(lambda: children.remove("never"), "one that never began is gone")
        assert not children.remove("late")
        eventually(lambda: children.remove("late"), "it has ended")
        assert frozenset() == children.names()
    finally:
        children.wait()
    assert "x" == mark.read_text()


def test_child_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bursar.cli.local_cluster.children.STOP_TIMEOUT_S", 0.2)
    mark = tmp_path / "began"
    deaf = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(sys.argv[1], 'w').close(); time.sleep(600)"
    )
    arguments = ("-I", "-S", "-c", deaf, str(mark))
    program = ChildProgram(name="deaf", arguments=arguments, environment={}, log=tmp_path / "log")
    children = Children([program])
    children.start()
    try:
        eventually(mark.exists, "it has begun")
        eventually(lambda: children.remove("deaf"), "it was killed")
    finally:
        children.wait()


def test_local_provisioner_accepts_orders_once_the_service_answers(tmp_path: Path) -> None:
    order = NodeOrder(
        id="1", offer="h100", node=Machine(id=NodeId("h100-1"), gpu_type="H100", gpus=8),
        price=0, ordered_at=0, ready_by=0, give_up_at=0,
    )  # fmt: skip
    made_up = LocalProvisioner(tmp_path)
    for question in (made_up.order, made_up.remove):
        with pytest.raises(NotDone, match="still starting"):
            question("main", order)
    with pytest.raises(NotDone):
        made_up.listed("main")

    def nobody() -> Client:
        return Client("http://127.0.0.1:9", "key", tries=1)

    made_up.start(Children([]), nobody)
    with pytest.raises(NotDone):
        made_up.order("main", order)
    assert frozenset() == made_up.listed("main")
    assert (ProviderReply.REMOVED, "") == made_up.remove("main", order)
