"""Writing what a batch decided: events for ever, and the rows that changed, set-wise.

Each table costs one statement for new rows and one for changed ones, however many orgs and rows a
batch touched.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from bursar.store.ledger.row_mappers import DRAWS, SHELF_OF, SHELVES, Shelf, draw_values
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
ORGS: Final = MappingProxyType(
    {
        "number": "bigint",
        "now": "bigint",
        "clock": "bigint",
        "issued": "bigint",
        "root": "text",
        "tier": "text",
        "policy": "json",
        "prices": "json",
    }
)


def insert_sql(table: str, columns: Mapping[str, str]) -> str:
    """A statement that inserts rows given as one array for each column."""
    with_org = {"org_id": "text", **columns}
    names = ", ".join(with_org)
    taken = ", ".join(_taken(name, kind) for name, kind in with_org.items())
    return f"""
        insert into {table} ({names})
        select {taken} from unnest({array_parameters(with_org)}) as u({names})
    """


def update_sql(table: str, key: Sequence[str], columns: Mapping[str, str]) -> str:
    """A statement that changes rows given as one array for each column."""
    with_org = {"org_id": "text", **columns}
    names = ", ".join(with_org)
    sets = ", ".join(
        f"{name} = {_taken(name, kind)}" for name, kind in columns.items() if name not in key
    )
    return f"""
        update {table} t set {sets}
          from unnest({array_parameters(with_org)}) as u({names})
         where {match_keys("org_id", *key)}
    """


def _taken(name: str, kind: str) -> str:
    """A column of the rows that were given; JSON comes as text."""
    return f"u.{name}::json" if kind == "json" else f"u.{name}"


INSERTS: Final = MappingProxyType(
    {shelf.table: insert_sql(shelf.table, shelf.columns) for shelf in SHELVES}
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
        shelf.table: update_sql(shelf.table, shelf.key, shelf.changes)
        for shelf in SHELVES
        if len(shelf.columns) > len(shelf.key)
    }
    | {
        "draws": update_sql("draws", ("hold_id", "grant_id"), DRAWS),
        "orgs": update_sql("orgs", (), ORGS),
    }
)


class Answered(NamedTuple):
    """A request and the first answer to it."""

    key: str
    command: Command
    outcome: tuple[Event, ...] | Refusal
    number: int  # of the org's last event when it was answered
    at: Instant  # when it was decided
    actor: str = ""  # whose key asked
    steps: tuple[Event, ...] = ()  # what happened beside it although it was refused


class Statement(NamedTuple):
    """A statement on its way, and how many rows it should write."""

    table: str
    rows: int
    sent: SentStatement


@dataclass(slots=True)
class Written:
    """What a batch has to write, gathered table by table.

    Answers and events are final once they are there, and may be sent while other commands are
    still being decided; rows are gathered when all is decided.
    """

    new: dict[str, list[Values]] = field(default_factory=lambda: defaultdict(list))
    changed: dict[str, list[Values]] = field(default_factory=lambda: defaultdict(list))
    sent: list[Statement] = field(default_factory=list)
    moved: set[OrgId] = field(default_factory=set)  # orgs to which something has happened

    def answer(self, org: OrgId, books: Books, answer: Answered) -> None:
        """Gather an answer and its events."""
        outcome = answer.outcome
        refusal = text_of(outcome) if isinstance(outcome, Refusal) else None
        events = answer.steps if isinstance(outcome, Refusal) else outcome
        first = answer.number - len(events) + 1
        asked = (org, answer.key, answer.at, command_text(answer.command))
        self.new["requests"].append((*asked, refusal, first, answer.number, answer.actor))
        if events:
            self.moved.add(org)
        for number, event in enumerate(events, first):
            self.event(org, books, number, event, answer.actor)

    def rows(self, org: OrgId, books: Books, trial: Trial) -> None:
        """Gather the rows that one org's commands made or changed."""
        made: dict[str, dict[Any, bool]] = defaultdict(dict)  # table → key → whether it is new
        replaced = trial.replaced()
        for table, rows in replaced.items():
            shelf = SHELF_OF.get(table.name)
            if shelf is not None:
                keys, brings_new = made[shelf.table], table.name == shelf.keeps[0]
                for key, before in rows.items():
                    keys[key] = keys.get(key, False) or (brings_new and before is None)
        for name, keys in made.items():
            self._of_shelf(org, books, _SHELF[name], keys)
        for hold, before in replaced.get(books.holds, {}).items():
            self._draws(org, before, books.holds.get(hold))
        if org in self.moved:
            self.changed["orgs"].append((org, *singles_values(books)))

    def _of_shelf(self, org: OrgId, books: Books, shelf: Shelf, keys: dict[Any, bool]) -> None:
        new, changed = self.new[shelf.table], self.changed[shelf.table]
        pack, repack = shelf.pack, shelf.repack or shelf.pack
        for key, is_new in keys.items():
            if is_new:
                new.append((org, *pack(books, key)))
            else:
                changed.append((org, *repack(books, key)))

    def event(self, org: OrgId, books: Books, number: int, event: Event, actor: str) -> None:
        """Gather an event and its postings; the books have its grants."""
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
            was = old.get(draw.grant)
            if was is None:
                self.new["draws"].append((org, *draw_values(after, place)))
            elif was != draw:
                self.changed["draws"].append((org, *draw_values(after, place)))

    def send(self, connection: Connection) -> None:
        """Send what was gathered; the database works on it while we go on, in a pipeline."""
        for statements, gathered in ((INSERTS, self.new), (UPDATES, self.changed)):
            for table, rows in gathered.items():
                if rows:
                    sent = connection.execute(statements[table], column_arrays(rows, 0))
                    self.sent.append(Statement(table, len(rows), sent))
            gathered.clear()

    def save(self, connection: Connection) -> None:
        """Send all that is left, and make sure that everything was written."""
        with connection.pipeline():
            self.send(connection)
        for table, rows, sent in self.sent:
            known = sent.rowcount == rows
            invariant(known, "rows that were known are gone", table=table, written=sent.rowcount)
        self.sent.clear()


