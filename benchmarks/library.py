"""How fast the importable ledgers are, beside what one would write without them (L-library).

CreditLedger stands beside a bare heap of tuples that does the same without any check. The
timeline stands beside replaying everything for each answer, where packs live shortly and where
they live through all of the time there is. Replaying everything takes hours at full length, so
it is timed on single calls, evenly spread over the same run; the figure is what the whole run
would have come to, and is called an estimate.

A fast wrong answer counts as zero: refusals, credits spent and every balance read are compared.
"""

import json as json_module
import random
import sys
from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from time import perf_counter
from typing import Any, Final

from bursar import CreditLedger, InsufficientCredits, TimelineLedger

ADD, USE, BALANCE = range(3)
SEED: Final = 20_260_101
HORIZON: Final = 10**9
SAMPLES: Final = 40  # single calls on which replaying everything is timed

Operation = tuple[int, int, int, int]  # (kind, amount, time, expiry)
Told = dict[str, int]  # what a run answered, in sums


def measure(operations: int = 1_000_000, timeline_operations: int = 100_000) -> dict[str, Any]:
    """Run all loads and return their figures, with the yardsticks of the same run."""
    return {
        "benchmark": "L-library",
        "python": sys.version.split()[0],
        "loads": [
            _credit(operations),
            _timeline("packs of 0.5 % of the horizon", timeline_operations, HORIZON // 200),
            _timeline("packs of all of the horizon", timeline_operations, HORIZON),
        ],
    }


def main(
    json: bool = False, operations: int = 1_000_000, timeline_operations: int = 100_000
) -> None:
    """Measure, and print a table for people or one object for machines."""
    result = measure(operations, timeline_operations)
    if json:
        print(json_module.dumps(result))
    else:
        _print_table(result["loads"])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _timed(run: Callable[[], Told]) -> tuple[float, Told]:
    began = perf_counter()
    told = run()
    return perf_counter() - began, told


# CreditLedger and a bare heap.


def _mixed(count: int) -> list[Operation]:
    """Two adds and two uses for each balance; time goes on by 1 a call on average."""
    chance = random.Random(SEED)
    now = 0
    made = []
    for _ in range(count):
        now += chance.randrange(3)
        kind = chance.choice((ADD, ADD, USE, USE, BALANCE))
        amount = chance.randrange(1, 100 if kind == ADD else 80)
        made.append((kind, amount, now, now + chance.randrange(10_000)))
    return made


def _on_heap(operations: list[Operation]) -> Told:
    """What one would write in five minutes, with nothing checked."""
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


def _on_ledger(operations: list[Operation]) -> Told:
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


def _credit(count: int) -> dict[str, Any]:
    _say(f"CreditLedger: {count:,} operations")
    operations = _mixed(count - 1)
    # The last one reads the balance, so that both have dropped what expired.
    operations.append((BALANCE, 1, operations[-1][2], 0))
    yardstick, want = _timed(lambda: _on_heap(operations))
    seconds, told = _timed(lambda: _on_ledger(operations))
    return _load(
        "CreditLedger",
        count,
        seconds,
        "a bare heapq of tuples, nothing checked",
        count / yardstick,
        {"ratio": 0.4},
        told == want,
        told,
    )


# TimelineLedger and replaying everything.


def _shuffled(count: int, life: int) -> list[Operation]:
    """The same mix, at times in no order."""
    chance = random.Random(SEED)
    made = []
    for _ in range(count):
        kind = chance.choice((ADD, ADD, USE, USE, BALANCE))
        time = chance.randrange(HORIZON)
        made.append((kind, chance.randrange(1, 100 if kind == ADD else 60), time, time + life))
    return made


class _Replay:
    """All accepted events, sorted; each answer works all of them out from the beginning."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, int]] = []  # (time, add or use, expiry, amount)

    def covered(self, use: tuple[int, int, int, int]) -> bool:
        insort(self.events, use)
        good = self.balance(2 * HORIZON + 1) is not None
        self.events.remove(use)
        return good

    def balance(self, at: int) -> int | None:
        """What is left at a time; None when a use up to then is not covered."""
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


def _told_in_any_order(operations: list[Operation], answers: list[int]) -> Told:
    """Run the ledger and note each answer: credits used, or the balance."""
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


def _timeline(name: str, count: int, life: int) -> dict[str, Any]:
    _say(f"TimelineLedger: {count:,} shuffled operations, {name}")
    operations = _shuffled(count, life)
    answers: list[int] = []
    seconds, told = _timed(lambda: _told_in_any_order(operations, answers))
    _say("  replaying everything, on a sample of the same calls")
    yardstick, right = _replaying(operations, answers, told)
    return _load(
        f"TimelineLedger, {name}",
        count,
        seconds,
        f"replaying everything: an estimate from {min(SAMPLES, count)} calls spread over the run",
        yardstick,
        {"ratio": 20, **({"per_second": 20_000} if life < HORIZON else {})},
        right,
        told,
    )


def _replaying(operations: list[Operation], answers: list[int], told: Told) -> tuple[float, bool]:
    """Operations a second of replaying everything, and whether it gives the same answers.

    The history between the sampled calls is taken from the ledger's answers. That they are
    right is checked at each sample by replaying all that was accepted, and at the end.
    """
    replay = _Replay()
    step = max(1, len(operations) // SAMPLES)
    spent_on_samples, samples, right = 0.0, 0, True
    for number, (kind, amount, time, expiry) in enumerate(operations):
        event = (time, kind, expiry if kind == ADD else 0, amount)
        if number % step == step - 1:
            began = perf_counter()
            if kind == BALANCE:
                right &= replay.balance(time) == answers[number]
            elif kind == USE:
                right &= replay.covered(event) == bool(answers[number])
            else:
                insort(replay.events, event)  # an add alone needs no answer
            spent_on_samples += perf_counter() - began
            samples += 1
            if kind == ADD:
                continue
        if kind == ADD or (kind == USE and answers[number]):
            insort(replay.events, event)
    right &= replay.balance(HORIZON) == told["left"]
    return samples / spent_on_samples, right


# Telling.


def _load(
    name: str,
    count: int,
    seconds: float,
    yardstick: str,
    yardstick_per_second: float,
    goal: dict[str, float],
    right: bool,
    told: Told,
) -> dict[str, Any]:
    per_second = count / seconds if right else 0.0
    ratio = per_second / yardstick_per_second
    return {
        "load": name,
        "operations": count,
        "operations_per_second": round(per_second),
        "yardstick": yardstick,
        "yardstick_operations_per_second": round(yardstick_per_second, 1),
        "ratio": round(ratio, 3),
        "goal": goal,
        "goal_met": ratio >= goal["ratio"] and per_second >= goal.get("per_second", 0),
        "answers_agree": right,
        "told": told,
    }


def _rows(loads: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            str(number),
            f"{load['operations']:,}",
            f"{load['operations_per_second']:,}",
            f"{load['yardstick_operations_per_second']:,.0f}",
            f"{load['ratio']:,.2f}",
            f">= {load['goal']['ratio']}"
            + (f", {load['goal']['per_second']:,}/s" if "per_second" in load["goal"] else ""),
            "yes" if load["goal_met"] else "no",
            "yes" if load["answers_agree"] else "NO",
        ]
        for number, load in enumerate(loads, start=1)
    ]


COLUMNS: Final = ["", "calls", "calls/s", "yardstick", "ratio", "goal", "met", "agree"]


def _print_table(loads: list[dict[str, Any]]) -> None:
    rows = _rows(loads)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
        for row in [COLUMNS, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    else:
        table = Table(title="L-library")
        for column in COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    print("calls/s and yardstick: operations a second, measured in the same run")
    for number, load in enumerate(loads, start=1):
        print(f"{number}  {load['load']}; yardstick: {load['yardstick']}")


if __name__ == "__main__":
    main(json="--json" in sys.argv)
