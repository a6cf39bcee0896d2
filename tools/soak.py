"""Injects faults into a real ledger, round after round: python -m tools.soak MINUTES [SEED]

Each round prints its seed before it starts. The seed determines the faults and the clients'
requests. The first wrong history ends the run and keeps what the clients saw. With SEED, one round
runs with the same faults in the same order; their exact timing still varies.
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
from tests.support.databases import new_state
from tests.support.ledger_chaos import FAULTS, Seen, round_of_chaos

FAULTS_PER_ROUND = (6, 20)  # minimum and maximum


def draw_faults(seed: int) -> list[str]:
    """The faults of a round, drawn from a random subset of all kinds."""
    rng = random.Random(f"faults/{seed}")
    kinds = rng.sample(sorted(FAULTS), rng.randint(1, len(FAULTS)))
    return [rng.choice(kinds) for _ in range(rng.randint(*FAULTS_PER_ROUND))]


def main(minutes: float, seed: int | None) -> int:
    """Run rounds until the time is up or a round fails."""
    os.environ.pop(URL_VARIABLE, None)  # rounds kill their server, so it must be their own
    end = time.monotonic() + minutes * 60
    rounds, faults, answers = 0, Counter[str](), 0
    with new_state() as state, open_database(state) as database:
        while rounds == 0 or (seed is None and time.monotonic() < end):
            rounds += 1
            round_seed = secrets.randbits(32) if seed is None else seed
            print(f"· round {rounds}, seed {round_seed}: ", end="", flush=True)
            folder = Path(tempfile.mkdtemp(prefix="soak-"))
            try:
                result = round_of_chaos(database, folder, round_seed, draw_faults(round_seed))
            except BaseException:
                print(f"failed or interrupted; files in {folder}")
                print(f"to reproduce: .venv/bin/python -m tools.soak 0 {round_seed}")
                raise
            print(format_round(result), flush=True)
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
            faults += result.faults
            answers += result.answers
    print(f"{rounds} rounds, {answers:,} answers, no failures; {dict(sorted(faults.items()))}")
    return 0


def format_round(result: Seen) -> str:
    """Describe a round on one line."""
    return (
        f"{result.faults.total()} faults, {result.answers:,} answers, {result.refusals:,} refusals,"
        f" {result.lost_commits:,} lost commit answers, {result.replays:,} replays"
    )


if __name__ == "__main__":
    minutes, *seeds = sys.argv[1:]
    sys.exit(main(float(minutes), int(seeds[0]) if seeds else None))
