"""Recorded demand from tables of any shape."""

import csv
from io import StringIO
from typing import Any

import pytest

from bursar.core.instant import SECOND
from bursar.sim.csv_traces import (
    RecordedLoad,
    TraceError,
    TraceReader,
    columns_of,
    load_from,
    without_comments,
)
from bursar.sim.loads import T0
from bursar.sim.work import Work

TABLE = """\
vc,submitted,seconds,n,who,job
a,2017-10-03 00:00:30,60,1,ann,j2
b,2017-10-03 00:00:00,7.5,16,bob,j1
a,2017-10-03 00:02:00,0,1,ann,never-ran
a,2017-10-03 00:02:00,60,0,ann,no-gpus
"""
MAP = "arrives=submitted,runs=seconds,gpus=n,org=vc,user=who,id=job"


def load(text: str, columns: str, **defaults: Any) -> RecordedLoad:
    reading = TraceReader(columns=columns_of(columns), types=("V100",), node_gpus=8, **defaults)
    return load_from(csv.DictReader(without_comments(StringIO(text))), reading)


def read(text: str, columns: str, **defaults: Any) -> tuple[Work, ...]:
    return load(text, columns, **defaults).works


def test_rows_become_jobs_by_arrival() -> None:
    """From the first on; what has no GPUs or did not run is left out."""
    first, second = read(TABLE, MAP)

    assert ("j1", T0, 7_500_000) == (first.id, first.arrives_at, first.runs)
    assert (2, 8) == (first.shape.tasks, first.shape.gpus)
    assert ("paid", "b", "jobs", "bob") == first.path
    assert ("j2", T0 + 30 * SECOND) == (second.id, second.arrives_at)
    assert 120 * SECOND == second.run_max, "no limit is named: twice the run"
    assert second.estimate is None, "nobody said how long it runs"


def test_seconds_limits_estimates_and_tiers_are_read() -> None:
    table = "arrives,runs,gpus,lim,est,t,p\n100,10,1,15,12,free,3\n90.5,10,1,,,,\n"
    late = read(table, "limit=lim,estimate=est,tier=t,class=p")[1]
    early = read(table, "limit=lim,estimate=est,tier=t,class=p")[0]

    assert (T0, T0 + 9_500_000) == (early.arrives_at, late.arrives_at)
    assert (15 * SECOND, 12 * SECOND) == (late.run_max, late.estimate)
    assert ("free", 3) == (late.tier, late.priority_class)
    assert ("paid", 0, None) == (early.tier, early.priority_class, early.estimate)


