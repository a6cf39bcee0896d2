"""Recorded demand from tables of any shape."""

import csv
from io import StringIO

import pytest

from bursar.core.instant import SECOND
from bursar.sim.csv_traces import TraceError, TraceReader, columns_of, works_from
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


def read(text: str, columns: str) -> tuple[Work, ...]:
    reading = TraceReader(columns=columns_of(columns), types=("V100",), node_gpus=8)
    return works_from(csv.DictReader(StringIO(text)), reading)


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
        (TABLE, "arrives=submitted,colour=vc", "no such part: colour"),
        (TABLE, "arrives", "not what=column"),
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
def test_what_makes_no_job_is_told(text: str, columns: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        read(text, columns)


def test_what_happened_before_1970_is_as_good() -> None:
    """Only how far apart jobs came matters."""
    table = "arrives,runs,gpus\n1969-12-31 23:59:50,60,1\n1970-01-01 00:00:05,60,1\n-20,60,1\n"

    assert [T0, T0 + 10 * SECOND, T0 + 25 * SECOND] == [one.arrives_at for one in read(table, "")]


def test_parts_of_gpus_types_and_limits_of_nothing_are_read() -> None:
    table = "arrives, runs, gpus,kind,lim\n0, 60, 0.5,A100,-1\n1, 60, 2.0,,0\n2, nan, 1,,\n"
    part, whole = read(table.replace(", ", ","), "type=kind,limit=lim")

    assert (500, 0, ("A100",)) == (part.shape.milli, part.shape.gpus, part.shape.types)
    assert (0, 2, ("V100",)) == (whole.shape.milli, whole.shape.gpus, whole.shape.types)
    assert (120 * SECOND, 120 * SECOND) == (part.run_max, whole.run_max)
