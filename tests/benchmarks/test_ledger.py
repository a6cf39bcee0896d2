"""The ledger's benchmark, made tiny: each load runs and its books add up. No word about speed."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from typer.testing import CliRunner

from benchmarks import ledger as bench
from benchmarks.__main__ import app
from benchmarks.ledger import LOADS, LedgerResults, measure
from benchmarks.ledger.callers import STEPS, NullLedger, UnitSource, measure_latency, measure_peak
from benchmarks.ledger.orgs import make_orgs
from benchmarks.ledger.sizes import SPREAD, LedgerSizes
from benchmarks.ledger.throughput import LedgerWorkload
from benchmarks.results import Figure, Load, is_clean
from bursar.core.ledger.commands import Command
from bursar.service.database import Database, ScratchDatabase, scratch_database
from bursar.service.ledger.audit import orgs_of, rebuild, verify
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Busy

TINY = LedgerSizes(
    seconds=0.3,
    warm_s=0.1,
    scale=1,
    plain_accounts=100,
    spread_orgs=4,
    many_orgs=6,
    grants=(10, 20, 40),
    rounds=2,
    reads=5,
    attempts=12,
    per_call=4,
    rebuild_orgs=3,
    rebuild_events=100,
    transactions=2,
)


def log(_: str) -> None:
    """Discard progress."""


@pytest.fixture
def database(database_url: str) -> Iterator[ScratchDatabase]:
    """A database of a load's own."""
    with scratch_database(Database(database_url, None), "bursar_test_bench") as made:
        yield made


@pytest.fixture(scope="module")
def measured(database_url: str) -> LedgerResults:
    """One tiny run of everything."""
    return measure(Database(database_url, None), TINY, list(LOADS), log)


@pytest.mark.slow
def test_every_load_runs_and_its_books_add_up(measured: LedgerResults) -> None:
    """Verified at its end, each with figures, each yardstick beside it."""
    assert list(LOADS) == [load.name for load in measured.loads]
    assert {"T(8)", "T(64)", "P", "P-hot"} == set(measured.yardsticks)
    assert 0 < min(measured.yardsticks.values())
    for load in measured.loads:
        assert [] == load.problems
        assert load.figures, load.name
        assert 0 < min(one.value for one in load.figures if not one.what.startswith("dropped"))
    assert is_clean(measured.loads)


@pytest.mark.slow
def test_callers_in_two_processes_are_compared_with_one_process(measured: LedgerResults) -> None:
    """The same load, and the figure of one process is its yardstick."""
    figures = {figure.what: figure for figure in measured.loads[0].figures}

    one, two = figures["64 callers"], figures["64 callers in 2 processes"]
    assert (one.value, one.unit) == (two.yardstick_value, two.unit)
    assert two.ratio is not None


@pytest.mark.slow
def test_json_has_every_load(measured: LedgerResults) -> None:
    """As plain JSON: figures with units, goals, and whether the books add up."""
    told = json.loads(json.dumps(measured.as_object(quick=True)))

    assert list(LOADS) == [load["load"] for load in told["loads"]]
    assert told["clean"]
    assert told["generator_cpu_us_per_command"] > 0
    [first, *_] = told["loads"][1]["figures"]
    assert ("commands/s", "P-hot") == (first["unit"], first["yardstick"])
    assert isinstance(first["goal_met"], bool)


@pytest.mark.slow
def test_table_has_every_load_and_yardstick(
    measured: LedgerResults, capsys: pytest.CaptureFixture[str]
) -> None:
    """With units, yardsticks and what asking costs."""
    measured.print()

    told = capsys.readouterr().out
    for word in (*LOADS, "commands/s", "events/s", "P-hot", "callers use", "no problems"):
        assert word in told


@pytest.mark.slow
def test_only_the_named_loads_run(capsys: pytest.CaptureFixture[str]) -> None:
    """On a database that is gone afterwards; progress goes to the other stream."""
    assert bench.main(json=True, only=["L-rebuild"], sizes=TINY)

    told = capsys.readouterr()
    assert ["L-rebuild"] == [load["load"] for load in json.loads(told.out)["loads"]]
    assert {} == json.loads(told.out)["yardsticks"], "it needs none"
    assert "L-rebuild: verify" in told.err


