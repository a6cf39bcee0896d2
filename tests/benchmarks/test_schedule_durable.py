"""The scheduler's benchmark through the database, made tiny: each load runs, and what is wrong is
seen. No word about speed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.results import Figure, Load
from benchmarks.schedule import durable as bench
from benchmarks.schedule import loads
from benchmarks.schedule.durable import LOADS, idle, measure
from benchmarks.schedule.durable import deployment as worlds
from benchmarks.schedule.durable.deployment import (
    Deployment,
    LoadSetup,
    LoadTimeout,
    deploy,
    insert_root_account,
    simulate_nodes,
)
from benchmarks.schedule.durable.measurements import make_setup
from benchmarks.schedule.durable.nodes import FOREVER, SimulatedNodes
from benchmarks.schedule.loads import make_job, make_path, make_shape
from benchmarks.schedule.sizes import QUICK
from bursar.core.dispatch.reports import LeaseOrder, LeaseOrders
from bursar.core.ids import JobId, NodeId
from bursar.core.messages import Program
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace
from bursar.service.database import Database

N0 = NodeId("n00000")


def log(_: str) -> None:
    """Discard progress."""


@pytest.fixture(scope="module")
def server(database_url: str) -> Database:
    """The server that the loads make databases on."""
    return Database(database_url, None)


@pytest.fixture(scope="module")
def measured(server: Database) -> list[Load]:
    """One tiny run of everything."""
    return measure(server, QUICK, list(LOADS), log)


@pytest.mark.slow
def test_every_load_runs_without_problems(measured: list[Load]) -> None:
    """Each job ends once, in its pool and in its org's books, and nothing is left over (D4)."""
    assert list(LOADS) == [load.name for load in measured]
    for load in measured:
        assert [] == load.problems, load.name
        assert load.figures, load.name
        assert 0 < min(one.value for one in load.figures)


@pytest.mark.slow
def test_json_and_table_have_every_load(
    measured: list[Load], capsys: pytest.CaptureFixture[str]
) -> None:
    """With peers, goals, and our figures as multiples of the peers'."""
    told = json.loads(json.dumps(bench.as_object(measured, quick=True)))
    assert ("schedule-durable", True) == (told["benchmark"], told["clean"])
    [first, *_] = told["loads"][2]["figures"]
    assert ("s", "KAI 398 s", "≤ 1.5 s") == (first["unit"], first["peer"], first["goal"])
    assert first["ratio_to_peer"] > 0

    bench.print_table(measured, quick=True)
    shown = capsys.readouterr().out
    for word in ("--durable --quick", "to peer", "Slurm 230/s", "p99", "no problems"):
        assert word in shown
    assert "naive" not in shown


# ----------------------------------------------------------------------- what is wrong is seen


TWO = tuple(make_job(f"j{number}", make_path("team"), make_shape()) for number in range(2))
SETTING = make_setup(loads.make_pods(8, 1), TWO)


@pytest.fixture
def world(server: Database) -> Iterator[Deployment]:
    """A deployment with one node of eight GPUs, which is silent."""
    with deploy(server, SETTING) as found:
        yield found


def run(world: Deployment, *jobs: Job) -> SimulatedNodes:
    """Nodes that have run these jobs to their end."""
    world.submit([(0.0, one) for one in jobs], 0.0)
    with simulate_nodes(world, SETTING, lambda _: 0) as nodes:
        world.await_all("succeeded", len(jobs))
    return nodes


def problems(world: Deployment) -> list[str]:
    """What a check finds."""
    load = Load(name="", what="")
    world.check(load)
    return load.problems


def test_job_that_has_not_run_is_reported(world: Deployment) -> None:
    """Unless it is one that cannot."""
    run(world, TWO[0])
    assert [] == problems(world)

    world.submit_one_by_one(TWO[1:], 1)
    assert ["team j1: queued, 0 ends"] == problems(world)
    load = Load(name="", what="")
    world.check(load, [TWO[1].id])
    assert [] == load.problems


def test_job_that_has_ended_twice_is_reported(world: Deployment) -> None:
    """Two attempts cannot both have come to the job's own end."""
    run(world, TWO[0])
    world.connection.execute(
        """
        insert into leases (pool_id, fence, org_id, job_id, attempt, gpu_type, leased_at,
                            run_ms_max, report_interval_ms, reported_ms, clamped, ended_at,
                            reportable_until, why)
        select pool_id, fence + 1, org_id, job_id, attempt + 1, gpu_type, leased_at,
               run_ms_max, report_interval_ms, reported_ms, clamped, ended_at, reportable_until, why
          from leases
        """
    )
    assert "team j0: succeeded, 2 ends" in problems(world)


def test_inconsistent_books_are_reported(world: Deployment) -> None:
    """Although all jobs have run."""
    run(world, *TWO)
    world.connection.execute("update grants set available = available - 1, held = held + 1")

    assert problems(world)


def test_refused_submission_is_reported(world: Deployment) -> None:
    """Whether the rules log no or the ledger fails."""
    world.submit_one_by_one([make_job("j9", make_path("team", "nobody"), make_shape())], 1)
    world.submit_one_by_one([make_job("j8", make_path("strangers"), make_shape())], 1)

    refused, failed = problems(world)
    assert refused.startswith("refused: ")
    assert failed.startswith("failed: OrgUnknown")


def test_gpu_that_is_given_away_twice_is_reported(world: Deployment) -> None:
    """By the node itself."""
    nodes = simulate_nodes(world, SETTING, lambda _: FOREVER)
    machine = nodes._machines[N0]
    first, second = (_order(fence, gpus) for fence, gpus in ((1, (0, 1)), (2, (1, 2))))
    nodes._begin(machine, first, FOREVER, 0)
    assert [] == nodes.problems

    nodes._begin(machine, second, FOREVER, 0)
    assert ["GPU 1 of n00000 was given away twice"] == nodes.problems


