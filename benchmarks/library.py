"""How fast the importable ledgers are, compared with code written without them (L-library).

The yardstick of CreditLedger is a bare heap of tuples that does the same without any check. The
yardstick of TimelineLedger is replaying everything for each answer, with packs that live shortly
and with packs that live through the whole horizon. Replaying everything takes hours at full
length, so it is timed on single calls, evenly spread over the same run; its rate is an estimate.

Refusals, credits spent and every balance read are compared: a wrong answer counts as zero.
"""

import json as json_text
import random
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from time import perf_counter
from typing import Final

from benchmarks.environment import SEED, Log, log_to_stderr
from benchmarks.results import Figure, Load, is_clean, loads_as_object
from benchmarks.table import print_loads
from bursar import CreditLedger, InsufficientCredits, TimelineLedger

ADD, USE, BALANCE = range(3)
HORIZON: Final = 10**9
SAMPLES: Final = 40  # single calls on which replaying everything is timed

Operation = tuple[int, int, int, int]  # (kind, amount, time, expiry)
Totals = dict[str, int]  # sums of a run's answers


def measure(
    operations: int = 1_000_000, timeline_operations: int = 100_000, log: Log = log_to_stderr
) -> list[Load]:
    """Run all loads, each with its yardstick."""
    return [
        measure_credit(operations, log),
        measure_timeline("short packs", timeline_operations, HORIZON // 200, log),
        measure_timeline("long packs", timeline_operations, HORIZON, log),
    ]


def main(
    json: bool = False, operations: int = 1_000_000, timeline_operations: int = 100_000
) -> bool:
    """Measure, and print a table or JSON; return whether all answers are right."""
    loads = measure(operations, timeline_operations)
    if json:
        print(json_text.dumps(loads_as_object("library", loads)))
    else:
        print_loads("library benchmark", loads, without=(">wall", "peer", ">to peer"))
    return is_clean(loads)


def _run_timed(run: Callable[[], Totals]) -> tuple[float, Totals]:
    began = perf_counter()
    totals = run()
    return perf_counter() - began, totals


def _make_load(load: Load, figure: Figure, *, agrees: bool) -> Load:
    """Add the figure to the load; a load with wrong answers counts as zero."""
    if not agrees:
        load.problems.append("the answers differ from those of the yardstick")
        figure = replace(figure, value=0.0)
    load.figures.append(figure)
    return load


# CreditLedger and a bare heap.


def _mix_operations(count: int) -> list[Operation]:
    """Two adds and two uses for each balance; time advances by 1 per call on average."""
    rng = random.Random(SEED)
    now = 0
    operations: list[Operation] = []
    for _ in range(count):
        now += rng.randrange(3)
        kind = rng.choice((ADD, ADD, USE, USE, BALANCE))
        amount = rng.randrange(1, 100 if kind == ADD else 80)
        operations.append((kind, amount, now, now + rng.randrange(10_000)))
    return operations


def _run_on_heap(operations: Sequence[Operation]) -> Totals:
    """Run the operations on a heap of tuples, with nothing checked."""
    heap: list[tuple[int, int]] = []
    total = spent = refused = balances = 0
    for kind, amount, time, expiry in operations:
        if kind == ADD:
            heappush(heap, (expiry, amount))
            total += amount
            continue
        while heap and heap[0][0] < time:
            total -= heappop(heap)[1]
        if kind == BALANCE:
            balances += total
            continue
        if total < amount:
            refused += 1
            continue
        total -= amount
        spent += amount
        while amount:
            first, have = heap[0]
            if have > amount:
                heapreplace(heap, (first, have - amount))
                break
            heappop(heap)
            amount -= have
    return {"spent": spent, "refused": refused, "balances": balances, "left": total}


def _run_on_ledger(operations: Sequence[Operation]) -> Totals:
    ledger = CreditLedger()
    spent = refused = balances = time = 0
    for kind, amount, time, expiry in operations:
        if kind == ADD:
            ledger.add_credits(amount, expiry)
        elif kind == USE:
            try:
                spent += ledger.consume_credits(amount, time)
            except InsufficientCredits:
                refused += 1
        else:
            balances += ledger.get_balance(time)
    left = ledger.get_balance(time)
    return {"spent": spent, "refused": refused, "balances": balances, "left": left}


def measure_credit(count: int, log: Log) -> Load:
    """Compare CreditLedger with the bare heap on one mix of operations."""
    log(f"CreditLedger: {count:,} operations")
    operations = _mix_operations(count - 1)
    # The last operation reads the balance, so that both sides drop expired credits.
    operations.append((BALANCE, 1, operations[-1][2], 0))
    yardstick_s, expected = _run_timed(lambda: _run_on_heap(operations))
    ledger_s, totals = _run_timed(lambda: _run_on_ledger(operations))
    load = Load(name="CreditLedger", what=f"{count:,} operations")
    load.notes.append("heapq: a bare heap of tuples without checks")
    figure = Figure(
        what="in order of time",
        value=count / ledger_s,
        unit="operations/s",
        yardstick="heapq",
        yardstick_value=count / yardstick_s,
        ratio_least=0.6,
    )
    return _make_load(load, figure, agrees=expected == totals)


# TimelineLedger and replaying everything.


def _shuffle_operations(count: int, life: int) -> list[Operation]:
    """The same mix of operations, in no order of time."""
    rng = random.Random(SEED)
    operations: list[Operation] = []
    for _ in range(count):
        kind = rng.choice((ADD, ADD, USE, USE, BALANCE))
        time = rng.randrange(HORIZON)
        operations.append((kind, rng.randrange(1, 100 if kind == ADD else 60), time, time + life))
    return operations


class Replay:
    """All accepted events, sorted; each answer replays them from the beginning."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, int]] = []  # (time, add or use, expiry, amount)

    def is_covered(self, use: tuple[int, int, int, int]) -> bool:
        insort(self.events, use)
        balance = self.balance(2 * HORIZON + 1)
        self.events.remove(use)
        return balance is not None

    def balance(self, at: int) -> int | None:
        """The balance at a time; None if a use up to then is not covered."""
        heap: list[tuple[int, int]] = []
        for time, kind, expiry, amount in self.events:
            if time > at:
                break
            if kind == ADD:
                heappush(heap, (expiry, amount))
                continue
            while amount:
                while heap and heap[0][0] < time:
                    heappop(heap)
                if not heap:
                    return None
                first, have = heap[0]
                if have > amount:
                    heapreplace(heap, (first, have - amount))
                    break
                heappop(heap)
                amount -= have
        return sum(have for expiry, have in heap if expiry >= at)


def _run_on_timeline(operations: Sequence[Operation], answers: list[int]) -> Totals:
    """Run the operations and append each answer: credits used, or the balance."""
    ledger = TimelineLedger()
    spent = refused = balances = 0
    for kind, amount, time, expiry in operations:
        answer = 0
        if kind == ADD:
            ledger.add_credits(amount, time, expiry)
        elif kind == USE:
            try:
                answer = ledger.consume_credits(amount, time)
                spent += answer
            except InsufficientCredits:
                refused += 1
        else:
            answer = ledger.get_balance(time)
            balances += answer
        answers.append(answer)
    left = ledger.get_balance(HORIZON)
    return {"spent": spent, "refused": refused, "balances": balances, "left": left}


def measure_timeline(name: str, count: int, life: int, log: Log) -> Load:
    """Compare TimelineLedger with replaying everything on operations in no order of time."""
    log(f"TimelineLedger, {name}: {count:,} shuffled operations")
    operations = _shuffle_operations(count, life)
    answers: list[int] = []
    ledger_s, totals = _run_timed(lambda: _run_on_timeline(operations, answers))
    log("  replaying everything, on a sample of the same calls")
    replays_per_second, agrees = _sample_replay(operations, answers, totals["left"])
    load = Load(
        name=f"TimelineLedger, {name}",
        what=f"{count:,} shuffled operations, packs live {life / HORIZON:.1%} of the horizon",
    )
    calls = min(SAMPLES, count)
    load.notes.append(f"replay: replaying everything; estimated from {calls} calls over the run")
    figure = Figure(
        what="shuffled",
        value=count / ledger_s,
        unit="operations/s",
        yardstick="replay",
        yardstick_value=replays_per_second,
        ratio_least=20,
        least=60_000 if life < HORIZON else None,
    )
    return _make_load(load, figure, agrees=agrees)


def _sample_replay(
    operations: Sequence[Operation], answers: Sequence[int], left: int
) -> tuple[float, bool]:
    """Operations per second of replaying everything, and whether it gives the same answers.

    Between the sampled calls the history follows the ledger's answers. Each sample, and the
    balance `left` at the end, check them by replaying all accepted operations.
    """
    replay = Replay()
    step = max(1, len(operations) // SAMPLES)
    sampled_s, samples, agrees = 0.0, 0, True
    for number, (kind, amount, time, expiry) in enumerate(operations):
        event = (time, kind, expiry if kind == ADD else 0, amount)
        if number % step == step - 1:
            began = perf_counter()
            if kind == BALANCE:
                agrees &= replay.balance(time) == answers[number]
            elif kind == USE:
                agrees &= replay.is_covered(event) == bool(answers[number])
            else:
                insort(replay.events, event)  # an add alone needs no answer
            sampled_s += perf_counter() - began
            samples += 1
            if kind == ADD:
                continue
        if kind == ADD or (kind == USE and answers[number]):
            insort(replay.events, event)
    agrees &= replay.balance(HORIZON) == left
    return samples / sampled_s, agrees
