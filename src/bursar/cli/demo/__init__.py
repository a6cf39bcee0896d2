"""The ledger at work, live: a hot org, its database killed in the middle, every credit accounted.

`crowd` asks and keeps its own count of the answers, `moving` shows them as they come, `counted`
reads what the database has, and this module plays the scenes and compares the two.
"""

import io
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from bursar.bench.ledger.callers import CHARGED, HELD, Works
from bursar.bench.ledger.orgs import MADE, make_org, tree
from bursar.bench.ledger.sizes import HOT
from bursar.cli.demo.counted import Stored, stored
from bursar.cli.demo.crowd import Crowd, Told
from bursar.cli.demo.moving import Line
from bursar.cli.interrupts import INTERRUPTED
from bursar.cli.tour.shown import Page, column, count, credits
from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId
from bursar.core.ledger.commands import Command, SetBudget
from bursar.core.ledger.values import BudgetTarget
from bursar.core.money import CREDIT
from bursar.service.database import (
    Aside,
    Database,
    DatabaseDown,
    OrgId,
    SchemaDiffers,
    StateUnusable,
    embedded,
    temporary,
)
from bursar.service.ledger.audit import CHECKS, verify
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.ledger import Ledger

CALLERS: Final = 64
GRANTED: Final = 1_000_000 * CREDIT
TIGHT: Final = 100 * CREDIT  # what one team may spend; then its requests are refused
TICK_S: Final = 0.05
KILLED_AFTER: Final = 0.4  # of the time
PATIENCE_S: Final = 90.0  # for a database that was killed, and for the last answers
SHOWN_MOST: Final = 5  # problems that are told one by one

# A batch whose connection breaks is given back to its callers at once: they are to show that
# asking again is safe. In service the ledger itself would try again first.
LIMITS: Final = Limits(unreachable_s=0)


class Stuck(Exception):
    """The show could not go on."""


