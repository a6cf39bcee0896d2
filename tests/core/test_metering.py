"""Readings may repeat, get lost or overtake each other: the total and its periods are the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.budgets.periods import PeriodKind, Window, period_at
from bursar.core.instant import DAY, HOUR, NEVER, Instant
from bursar.core.metering import Meter, Usage, advance, rewind, usage_since
from bursar.core.money import CREDIT, Micros, usage_price
from bursar.core.refusal import InvariantBroken

T0: Instant = 20_000 * DAY  # a midnight in UTC
WINDOWS = st.sampled_from(
    [
        Window(every=PeriodKind.DAY, time_zone="Europe/Berlin"),
        Window(every=PeriodKind.WEEK, time_zone="America/St_Johns"),
        Window(every=PeriodKind.MONTH, time_zone="Pacific/Apia"),
        Window(every=PeriodKind.ROLLING, length=24 * HOUR),
        Window(every=PeriodKind.LIFETIME),
    ]
)
READINGS_MS = st.integers(0, 400_000_000)
NEW_METERS = st.builds(
    Meter,
    gpu_type=st.just("H100"),
    started_at=st.integers(T0, T0 + 400 * DAY),
    rate=st.integers(0, 50 * CREDIT) | st.integers(0, 500),
    milli_gpus=st.integers(1, 64_000),
)


def meter(run_ms: int = 0, started_at: Instant = T0, settled: bool = False) -> Meter:
    """Two GPUs at 1.8 credits an hour: one micro-credit for each millisecond."""
    return Meter(
        gpu_type="H100",
        started_at=started_at,
        rate=1_800_000,
        milli_gpus=2_000,
        run_ms=run_ms,
        charged=run_ms,
        settled=settled,
    )


def charged_by(start: Meter, readings: list[int]) -> tuple[Meter, Micros]:
    """The meter after `readings` in that order, and the sum of what they charged."""
    total = 0
    for run_ms in readings:
        usage = usage_since(start, run_ms)
        total += usage.amount if usage else 0
        start = advance(start, run_ms)
    return start, total


def test_a_reading_charges_what_was_not_charged_yet() -> None:
    """A reading is cumulative: only what is beyond the largest so far is new (M2)."""
    running = meter(run_ms=30_000)
    want = Usage(started_at=T0, rate=1_800_000, milli_gpus=2_000, from_ms=30_000, to_ms=30_001)

    assert want == usage_since(running, 30_001)
    assert 1 == want.amount
    assert meter(run_ms=30_001) == advance(running, 30_001)


@pytest.mark.parametrize("run_ms", [0, 29_999, 30_000])
def test_a_repeated_or_overtaken_reading_brings_nothing_new(run_ms: int) -> None:
    """Duplicates and late readings are harmless, and the meter never goes back (M2)."""
    running = meter(run_ms=30_000)

    assert None is usage_since(running, run_ms)
    assert running is advance(running, run_ms)


def test_time_that_costs_less_than_a_micro_credit_is_still_new() -> None:
    """The amount may round to nothing; the time is kept, and is charged with what follows (L14)."""
    cheap = Meter(gpu_type="L4", started_at=T0, rate=1_800_000, milli_gpus=1_000)
    first = usage_since(cheap, 1)
    second = usage_since(advance(cheap, 1), 2)

    assert first is not None
    assert second is not None
    assert (0, 1) == (first.amount, second.amount)
    assert 1 == advance(advance(cheap, 1), 2).charged


@given(start=NEW_METERS, data=st.data())
def test_any_order_and_repetition_of_readings_gives_the_same_total(
    start: Meter, data: st.DataObject
) -> None:
    """However readings are repeated and reordered, the largest decides what is charged (IL12)."""
    readings = data.draw(st.lists(READINGS_MS, min_size=1, max_size=12))
    again = data.draw(st.lists(st.sampled_from(readings), max_size=12))
    shuffled = data.draw(st.permutations(readings + again))

    assert charged_by(start, sorted(readings)) == charged_by(start, shuffled)
    assert charged_by(start, [max(readings)]) == charged_by(start, shuffled)


@given(start=NEW_METERS, window=WINDOWS, one=READINGS_MS, other=READINGS_MS)
def test_charging_on_the_way_is_charging_at_the_end(
    start: Meter, window: Window, one: int, other: int
) -> None:
    """A charge at a and then at b is the charge at b, in each period as in the sum (IL13)."""
    a, b = sorted((one, other))
    halfway = advance(start, a)
    by_period: dict[Instant, Micros] = {}
    for usage in (usage_since(start, a), usage_since(halfway, b)):
        for period, part in usage.by_period(window) if usage else ():
            by_period[period] = by_period.get(period, 0) + part
    whole = usage_since(start, b)

    assert advance(start, b) == advance(halfway, b)
    assert dict(whole.by_period(window) if whole else ()) == by_period
    assert usage_price(start.rate, start.milli_gpus, b) == sum(by_period.values())


@given(start=NEW_METERS, window=WINDOWS, one=READINGS_MS, other=READINGS_MS)
def test_the_parts_by_period_add_up_to_the_amount(
    start: Meter, window: Window, one: int, other: int
) -> None:
    """Nothing is rounded away between periods; no part is zero, none comes twice (B5)."""
    a, b = sorted((one, other))
    usage = Usage(
        started_at=start.started_at,
        rate=start.rate,
        milli_gpus=start.milli_gpus,
        from_ms=a,
        to_ms=b,
    )
    parts = usage.by_period(window)
    starts = [at for at, _ in parts]

    assert usage.amount == sum(part for _, part in parts)
    assert all(part > 0 for _, part in parts)
    assert sorted(set(starts)) == starts
    assert all(at == period_at(window, at).start for at in starts)


def test_usage_over_midnight_counts_where_its_milliseconds_fell() -> None:
    """Each day gets its own milliseconds, whichever reading brought them (B5)."""
    window = Window(every=PeriodKind.DAY)
    usage = usage_since(meter(run_ms=10, started_at=T0 - 30_000), 30 + 86_400_000 + 5)

    assert usage is not None
    assert ((T0 - DAY, 20), (T0, 86_400_000), (T0 + DAY, 5)) == usage.by_period(window)
    assert ((0, usage.amount),) == usage.by_period(Window(every=PeriodKind.LIFETIME))


def test_usage_of_the_first_instant_of_all_counts() -> None:
    """Time begins with 1970, and not a millisecond of it is left out (B5)."""
    usage = usage_since(meter(started_at=0), 7)

    assert usage is not None
    assert ((0, 7),) == usage.by_period(Window(every=PeriodKind.DAY))


def test_a_period_whose_part_is_zero_is_left_out() -> None:
    """A millisecond too cheap to charge leaves no trace in its period, and no empty line (B5)."""
    window = Window(every=PeriodKind.DAY)
    usage = Usage(started_at=T0 - 1_000, rate=1_800_000, milli_gpus=1_000, from_ms=0, to_ms=2)

    assert 1 == usage.amount
    assert ((T0, 1),) == usage.by_period(window)
    assert () == replace(usage, to_ms=0).by_period(window)


def test_work_lost_since_the_last_checkpoint_is_given_back() -> None:
    """The meter stands as if only the kept time had run; the rest is the usage undone (M3)."""
    kept, undone = rewind(meter(run_ms=90_000, settled=True), 60_000)

    assert meter(run_ms=60_000, settled=True) == kept
    assert Usage(started_at=T0, rate=1_800_000, milli_gpus=2_000, from_ms=60_000, to_ms=90_000) == (
        undone
    )
    assert 30_000 == undone.amount


@pytest.mark.parametrize("kept_ms", [90_000, 90_001])
def test_a_checkpoint_at_or_after_the_last_reading_loses_nothing(kept_ms: int) -> None:
    """What was never charged is not given back (M3)."""
    running = meter(run_ms=90_000)
    kept, undone = rewind(running, kept_ms)

    assert running == kept
    assert (90_000, 90_000, 0) == (undone.from_ms, undone.to_ms, undone.amount)


@given(start=NEW_METERS, window=WINDOWS, run_ms=READINGS_MS, kept_ms=READINGS_MS)
def test_giving_back_undoes_exactly_what_was_charged(
    start: Meter, window: Window, run_ms: int, kept_ms: int
) -> None:
    """What stays charged and what is given back are the whole, in each period too (M3, B5)."""
    full = advance(start, run_ms)
    kept, undone = rewind(full, kept_ms)
    charged = usage_since(start, run_ms)
    stays = usage_since(start, kept.run_ms)
    left = dict(charged.by_period(window) if charged else ())
    for period, part in undone.by_period(window):
        left[period] -= part

    assert full.charged == kept.charged + undone.amount
    assert dict(stays.by_period(window) if stays else ()) == {p: a for p, a in left.items() if a}
    assert full == advance(kept, run_ms)


@pytest.mark.parametrize("charged", [29_999, 30_001])
def test_a_meter_has_charged_what_its_reading_costs(charged: Micros) -> None:
    """A meter whose charge and reading disagree cannot exist (L14)."""
    with pytest.raises(
        InvariantBroken,
        match="^a meter has charged something else than its reading costs "
        rf"\(charged={charged}, price=30000\)$",
    ):
        replace(meter(run_ms=30_000), charged=charged)


@pytest.mark.parametrize(("from_ms", "to_ms"), [(-1, 5), (6, 5)])
def test_usage_does_not_run_backwards(from_ms: int, to_ms: int) -> None:
    """A stretch begins at or after the attempt and ends at or after its beginning."""
    with pytest.raises(
        InvariantBroken, match=rf"^usage runs backwards \(from_ms={from_ms}, to_ms={to_ms}\)$"
    ):
        Usage(started_at=T0, rate=1, milli_gpus=1, from_ms=from_ms, to_ms=to_ms)


def test_a_negative_checkpoint_is_a_bug() -> None:
    """Nobody can give back more than has run (M3)."""
    with pytest.raises(InvariantBroken):
        rewind(meter(run_ms=90_000), -1)


def test_a_new_meter_has_not_run() -> None:
    """A meter starts at zero, unsettled, and the longest stretch of usage keeps exact figures."""
    new = Meter(gpu_type="H100", started_at=T0, rate=3_600_000_000, milli_gpus=1)

    assert (0, 0, False) == (new.run_ms, new.charged, new.settled)
    assert NEVER == advance(new, NEVER).charged