_SHELF: Final[Mapping[str, Shelf]] = MappingProxyType({shelf.table: shelf for shelf in SHELVES})


def singles_values(books: Books) -> Values:
    """What there is one of in an org, as its own row has it."""
    one = books.header
    figures = (one.number, one.now, books.clock, one.issued, one.root, one.tier)
    return (*figures, text_of(one.policy), text_of(one.prices))


_NAMES: Final[Mapping[Compartment | None, str | None]] = MappingProxyType(
    {None: None} | {one: one.value for one in Compartment}
)
_FREE: Final = (Compartment.AVAILABLE, Compartment.LAPSED)


def _freed(books: Books, posting: Posting) -> int:
    """By how much a posting changes what its grant has free; what is issued begins free."""
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
    """Let an org take no more commands."""
    connection.execute(FREEZE, [why, org])


CREATE_ORG: Final = insert_sql("orgs", ORGS)


class OrgExists(ValueError):
    """There is an org of that name already."""


# What a constraint means that a caller can run into; any other that is violated is a bug of ours,
# and the org that meets it is frozen.
REFUSED: Final[Mapping[str, type[Exception]]] = MappingProxyType({"orgs_pkey": OrgExists})


def create_org(connection: Connection, org: OrgId) -> None:
    """Begin the books of an org, with nothing in them."""
    check_text("org", org)
    try:
        connection.execute(CREATE_ORG, column_arrays([(org, *singles_values(Books()))], 0))
    except errors.IntegrityError as error:
        refused = REFUSED.get(error.diag.constraint_name or "")
        if refused is None:
            raise
        raise refused(org) from None