def test_lost_lease_is_reported(world: Deployment) -> None:
    """Because it was not renewed, or because another answer came without it."""
    nodes = simulate_nodes(world, SETTING, lambda _: FOREVER)
    machine = nodes._machines[N0]
    nodes._begin(machine, _order(1, (0,)), 5, 0)
    nodes._end(machine, 1, 5)
    assert ["lease 1 was not renewed in time"] == nodes.problems

    nodes._begin(machine, _order(2, (1,)), FOREVER, 5)
    machine.report = nodes._make_report(machine, 6)
    nodes._handle_answer(machine, LeaseOrders(node=N0, boot=1, number=1, at=6))
    assert "lease 2 was lost while its job ran" == nodes.problems[-1]
    nodes._handle_answer(machine, None)
    assert "a report of n00000 was not taken" == nodes.problems[-1]


def _order(fence: int, gpus: tuple[int, ...]) -> LeaseOrder:
    return LeaseOrder(
        fence=fence, org="team", job=JobId(f"j{fence}"), attempt=1, piece=Piece(N0, gpus, 1),
        ttl_us=FOREVER, run_ms_max=FOREVER, program=Program(), nodes=(N0,),
    )  # fmt: skip


def test_victim_runs_again(server: Database) -> None:
    """A lender's GPU is given back, and the borrower's job ends once all the same (M3)."""
    lent = loads.make_reclaim(1, 1, make_shape())
    borrowers = [replace(one.job, queued_at=0) for one in lent.running]
    setting = make_setup(lent, [*borrowers, *lent.waiting])
    with (
        deploy(server, setting) as world,
        simulate_nodes(world, setting, lambda _: FOREVER) as nodes,
    ):
        world.submit([(0.0, one) for one in borrowers], 0.0)
        world.await_all("running", 8)
        world.submit([(0.0, one) for one in lent.waiting], 0.0)
        nodes.await_starts(9)
        nodes.end_all()
        world.await_all("succeeded", 9)
        assert [] == problems(world)
    assert (1, []) == (nodes.preemptions, nodes.problems)


def test_timeout_of_a_load_states_the_progress(
    world: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "LOAD_TIMEOUT_S", 0.0)
    world.submit([(0.0, one) for one in TWO], 0.0)

    with pytest.raises(LoadTimeout, match=r"2 jobs running; \{'queued': 2\}"):
        world.await_all("running", 2)


# ----------------------------------------------------------------------- settings and figures


def test_shares_of_queues_are_below_the_root_account() -> None:
    """The account of a queue is below its org's own."""
    snapshot = loads.make_groups(QUICK.baseline)
    found = [path for path, _ in insert_root_account(snapshot.policy).shares]

    assert [("paid", "group00"), ("paid", "group00", "org", "queue000")] == found[:2]
    assert len(snapshot.policy.shares) == len(found)


def test_orgs_have_the_accounts_of_their_jobs() -> None:
    jobs = [
        make_job("a", make_path("x", "one"), make_shape()),
        make_job("b", make_path("y", "two"), make_shape()),
    ]
    jobs.append(make_job("c", make_path("x", "three"), make_shape()))

    told = make_setup(loads.make_pods(1, 1), jobs)
    assert LoadSetup(loads.make_pods(1, 1), {"x": ("one", "three"), "y": ("two",)}) == told


def test_idle_figures_are_p50_and_p99() -> None:
    """The middle one, and the one that one in a hundred is slower than."""
    middle, slow = idle.make_figures([number / 1_000 for number in range(200, 0, -1)])

    assert (101, 199) == (round(middle.value), round(slow.value))
    assert (None, True) == (middle.met, slow.met)
    assert 2.0 == Figure(what="", value=4, unit="s", peer_value=2).ratio_to_peer
    assert Figure(what="", value=4, unit="s").ratio_to_peer is None


# ----------------------------------------------------------------------- the command


@pytest.mark.parametrize(("clean", "status"), [(True, 0), (False, 1)])
def test_exit_status_is_1_if_a_load_has_problems(
    clean: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def main(**given: object) -> bool:
        asked.update(given)
        return clean

    monkeypatch.setattr(bench, "main", main)
    told = CliRunner().invoke(app, ["schedule", "--durable", "--quick", "--only", "kai-fill, idle"])

    assert status == told.exit_code
    assert {"quick": True, "json": False, "only": ["kai-fill", "idle"], "state": None} == asked


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (LoadTimeout("not reached"), 2)]
)
def test_interrupt_and_timeout_have_exit_statuses(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(**_: object) -> bool:
        raise error

    monkeypatch.setattr(bench, "main", main)
    assert status == CliRunner().invoke(app, ["schedule", "--durable"]).exit_code


@pytest.mark.parametrize("given", [["--durable", "--core"], ["--durable", "--only", "kai-full"]])
def test_unknown_loads_and_conflicting_options_are_refused(given: list[str]) -> None:
    assert 2 == CliRunner().invoke(app, ["schedule", *given]).exit_code


@pytest.mark.slow
def test_command_prints_a_table_or_one_json_object(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress goes to the other stream."""
    monkeypatch.setenv("BURSAR_DATABASE_URL", database_url)
    assert bench.main(quick=True, json=True, only=["idle"])
    told = capsys.readouterr()
    assert ["idle"] == [load["load"] for load in json.loads(told.out)["loads"]]
    assert "idle: 5 jobs" in told.err

    assert bench.main(quick=True, only=["idle"])
    assert "submit to running, p50" in capsys.readouterr().out
