"""The well-known policies on one node of eight GPUs, worked out by hand."""

import pytest

from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.value import replace
from tests.support.sim_worlds import ended, fleet, life, lived, work

NO_GRACE = replace(PoolPolicy(), preemption_grace=0)
A_QUEUE = (
    work("a", gpus=6, runs=HOUR),
    work("b", gpus=8, runs=HOUR, at=SECOND),
    work("c", gpus=2, runs=10 * MINUTE, at=2 * SECOND),
    work("d", gpus=8, runs=30 * MINUTE, at=3 * SECOND),
)


@pytest.mark.parametrize(
    ("policy", "want"),
    [
        ("fifo", {"a": 3_600, "b": 7_200, "c": 7_800, "d": 9_600}),
        ("fifo-backfill", {"a": 3_600, "b": 7_200, "c": 602, "d": 9_000}),
        ("sjf", {"a": 3_600, "b": 9_000, "c": 602, "d": 5_400}),
    ],
)
def test_without_preemption_the_order_alone_decides(policy: str, want: dict[str, int]) -> None:
    assert want == ended(lived(*A_QUEUE, policy=policy))


def test_shortest_remaining_time_preempts_the_longer_job() -> None:
    """It had an hour to go, a job of ten minutes comes: that is done first, nothing is lost."""
    jobs = (
        work("long", gpus=8, runs=2 * HOUR, checkpoint_every=SECOND),
        work("short", gpus=1, runs=10 * MINUTE, at=HOUR),
        work("longer", gpus=8, runs=3 * HOUR, at=HOUR),
    )
    rules = replace(NO_GRACE, preemption_grace=SECOND)
    engine = lived(*jobs, policy="srtf", rules=rules)

    assert {"long": 7_200 + 600, "longer": 7_800 + 10_800, "short": 4_200} == ended(engine)


def test_srsf_weights_time_by_gpus() -> None:
    """Eight GPUs for 20 minutes are more than one for an hour, though they end sooner."""
    jobs = (
        work("wide", gpus=8, runs=20 * MINUTE, at=SECOND),
        work("slim", gpus=1, runs=HOUR, at=SECOND),
    )

    assert {"slim": 3_601, "wide": 4_801} == ended(lived(*jobs, policy="srsf"))
    assert {"slim": 4_801, "wide": 1_201} == ended(lived(*jobs, policy="srtf"))


def test_least_attained_service_starts_a_new_job_without_estimates() -> None:
    old = work("old", gpus=8, runs=HOUR, told=False, checkpoint_every=SECOND)
    new = work("new", gpus=8, runs=MINUTE, told=False, at=30 * MINUTE)
    engine = lived(old, new, policy="las")

    assert 1 == life(engine, "old").preemptions
    assert 1_860 == ended(engine)["new"]


def test_two_jobs_without_checkpoints_do_not_alternate_forever() -> None:
    """Work that was lost counts as attained."""
    jobs = [work(name, gpus=8, runs=HOUR, told=False, at=n) for n, name in enumerate("ab")]
    engine = lived(*jobs, policy="las")

    assert {"a", "b"} == set(ended(engine))
    assert sum(life(engine, name).preemptions for name in "ab") <= 16


def test_dominant_share_goes_by_weight() -> None:
    """Of eight GPUs the org of weight 3 gets six."""
    jobs = [work(f"{org}{n}", org=org, at=n) for n in range(8) for org in ("x", "y")]
    rules = replace(PoolPolicy(), shares=((("paid", "x"), Share(weight=3)),))
    first = work("all", gpus=8, org="z", runs=MINUTE)
    engine = lived(first, *(replace(one, arrives_at=one.arrives_at + SECOND) for one in jobs),
                   policy="drf", rules=rules)  # fmt: skip

    at_once = [name[0] for name, at in ended(engine).items() if at == 3_660]
    assert ["x"] * 6 + ["y"] * 2 == sorted(at_once)


def test_strict_priority_never_preempts_equals() -> None:
    jobs = (work("a", gpus=8), work("b", gpus=8, at=MINUTE))

    assert {"a": 3_600, "b": 7_200} == ended(lived(*jobs, policy="strict-priority"))


def test_the_latest_started_is_preempted_and_no_unnecessary_victim() -> None:
    """For two GPUs the last in order goes; for six the wide one, and the last can stay."""
    rules = NO_GRACE
    running = [
        work("a-wide", gpus=6, tier="free"),
        work("b-last", gpus=2, tier="free"),
    ]
    for gpus, want in ((2, (0, 1)), (6, (1, 0)), (8, (1, 1))):
        new = work("new", gpus=gpus, tier="enterprise", at=MINUTE, runs=MINUTE)
        engine = lived(*running, new, policy="strict-priority", rules=rules)
        left = life(engine, "a-wide").preemptions, life(engine, "b-last").preemptions
        assert want == left, gpus
        assert 120 == ended(engine)["new"]


def test_a_gang_clears_as_many_nodes_as_it_needs() -> None:
    rules = NO_GRACE
    gang = work("gang", gpus=16, tier="enterprise", at=MINUTE, runs=MINUTE)
    others = [work(f"f{n}", gpus=8, tier="free") for n in range(3)]
    engine = lived(*others, gang, policy="strict-priority", rules=rules, on=fleet(nodes=3))
    assert 120 == ended(engine)["gang"]
    assert 2 == sum(life(engine, f"f{n}").preemptions for n in range(3))


def test_job_that_lost_its_earmarked_node_stays_in_the_queue() -> None:
    """GPUs are kept for a job, their node fails before it starts: it waits in turn again."""
    jobs = [work("old", gpus=8, tier="free", runs=3 * HOUR, checkpoint_every=SECOND)]
    jobs += [
        work(f"n{n}", gpus=8, tier="enterprise", at=n * 20 * MINUTE, runs=10 * MINUTE)
        for n in range(1, 200)
    ]
    rules = replace(PoolPolicy(), preemption_grace=9 * MINUTE)
    engine = lived(*jobs, policy="strict-priority", rules=rules, on=fleet(fails_every=2 * HOUR))

    assert engine.nodes.failures > 5
    assert 200 == len(ended(engine))
