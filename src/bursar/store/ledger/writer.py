"""Writes the results of a batch: its events, and the new and changed rows.

Each table costs one statement for new rows and one for changed rows, however many orgs and rows a
batch has.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from psycopg import errors

from bursar.core.ids import GrantId, OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books, Trial, require
from bursar.core.ledger.commands import Command
from bursar.core.ledger.events import ChargeReversed, Event, Posting, RecurrenceTurned
from bursar.core.ledger.values import Compartment, Hold
from bursar.core.refusal import Refusal, invariant
from bursar.core.validation import check_text
from bursar.store.ledger.mappings import MAPPING_OF, TABLE_MAPPINGS
from bursar.store.ledger.mappings.base import TableMapping
from bursar.store.ledger.mappings.holds import DRAWS, draw_values
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.codec import command_text, text_of
from bursar.store.sql.connection import Connection, SentStatement
from bursar.store.sql.fragments import array_parameters, match_keys

EVENTS: Final = MappingProxyType(
    {"number": "bigint", "at": "bigint", "kind": "text", "body": "json", "actor": "text"}
)
POSTINGS: Final = MappingProxyType(
    {
        "number": "bigint",
        "place": "int",
        "grant_id": "text",
        "source": "text",
        "target": "text",
        "amount": "bigint",
        "effective_at": "bigint",
        "freed": "bigint",
    }
)
REQUESTS: Final = MappingProxyType(
    {
        "key": "text",
        "at": "bigint",
        "command": "json",
        "refusal": "json",
        "first": "bigint",
        "number": "bigint",
        "actor": "text",
    }
)
FORFEITS: Final = MappingProxyType(
    {"grant_id": "text", "at": "bigint", "number": "bigint", "amount": "bigint"}
)
ORG_COUNTERS: Final = MappingProxyType(
    {"number": "bigint", "now": "bigint", "clock": "bigint", "issued": "bigint"}
)
ORG_SETTINGS: Final = MappingProxyType(
    {"root": "text", "tier": "text", "policy": "json", "prices": "json"}
)
ORGS: Final = MappingProxyType({**ORG_COUNTERS, **ORG_SETTINGS})


def insert_sql(table: str, columns: Mapping[str, str]) -> str:
    """A statement that inserts rows; its parameters are one array per column."""
    with_org = {"org_id": "text", **columns}
    names = ", ".join(with_org)
    values = ", ".join(_parameter(name, kind) for name, kind in with_org.items())
    return f"""
        insert into {table} ({names})
        select {values} from unnest({array_parameters(with_org)}) as u({names})
    """


def update_sql(table: str, key: Sequence[str], columns: Mapping[str, str]) -> str:
    """A statement that changes rows; its parameters are one array per column."""
    with_org = {"org_id": "text", **columns}
    names = ", ".join(with_org)
    sets = ", ".join(
        f"{name} = {_parameter(name, kind)}" for name, kind in columns.items() if name not in key
    )
    return f"""
        update {table} t set {sets}
          from unnest({array_parameters(with_org)}) as u({names})
         where {match_keys("org_id", *key)}
    """


def _parameter(name: str, kind: str) -> str:
    """A column of the rows that are parameters; JSON is passed as text."""
    return f"u.{name}::json" if kind == "json" else f"u.{name}"


INSERTS: Final = MappingProxyType(
    {mapping.table: insert_sql(mapping.table, mapping.columns) for mapping in TABLE_MAPPINGS}
    | {
        "draws": insert_sql("draws", DRAWS),
        "events": insert_sql("events", EVENTS),
        "postings": insert_sql("postings", POSTINGS),
        "requests": insert_sql("requests", REQUESTS),
        "forfeits": insert_sql("forfeits", FORFEITS),
    }
)
UPDATES: Final = MappingProxyType(
    {
        mapping.table: update_sql(mapping.table, mapping.key, mapping.changes)
        for mapping in TABLE_MAPPINGS
        if len(mapping.columns) > len(mapping.key)
    }
    | {
        "draws": update_sql("draws", ("hold_id", "grant_id"), DRAWS),
        "orgs": update_sql("orgs", (), ORGS),
        "orgs, counters": update_sql("orgs", (), ORG_COUNTERS),
    }
)


class RequestAnswer(NamedTuple):
    """A request and the first answer to it."""

    key: str
    command: Command
    outcome: tuple[Event, ...] | Refusal
    number: int  # of the org's last event when it was answered
    at: Instant  # when it was decided
    actor: str = ""  # the API key of the request
    steps: tuple[Event, ...] = ()  # events that were written although it was refused


class Statement(NamedTuple):
    """A statement that was sent, and how many rows it has to write."""

    table: str
    rows: int
    sent: SentStatement


@dataclass(slots=True)
class BatchWriter:
    """Collects the rows of a batch by table, and writes them.

    Answers and events are final at once, and are sent while other commands are still being decided.
    Other rows are collected after all commands are decided.
    """

    new: dict[str, list[Values]] = field(default_factory=lambda: defaultdict(list))
    changed: dict[str, list[Values]] = field(default_factory=lambda: defaultdict(list))
    sent: list[Statement] = field(default_factory=list)
    moved: set[OrgId] = field(default_factory=set)  # orgs with new events

    def answer(self, org: OrgId, books: Books, answer: RequestAnswer) -> None:
        """Collect an answer and its events."""
        outcome = answer.outcome
        refusal = text_of(outcome) if isinstance(outcome, Refusal) else None
        events = answer.steps if isinstance(outcome, Refusal) else outcome
        first = answer.number - len(events) + 1
        request = (org, answer.key, answer.at, command_text(answer.command))
        self.new["requests"].append((*request, refusal, first, answer.number, answer.actor))
        if events:
            self.moved.add(org)
        for number, event in enumerate(events, first):
            self.event(org, books, number, event, answer.actor)

    def rows(self, org: OrgId, books: Books, trial: Trial) -> None:
        """Collect the rows that the commands of one org have created or changed."""
        touched: dict[str, dict[Any, bool]] = defaultdict(dict)  # table → key → is it new
        replaced = trial.replaced()
        for table, rows in replaced.items():
            mapping = MAPPING_OF.get(table.name)
            if mapping is not None:
                keys, brings_new = touched[mapping.table], table.name == mapping.book_tables[0]
                for key, before in rows.items():
                    keys[key] = keys.get(key, False) or (brings_new and before is None)
        for name, keys in touched.items():
            self._rows_of(org, books, _MAPPING[name], keys)
        for hold, before in replaced.get(books.holds, {}).items():
            self._draws(org, before, books.holds.get(hold))
        if org in self.moved:
            if _settings(trial.header_before()) == _settings(books.header):
                self.changed["orgs, counters"].append((org, *_counter_values(books)))
            else:
                self.changed["orgs"].append((org, *header_values(books)))

    def _rows_of(
        self, org: OrgId, books: Books, mapping: TableMapping, keys: dict[Any, bool]
    ) -> None:
        new, changed = self.new[mapping.table], self.changed[mapping.table]
        to_row, to_changed_row = mapping.to_row, mapping.to_changed_row or mapping.to_row
        for key, is_new in keys.items():
            if is_new:
                new.append((org, *to_row(books, key)))
            else:
                changed.append((org, *to_changed_row(books, key)))

    def event(self, org: OrgId, books: Books, number: int, event: Event, actor: str) -> None:
        """Collect an event and its postings; the books have its grants."""
        kind = type(event).__name__
        self.new["events"].append((org, number, event.at, kind, text_of(event), actor))
        for place, posting in enumerate(event.postings):
            freed = _freed(books, posting)
            source, target = _NAMES[posting.source], _NAMES[posting.target]
            moved = (source, target, posting.amount, posting.effective_at)
            self.new["postings"].append((org, number, place, posting.grant, *moved, freed))
        for grant, amount, at in _forfeited(event):
            self.new["forfeits"].append((org, grant, at, number, amount))

    def _draws(self, org: OrgId, before: Hold | None, after: Hold | None) -> None:
        assert after is not None
        old = {draw.grant: draw for draw in before.draws} if before else {}
        for place, draw in enumerate(after.draws):
            previous = old.get(draw.grant)
            if previous is None:
                self.new["draws"].append((org, *draw_values(after, place)))
            elif previous != draw:
                self.changed["draws"].append((org, *draw_values(after, place)))

    def send(self, connection: Connection) -> None:
        """Send what is collected; in a pipeline the database works on it meanwhile."""
        for statements, collected in ((INSERTS, self.new), (UPDATES, self.changed)):
            for table, rows in collected.items():
                if rows:
                    sent = connection.execute(statements[table], column_arrays(rows, 0))
                    self.sent.append(Statement(table, len(rows), sent))
            collected.clear()

    def save(self, connection: Connection) -> None:
        """Send the rest, and check that every row was written."""
        with connection.pipeline():
            self.send(connection)
        for table, rows, sent in self.sent:
            written = sent.rowcount
            invariant(written == rows, "loaded rows are missing", table=table, written=written)
        self.sent.clear()


_MAPPING: Final[Mapping[str, TableMapping]] = MappingProxyType(
    {mapping.table: mapping for mapping in TABLE_MAPPINGS}
)


def header_values(books: Books) -> Values:
    """The values of an org's own row."""
    header = books.header
    settings = (header.root, header.tier, text_of(header.policy), text_of(header.prices))
    return (*_counter_values(books), *settings)