@pytest.mark.parametrize(
    ("text", "columns", "told"),
    [
        (TABLE, "runs=seconds,gpus=n", "row 1: there is no column .arrives."),
        (TABLE, "arrives=vc,runs=seconds,gpus=n", "row 1: "),
        (TABLE, "arrives=submitted,colour=vc", "unknown field: colour"),
        (TABLE, "arrives", "not FIELD=COLUMN"),
        ("arrives,runs,gpus\n", "", "no job"),
        ("", "", "no job"),
        ("arrives,runs,gpus\n0,60\n", "", "row 1: it ends before 'gpus'"),
        ("arrives,runs,gpus\n0,soon,1\n", "", "row 1: runs is 'soon', no number of seconds"),
        ("arrives,runs,gpus\n0,inf,1\n", "", "row 1: runs is 'inf'"),
        ("arrives,runs,gpus\n0,60,inf\n", "", "row 1: gpus is 'inf', no number of GPUs"),
        ("arrives,runs,gpus\n0,60,1.5\n", "", "row 1: gpus is '1.5'"),
        ("arrives,runs,gpus\n0,60,1e9\n", "", "row 1: gpus is '1e9'"),
        ("arrives,runs,gpus\nnan,60,1\n", "", "row 1: arrives is 'nan', neither"),
        ("arrives,runs,gpus\n0,60,1\nsoon,60,1\n", "", "row 2: arrives is 'soon', neither"),
        ("arrives,runs,gpus,p\n0,60,1,high\n", "class=p", "row 1: class is 'high', no whole"),
        ("arrives,runs,gpus,p\n0,60,1,-1\n", "class=p", "row 1: class is 0 to"),
    ],
)
def test_rows_that_make_no_job_are_reported(text: str, columns: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        read(text, columns)


def test_times_before_1970_are_read() -> None:
    """Only how far apart jobs came matters."""
    table = "arrives,runs,gpus\n1969-12-31 23:59:50,60,1\n1970-01-01 00:00:05,60,1\n-20,60,1\n"

    assert [T0, T0 + 10 * SECOND, T0 + 25 * SECOND] == [one.arrives_at for one in read(table, "")]


def test_fractional_gpus_types_and_empty_limits_are_read() -> None:
    table = "arrives, runs, gpus,kind,lim\n0, 60, 0.5,A100,-1\n1, 60, 2.0,,0\n2, nan, 1,,\n"
    part, whole = read(table.replace(", ", ","), "type=kind,limit=lim")

    assert (500, 0, ("A100",)) == (part.shape.milli, part.shape.gpus, part.shape.types)
    assert (0, 2, ("V100",)) == (whole.shape.milli, whole.shape.gpus, whole.shape.types)
    assert (120 * SECOND, 120 * SECOND) == (part.run_max, whole.run_max)


def test_checkpoints_are_read_from_columns_or_are_the_default() -> None:
    table = "arrives,runs,gpus,ck,cost\n0,60,1,600,5\n1,60,1,,\n2,60,1,0,\n"
    plain = [work.checkpoint_every for work in read(table, "")]
    every = 30 * SECOND
    works = read(
        table,
        "checkpoint_every=ck,checkpoint_cost=cost",
        checkpoint_every=every,
        checkpoint_cost=SECOND,
    )

    assert [0, 0, 0] == plain
    assert [600 * SECOND, every, 0] == [work.checkpoint_every for work in works]
    assert [5 * SECOND, SECOND, SECOND] == [work.checkpoint_cost for work in works]


@pytest.mark.parametrize(
    ("unit", "factor"), [("us", 1_000_000), ("ms", 1_000), ("ns", 10**9), ("s", 1)]
)
def test_times_have_a_unit(unit: str, factor: int) -> None:
    rows = "".join(f"{at * factor},{60 * factor},1\n" for at in (1_700_000_000, 1_700_000_030))
    works = read(f"t,d,gpus\n{rows}", f"arrives=t:{unit},runs=d:{unit}")

    assert [T0, T0 + 30 * SECOND] == [work.arrives_at for work in works]
    assert {60 * SECOND} == {work.runs for work in works}


def test_microseconds_without_a_unit_are_refused() -> None:
    """Taken for seconds, an hour would be a century, and the fleet idle for nearly all of it."""
    table = "t,runs,gpus\n0,60,1\n3600000000,60,1\n"
    with pytest.raises(TraceError, match=r"over 114.2 years if 't' is in seconds.*arrives=t:us"):
        read(table, "arrives=t")

    assert T0 + 3_600 * SECOND == read(table, "arrives=t:us")[1].arrives_at
    assert T0 + 3_600_000_000 * SECOND == read(table, "arrives=t:s")[1].arrives_at, "it is named"


def test_wrong_time_names_its_unit() -> None:
    with pytest.raises(TraceError, match="row 1: runs is 'soon', no number of milliseconds"):
        read("arrives,runs,gpus\n0,soon,1\n", "runs=runs:ms")


def test_column_name_may_have_a_colon() -> None:
    [work] = read("job:id,arrives,time:spent,gpus\nj1,0,60,1\n", "id=job:id,runs=time:spent")

    assert ("j1", 60 * SECOND) == (work.id, work.runs)


def test_lines_with_a_hash_are_skipped() -> None:
    table = "# a trace of 2017\narrives,runs,gpus\n# the first week\n0,60,1\n1,60,1\n#2,60,1\n"

    assert 2 == len(read(table, ""))


def test_assumed_limits_and_rows_left_out_are_counted() -> None:
    table = "arrives,runs,gpus,lim\n0,60,1,90\n30,60,1,\n40,60,1,0\n50,0,1,9\n"
    figures = load(table, "limit=lim").figures()

    expected = {
        "jobs": 3, "rows_left_out": 1, "span_s": 40.0, "limits_assumed": 2, "limit_by_run": 2.0,
        "with_checkpoints": 0,
    }  # fmt: skip
    assert expected == figures
