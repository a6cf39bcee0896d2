"""A sweeper in a process of its own, which a test may kill at any instant.

python -m tests.support.sweeper_process URL
"""

import sys
import time

from bursar.service.ledger.ledger import Ledger
from bursar.service.workers.sweeper import SweepWorker, run_through
from bursar.store.database import connect


def main(url: str) -> None:
    """Sweep until killed, ten minutes at most."""
    with (
        Ledger(lambda: connect(url)) as ledger,
        SweepWorker(lambda: connect(url), run_through(ledger), interval_s=0.05, term_s=60),
    ):
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
