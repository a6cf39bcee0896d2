"""Orgs to put a load on.

One is made by the ledger's own batches, command by command. Others like it are copies of all its
rows under another name: the same events, postings and answers that the ledger would have written,
in seconds where asking a million times would take many minutes. `ledger verify` looks at all.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import psycopg
from psycopg import errors

from benchmarks.ledger.sizes import OrgShape
from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, GrantId, UserId
from bursar.core.instant import HOUR, Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, SetBudget
from bursar.core.ledger.values import BudgetTarget, CreditKind
from bursar.core.money import AMOUNT_MAX, CREDIT, Micros
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Refusal
from bursar.service.database import (
    Connection,
    Database,
    OrgId,
    ScratchDatabase,
    create_org,
    money_time,
)
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.service.ledger.ledger import Ledger
from bursar.service.workers.sweeper import Sweeper, SweepResult, run_through

ROOT: Final = AccountId("org")
USER: Final = UserId("ann")
COMMANDS_PER_TRANSACTION: Final = 5_000  # commands in a transaction while an org is made
COPIES_PER_TRANSACTION: Final = 2_000  # orgs
SETUP_KEY_PREFIX: Final = "made-"  # how the keys begin under which an org is made
GRANT_MICROS: Final = 1_000_000_000 * CREDIT  # no load comes to the end of it

LIST_TABLES: Final = """
    select table_name, array_agg(column_name::text order by ordinal_position)
      from information_schema.columns
     where table_schema = 'public' and is_generated = 'NEVER'
     group by table_name
    having bool_or(column_name = 'org_id')
     order by table_name
"""


def project_id(number: int) -> AccountId:
    """The account of this number among an org's projects."""
    return AccountId(f"project-{number}")


def make_tree(shape: OrgShape, granted: Micros = GRANT_MICROS) -> Iterator[Command]:
    """An org with one large grant and a budget on every account, hence at three levels."""
    yield AddAccount(account=ROOT, parent=None, name="org")
    yield AddUser(user=USER)
    yield _make_budget(ROOT, PeriodKind.MONTH)
    for number in range(shape.teams):
        team = AccountId(f"team-{number}")
        yield AddAccount(account=team, parent=ROOT, name=team)
        yield _make_budget(team, PeriodKind.WEEK)
    for number in range(shape.projects):
        account = project_id(number)
        parent = AccountId(f"team-{number % shape.teams}")
        yield AddAccount(account=account, parent=parent, name=account)
        yield _make_budget(account, PeriodKind.DAY)
    yield Issue(grant=GrantId("plenty"), account=ROOT, amount=granted, kind=CreditKind.PAID)


def _make_budget(account: AccountId, every: PeriodKind) -> Command:
    """A hard limit that must be looked at each time, and is never reached."""
    return SetBudget(
        budget=BudgetId(f"of-{account}"),
        target=BudgetTarget(account=account),
        every=every,
        limit=AMOUNT_MAX,
        hard=True,
    )


def make_org(
    database: Database | ScratchDatabase,
    org: OrgId,
    commands: Iterable[Command],
    clock: Callable[[Connection], Instant] = money_time,
) -> None:
    """Begin an org and have all these commands done, in order, in few large transactions.

    Nothing has to be loaded: books that were there from the beginning lack nothing.
    """
    books = Books()
    asks = (
        CommandRequest(org, f"{SETUP_KEY_PREFIX}{number}", command)
        for number, command in enumerate(commands)
    )
    with database.connect(timeouts=None) as connection:
        create_org(connection, org)
        while batch := list(islice(asks, COMMANDS_PER_TRANSACTION)):
            for answer in Batch(connection, PriceBook(), {org: books}, clock).run(batch):
                if not isinstance(answer, Answer) or isinstance(answer.outcome, Refusal):
                    raise RuntimeError(f"an org could not be made: {answer}")


def copy_org(connection: Connection, org: OrgId, copies: Sequence[OrgId]) -> None:
    """Let each of `copies` have had the very history of `org`."""
    tables: list[tuple[str, list[str]]] = connection.execute(LIST_TABLES).fetchall()
    for start in range(0, len(copies), COPIES_PER_TRANSACTION):
        names = list(copies[start : start + COPIES_PER_TRANSACTION])
        with connection.transaction():
            for table, columns in tables:
                own = ", ".join(name for name in columns if name != "org_id")
                sql = f"""
                    insert into {table} (org_id, {own})
                    select u.copy_id, {own}
                      from {table} t cross join unnest(%s::text[]) as u(copy_id)
                     where t.org_id = %s
                """
                connection.execute(sql.encode(), [names, org])


def make_orgs(database: ScratchDatabase, count: int, shape: OrgShape) -> list[OrgId]:
    """So many equal orgs, ready to be worked on."""
    names = [f"org-{number:06d}" for number in range(count)]
    make_org(database, names[0], make_tree(shape))
    sweep(database)  # so that the copies need no first sweep of their own
    with database.connect(timeouts=None) as connection:
        copy_org(connection, names[0], names[1:])
    vacuum_and_checkpoint(database)
    return names


def sweep(database: ScratchDatabase) -> SweepResult:
    """Bring what is summed up to date; nothing is due in the orgs of these loads."""
    with database.connect(timeouts=None) as connection, Ledger(database.connect) as ledger:
        return Sweeper(connection, run_through(ledger)).sweep()


def vacuum_and_checkpoint(database: ScratchDatabase) -> None:
    """Have the server do now what it would do sometime after much was written, amid the load."""
    with database.connect(timeouts=None) as connection:
        connection.execute("vacuum (analyze)")
        checkpoint(connection)


def checkpoint(connection: "psycopg.Connection[Any]") -> None:
    """Begin with clean pages, where we may ask for it: each load writes its own."""
    try:
        connection.execute("checkpoint")
    except errors.InsufficientPrivilege:
        return


def make_expiry() -> Instant:
    """The limit of holds that are opened now: far enough off to play no part."""
    return time.time_ns() // 1_000 + 12 * HOUR
