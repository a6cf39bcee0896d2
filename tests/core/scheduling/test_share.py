"""The share tree: what places add up to, and what time does to them (S3)."""

from typing import Any

import pytest

from bursar.core.instant import DAY, HOUR, MINUTE
from bursar.core.refusal import InvariantBroken
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.policy import ANY_TYPE, PoolPolicy, Share
from bursar.core.scheduling.order.share import ShareTree
from bursar.core.scheduling.order.share_group import (
    BELOW_FLOOR,
    CHILD_BELOW_FLOOR,
    FAIR_SHARE,
    WITHIN_FLOOR,
    ShareGroup,
)
from bursar.core.value import replace
from tests.support.scheduling_cases import CREDIT, PLAIN, T0, Case, with_shares

ACME, ML = ("paid", "acme"), ("paid", "acme", "ml")
ANN = (*ML, "ann")


def job(text: str) -> Job:
    """A job as a case writes it."""
    (one,) = Case(nodes="", queued=text, want="").snapshot().waiting
    return one


def tree(shares: str = "", **policy: Any) -> ShareTree:
    """A tree in which nothing happened yet."""
    return ShareTree(replace(with_shares(PLAIN, shares), **policy), T0)


def order(tree: ShareTree, path: tuple[str, ...] = ()) -> list[str]:
    """The children of a place that have something waiting, in order."""
    place = tree.groups.find_group(path) if path else tree.groups.root
    assert place is not None
    return [name for _, _, name in place.order]


def known(tree: ShareTree, path: tuple[str, ...]) -> ShareGroup:
    """A place that is there."""
    place = tree.groups.find_group(path)
    assert place is not None
    return place


def test_groups_are_made_when_they_are_first_named() -> None:
    one = tree("paid.acme=w3")
    assert one.groups.find_group(ACME) is None
    user = one.groups.user_group(ANN)

    assert 3 == known(one, ACME).weight
    assert [ANN, ML, ACME, ("paid",), ()] == [place.path for place in user.lineage()]
    assert user is one.groups.user_group(ANN) is one.groups.find_group(ANN)


def test_a_path_cannot_be_a_user_and_an_account() -> None:
    """Each would have the floor and the ceiling of that path for itself (S3)."""
    one = tree("paid.acme=ceil4")
    one.groups.user_group(ANN)
    with pytest.raises(InvariantBroken, match="a user has others below it"):
        one.groups.user_group(ML)
    with pytest.raises(InvariantBroken, match="a user has others below it"):
        one.groups.user_group((*ANN, "bob"))
    one.groups.user_group((*ML, "ml"))  # the same name elsewhere is another place


def test_a_running_job_counts_in_all_groups_above_and_in_limits() -> None:
    one = tree("@lab=ceil9")
    a = job("a:4/counted=lab")
    one.count_running(a, "H100", T0)

    for place in (*one.groups.user_group(ANN).lineage(), one.groups.limits["lab"]):
        assert ({ANY_TYPE: 4_000, "H100": 4_000}, 1) == (place.used, place.running_jobs)
    one.count_running(a, "H100", T0, -1)
    for place in (*one.groups.user_group(ANN).lineage(), one.groups.limits["lab"]):
        assert ({ANY_TYPE: 0, "H100": 0}, 0, 0, 0) == (
            place.used,
            place.running_jobs,
            place.rate,
            place.started_growth,
        )


def test_past_usage_is_counted_and_can_be_undone() -> None:
    one = tree()
    a = job("a:4")
    one.count_running(a, "H100", T0)
    one.count_stopped(a, "H100", T0, T0 + HOUR)

    assert [ANN] == [path for path, _ in one.usage.past_usage_by_user()]
    # An hour of four GPUs at a credit each, hardly faded.
    assert (
        4 * CREDIT * 95 // 100 < one.usage.decayed_usage(known(one, ACME), T0 + HOUR) <= 4 * CREDIT
    )
    one.count_stopped(a, "H100", T0, T0 + HOUR, -1)
    assert [] == list(one.usage.past_usage_by_user())
    assert 1 == known(one, ACME).running_jobs


