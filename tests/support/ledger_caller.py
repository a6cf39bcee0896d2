"""A caller in a process of its own that may be killed at any instant, and then goes on.

    python -m tests.support.ledger_caller URL ORG NAME SEED LOG STOP

Each operation is written down before it is asked and after it is answered. Started again with the
same log, it asks what had no answer once more under the same key, as any careful client does. It
goes on until somebody makes the file STOP.
"""

import json
import random
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, Final

from bursar.core.ids import AccountId, ChargeId, HoldId, UserId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import Charge, Command, Refund, Release, Reserve, Settle
from bursar.core.refusal import Refusal
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Busy, Limits, Unreachable
from bursar.service.ledger.ledger import Ledger
from bursar.store.database import Timeouts, connect
from bursar.store.sql.codec import text_of

PAUSE_S_MAX: Final = 0.05  # between two operations, so that a history stays small

# Short, so that a dead line and a stopped neighbour are given up during a test.
IMPATIENT: Final = Timeouts(
    connect_s=2, lock_ms=1_500, statement_ms=2_000, idle_in_transaction_ms=2_000, answer_s=2.5
)


def operation(name: str, number: int, seed: int) -> Command:
    """The n-th thing that a caller of this name asks: always the same one."""
    chance = random.Random(f"{seed}/{name}/{number}")
    hold = HoldId(f"{name}-{number if number % 4 == 0 else number - number % 4}")
    charge = ChargeId(f"{name}-c{number}")
    if number % 4 == 0:
        return Reserve(
            hold=hold,
            account=AccountId("org"),
            user=UserId("ann"),
            amount=chance.randint(1, 90),
            expires_at=NEVER - 1,
        )
    return chance.choice(
        (
            Charge(charge=charge, hold=hold, amount=chance.randint(1, 40)),
            Charge(charge=charge, hold=hold, amount=chance.randint(1, 10)),
            Refund(hold=hold, amount=chance.randint(1, 30)),
            Settle(charge=charge, hold=hold, total=chance.randint(0, 60)),
            Release(hold=hold),
        )
    )


def main(url: str, org: str, name: str, seed: int, log: Path, stop: Path) -> None:
    """Ask one operation after the other."""
    asked = {line["key"] for line in lines(log)}
    answered = {line["key"] for line in lines(log) if "answer" in line}
    with (
        Ledger(lambda: connect(url, IMPATIENT), limits=Limits(lanes=1)) as ledger,
        log.open("a") as out,
    ):
        for number in count():
            key = f"{name}-{number}"
            if key in answered:
                continue
            if stop.exists() and key not in asked:
                return
            time.sleep(random.uniform(0, PAUSE_S_MAX))
            print(json.dumps({"key": key, "asked_ns": time.monotonic_ns()}), file=out, flush=True)
            answer = insisted(ledger, org, key, operation(name, number, seed))
            print(json.dumps(answer_line(key, answer)), file=out, flush=True)


def answer_line(key: str, answer: Answer) -> dict[str, object]:
    """What is written down of an answer, at the instant when it is seen."""
    return {
        "key": key,
        "answer": answer.number,
        "refusal": text_of(answer.outcome) if isinstance(answer.outcome, Refusal) else None,
        "replayed": answer.replayed,
        "answered_ns": time.monotonic_ns(),
    }


def insisted(ledger: Ledger, org: str, key: str, command: Command) -> Answer:
    """Ask until there is an answer: what is not known may have happened."""
    while True:
        try:
            return ledger.ask(org, key, command)
        except (Busy, Unreachable):
            continue


def lines(log: Path) -> list[dict[str, Any]]:
    """What was written so far; a line that was being written when it was killed is left out."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


if __name__ == "__main__":
    url, org, name, seed, log, stop = sys.argv[1:]
    main(url, org, name, int(seed), Path(log), Path(stop))
