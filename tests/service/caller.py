"""A caller in a process of its own that may be killed at any instant, and then goes on.

    python caller.py URL ORG NAME SEED OPERATIONS LOG

Each operation is written down before it is asked and after it is answered. Started again with the
same log, it asks what had no answer once more under the same key, as any careful client does.
"""

import json
import random
import sys
from pathlib import Path

import psycopg

from bursar.core.ids import AccountId, ChargeId, HoldId, UserId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import Charge, Command, Refund, Release, Reserve, Settle
from bursar.core.refusal import Refusal
from bursar.service.ledger import Ledger, Limits
from bursar.store.codec import text_of
from bursar.store.reading import Connection


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


def main(url: str, org: str, name: str, seed: int, operations: int, log: Path) -> None:
    """Ask all operations, one after the other."""

    def connect() -> Connection:
        return psycopg.connect(url, autocommit=True)

    answered = {line["key"] for line in lines(log) if "answer" in line}
    with Ledger(connect, limits=Limits(lanes=1, unreachable_s=120)) as ledger, log.open("a") as out:
        for number in range(operations):
            key = f"{name}-{number}"
            if key in answered:
                continue
            out.write(json.dumps({"key": key, "asked": number}) + "\n")
            out.flush()
            answer = ledger.ask(org, key, operation(name, number, seed))
            refusal = text_of(answer.outcome) if isinstance(answer.outcome, Refusal) else None
            told = {"key": key, "answer": answer.number, "refusal": refusal}
            out.write(json.dumps({**told, "replayed": answer.replayed}) + "\n")
            out.flush()


def lines(log: Path) -> list[dict[str, object]]:
    """What was written so far; a line that was being written when it was killed is left out."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


if __name__ == "__main__":
    url, org, name, seed, operations, log = sys.argv[1:]
    main(url, org, name, int(seed), int(operations), Path(log))