def test_a_job_that_ends_before_it_began_used_nothing() -> None:
    """Clocks of two machines may differ."""
    one = tree()
    one.count_running(job("a:4"), "H100", T0 + MINUTE)
    one.count_stopped(job("a:4"), "H100", T0 + MINUTE, T0)

    assert [] == list(one.usage.past_usage_by_user())


def test_a_job_that_stays_within_a_floor_comes_before_one_that_would_pass_it() -> None:
    one = tree("paid.acme=floor2 paid.beta=floor4")
    one.enqueue(job("a:3"))
    one.enqueue(job("b:3/who=paid.beta.x.u"))
    ranks = [known(one, ("paid", org)).rank() for org in ("acme", "beta")]

    assert [BELOW_FLOOR, WITHIN_FLOOR] == ranks
    assert ["beta/", "acme/"] == order(one, ("paid",))


def test_the_order_among_siblings() -> None:
    """Below its floor, somebody below a floor beneath, then by use; equal ones by name."""
    one = tree("paid.dino=floor4 paid.cora.x=floor4")
    for org in ("acme", "beta", "cora", "dino"):
        one.enqueue(job(f"{org}:1/who=paid.{org}.x.u"))
    assert ["dino/", "cora/", "acme/", "beta/"] == order(one, ("paid",))

    ranks = [known(one, ("paid", org)).rank() for org in ("dino", "cora", "acme")]
    assert [WITHIN_FLOOR, CHILD_BELOW_FLOOR, FAIR_SHARE] == ranks

    one.count_running(job("r:1"), "H100", T0)
    assert ["dino/", "cora/", "beta/", "acme/"] == order(one, ("paid",))
    one.count_running(job("s:4/who=paid.dino.x.u"), "H100", T0)
    assert ["cora/", "beta/", "acme/", "dino/"] == order(one, ("paid",))


def test_a_group_without_waiting_jobs_is_not_in_the_order() -> None:
    one = tree()
    one.enqueue(job("a:1"))
    one.enqueue(job("b:1"))
    one.dequeue(job("a:1"))
    assert ["paid/"] == order(one)
    one.dequeue(job("b:1"))

    assert [] == order(one)
    assert {} == one.queues.waiting_classes
    assert 0 == len(one.queues.aged_users)


def test_a_group_is_below_its_floor_only_of_types_its_jobs_accept() -> None:
    one = tree("paid.acme.ml=floor2A100")
    one.enqueue(job("a:1"))
    assert not known(one, ML).is_below_floor()
    one.enqueue(job("b:1/on=H100,A100"))
    assert known(one, ML).is_below_floor()
    one.count_running(job("r:2/on=A100"), "A100", T0)
    assert not known(one, ML).is_below_floor()


@pytest.mark.parametrize(
    ("share", "milli", "gpu_type", "want"),
    [
        ("ceil5", 1_000, "H100", None),
        ("ceil4", 1_000, "H100", (ANY_TYPE, 4_000, 4_000)),
        ("ceil4H100", 1_000, "A100", None),
        ("ceil4H100", 1_000, "H100", ("H100", 4_000, 4_000)),
        ("ceil1A100", 1_001, "A100", ("A100", 0, 1_000)),
        ("jobs2", 1_000, "H100", None),
        ("jobs1", 1_000, "H100", ("jobs", 1, 1)),
    ],
)
def test_which_ceiling_would_be_passed(
    share: str, milli: int, gpu_type: str, want: tuple[str, int, int] | None
) -> None:
    """Four H100s of one job run."""
    one = tree(f"paid.acme={share}")
    one.count_running(job("r:4"), "H100", T0)

    assert want == known(one, ACME).exceeded_ceiling(milli, gpu_type)


def test_a_stopping_job_counts_for_ceilings_only() -> None:
    """It is still there (B4), but no part of anybody's share."""
    one = tree("paid.acme=ceil4,jobs1 @lab=ceil4")
    a = job("a:4/counted=lab")
    one.count_leaving(a, "H100")

    assert (ANY_TYPE, 4_000, 4_000) == known(one, ACME).exceeded_ceiling(1, "A100")
    assert 4_000 == one.groups.limits["lab"].in_use("H100")
    assert 0 == known(one, ACME).used[ANY_TYPE]
    one.count_leaving(a, "H100", -1)
    assert None is known(one, ACME).exceeded_ceiling(4_000, "H100")


