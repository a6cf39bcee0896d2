"""A process that looks for alerts, beside others that do the same.

python -m tests.support.alerter_process URL
"""

import sys
import time

from bursar.service.ledger.ledger import Ledger
from bursar.service.webhooks.alerts import Alerter, submit_through
from bursar.store.database import connect


def main(url: str) -> None:
    """Look until killed, a minute at most."""
    with Ledger(lambda: connect(url)) as ledger, connect(url) as connection:
        alerter = Alerter(connection, submit_through(ledger))
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            alerter.check_all()


if __name__ == "__main__":
    main(*sys.argv[1:])
