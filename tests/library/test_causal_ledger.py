"""CausalLedger: replicas that know the same agree, whatever happened on the way (L19)."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar import CausalLedger, VectorClock
from bursar.library.causal import EventId

FAR = VectorClock({"eu": 1_000, "us": 1_000, "ap": 1_000})


def pair() -> tuple[CausalLedger, CausalLedger]:
    return CausalLedger("eu", ["eu", "us"]), CausalLedger("us", ["eu", "us"])


def clock(eu: int = 0, us: int = 0) -> VectorClock:
    return VectorClock({"eu": eu, "us": us})


def test_two_regions_that_spend_the_same_credits_agree_which_use_counts() -> None:
    """Each believes that it has them; after an exchange both give the same verdicts (L19)."""
    eu, us = pair()
    eu.add(100, at=eu.next_clock(), expires=clock(eu=50))
    us.merge(eu)
    mine = eu.use(80, at=eu.next_clock())
    theirs = us.use(80, at=us.next_clock())
    assert ("accepted", "accepted") == (eu.status(mine), us.status(theirs))

    eu.merge(us)
    us.merge(eu)

    for ledger in (eu, us):
        assert ("accepted", "rejected") == (ledger.status(mine), ledger.status(theirs))
        assert 20 == ledger.balance(ledger.next_clock())


@pytest.mark.parametrize(
    ("at", "want"),
    [
        (clock(eu=1), 0),  # before the pack
        (clock(us=5), 0),  # concurrent with the pack: it is not known there
        (clock(eu=2), 10),  # at the pack
        (clock(eu=4, us=2), 10),
        (clock(eu=9, us=0), 10),  # concurrent with the end: still valid
        (clock(eu=5, us=3), 0),  # at the end
        (clock(eu=6, us=3), 0),
    ],
)
def test_pack_serves_from_its_clock_until_its_end_is_passed(at: VectorClock, want: int) -> None:
    """add.at <= use.at and not expires <= use.at (L19)."""
    eu, us = pair()
    eu.add(10, at=clock(eu=2), expires=clock(eu=5, us=3))
    us.merge(eu)

    assert want == us.balance(at)
    use = us.use(10, at)
    assert ("accepted" if want else "rejected") == us.status(use)


def test_credits_added_at_the_clock_of_a_use_serve_it() -> None:
    """At one clock packs come before uses, whatever their names (L19)."""
    eu, us = pair()
    use = eu.use(5, at=clock(eu=1))
    assert "rejected" == eu.status(use)

    us.add(5, at=clock(eu=1), expires=FAR_OF_TWO)
    eu.merge(us)

    assert "accepted" == eu.status(use)


FAR_OF_TWO = clock(eu=1_000, us=1_000)


def test_the_pack_that_ends_first_is_spent_first() -> None:
    """Earlier ends have smaller sums; equal sums go by the packs' own order (L19)."""
    eu, _ = pair()
    eu.add(10, at=clock(eu=1), expires=clock(eu=9, us=9))
    eu.add(10, at=clock(eu=1), expires=clock(eu=5, us=5))
    eu.use(10, at=clock(eu=2))

    assert 10 == eu.balance(clock(eu=6, us=6)), "those that end at 9 are left"


def test_a_rejected_use_takes_nothing() -> None:
    """Whole or not at all: a smaller one after it is served (L19)."""
    eu, _ = pair()
    eu.add(10, at=clock(eu=1), expires=FAR_OF_TWO)
    big = eu.use(11, at=clock(eu=2))
    small = eu.use(10, at=clock(eu=3))

    assert ("rejected", "accepted") == (eu.status(big), eu.status(small))


def test_late_event_can_change_a_verdict_until_it_is_final() -> None:
    """Final once every region has passed the use, by an event or by its word (L19)."""
    eu, us = pair()
    eu.add(10, at=clock(eu=1), expires=FAR_OF_TWO)
    use = eu.use(10, at=clock(eu=5))
    assert ("accepted", False) == (eu.status(use), eu.is_final(use))

    us.merge(eu)
    us.use(10, at=clock(eu=1, us=1))
    eu.merge(us)
    assert ("rejected", False) == (eu.status(use), eu.is_final(use))

    us.advance(clock(eu=5, us=2))
    eu.merge(us)
    assert not eu.is_final(use), "its own region has not passed it"
    eu.advance(clock(eu=6))
    assert eu.is_final(use)
    with pytest.raises(ValueError, match="is not at or after"):
        us.use(1, at=clock(us=9))


def test_region_that_lost_its_state_recovers_it_from_others() -> None:
    """It goes on counting where it was, so that no name is given twice (L19)."""
    eu, us = pair()
    eu.add(10, at=clock(eu=1), expires=FAR_OF_TWO)
    us.merge(eu)
    again = CausalLedger("eu", ["us", "eu"])
    again.merge(us)

    assert EventId("eu", 2) == again.use(4, at=again.next_clock())
    assert 6 == again.balance(again.next_clock())


def test_two_events_with_the_same_id_are_refused() -> None:
    """A region with two writers cannot be merged, and nothing is half merged (L19)."""
    eu, us = pair()
    twin = CausalLedger("eu", ["eu", "us"])
    eu.add(10, at=clock(eu=1), expires=FAR_OF_TWO)
    twin.add(11, at=clock(eu=1), expires=FAR_OF_TWO)
    us.merge(eu)

    with pytest.raises(ValueError, match="two different events are called eu 1"):
        us.merge(twin)
    assert 10 == us.balance(FAR_OF_TWO.tick("us").join(clock(eu=1))) + 10, "the end is passed"
    assert 10 == us.balance(clock(eu=2))


