"""A run over time, and who had which GPU when, on cases worked out by hand."""

from itertools import pairwise
from zlib import decompress

from bursar.core.instant import HOUR, MINUTE
from bursar.core.value import replace
from bursar.sim.fleets import Fleet
from bursar.sim.gantt import COLUMNS, ROWS, gantt
from bursar.sim.timeline import OTHERS, STEPS, TENANTS, Steps, timeline
from tests.support.sim_worlds import fleet, lived, work


def test_steps_show_the_mean_of_their_span() -> None:
    steps = Steps(100, 140, 4)
    steps.add(100, 140, 1)
    steps.add(105, 106, 10)  # within one
    steps.add(118, 135, 10)  # from one through another into a third

    assert [2, 3, 11, 6] == steps.means()


def test_a_run_of_any_length_has_as_many_steps() -> None:
    lines = [timeline(lived(work("one", runs=runs))) for runs in (1, 7, HOUR, HOUR + 1)]

    assert {STEPS} == {len(line["gpus_there"]) for line in lines}
    assert [1] * STEPS == lines[2]["gpus_by_tenant"]["acme"]
    assert HOUR <= lines[3]["step_s"] * STEPS * 1_000_000 < HOUR + STEPS + 1


def test_small_tenants_are_combined() -> None:
    jobs = [work(f"j{n}", runs=HOUR - n * MINUTE, org=f"org{n}") for n in range(8)]
    line = timeline(lived(*jobs))["gpus_by_tenant"]

    assert [*(f"org{n}" for n in range(TENANTS)), OTHERS] == list(line)
    assert [8, 1] == [sum(of[0] for of in line.values()), line[OTHERS][0]]


def test_a_victim_waits_twice() -> None:
    """The first time not at all; then from when it made room until it goes on."""
    jobs = work("old", gpus=8, tier="free"), work("new", gpus=8, tier="enterprise", at=30 * MINUTE)
    line = timeline(lived(*jobs, policy="strict-priority"))

    waited = line["jobs_waiting_by_tier"]["free"]
    assert [0, 1, 0] == [now for before, now in pairwise([-1, *waited]) if now != before]
    assert 3_600 == sum(waited) * line["step_s"]


def rows_of(png: bytes) -> list[bytes]:
    """The rows of a picture, read back from the file."""
    at, packed = 8, b""
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            packed = png[at + 8 : at + 8 + size]
        at += size + 12
    plain = decompress(packed)
    return [plain[row + 1 : row + 1 + COLUMNS] for row in range(0, len(plain), COLUMNS + 1)]


def test_a_gpu_is_a_row_and_a_tenant_a_colour() -> None:
    """Two jobs after each other on one GPU, of two tenants; seven GPUs do nothing."""
    engine = lived(work("a", org="x"), work("b", org="y", at=1, gpus=8), policy="fifo")
    shown = gantt(engine)
    rows = rows_of(shown.png)

    assert (8, 8, ("y", "x")) == (shown.rows, shown.gpus, shown.tenants)
    busy = [row for row in rows if len(set(row)) == 2 and 1 not in row]
    idle = [row for row in rows if 1 in row]
    assert (1, 7) == (len(busy), len(idle))
    [row] = busy
    assert COLUMNS // 2 == row.count(row[0])
    assert {row[-1]} == {one[-1] for one in rows}, "the second job has all GPUs"


def test_absent_node_is_transparent() -> None:
    [group] = fleet().groups
    on = Fleet(groups=(group, replace(group, joins=30 * MINUTE)))
    rows = rows_of(gantt(lived(work("one"), on=on)).png)

    assert 16 == len(rows)
    assert [0, COLUMNS // 2] == sorted({row.count(0) for row in rows})


def test_of_many_gpus_some_are_shown_and_spread_evenly() -> None:
    shown = gantt(lived(work("one"), on=fleet(nodes=100)))

    assert 800 == shown.gpus
    assert 8 * len(shown.nodes) == shown.rows <= ROWS
    assert "H100-0-0000" == shown.nodes[0]
    apart = {int(two[-4:]) - int(one[-4:]) for one, two in pairwise(shown.nodes)}
    assert 1 == len(apart)