def _counter_values(books: Books) -> Values:
    """The values of `ORG_COUNTERS`, which change with every batch."""
    header = books.header
    return (header.number, header.now, books.clock, header.issued)


# Settings seldom change, and their texts may be long.
_settings: Final = attrgetter(*ORG_SETTINGS)


_NAMES: Final[Mapping[Compartment | None, str | None]] = MappingProxyType(
    {None: None} | {compartment: compartment.value for compartment in Compartment}
)
_FREE: Final = (Compartment.AVAILABLE, Compartment.LAPSED)


def _freed(books: Books, posting: Posting) -> int:
    """By how much a posting changes the free credits of its grant; new credits begin as free."""
    source, target = posting.source, posting.target
    if source is None:
        return 0
    if source is Compartment.SPENT and target is Compartment.LAPSED:
        refundable = require(books.grants, posting.grant).terms.policy.refundable
        return posting.amount if refundable else 0
    return posting.amount * ((target in _FREE) - (source in _FREE))


def _forfeited(event: Event) -> Iterator[tuple[GrantId, int, Instant]]:
    """Lapsed credits that an event issued again elsewhere: grant, amount, from when."""
    if isinstance(event, RecurrenceTurned):
        for grant, amount in event.rolled:
            yield grant, amount, event.turned_at
    if isinstance(event, ChargeReversed):
        for grant, amount in event.reissued:
            yield grant, amount, event.at


FREEZE: Final = "update orgs set frozen = %s where org_id = %s and frozen is null"


def freeze(connection: Connection, org: OrgId, why: str) -> None:
    """Freeze an org: it refuses all commands from now on."""
    connection.execute(FREEZE, [why, org])


CREATE_ORG: Final = insert_sql("orgs", ORGS)


class OrgExists(ValueError):
    """An org with this id exists already."""


# The constraints that a caller can violate. Any other violation is a bug, and freezes the org.
REFUSED: Final[Mapping[str, type[Exception]]] = MappingProxyType({"orgs_pkey": OrgExists})


def create_org(connection: Connection, org: OrgId) -> None:
    """Create an org with empty books."""
    check_text("org", org)
    try:
        connection.execute(CREATE_ORG, column_arrays([(org, *header_values(Books()))], 0))
    except errors.IntegrityError as error:
        refused = REFUSED.get(error.diag.constraint_name or "")
        if refused is None:
            raise
        raise refused(org) from None