def test_bad_input_is_refused_and_changes_nothing() -> None:
    """The wrong kind is a TypeError, the wrong size or region a ValueError (L19)."""
    it: Any = CausalLedger("eu", ["eu", "us"])
    it.add(10, at=clock(eu=1), expires=FAR_OF_TWO)
    at = clock(eu=2)
    for bad in (True, 1.0, float("nan"), "1", None):
        for call in (it.use, lambda x, at: it.add(x, at, FAR_OF_TWO)):
            with pytest.raises(TypeError):
                call(bad, at)
    for call in (it.use, lambda x, at: it.add(x, at, FAR_OF_TWO)):
        with pytest.raises(ValueError, match="at least 1"):
            call(0, at)
    for no_clock in (None, 1, {"eu": 1}):
        for ask in (it.balance, it.advance, lambda x: it.use(1, x), lambda x: it.add(1, at, x)):
            with pytest.raises(TypeError):
                ask(no_clock)
    with pytest.raises(ValueError, match="unknown region mars"):
        it.use(1, VectorClock({"mars": 1}))
    with pytest.raises(TypeError):
        it.merge(None)
    with pytest.raises(ValueError, match="regions"):
        it.merge(CausalLedger("eu", ["eu"]))
    for unknown in (EventId("eu", 1), EventId("us", 1)):
        with pytest.raises(LookupError):
            it.status(unknown)
    with pytest.raises(TypeError):
        CausalLedger(1, ["eu"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mars is not among"):
        CausalLedger("mars", ["eu"])
    assert (10, 1) == (it.balance(at), len(it._events))


REGIONS = ["ap", "eu", "us"]
STEPS = st.tuples(
    st.sampled_from(["add", "use", "use", "merge", "merge", "advance"]),
    st.sampled_from(REGIONS),
    st.sampled_from(REGIONS),
    st.integers(1, 8),
    st.integers(0, 4),
)


def known_to(ledger: CausalLedger) -> tuple[object, ...]:
    """All that can be asked of a replica."""
    uses = sorted(id for id, event in ledger._events.items() if event.expires is None)
    return (
        sorted(ledger._events),
        [(id, ledger.status(id), ledger.is_final(id)) for id in uses],
        [ledger._folded(n).verdicts for n in range(len(ledger._order) + 1)],
        ledger._passed,
    )


def copy_of(ledger: CausalLedger) -> CausalLedger:
    copy = CausalLedger(ledger.region, ledger.regions)
    copy.merge(ledger)
    return copy


def told(steps: list[tuple[str, str, str, int, int]]) -> dict[str, CausalLedger]:
    """Three regions that add, use, and hear of each other now and then; checked on the way."""
    replicas = {name: CausalLedger(name, REGIONS) for name in REGIONS}
    final: dict[EventId, str] = {}
    for kind, name, other, amount, life in steps:
        ledger = replicas[name]
        at = ledger.next_clock()
        if kind == "add":
            ledger.add(amount, at, VectorClock({region: at[region] + life for region in REGIONS}))
        elif kind == "use":
            before = ledger.balance(at)
            use = ledger.use(amount, at)
            assert ("accepted" if amount <= before else "rejected") == ledger.status(use)
        elif kind == "advance":
            ledger.advance(at)
        else:
            ledger.merge(replicas[other])
        for replica in replicas.values():
            for id, event in replica._events.items():
                if event.expires is None and replica.is_final(id):
                    assert final.setdefault(id, replica.status(id)) == replica.status(id)
    return replicas


@given(st.lists(STEPS, max_size=40))
def test_replicas_with_the_same_events_agree(steps: list[tuple[str, str, str, int, int]]) -> None:
    """After any partition, merging in any order leads to one state; final stays final (L19)."""
    a, b, c = told(steps).values()

    left, right, twice = copy_of(a), copy_of(c), copy_of(b)
    left.merge(b)
    left.merge(c)  # (a + b) + c
    inner = copy_of(b)
    inner.merge(a)
    right.merge(inner)  # c + (b + a)
    for other in (a, b, a, c, b, twice):
        twice.merge(other)

    assert known_to(left) == known_to(right) == known_to(twice)


@given(st.lists(STEPS, max_size=40))
def test_the_order_extends_causality(steps: list[tuple[str, str, str, int, int]]) -> None:
    """What happened before comes before, in every replica (L19)."""
    for ledger in told(steps).values():
        events = [ledger._events[id] for _, id in ledger._order]
        for earlier, later in combinations(events, 2):
            assert not later.at < earlier.at


@given(st.lists(STEPS, max_size=40))
def test_verdicts_are_those_of_a_naive_fold_and_no_pack_is_overdrawn(
    steps: list[tuple[str, str, str, int, int]],
) -> None:
    """Events sorted, packs in a list, each use served whole or not at all (L19)."""
    for ledger in told(steps).values():
        events = sorted(
            ledger._events.values(),
            key=lambda e: (sum(n for _, n in e.at.items()), e.expires is None, e.id),
        )
        packs: list[list[Any]] = []
        for event in events:
            if event.expires is not None:
                packs.append([sum(n for _, n in event.expires.items()), len(packs), event, 0])
                continue
            serving = [
                p
                for p in sorted(packs, key=lambda p: p[:2])
                if p[2].at <= event.at and not p[2].expires <= event.at
            ]
            covered = sum(p[2].amount - p[3] for p in serving) >= event.amount
            assert ("accepted" if covered else "rejected") == ledger.status(event.id)
            missing = event.amount if covered else 0
            for p in serving:
                part = min(missing, p[2].amount - p[3])
                p[3] += part
                missing -= part
        assert all(0 <= used <= pack.amount for _, _, pack, used in packs)
        assert sum(pack.amount - used for _, _, pack, used in packs) == sum(
            left[0] for *_, left in ledger._whole_fold().packs
        )
