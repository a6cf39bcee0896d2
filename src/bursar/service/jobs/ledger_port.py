"""How jobs ask the ledger: commands in, answers out."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from bursar.service.ledger.batch import Answer, Ask
from bursar.service.ledger.batcher import Busy
from bursar.service.ledger.ledger import Ledger

Answers: TypeAlias = Sequence[Answer | Exception]
Asked: TypeAlias = Callable[[Sequence[Ask]], Answers]  # the ledger


def through(ledger: Ledger) -> Asked:
    """Ask a ledger that many others ask, too: what fails, fails for itself."""

    def ask(asks: Sequence[Ask]) -> Answers:
        waiting = [_submitted(ledger, one) for one in asks]
        return [one if isinstance(one, Busy) else _result(one) for one in waiting]

    return ask


def _submitted(ledger: Ledger, ask: Ask) -> "Future[Answer] | Busy":
    try:
        return ledger.submit(*ask)
    except Busy as busy:
        return busy


def _result(waiting: "Future[Answer]") -> Answer | Exception:
    try:
        return waiting.result()
    except Exception as error:  # whatever it is, it is this command's own
        return error
