"""The scheduler's benchmark, made tiny: each load runs and adds up. No word about speed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import schedule as bench
from benchmarks.__main__ import app
from benchmarks.results import Figure, Load
from benchmarks.schedule import LOADS, core, loads, measure
from benchmarks.schedule.checker import GpuChecker, MeasuredPool, find_starts
from benchmarks.schedule.loads import T0, make_job, make_path, make_shape
from benchmarks.schedule.naive import NaivePlanner
from benchmarks.schedule.sizes import FULL, QUICK
from benchmarks.schedule.streams import BursarScheduler, NaiveScheduler, run_streams
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import SECOND, Instant
from bursar.core.scheduling.decisions import Plan, Preempt, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import StartReason
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace

Planner = Callable[[Cluster, Instant], Plan]


def log(_: str) -> None:
    """Discard progress."""


@pytest.fixture(scope="module")
def measured() -> list[Load]:
    """One tiny run of everything."""
    return measure(QUICK, list(LOADS), log)


@pytest.mark.parametrize("name", LOADS)
def test_every_load_runs_without_problems(name: str, measured: list[Load]) -> None:
    """No GPU is given away twice, no ceiling is passed, everything starts that should (S2)."""
    [load] = [one for one in measured if one.name == name]

    assert [] == load.problems
    assert load.figures
    assert all(one.value > 0 for one in load.figures if one.unit != "%")


def test_gang_that_lacks_a_victim_gets_the_exact_reason(measured: list[Load]) -> None:
    """With the very number of GPUs that are missing (S14)."""
    [load] = [one for one in measured if one.name == "kai-negative"]

    assert any("Missing: 1 GPU" in note and "paid.borrower" in note for note in load.notes)


def test_json_has_every_load(measured: list[Load]) -> None:
    """As plain JSON: figures with units, yardsticks, peers and goals."""
    told = json.loads(json.dumps(bench.as_object(measured, quick=True)))

    assert list(LOADS) == [load["load"] for load in told["loads"]]
    assert told["clean"]
    [first, *_] = told["loads"][2]["figures"]
    assert ("s", "KAI 398 s", "≤ 0.4 s") == (first["unit"], first["peer"], first["goal"])
    assert isinstance(first["goal_met"], bool)
    assert first["ratio"] > 0


def test_table_has_units_yardsticks_and_peers(
    measured: list[Load], capsys: pytest.CaptureFixture[str]
) -> None:
    """With units, yardsticks and the peers' figures."""
    bench.print_table(measured, quick=True)

    told = capsys.readouterr().out
    for word in ("deep-queue", "starts/s", "KAI 398 s", "≤ 0.4 s", "naive", "no problems"):
        assert word in told


def test_only_the_named_loads_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Progress goes to the other stream."""
    assert bench.main(quick=True, json=True, only=["volcano-4"])

    told = capsys.readouterr()
    assert ["volcano-4"] == [load["load"] for load in json.loads(told.out)["loads"]]
    assert "volcano-4: 80 x 1" in told.err


def test_table_has_only_the_named_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(quick=True, only=["kai-negative"])

    assert "KAI 249 s" in capsys.readouterr().out


def test_slow_planner_decides_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often it did is told."""
    monkeypatch.setattr(core, "DECISIONS_MAX_S", 0.0)
    monkeypatch.setattr(core, "DECISIONS_LEAST", 2)

    [load] = measure(QUICK, ["deep-queue"], log)

    assert all("2 GPUs became free" in note for note in load.notes)


# ----------------------------------------------------------------------- wrong decisions


def with_decisions(change: Callable[[Any], Any]) -> Planner:
    """A planner whose decisions are changed before anybody sees them."""

    def plan(cluster: Cluster, now: Instant) -> Plan:
        right = make_plan(cluster, now)
        return replace(right, decisions=tuple(change(list(right.decisions))))

    return plan


WRONG: dict[str, tuple[str, Planner]] = {
    "one job is forgotten": ("kai-fill", with_decisions(lambda all_of: all_of[:-1])),
    "one pod is forgotten": ("volcano-4", with_decisions(lambda all_of: all_of[:-1])),
    "nothing is decided": ("slurm-throughput", with_decisions(lambda _: [])),
    "nothing is decided for those that arrive": ("armada-steady", with_decisions(lambda _: [])),
    "nobody leaves": (
        "kai-reclaim",
        with_decisions(lambda all_of: [one for one in all_of if isinstance(one, Start)]),
    ),
    "the streams stand still": ("kueue-baseline", with_decisions(lambda _: [])),
}


