"""L-grants: what a hold costs where an account has many grants, and where a hold needs many."""

import time
from collections.abc import Iterator
from itertools import count
from statistics import median

from benchmarks.environment import Log
from benchmarks.ledger.orgs import ROOT, USER, make_expiry, make_org, vacuum_and_checkpoint
from benchmarks.ledger.sizes import LedgerSizes
from benchmarks.ledger.throughput import verify_after
from benchmarks.results import Figure, Load
from bursar.core.ids import GrantId, HoldId
from bursar.core.instant import DAY
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Release, Reserve
from bursar.core.ledger.values import CreditKind
from bursar.core.refusal import Refusal
from bursar.service.database import Database, OrgId, ScratchDatabase, scratch_database
from bursar.service.ledger.ledger import Ledger

SPANS = (1, 10, 1_000)  # grants that a hold draws from
GRANT_MICROS = 1_000  # micro-credits of a grant


def measure_grants(server: Database, sizes: LedgerSizes, _: dict[str, float], log: Log) -> Load:
    """Holds of equal spans on accounts with few, more and most grants."""
    load = Load(
        name="L-grants",
        what="one caller: reserve over so many grants, then release; one account with "
        + " / ".join(f"{number:,}" for number in sizes.grants)
        + " grants",
    )
    with scratch_database(server, "bursar_bench_grants") as database:
        for number in sizes.grants:
            log(f"L-grants: issuing {number:,} grants")
            make_org(database, _org_id(number), _make_commands(number))
        vacuum_and_checkpoint(database)
        for span in SPANS:
            log(f"L-grants: holds that span {span:,}")
            _measure_span(load, database, span, sizes)
        verify_after(load, database, log)
    return load


def _org_id(number: int) -> OrgId:
    return f"with-{number}"


def _make_commands(number: int) -> Iterator[Command]:
    """An account with so many grants, each of which expires at an instant of its own."""
    yield AddAccount(account=ROOT, parent=None, name="org")
    yield AddUser(user=USER)
    first = make_expiry() + 30 * DAY
    for place in range(number):
        yield Issue(
            grant=GrantId(f"grant-{place:07d}"),
            account=ROOT,
            amount=GRANT_MICROS,
            kind=CreditKind.PAID,
            expires_at=first + place,
        )


def _measure_span(load: Load, database: ScratchDatabase, span: int, sizes: LedgerSizes) -> None:
    """The same holds for each number of grants that has as many; the fewest are the yardstick."""
    enough = [number for number in sizes.grants if number >= span]
    if not enough:
        return
    times: dict[int, list[float]] = {number: [] for number in enough}
    with Ledger(database.connect) as ledger:
        # In turn, so that noise meets all of them alike; long ones take long.
        for _ in range(max(sizes.rounds * 50 // (50 + span), 2)):
            for number in enough:
                times[number].append(_measure_hold_s(load, ledger, _org_id(number), span))
    fewest, most = enough[0], enough[-1]
    ms = {number: median(seconds) * 1_000 for number, seconds in times.items()}
    for number, value in ms.items():
        load.figures.append(
            Figure(
                what=f"span {span:,}, of {number:,} grants",
                value=value,
                unit="ms",
                yardstick=None if number == fewest else f"of {fewest:,}",
                yardstick_value=None if number == fewest else ms[fewest],
                ratio_most=2 if number == most != fewest else None,
            )
        )


_NUMBERS = count(1)


def _measure_hold_s(load: Load, ledger: Ledger, org: OrgId, span: int) -> float:
    """The time of a reserve that draws from exactly `span` grants; all of it goes back after."""
    name = f"span-{span}-{next(_NUMBERS)}"
    reserve = Reserve(
        hold=HoldId(name),
        account=ROOT,
        user=USER,
        amount=span * GRANT_MICROS,
        expires_at=make_expiry(),
    )
    began = time.perf_counter()
    opened = ledger.ask(org, name, reserve).outcome
    lasted = time.perf_counter() - began
    released = ledger.ask(org, f"{name}/release", Release(hold=HoldId(name))).outcome
    drawn = 0 if isinstance(opened, Refusal) else sum(len(event.postings) for event in opened)
    if drawn != span or isinstance(released, Refusal):
        load.problems.append(f"{org}: a hold over {span:,} grants drew from {drawn:,}")
    return lasted