def test_a_limit_without_a_share_does_not_bind() -> None:
    one = tree()

    assert None is one.first_exceeded(job("a:4/counted=lab"), "H100")


def test_orgs_of_a_tier_are_ordered_by_rate_for_their_weight() -> None:
    one = tree("paid.cora=w4")
    for n, org in ((2, "acme"), (3, "beta"), (8, "cora")):
        one.count_running(job(f"{org}:{n}/who=paid.{org}.x.u"), "H100", T0)

    tier = known(one, ("paid",))
    assert ["beta/", "acme/", "cora/"] == [org.name for org in one.org_rates.orgs_by_rate(tier)]
    one.count_stopped(job("beta:3/who=paid.beta.x.u"), "H100", T0, T0)
    assert ["acme/", "cora/"] == [org.name for org in one.org_rates.orgs_by_rate(tier)]
    assert [] == list(one.org_rates.orgs_by_rate(ShareGroup(("none",), "none/", None, Share())))


def test_a_user_is_aged_when_its_oldest_job_is() -> None:
    """By its tier's patience; a day in a tier that nobody described."""
    one = ShareTree(PoolPolicy(), T0)
    one.enqueue(job("a:1/waited=1h"))
    one.enqueue(job("b:1/waited=3h"))
    one.enqueue(job("c:1/who=extra.x.y/waited=1h"))
    assert [(T0 + HOUR, ANN), (T0 - HOUR + DAY, ("extra", "x", "y"))] == list(one.queues.aged_users)

    one.dequeue(job("b:1/waited=3h"))
    assert (T0 + 3 * HOUR, ANN) == one.queues.aged_users.first()


def test_time_passes_in_ticks() -> None:
    """Between two of them nobody's turn changes by the clock alone."""
    one = tree()
    one.enqueue(job("a:1"))
    one.enqueue(job("b:1/who=paid.beta.x.u"))
    one.count_running(job("r:1"), "H100", T0)
    before = one.usage.usage_key(known(one, ACME))

    one.advance_to(T0 + MINUTE - 1)
    assert before == one.usage.usage_key(known(one, ACME))
    one.advance_to(T0 + MINUTE)
    assert before < one.usage.usage_key(known(one, ACME))
    assert ["beta/", "acme/"] == order(one, ("paid",))


@pytest.mark.parametrize("epochs", [1, 2])
def test_nothing_changes_at_the_end_of_an_epoch_but_the_scale(epochs: int) -> None:
    """What was used fades on, what runs goes on, the order stays."""
    # Half after two minutes, so that an epoch is over in two hours.
    one = tree(half_life=1, ahead=MINUTE)
    one.enqueue(job("a:1"))
    one.enqueue(job("b:1/who=paid.beta.x.u"))
    end = one.usage.decay.epoch + epochs * 128 * MINUTE
    one.advance_to(end - 5 * MINUTE)
    one.count_running(job("r:2"), "H100", end - 5 * MINUTE)
    one.count_running(job("s:1/who=paid.beta.x.u"), "H100", end - 5 * MINUTE)
    one.count_running(job("t:8/who=paid.beta.x.u"), "H100", end - 4 * MINUTE)
    one.count_stopped(job("t:8/who=paid.beta.x.u"), "H100", end - 4 * MINUTE, end - MINUTE)
    orgs = [known(one, ("paid", org)) for org in ("acme", "beta")]

    one.advance_to(end - 1)
    before = [one.usage.decayed_usage(org, end) for org in orgs]
    assert ["acme/", "beta/"] == order(one, ("paid",))
    one.advance_to(end)

    assert end == one.usage.decay.epoch
    assert before == pytest.approx([one.usage.decayed_usage(org, end) for org in orgs], abs=2)
    assert ["acme/", "beta/"] == order(one, ("paid",))
    assert sum(one.usage.usage_key(org) for org in orgs) == one.usage.usage_key(
        known(one, ("paid",))
    )


def test_a_share_can_be_set_before_its_group_exists() -> None:
    """It has its share from the start."""
    one = tree()
    one.set_shares({ACME: Share(weight=7)})
    one.groups.user_group(ANN)

    assert 7 == known(one, ACME).weight