def test_copies_of_an_org_pass_verify_and_rebuild(database: ScratchDatabase) -> None:
    """Their tables add up and follow from their events."""
    orgs = make_orgs(database, 3, SPREAD)

    with database.connect(timeouts=None) as connection:
        assert () == verify(connection)
        stored = orgs_of(connection)
    assert orgs == list(stored)
    assert 1 == len(set(stored.values()))
    assert [()] * 3 == [one.differences for one in rebuild(database.url, stored, 1)]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("update grants set spent = spent + 1, amount = amount + 1", "grant"),
        ("delete from requests where key like 'run-1-1/%'", "answers were returned"),
    ],
)
def test_load_with_inconsistent_books_fails(
    database: ScratchDatabase, damage: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fast wrong answer counts as zero."""
    load = Load(name="L-hot", what="")
    working = LedgerWorkload(load, database, TINY, log)
    found = working.measure_peak(make_orgs(database, 2, SPREAD), SPREAD, callers=4)
    working.check()
    assert [] == load.problems, "before the damage"

    with database.connect() as connection:
        connection.execute(damage.encode())
    working.check()

    assert any(complaint in problem for problem in load.problems)
    load.figures.append(
        Figure(what="4 callers", value=found.per_second, unit="commands/s", least=0)
    )
    broken = LedgerResults([load], {}, 0.0)
    assert not is_clean(broken.loads)
    broken.print()
    assert "WRONG" in capsys.readouterr().out


def test_processes_are_measured_once_all_are_warm(database: ScratchDatabase) -> None:
    """Each under keys of its own, on the same orgs; what is answered is stored."""
    load = Load(name="L-spread", what="")
    working = LedgerWorkload(load, database, TINY, log)
    found = working.measure_processes(make_orgs(database, 2, SPREAD), SPREAD, callers=4)
    working.check()
    assert [] == load.problems

    sql = """
        select key like '%warm%', min(at), max(at), count(*),
               count(distinct split_part(key, '-', 3))
          from requests where key like 'run-%' group by 1 order by 1
    """
    with database.connect() as connection:
        [counted, warm] = connection.execute(sql).fetchall()
    assert warm[2] <= counted[1], "one was counted while the other was not warm yet"
    assert (found.commands, 2) == counted[3:]


@pytest.mark.parametrize(("clean", "status"), [(True, 0), (False, 1)])
def test_exit_status_is_1_if_books_do_not_add_up(
    clean: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "main", lambda **_: clean)

    told = CliRunner().invoke(app, ["ledger", "--only", "L-hot, L-grants"])

    assert status == told.exit_code


def test_http_option_runs_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "main", lambda only, **_: list(only) == ["L-http"])

    told = CliRunner().invoke(app, ["ledger", "--http"])

    assert 0 == told.exit_code


def test_unknown_load_is_refused() -> None:
    told = CliRunner().invoke(app, ["ledger", "--only", "L-hot,L-cold"])

    assert 2 == told.exit_code
    assert "L-cold" in told.output
    assert "L-spread" in told.output, "it tells which there are"


class Desk:
    """Answers everything with nothing at once; but it may be late at first, or full."""

    def __init__(self, *, late_s: float = 0.0, busy_after: int | None = None) -> None:
        self.asked: list[str] = []
        self._late_s = late_s
        self._busy_after = busy_after
        self._door = threading.Lock()

    def submit(self, org: str, key: str, command: Command) -> "Future[Answer]":
        with self._door:
            if self._busy_after is not None and len(self.asked) >= self._busy_after:
                raise Busy("enough")
            first = not self.asked
            self.asked.append(key)
        answer: Future[Answer] = Future()
        if first:
            time.sleep(self._late_s)  # whoever comes next has to wait for that
        answer.set_result(Answer(command=command, outcome=(), number=0, replayed=False))
        return answer


class Listener(NullLedger):
    """Answers everything with nothing, and writes down what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def submit(self, org: str, key: str, command: Command) -> "Future[Answer]":
        self.asked.append(key)
        return super().submit(org, key, command)


def test_callers_send_the_steps_of_a_unit_in_order_with_separate_keys() -> None:
    listener = Listener()

    found = measure_peak(listener, UnitSource("w", ["org"], 3), callers=1, seconds=0.05)
    listener.close()

    assert len(listener.asked) == found.commands == len(set(listener.asked))
    assert [f"w-1/{step}" for step in range(STEPS)] == listener.asked[:STEPS]
    assert 0 == found.failed


def test_latency_counts_from_when_the_command_was_due() -> None:
    """Not from when it could be asked at last: the others were due while the first took long."""
    told = measure_latency(Desk(late_s=0.4), UnitSource("w", ["org"], 3), rate=500, seconds=0.2)

    assert 0 == told.dropped
    assert told.ms(0.5) > 100, "half of them waited for the first"


def test_rejected_commands_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that could not follow from it."""
    monkeypatch.setattr("benchmarks.ledger.callers.LAST_ANSWER_TIMEOUT_S", 0.1)
    desk = Desk(busy_after=7)

    told = measure_latency(desk, UnitSource("w", ["org"], 3), rate=500, seconds=0.2)

    assert 7 == len(told.times) == len(desk.asked)
    assert told.dropped > 0
    assert 0 == (told.dropped + len(told.times)) % STEPS
