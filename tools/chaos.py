"""Rounds of chaos on whole deployments until the time is over: python -m tools.chaos MINUTES [SEED]

Each round has a seed, printed before it starts: it chooses the faults, what tenants ask for and
which failpoints strike. The first round that goes wrong ends it all; its folder is kept, with what
everybody said, all tables, and what jobs have written down. With a seed there is one round, with
the same faults in the same order; when exactly they hit is chance in any case.
"""

import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bursar.service.database import URL_VARIABLE
from tests.chaos.faults import FAULTS
from tests.chaos.rounds import SLOWEST, Invalid, Seen, a_round

FAULTS_EACH = (20, 60)  # the least and the most of a round


def faults_of(seed: int) -> list[str]:
    """The faults of a round: of some kinds, which change from round to round."""
    chance = random.Random(f"faults/{seed}")
    kinds = chance.sample(sorted(FAULTS), chance.randint(3, len(FAULTS)))
    return [chance.choice(kinds) for _ in range(chance.randint(*FAULTS_EACH))]


def main(minutes: float, seed: int | None) -> int:
    """Go on until the time is over or something is wrong."""
    os.environ.pop(URL_VARIABLE, None)  # this kills servers: never one that is not its own
    end = time.monotonic() + minutes * 60
    rounds, invalid, slowest, counts, faults = 0, 0, 0, Counter[str](), Counter[str]()
    while rounds == 0 or (seed is None and time.monotonic() < end):
        rounds += 1
        now = secrets.randbits(32) if seed is None else seed
        print(f"· round {rounds}, seed {now}: ", end="", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        try:
            seen = a_round(folder, now, faults_of(now), armed=now % 2 == 0)
        except Invalid as error:
            invalid += 1
            print(f"invalid: {error}; seen in {folder}", flush=True)
            continue
        except BaseException:
            print(f"wrong, or stopped; seen in {folder}")
            print(f"to see it again: .venv/bin/python -m tools.chaos 0 {now}")
            raise
        print(told(seen), flush=True)
        shutil.rmtree(folder)
        slowest = max(slowest, seen.counts.pop(SLOWEST))
        counts += seen.counts
        faults += seen.faults
    print(f"{rounds} rounds, {invalid} of them invalid, nothing wrong")
    print(f"{dict(counts)}; {dict(sorted(faults.items()))}; {SLOWEST}: {slowest}")
    return 3 if invalid else 0


def told(seen: Seen) -> str:
    """A round in a line."""
    return f"{seen.faults.total()} faults, " + ", ".join(
        f"{number:,} {what}" for what, number in seen.counts.items()
    )


if __name__ == "__main__":
    minutes, *seeds = sys.argv[1:]
    sys.exit(main(float(minutes), int(seeds[0]) if seeds else None))
