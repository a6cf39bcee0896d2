"""Handles messages of pools, one ledger command of each job at a time."""

from collections.abc import Iterable, Iterator

from bursar.core.ids import JobId
from bursar.core.jobs.pool_messages import (
    MessageCommand,
    MessageCommands,
    PoolMessage,
    commands_of,
)
from bursar.core.refusal import Code, Refusal
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.store.jobs.outbox import Envelope


def in_order(envelopes: Iterable[Envelope], received: int) -> Iterator[Envelope]:
    """The envelopes that continue what was received, without a gap."""
    for envelope in envelopes:
        if envelope.n != received + 1:
            return
        received = envelope.n
        yield envelope


def message_of(envelope: Envelope) -> PoolMessage:
    """The message in an envelope."""
    return PoolMessage(envelope.pool, envelope.job, envelope.n, envelope.message)


class MessageHandler:
    """Handles the messages about one job, one command after another."""

    def __init__(
        self, envelopes: Iterable[Envelope], handled: list[Envelope], array: JobId | None = None
    ) -> None:
        self.ask: CommandRequest | None = None  # the next command; None when there is none
        self._envelopes = iter(envelopes)
        self._handled = handled
        self._array = array  # of an element
        self._envelope: Envelope
        self._commands: MessageCommands
        self._next_envelope()

    def take(self, answer: Answer | Exception) -> None:
        """Take the answer to the command; after an error, the rest is left for redelivery."""
        if isinstance(answer, Exception) or _key_was_taken(answer):
            self.ask = None
            return
        try:
            self._ask(self._commands.send(answer.outcome))
        except StopIteration:
            self._handled.append(self._envelope)
            self._next_envelope()

    def _next_envelope(self) -> None:
        envelope = next(self._envelopes, None)
        if envelope is None:
            self.ask = None
            return
        self._envelope = envelope
        self._commands = commands_of(message_of(envelope), self._array)
        self._ask(next(self._commands))

    def _ask(self, command: MessageCommand) -> None:
        self.ask = CommandRequest(self._envelope.org, *command)


def _key_was_taken(answer: Answer) -> bool:
    return isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.KEY_REUSED
