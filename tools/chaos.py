"""Injects faults into whole deployments, round after round: python -m tools.chaos MINUTES [SEED]

Each round prints its seed before it starts. The seed determines the faults, the tenants' requests
and the armed failpoints. The first failed round ends the run and keeps its folder, with all logs,
tables and what the jobs wrote. With SEED, one round runs with the same faults in the same order;
their exact timing still varies.
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

FAULTS_PER_ROUND = (20, 60)  # minimum and maximum


def draw_faults(seed: int) -> list[str]:
    """The faults of a round, drawn from a random subset of all kinds."""
    rng = random.Random(f"faults/{seed}")
    kinds = rng.sample(sorted(FAULTS), rng.randint(3, len(FAULTS)))
    return [rng.choice(kinds) for _ in range(rng.randint(*FAULTS_PER_ROUND))]


def main(minutes: float, seed: int | None) -> int:
    """Run rounds until the time is up or a round fails."""
    os.environ.pop(URL_VARIABLE, None)  # rounds kill their server, so it must be their own
    end = time.monotonic() + minutes * 60
    rounds, invalid, slowest, counts, faults = 0, 0, 0, Counter[str](), Counter[str]()
    while rounds == 0 or (seed is None and time.monotonic() < end):
        rounds += 1
        round_seed = secrets.randbits(32) if seed is None else seed
        print(f"· round {rounds}, seed {round_seed}: ", end="", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        try:
            result = a_round(folder, round_seed, draw_faults(round_seed), armed=round_seed % 2 == 0)
        except Invalid as error:
            invalid += 1
            print(f"invalid: {error}; files in {folder}", flush=True)
            continue
        except BaseException:
            print(f"failed or interrupted; files in {folder}")
            print(f"to reproduce: .venv/bin/python -m tools.chaos 0 {round_seed}")
            raise
        print(format_round(result), flush=True)
        shutil.rmtree(folder)
        slowest = max(slowest, result.counts.pop(SLOWEST))
        counts += result.counts
        faults += result.faults
    print(f"{rounds} rounds, {invalid} of them invalid, no failures")
    print(f"{dict(counts)}; {dict(sorted(faults.items()))}; {SLOWEST}: {slowest}")
    return 3 if invalid else 0


def format_round(result: Seen) -> str:
    """Describe a round on one line."""
    return f"{result.faults.total()} faults, " + ", ".join(
        f"{number:,} {what}" for what, number in result.counts.items()
    )


if __name__ == "__main__":
    minutes, *seeds = sys.argv[1:]
    sys.exit(main(float(minutes), int(seeds[0]) if seeds else None))
