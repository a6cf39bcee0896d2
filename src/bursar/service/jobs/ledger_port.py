"""The interface of the ledger that job handling uses: commands in, answers out."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.service.ledger.batcher import Busy
from bursar.service.ledger.ledger import Ledger

Answers: TypeAlias = Sequence[Answer | Exception]
RunAsks: TypeAlias = Callable[[Sequence[CommandRequest]], Answers]  # the ledger


def run_asks_through(ledger: Ledger) -> RunAsks:
    """A function that runs commands in a shared ledger; each has its own answer or error."""

    def ask(asks: Sequence[CommandRequest]) -> Answers:
        waiting = [_submitted(ledger, ask) for ask in asks]
        return [pending if isinstance(pending, Busy) else _result(pending) for pending in waiting]

    return ask


def _submitted(ledger: Ledger, ask: CommandRequest) -> "Future[Answer] | Busy":
    try:
        return ledger.submit(*ask)
    except Busy as busy:
        return busy


def _result(waiting: "Future[Answer]") -> Answer | Exception:
    try:
        return waiting.result()
    except Exception as error:  # of any kind: it belongs to this command only
        return error