def play(state: Path | None, seconds: float) -> int:
    """Play all scenes at the terminal; the status to exit with."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a sign still gets the rest
    console = Console(highlight=False)
    # It tells of every connection that breaks, and here they are broken on purpose.
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    try:
        with _end_on_request():
            return 0 if _played(console, state, seconds) else 1
    except KeyboardInterrupt:
        console.print("stopped; the database is shut down")
        return INTERRUPTED
    except (StateUnusable, DatabaseDown, SchemaDiffers, Stuck) as error:
        Console(stderr=True, highlight=False).print(f"bursar: {error}", soft_wrap=True)
        return 2


@contextmanager
def _end_on_request() -> Iterator[None]:
    """Let SIGTERM do what the first Ctrl-C does: shut the database down, then end."""

    def interrupt(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


def _played(console: Console, state: Path | None, seconds: float) -> bool:
    """Bring a database up, put a load on it, kill it, and look at what is there in the end."""
    page = Page(console)
    page.heading("A hot org")
    where = "a folder of its own, gone afterwards" if state is None else f"the folder {state}"
    page.say(f"Starting PostgreSQL in {where} …")
    with temporary() if state is None else embedded(state) as database:
        org = _made_org(database)
        assert database.embedded is not None
        page.say(
            f"""PostgreSQL {database.embedded.running.version} serves. One org with {HOT.accounts}
            accounts, a budget on each. {CALLERS} callers hold {credits(HELD)}, charge
            {credits(CHARGED)} three times and settle, over and over. One team may spend
            {credits(TIGHT)} and no more."""
        )
        console.print()
        told = _load(console, database, org, seconds)
        page.heading("Nothing lost, nothing doubled")
        return judged(page, database, org, told)


def _made_org(database: Database) -> OrgId:
    """A new org, in which one team has a tight budget."""
    org = f"demo-{time.time_ns()}"
    team = AccountId("team-0")
    tight: Command = SetBudget(
        budget=BudgetId(f"of-{team}"),
        target=BudgetTarget(account=team),
        every=PeriodKind.WEEK,
        limit=TIGHT,
        hard=True,
    )
    make_org(database, org, [*tree(HOT, GRANTED), tight])
    return org


def _load(console: Console, database: Database, org: OrgId, seconds: float) -> Told:
    """Callers at work for so long; the database is killed on the way."""
    works = Works("unit", [org], HOT.projects)
    with Ledger(database.connect, limits=LIMITS) as ledger, Line(console) as line:
        crowd = Crowd(ledger, works, CALLERS)
        try:
            crowd.start()
            _watch(crowd, line, KILLED_AFTER * seconds)
            _kill(database, line)
            _await_recovery(crowd, line)
            _watch(crowd, line, seconds)
        finally:
            crowd.stop()
        _drain(crowd, line)
        line.say(f"the callers stop: {len(crowd.told.keys):,} commands answered")
    return crowd.told


def _tick(crowd: Crowd, line: Line) -> None:
    time.sleep(TICK_S)
    crowd.retry()
    line.show(crowd.waits(), len(crowd.told.keys))
    if crowd.error is not None:
        raise Stuck(f"a caller got an error that it did not expect: {crowd.error!r}")


def _watch(crowd: Crowd, line: Line, until_s: float) -> None:
    while line.seconds < until_s:
        _tick(crowd, line)


def _kill(database: Database, line: Line) -> None:
    """Kill PostgreSQL as a power cut would: no word to anybody."""
    assert database.embedded is not None
    pid = database.embedded.ensure().postgres_pid
    os.kill(pid, signal.SIGKILL)
    line.say(f"kill -9 {pid}: PostgreSQL is killed, with {CALLERS} commands on their way")


def _await_recovery(crowd: Crowd, line: Line) -> None:
    """Go on until somebody is answered again."""
    killed_at = time.perf_counter()
    while crowd.told.answered_again_at is None:
        if time.perf_counter() - killed_at > PATIENCE_S:
            raise Stuck(f"no answer within {PATIENCE_S:.0f} s after the kill")
        _tick(crowd, line)
    took = crowd.told.answered_again_at - killed_at
    line.say(f"recovered: the first answer came {took:.2f} s after the kill")


def _drain(crowd: Crowd, line: Line) -> None:
    """Wait until everybody has the last answer."""
    deadline = time.perf_counter() + PATIENCE_S
    while not crowd.ended:
        if time.perf_counter() > deadline:
            raise Stuck(f"the last answers did not come within {PATIENCE_S:.0f} s")
        _tick(crowd, line)


# What is there in the end.


def judged(page: Page, database: Database | Aside, org: OrgId, told: Told) -> bool:
    """Compare what callers were told with what is stored; whether all is as it should be."""
    with database.connect(patience=None) as connection:
        there = stored(connection, org)
        problems = verify(connection)
    asked = [key for key in there.keys if not key.startswith(MADE)]
    lost = Counter(told.keys) - Counter(asked)
    unheard = Counter(asked) - Counter(told.keys)
    refused = ", ".join(f"{number:,} {code}" for code, number in sorted(told.refusals.items()))
    page.table(
        "what the callers were told, and what is stored",
        "|>commands",
        [
            ("answered", f"{len(told.keys):,}"),
            ("  refused by the rules", refused or "0"),
            ("  without an answer at first, asked again", f"{told.asked_again:,}"),
            ("  of these done already: the first answer again", f"{told.replayed:,}"),
            ("stored", f"{len(asked):,}"),
            ("answered but not stored", f"{lost.total():,}"),
            ("stored twice, or never answered", f"{unheard.total():,}"),
        ],
    )
    _print_credits(page, there, told)
    same = (there.held, there.spent) == (told.held, told.spent)
    good = not problems and not lost and not unheard and there.adds_up and same
    page.say(_verdict(there, told, len(problems), good=good))
    for problem in problems[:SHOWN_MOST]:
        page.say(str(problem))
    return good


def _print_credits(page: Page, there: Stored, told: Told) -> None:
    parts = (there.granted, there.available, there.held, there.spent, there.elsewhere)
    counted = (there.granted, there.granted - told.held - told.spent, told.held, told.spent, 0)
    names = ("granted", "= available", "+ held", "+ spent", "+ lapsed, revoked, moved")
    rows = zip(names, column(parts), column(counted), strict=True)
    page.table("where the credits are", "|>in the database, cr|>by the callers' count, cr", rows)


def _verdict(there: Stored, told: Told, problems: int, *, good: bool) -> str:
    checked = f"ledger verify: {len(CHECKS)} checks, {count(problems, 'problem')}."
    if good:
        return f"{checked} All is well: each answer is stored once, each micro-credit is somewhere."
    balanced = "add up" if there.adds_up else "DO NOT ADD UP"
    agree = (there.held, there.spent) == (told.held, told.spent)
    return f"{checked} NOT WELL: credits {balanced}, and {'agree' if agree else 'DIFFER'}."
