"""What a pool tells becomes ledger commands, in the order of its numbers (`dispatch.charging`).

Their keys follow from pool, job and number, so a message that comes again, or whose handling was
cut short, is answered as before (L7). With the last of its commands a message is marked as handled.
The rules may object (usage beyond all bounds of lateness); the message is handled then too, and the
objection is kept where `verify` finds it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bursar.core.dispatch import message_commands
from bursar.core.dispatch.job_lifecycle import CORRECTED
from bursar.core.dispatch.message_commands import CommandStep, Outcome, Steps
from bursar.core.ids import ChargeId, HoldId, OrgId, derive_id
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.messages import Corrected, Left, Started
from bursar.core.refusal import Code, Refusal
from bursar.service.jobs.arrays import Part
from bursar.service.jobs.job_state import Stand, stand_after
from bursar.service.jobs.relocation import Moved, nothing_but_a_note
from bursar.service.jobs.submission import step_of
from bursar.service.ledger.batch import Answer, Ask
from bursar.store.jobs.outbox import Letter
from bursar.store.jobs.rows import Note, Noted
from bursar.store.sql.connection import Connection


def in_order(letters: Iterable[Letter], received: int) -> Iterator[Letter]:
    """The letters that follow on what was received, without a gap."""
    for letter in letters:
        if letter.n != received + 1:
            return
        received = letter.n
        yield letter


class Received(NamedTuple):
    """That a message was handled, with the last of its commands."""

    letter: Letter
    step: CommandStep
    part: Part | None = None  # of an array

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> None:
        """Nothing stands against it; but this is when to look how the array stands."""
        if self.part is not None and isinstance(self.letter.message, Started):
            self.part.look(connection, org, noted)

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written; nothing if another command follows."""
        refusal = outcome.code if isinstance(outcome, Refusal) else None
        if refusal in self.step.unless:
            return
        if refusal in self.step.anyway:
            refusal = None
        _, pool, job, n, message, _ = self.letter
        stand = stand_after(message, at)
        yield Noted("receive", (org, pool, job, n, at, refusal))
        yield Noted("go on", (org, job, n, *stand))
        if stand.why is not None:
            yield step_of(org, job, books, stand.why, at, stand)
        if isinstance(message, Corrected):
            said = Stand(message.attempt, end_class=message.end_class.value)
            yield step_of(org, job, books, CORRECTED, at, said)
        if self.part is not None:
            yield from self.part.rows(org, message, stand, at)


def steps(letter: Letter) -> Steps:
    """The commands that a message comes to; each is sent the outcome of the one before."""
    if isinstance(letter.message, Left):
        return nothing_but_a_note()
    return message_commands.steps(
        HoldId(letter.job), ChargeId(_id_of(letter, "charge")), letter.message
    )


def key_of(letter: Letter, number: int) -> str:
    """The key of the first, second … command that a message comes to."""
    return f"pool:{_id_of(letter, str(number))}"


def _id_of(letter: Letter, what: str) -> str:
    """A name for something of a message: the same whenever it comes."""
    return derive_id(f"{len(letter.pool)}:{letter.pool}/{letter.job}", f"{letter.n}/{what}")


class Handling:
    """The messages about one job on their way through the ledger, one command at a time."""

    def __init__(
        self, letters: Iterable[Letter], handled: list[Letter], part: Part | None = None
    ) -> None:
        self.ask: Ask | None = None  # the next command; None when there is none
        self._letters = iter(letters)
        self._handled = handled
        self._part = part
        self._letter: Letter
        self._steps: Steps
        self._number = 0
        self._next_letter()

    def go_on(self, answer: Answer | Exception) -> None:
        """Take the answer to the command; if it failed, the rest waits for another time."""
        if isinstance(answer, Exception) or _key_was_taken(answer):
            self.ask = None
            return
        try:
            self._ask(self._steps.send(answer.outcome))
        except StopIteration:
            self._handled.append(self._letter)
            self._next_letter()

    def _next_letter(self) -> None:
        letter = next(self._letters, None)
        if letter is None:
            self.ask = None
            return
        self._letter, self._steps, self._number = letter, steps(letter), 0
        self._ask(next(self._steps))

    def _ask(self, step: CommandStep) -> None:
        letter = self._letter
        self._number += 1
        key = key_of(letter, self._number)
        self.ask = Ask(letter.org, key, step.command, self._note(letter, step))

    def _note(self, letter: Letter, step: CommandStep) -> Note | None:
        if isinstance(letter.message, Left):
            return Moved(letter)
        return Received(letter, step, self._part) if step.last else None


def _key_was_taken(answer: Answer) -> bool:
    return isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.KEY_REUSED
