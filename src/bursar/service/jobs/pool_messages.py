"""Messages of pools on their way through the ledger, one command of each job at a time."""

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
from bursar.store.jobs.outbox import Letter


def in_order(letters: Iterable[Letter], received: int) -> Iterator[Letter]:
    """The letters that follow on what was received, without a gap."""
    for letter in letters:
        if letter.n != received + 1:
            return
        received = letter.n
        yield letter


def message_of(letter: Letter) -> PoolMessage:
    """A letter without the envelope."""
    return PoolMessage(letter.pool, letter.job, letter.n, letter.message)


class MessageHandler:
    """Handles the messages about one job, one command after the other."""

    def __init__(
        self, letters: Iterable[Letter], handled: list[Letter], array: JobId | None = None
    ) -> None:
        self.ask: CommandRequest | None = None  # the next command; None when there is none
        self._letters = iter(letters)
        self._handled = handled
        self._array = array  # of an element
        self._letter: Letter
        self._commands: MessageCommands
        self._next_letter()

    def take(self, answer: Answer | Exception) -> None:
        """Take the answer to the command; if it failed, the rest waits for another time."""
        if isinstance(answer, Exception) or _key_was_taken(answer):
            self.ask = None
            return
        try:
            self._ask(self._commands.send(answer.outcome))
        except StopIteration:
            self._handled.append(self._letter)
            self._next_letter()

    def _next_letter(self) -> None:
        letter = next(self._letters, None)
        if letter is None:
            self.ask = None
            return
        self._letter = letter
        self._commands = commands_of(message_of(letter), self._array)
        self._ask(next(self._commands))

    def _ask(self, command: MessageCommand) -> None:
        self.ask = CommandRequest(self._letter.org, *command)


def _key_was_taken(answer: Answer) -> bool:
    return isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.KEY_REUSED