@pytest.mark.parametrize(("name", "planner"), WRONG.values(), ids=WRONG)
def test_load_with_wrong_decisions_fails(
    name: str, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast wrong answer counts as zero."""
    monkeypatch.setattr("benchmarks.schedule.checker.make_plan", planner)

    [load] = measure(QUICK, [name], log)

    assert load.problems


def test_starts_on_a_full_cluster_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pool that is not as full as it should be."""
    deep, array, steady = loads.make_deep_queue, loads.make_array, loads.make_steady

    def with_room(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **more: Any) -> Any:
            snapshot = make(*given, **more)
            waiting = snapshot.waiting or (make_job("w", make_path("queue0"), make_shape()),)
            return replace(snapshot, running=snapshot.running[1:], waiting=waiting)

        return made

    monkeypatch.setattr(loads, "make_deep_queue", with_room(deep))
    monkeypatch.setattr(loads, "make_array", with_room(array))
    monkeypatch.setattr(loads, "make_steady", with_room(steady))
    for load in measure(QUICK, ["armada-steady", "slurm-throughput", "deep-queue"], log):
        assert load.problems, load.name


def test_gang_that_starts_without_legal_victims_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reclaiming = loads.make_reclaim
    monkeypatch.setattr(
        loads,
        "make_reclaim",
        lambda count, asks, of, protected: reclaiming(count, asks, of, protected=protected - 1),
    )
    [load] = measure(QUICK, ["kai-negative"], log)

    assert any("decisions where none is right" in problem for problem in load.problems)


def test_second_round_that_decides_something_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the jobs that were left out at first."""
    plans = iter((lambda all_of: all_of[:-1], lambda all_of: all_of))
    monkeypatch.setattr(
        "benchmarks.schedule.checker.make_plan",
        lambda cluster, now: with_decisions(next(plans))(cluster, now),
    )
    told = Load(name="kai-fill", what="")
    core._measure_fill(loads.make_fill(2, 0), told)

    assert ["15 of 16 jobs start", "a second round decides something"] == told.problems


def test_superfluous_victim_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A victim is chosen only if its GPUs are needed."""
    more = Preempt(
        job=JobId("r000015"), wanted_by=JobId("ask00000"), right="floor", lost=0, stops_at=T0
    )
    changed = with_decisions(lambda all_of: [more, *all_of] if len(all_of) > 1 else all_of)
    monkeypatch.setattr("benchmarks.schedule.checker.make_plan", changed)
    told = Load(name="kai-reclaim", what="")
    core._measure_reclaim(loads.make_reclaim(2, 1, make_shape()), told)

    assert ["2 victims for 1 of 1 jobs"] == told.problems


def test_victims_without_a_start_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who asked has to start once they have left."""
    kept = with_decisions(lambda all_of: [one for one in all_of if not isinstance(one, Start)])
    monkeypatch.setattr("benchmarks.schedule.checker.make_plan", kept)
    told = Load(name="kai-reclaim", what="")
    core._measure_reclaim(loads.make_reclaim(2, 1, make_shape()), told)

    assert ["0 of 1 jobs start once the victims have left"] == told.problems


def test_victim_in_the_streams_runs_again_from_the_beginning() -> None:
    """At once, and the one it was asked for starts in its place."""
    load = loads.make_reclaim(1, 0, make_shape())
    pool = MeasuredPool(replace(load, running=()))
    borrowers = [(T0, replace(one.job, queued_at=T0), 10 * SECOND) for one in load.running]
    owner = make_job("ask", make_path("entitled"), make_shape(), queued_at=T0 + SECOND)

    went = run_streams(BursarScheduler(pool), [*borrowers, (T0 + SECOND, owner, 2 * SECOND)])

    assert (9, 1, 13.0) == (went.ended, went.stopped, went.makespan_s)
    assert {0: 0.0} == went.waits_s
    assert [] == pool.checker.problems


# ----------------------------------------------------------------------- those who look on


def test_checker_reports_a_gpu_that_is_given_away_twice() -> None:
    snapshot = loads.make_fill(1, 0)
    watch = GpuChecker(snapshot)
    first, second, *_ = snapshot.waiting
    piece = Piece(NodeId("n00000"), (3,), 1)

    watch.start(first, (piece,))
    assert [] == watch.problems
    watch.start(second, (piece,))
    assert ["j000001 has 1 GPUs of others: ('n00000', 3)"] == watch.problems


def test_checker_reports_a_job_that_runs_twice_or_lacks_gpus() -> None:
    watch = GpuChecker(loads.make_fill(1, 0))
    gang = make_job("gang", make_path("team"), make_shape(2))

    watch.start(gang, (Piece(NodeId("n00000"), (0,), 1),))
    watch.start(gang, (Piece(NodeId("n00000"), (1, 2), 1),))

    assert ["gang has 1 GPUs, not what it requested", "gang runs twice"] == watch.problems


def test_checker_reports_an_exceeded_ceiling() -> None:
    watch = GpuChecker(loads.make_fill(1, 1))
    hopeless = make_job("z", make_path("zero"), make_shape())

    watch.start(hopeless, (Piece(NodeId("n00000"), (0,), 1),))
    watch.check_ceilings()
    assert ["paid/zero has 1 GPUs of 0"] == watch.problems

    watch.end(hopeless.id)
    watch.check_ceilings()
    assert (1, 0) == (len(watch.problems), watch.gpus)


def test_checker_counts_what_the_planner_starts() -> None:
    pool = MeasuredPool(loads.make_fill(2, 3))
    plan = pool.round(T0)

    assert 16 == len(find_starts(plan)) == pool.checker.gpus
    pool.end(find_starts(plan)[0].job)
    assert 15 == pool.checker.gpus


# ----------------------------------------------------------------------- the yardstick


def test_naive_planner_starts_what_fits_by_class_and_age() -> None:
    """The first nodes that take all tasks; whoever does not fit waits."""
    snapshot = loads.make_pods(1, 16)
    urgent = replace(make_job("urgent", make_path("team"), make_shape(9)), priority_class=1)
    naive = NaivePlanner(replace(snapshot, waiting=(*snapshot.waiting, urgent)))
    naive.waiting.append(
        make_job("small", make_path("team"), make_shape(1, 8), queued_at=T0 + SECOND)
    )

    assert ["urgent"] == [one.id for one in naive.round()]
    assert [0, 7] == naive.free
    naive.end(JobId("urgent"))
    assert ["j00000"] == [one.id for one in naive.round()]
    assert ["small"] == [one.id for one in naive.waiting]


def test_naive_planner_respects_ceilings_and_takes_lent_gpus() -> None:
    naive = NaivePlanner(loads.make_fill(1, 2))
    assert 8 == len(naive.round())
    assert ["z000000", "z000001"] == [one.id for one in naive.waiting]

    taken = NaivePlanner(loads.make_fill(1, 1))
    taken.waiting.reverse()
    assert "z000000" not in {one.id for one in taken.round()}

    lent = loads.make_reclaim(2, 1, make_shape(2, 8))
    assert 0 == len(NaivePlanner(lent).round())
    assert 1 == len(NaivePlanner(lent, core.BORROWER).round())


def test_naive_planner_runs_the_streams_to_their_end() -> None:
    load = QUICK.baseline
    went = run_streams(
        NaiveScheduler(NaivePlanner(loads.make_groups(load))), loads.list_arrivals(load)
    )

    assert load.jobs == went.ended
    assert went.makespan_s >= load.ideal_s


# ----------------------------------------------------------------------- sizes and figures


def test_loads_are_as_large_as_published() -> None:
    """Jobs, GPUs, and how long they take at the least."""
    told = [(one.jobs, one.gpus, round(one.ideal_s)) for one in (FULL.baseline, FULL.large)]

    assert [(15_000, 600, 66), (50_000, 20_000, 4)] == told
    shares = dict(loads.make_groups(FULL.baseline).policy.shares)
    group, queue = shares["paid", "group04"], shares["paid", "group04", "queue005"]
    assert (((ANY_TYPE, 120),), ((ANY_TYPE, 120),)) == (group.floor, group.ceiling)
    assert (((ANY_TYPE, 20),), ((ANY_TYPE, 100),)) == (queue.floor, queue.ceiling)
    assert {10_000} == {jobs * tasks for jobs, tasks in FULL.pods}
    assert 200 == len(set(loads.SHAPES))


def test_figure_states_its_goal_and_whether_it_is_met() -> None:
    def met(*, most: float | None = None, least: float | None = None) -> bool | None:
        return Figure(what="", value=2.0, unit="s", most=most, least=least).met

    assert [None, True, False] == [met(), met(most=2), met(most=1.9)]
    assert [True, False, False] == [met(least=2), met(least=2.1), met(least=1, most=1)]
    assert "≥ 1,000 s, ≤ 2 s" == Figure(what="", value=0, unit="s", most=2, least=1_000).goal
    assert "elsewhere" == Figure(what="", value=0, unit="s", other_goal="elsewhere").goal
    assert 0.5 == Figure(what="", value=2, unit="s", yardstick_value=4).ratio


def test_table_marks_a_load_with_problems_as_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure(what="all", value=200, unit="s", most=500)
    broken = Load(name="kai-fill", what="", figures=[figure], problems=["twice"])
    bench.print_table([broken], quick=False)

    told = capsys.readouterr().out
    assert "WRONG" in told
    assert "twice" in told


# ----------------------------------------------------------------------- the command


@pytest.mark.parametrize(("clean", "status"), [(True, 0), (False, 1)])
def test_exit_status_is_1_if_a_decision_was_wrong(
    clean: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "main", lambda **_: clean)

    told = CliRunner().invoke(app, ["schedule", "--core", "--only", "kai-fill, volcano-4"])

    assert status == told.exit_code


def test_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "main", interrupted)

    assert 130 == CliRunner().invoke(app, ["schedule", "--core"]).exit_code


@pytest.mark.parametrize("given", [["--core", "--only", "kai-fill,kai-full"], []])
def test_unknown_loads_and_missing_options_are_refused(given: list[str]) -> None:
    told = CliRunner().invoke(app, ["schedule", *given])

    assert 2 == told.exit_code
    assert ("kai-negative" if given else "--core") in told.output


def test_find_starts_leaves_out_preemptions() -> None:
    """Starts are told from the decisions that make room."""
    start = Start(job=JobId("a"), gpu_type="H100", pieces=(), why=StartReason.TURN)
    leave = Preempt(job=JobId("b"), wanted_by=JobId("a"), right="floor", lost=0, stops_at=T0)

    plan = Plan(at=T0, decisions=(leave, start), waits=(), complete=True, steps=0)
    assert [start] == find_starts(plan)
