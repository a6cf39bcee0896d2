"""Rounds of chaos on a real ledger until the time is over: python -m tools.soak MINUTES [SEED]

Each round has a seed, printed before it starts: it chooses faults of all kinds and what the callers
ask. The first wrong history ends it all; what the callers saw is kept. With a seed there is one
round, with the same faults in the same order; when exactly they hit is chance in any case.
"""

import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bursar.store.database import URL_VARIABLE, open_database
from tests.service.chaos import FAULTS, Seen, round_of_chaos
from tests.support.databases import new_state

FAULTS_EACH = (6, 20)  # the least and the most of a round


def faults_of(seed: int) -> list[str]:
    """The faults of a round: of some kinds, which change from round to round."""
    chance = random.Random(f"faults/{seed}")
    kinds = chance.sample(sorted(FAULTS), chance.randint(1, len(FAULTS)))
    return [chance.choice(kinds) for _ in range(chance.randint(*FAULTS_EACH))]


def main(minutes: float, seed: int | None) -> int:
    """Go on until the time is over or something is wrong."""
    os.environ.pop(URL_VARIABLE, None)  # this kills servers: never one that is not its own
    end = time.monotonic() + minutes * 60
    rounds, faults, answers = 0, Counter[str](), 0
    with new_state() as state, open_database(state) as database:
        while rounds == 0 or (seed is None and time.monotonic() < end):
            rounds += 1
            now = secrets.randbits(32) if seed is None else seed
            print(f"· round {rounds}, seed {now}: ", end="", flush=True)
            folder = Path(tempfile.mkdtemp(prefix="soak-"))
            try:
                seen = round_of_chaos(database, folder, now, faults_of(now))
            except BaseException:
                print(f"wrong, or stopped; seen in {folder}")
                print(f"to see it again: .venv/bin/python -m tools.soak 0 {now}")
                raise
            print(told(seen), flush=True)
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
            faults += seen.faults
            answers += seen.answers
    print(f"{rounds} rounds, {answers:,} answers, nothing wrong; {dict(sorted(faults.items()))}")
    return 0


def told(seen: Seen) -> str:
    """A round in a line."""
    return (
        f"{seen.faults.total()} faults, {seen.answers:,} answers, {seen.refusals:,} refusals, "
        f"{seen.lost_commits:,} answers to commits lost, {seen.replays:,} told again"
    )


if __name__ == "__main__":
    minutes, *seeds = sys.argv[1:]
    sys.exit(main(float(minutes), int(seeds[0]) if seeds else None))
