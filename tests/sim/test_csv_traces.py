"""Recorded demand from tables of any shape."""

import csv
from io import StringIO

import pytest

from bursar.core.instant import SECOND
from bursar.sim.csv_traces import Reading, TraceWrong, columns_of, works_from
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
    reading = Reading(columns=columns_of(columns), types=("V100",), node_gpus=8)
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
        (TABLE, "runs=seconds,gpus=n", "row 1 has no column 'arrives'"),
        (TABLE, "arrives=vc,runs=seconds,gpus=n", "row 1: "),
        (TABLE, "arrives=submitted,colour=vc", "no such part: colour"),
        (TABLE, "arrives", "not what=column"),
        ("arrives,runs,gpus\n", "", "no job"),
    ],
)
def test_what_makes_no_job_is_told(text: str, columns: str, told: str) -> None:
    with pytest.raises(TraceWrong, match=told):
        read(text, columns)
