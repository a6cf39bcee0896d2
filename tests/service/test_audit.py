"""Whole ledgers: what is stored adds up and follows from its events, or that is told (L1, IL4)."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, HoldId, JobId, UserId
from bursar.core.instant import DAY, SECOND
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Command,
    SetBudget,
    SetPrice,
    TakeLots,
)
from bursar.core.ledger.values import BudgetTarget, GrantPolicy, OrgPolicy
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Refusal
from bursar.core.value import replace
from bursar.service.ledger import rebuild as rebuilding
from bursar.service.ledger.audit import CHECKS, orgs_of, rebuild, rebuild_org, repair, verify
from bursar.service.ledger.batch import Answer, Batch, CommandRequest, OrgFrozen
from bursar.service.ledger.ledger import Ledger
from bursar.service.ledger.repair import DELETES
from bursar.store.jobs.outbox import OVERDUE
from bursar.store.ledger.writer import freeze
from bursar.store.sql.connection import Connection, money_time
from bursar.store.verify.ledger import TABLES
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, days, gpus, hours, prices
from tests.support.databases import connected, migrated, new_org

PRICES = PriceBook().with_version(prices(h100=PER_MS))


def story(connection: Connection, org: str) -> None:
    """A life of one org in which every table gets rows."""
    promo = GrantPolicy(max_share_ppm=500_000, refundable=False)
    first: list[Command] = [
        AddAccount(account=AccountId("org"), parent=None, name="o"),
        AddAccount(account=AccountId("team"), parent=AccountId("org"), name="t"),
        AddUser(user=UserId("ann")),
        ask.bounds(OrgPolicy(raw_hold_max=90 * DAY, debt_max=10**9)),
        SetBudget(
            budget=BudgetId("b"),
            target=BudgetTarget(account=AccountId("org"), each_user=True),
            every=PeriodKind.MONTH,
            limit=10**9,
            hard=True,
        ),
        ask.issue("promo", 500, policy=promo),
        ask.issue("short", 400, expires=hours(2)),
        ask.issue("later", 300, starts=days(60)),
        ask.issue("paid", 1_000, external_ref="invoice 1"),
        ask.recur("r", 100, roll_over=50, policy=GrantPolicy(regions=frozenset({"nowhere"}))),
        ask.reserve("h1", run_ms=600, context=gpus("h100"), until=days(60)),
        ask.read("h1", 250, charge="c1"),
        ask.reserve("h2", 200, until=days(2)),
        ask.charge("h2", 5_000, charge="c2"),
        ask.book_debt("d", 30, of="team"),
        ask.keep("webhook", "w", '{"url": "ü"}', before=0),
        ask.keep("key", "k", '{"name":"first"}', before=0),
        ask.keep("key", "k", '{"name":"second"}'),
        ask.keep("quota", "q", "4", before=0),
        ask.keep("quota", "q", None),
    ]
    second: list[Command] = [
        ask.issue("more", 9_000),
        ask.give_back("h1", kept_ms=200),
        ask.reverse("c1", 10),
    ]
    refused = ask.reserve("h3", 10**12, until=days(2))
    nothing = ask.lapse()
    for at, commands in ((T0, first), (days(40), second)):
        batch = Batch(connection, PRICES, {}, clock=lambda _, at=at: at)  # type: ignore[misc]
        for place, command in enumerate(commands):
            [answer] = batch.run([CommandRequest(org, f"{at}-{place}", command)])
            assert isinstance(answer, Answer)
            assert isinstance(answer.outcome, tuple), (command, answer)
        for name, command in (("no", refused), ("none", nothing)):
            [answer] = batch.run([CommandRequest(org, f"{at} {name}", command)])
            assert isinstance(answer, Answer)
            assert isinstance(answer.outcome, Refusal) or () == answer.outcome


@pytest.fixture(scope="module")
def told(database_url: str) -> Iterator[str]:
    """A database of its own in which one story was told."""
    with migrated(database_url) as url:
        with connected(url) as connection:
            story(connection, new_org(connection))
        yield url


@contextmanager
def spoilt(url: str, sql: str) -> Iterator[str]:
    """A copy of the database in which something was changed by hand, constraints or not."""
    with migrated(url, copy=True) as copy:
        with connected(copy) as connection:
            _drop_checks(connection)
            assert connection.execute(sql).rowcount > 0, "nothing was spoilt"
        yield copy


def _drop_checks(connection: psycopg.Connection) -> None:
    """Let the database take what it would never take."""
    constraints = connection.execute(
        "select conrelid::regclass::text, conname from pg_constraint"
        " where contype = 'c' and connamespace = 'public'::regnamespace"
    ).fetchall()
    drops = (f"alter table {table} drop constraint {name}" for table, name in constraints)
    connection.execute("; ".join(drops))


SPOILING = {
    **{f"{table}: all rows are gone": f"delete from {table}" for table in TABLES},
    "accounts: used": "update accounts set used = used + 1",
    "accounts: owed": "update accounts set owed = owed + 1",
    "grants: moved to another compartment": (
        "update grants set available = available - 1, spent = spent + 1 where grant_id = 'more'"
    ),
    "grants: made up": "update grants set available = available + 1 where grant_id = 'more'",
    "grants: at another place": "update grants set place = 'expired' where grant_id = 'more'",
    "holds: open": "update holds set open = open + 1 where hold_id = 'h1'",
    "holds: used": "update holds set used = used + 1",
    "settings: another text": "update settings set body = '{}' where setting_id = 'w'",
    "settings: the text before": (
        "update settings set body = '{\"name\":\"first\"}' where setting_id = 'k'"
    ),
    "settings: dropped": "update settings set body = null where setting_id = 'w'",
    "settings: there again": "update settings set body = '4' where setting_id = 'q'",
    "settings: another number": ("update settings set number = number - 1 where setting_id = 'k'"),
    "settings: another time": "update settings set at = at + 1 where setting_id = 'k'",
    "settings: another kind": "update settings set kind = 'key' where setting_id = 'w'",
    "settings: one too many": (
        "insert into settings select org_id, kind, 'extra', body, number, at from settings limit 1"
    ),
    "holds: used at nobody's cost": "update holds set used = used + 1, absorbed = absorbed + 1",
    "draws: charged": "update draws set charged = charged + 1",
    "draws: returned": "update draws set returned = returned + 1, drawn = drawn + 1",
    "debts: owed": "update debts set owed = owed + 1",
    "totals: held": "update totals set held = held + 1",
    "totals: overdue": "update totals set overdue = overdue + 1",
    "lanes: total": "update lanes set total = total + 1",
    "tallies: charged": "update tallies set charged = charged + 1",
    "tallies: relief": "update tallies set relief = relief + 1",
    "claims: claimed": "update claims set claimed = claimed + 1",
    "burn: amount": "update burn set amount = amount + 1",
    "postings: amount": "update postings set amount = amount + 1",
    "postings: another grant": "update postings set grant_id = 'promo' where grant_id = 'paid'",
    "events: another time": "update events set at = at + 1 where number = 9",
    "events: another kind": "update events set kind = 'HoldReduced' where kind = 'HoldClosed'",
    "events: a kind that nobody knows": "update events set kind = 'Gift' where number = 9",
    "events: nothing in it": "update events set body = '{}' where number = 9",
    "events: no object": "update events set body = '[]' where number = 9",
    "events: no number": (
        'update events set body = replace(body::text, \'"amount":500\', \'"amount":"x"\')::json'
        " where kind = 'GrantIssued'"
    ),
    "grants: another amount in the event": (
        "update events set body = replace(body::text, '\"amount\":500', '\"amount\":501')::json"
        " where kind = 'GrantIssued'"
    ),
    "events: the first is gone": "delete from events where number = 1",
    "events: one is gone": "delete from events where number = 9",
    "events: the last is gone": (
        "delete from events e using orgs o where e.org_id = o.org_id and e.number = o.number"
    ),
    "events: an account below itself": (
        'update events set body = replace(body::text, \'"parent":"org"\','
        " '\"parent\":\"team\"')::json where kind = 'AccountAdded' and number > 1"
    ),
    "events: a second root": (
        'update events set body = replace(body::text, \'"parent":"org"\','
        " '\"parent\":null')::json where kind = 'AccountAdded' and number > 1"
    ),
    "events: a debt of nobody": (
        'update events set body = replace(body::text, \'"account":"team"\','
        " '\"account\":\"ghost\"')::json where kind = 'DebtBooked'"
    ),
    "events: another total at last": (
        'update events set body = replace(body::text, \'"open":0,"used":5000\','
        " '\"open\":0,\"used\":5001')::json where kind = 'HoldClosed'"
    ),
    "events: another total on the way": (
        "update events set body = replace(body::text, '\"open\":200', '\"open\":201')::json"
        " where kind = 'HoldOpened'"
    ),
    "settings: another text in the event": (
        "update events set body = replace(body::text, 'second', 'third')::json"
        " where kind = 'SettingSet'"
    ),
    "requests: one is gone": "delete from requests where first = 9",
    "requests: a longer span": "update requests set number = number + 1 where first = 9",
    "requests: a refusal with events": (
        "update requests set first = first - 1 where refusal is not null"
    ),
    "requests: of another time": "update requests set at = at + 1 where first = 9",
    "requests: a refusal before its time": (
        "update requests set at = 0 where refusal is not null and number > 0"
    ),
    "requests: of the future": "update requests set number = 900, first = 901 where refusal is null"
    " and first > number",
    "requests: an event of somebody else": "update events set actor = 'other' where number = 9",
    "requests: the second event of somebody else": (
        "update events e set actor = 'other' from requests r"
        " where r.org_id = e.org_id and r.refusal is null and e.number > r.first"
        " and e.number <= r.number"
    ),
    "requests: somebody else's": "update requests set actor = 'other' where first = 9",
    "orgs: issued": "update orgs set issued = issued + 1",
    "orgs: number": "update orgs set number = number + 1",
    "orgs: one number less": "update orgs set number = number - 1",
    "orgs: clock": "update orgs set clock = clock + 86400000000",
    "orgs: the row is gone": "delete from orgs",
    "accounts: one below itself": "update accounts set parent = 'team' where account_id = 'team'",
    "accounts: a circle": "update accounts set parent = 'team' where account_id = 'org'",
    "accounts: below nobody": "update accounts set parent = 'ghost' where account_id = 'team'",
    "forfeits: amount": "update forfeits set amount = amount + 1",
    "charges: another hold": "update charges set counted = '[]'",
    "postings: one too many": (
        "insert into postings select org_id, 9000, 0, grant_id, source, target, amount,"
        " effective_at, freed from postings limit 1"
    ),
    "lanes: empty": "update lanes set total = 0",
}
# What only one of the two can see, and why.
NOT_SEEN_BY_VERIFY = {
    "draws: returned",  # what came and went adds up to the same
    "orgs: clock",  # no grant begins or ends within that day
    "events: another kind",  # only the core knows what belongs into which,
    "events: an account below itself",  # and what it makes of it
    "events: a second root",
    "events: a debt of nobody",
    "events: another total on the way",  # the one that counts is the last
}


def test_every_table_has_rows_and_verify_reports_nothing(told: str) -> None:
    """The story leaves nothing out; all checks and the rebuilt books agree (IL1, IL2, IL4)."""
    with connected(told) as connection:
        for table in ("orgs", *TABLES):
            [(rows,)] = connection.execute(f"select count(*) from {table}").fetchall()
            assert rows > 0, table
        asked: list[str] = []
        assert () == verify(connection, lambda check, _: asked.append(check.name))
        orgs = orgs_of(connection)

    assert [check.name for check in CHECKS] == asked
    [done] = rebuild(told, orgs)
    assert (list(orgs.items()), ()) == ([(done.org, done.events)], done.differences)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOILING)
def test_each_corruption_is_reported(told: str, name: str) -> None:
    """By verify and by rebuild, with the org and the figures (IL4)."""
    with spoilt(told, SPOILING[name]) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        found = verify(connection)
        assert found or name in NOT_SEEN_BY_VERIFY, "verify is silent"
        assert all(org in str(one) or "cannot be asked" in str(one) for one in found)
        differences = rebuild_org(url, org).differences
        assert name.partition(":")[0] in {one.table for one in differences}
        assert all(str(one).startswith(f"{org}: {one.table}") for one in differences)


def test_an_undelivered_message_is_reported_by_the_database_clock(told: str) -> None:
    """An hour after it was written, and as a finding of its own (D4)."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        written_at = money_time(connection) - OVERDUE - SECOND
        connection.execute(
            "insert into org_outbox (org_id, job_id, n, pool_id, body, written_at)"
            """ values (%s, 'j', 1, 'p', '["Withdraw",{}]', %s)""",
            [org, written_at],
        )
        found = [str(one) for one in verify(connection)]
        early = verify(connection, clock=lambda _: written_at + OVERDUE - 1)

    start = f"{org}: no message is undelivered"
    assert [start] == [contradiction[: len(start)] for contradiction in found]
    assert () == early


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SPOILING if name.startswith("events: ")])
def test_an_org_that_cannot_be_rebuilt_stops_no_other(told: str, name: str) -> None:
    """Its own events are told as what is wrong, by their number; the others are compared (L1)."""
    with spoilt(told, SPOILING[name]) as url, connected(url) as connection:
        [spoilt_org] = orgs_of(connection)
        sound = new_org(connection)
        story(connection, sound)
        done = {one.org: one for one in rebuild(url, orgs_of(connection), 1)}

    assert {spoilt_org, sound} == set(done)
    assert () == done[sound].differences
    wrong = [one for one in done[spoilt_org].differences if one.table == "events"]
    assert wrong
    assert all(isinstance(one.key[0], int) for one in wrong)


def test_a_text_that_is_not_canonical_is_reported(told: str) -> None:
    """The same event in other words: hashes and signatures would not be those of its text."""
    sql = "update events set body = replace(body::text, ':', ': ')::json where number = 9"
    with spoilt(told, sql) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        [difference] = rebuild_org(url, org).differences

    assert ("events", (9,)) == (difference.table, difference.key)
    assert difference.stored != difference.rebuilt


WITHOUT_TOTALS = "body = regexp_replace(body::text, ',\"open\":[0-9]+,\"used\":[0-9]+', '')::json"
WRITTEN_EARLIER = (
    f"update events set {WITHOUT_TOTALS} where body::text like '%\"used\":%'",
    "update events set body = replace(replace(body::text,"
    """ ',"capped_key":null', ''), ',"for_job":false', '')::json where kind = 'HoldOpened'""",
)


@pytest.fixture(scope="module")
def earlier(told: str) -> Iterator[str]:
    """The story as written when events of holds did not tell yet how the hold stands."""
    with spoilt(told, WRITTEN_EARLIER[0]) as url:
        with connected(url) as connection:
            assert connection.execute(WRITTEN_EARLIER[1]).rowcount == 2
        yield url


def test_events_of_an_earlier_version_are_valid(earlier: str) -> None:
    """They say less, and mean the same books (L1)."""
    with connected(earlier) as connection:
        assert () == verify(connection)
        orgs = orgs_of(connection)
        [done] = rebuild(earlier, orgs)
        assert (list(orgs.items()), ()) == ([(done.org, done.events)], done.differences)


@pytest.fixture(scope="module")
def divided(database_url: str) -> Iterator[str]:
    """A database of its own with the hold of an array, of which two of three lots are taken."""
    with migrated(database_url) as url:
        with connected(url) as connection:
            org = new_org(connection)
            commands: list[Command] = [
                AddAccount(account=AccountId("org"), parent=None, name="o"),
                AddAccount(account=AccountId("team"), parent=AccountId("org"), name="t"),
                AddUser(user=UserId("ann")),
                ask.issue("first", 250),
                ask.issue("second", 1_000),
                replace(
                    ask.reserve("array", run_ms=200, context=gpus("h100"), until=hours(2)),
                    context=replace(gpus("h100"), job=JobId("array")),
                    for_job=True,
                    element_count=3,
                    at_once=2,
                ),
                TakeLots(hold=HoldId("array"), first=0, count=2),
            ]
            batch = Batch(connection, PRICES, {}, clock=lambda _: T0)
            asks = [CommandRequest(org, f"{n}", command) for n, command in enumerate(commands)]
            answers = [answer for answer in batch.run(asks) if isinstance(answer, Answer)]
            assert [True] * 7 == [isinstance(answer.outcome, tuple) for answer in answers]
        yield url


@pytest.mark.parametrize("kind", ["LotTaken", "HoldDivided", "nothing"])
def test_hold_of_an_array_has_the_figures_of_its_events(divided: str, kind: str) -> None:
    """What its lots took counts, whether or not their events state how a hold stands (L1)."""
    name = "a hold has the figures of its last event"
    with migrated(divided, copy=True) as url, connected(url) as connection:
        _drop_checks(connection)
        connection.execute(f"update events set {WITHOUT_TOTALS} where kind = '{kind}'")
        assert name not in {found.check for found in verify(connection)}
        connection.execute("update holds set open = open - 7 where hold_id = 'array'")
        names = {found.check for found in verify(connection)}

    assert (kind != "HoldDivided") == (name in names)  # the array's last event that states it


def test_prices_of_an_earlier_version_are_valid(told: str) -> None:
    """They say nothing of shared results and of other versions; others, or none that can be read,
    are told."""
    words = ('"cache_hit_ppm":null', '"keeps_others":false', '"in_full":null')
    without = "regexp_replace({0}::text, ',(" + "|".join(words) + ")', '', 'g')::json"
    without = f"= {without}"
    with migrated(told, copy=True) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        own = SetPrice(version=prices("own", h100=7), from_now=True)
        Batch(connection, PriceBook(), {}).run([CommandRequest(org, "own prices", own)])
        sql = f"update events set body {without.format('body')} where kind = 'PriceSet'"
        assert connection.execute(sql).rowcount == 1
        sql = f"update orgs set prices {without.format('prices')}"
        assert connection.execute(sql).rowcount == 1
        assert () == rebuild_org(url, org).differences
        for spoilt_book in ('{"versions":[]}', '{"versions":7}'):
            connection.execute("update orgs set prices = %s", [spoilt_book])
            assert ["orgs"] == [one.table for one in rebuild_org(url, org).differences]


def test_books_are_rebuilt_from_events_of_an_earlier_version(earlier: str) -> None:
    """All that is derived, if nothing else is left (L1)."""
    with migrated(earlier, copy=True) as url, connected(url) as connection:
        before = _everything(connection)
        for table in ("orgs", *DELETES):
            connection.execute(f"delete from {table}")
        [done] = repair(url, orgs_of(connection))

        assert () == done.remaining
        _is_sound(url, connection)
        after = _everything(connection)
        assert before.pop("orgs clock") != after.pop("orgs clock")
        assert before == after


@pytest.mark.parametrize(
    "sql",
    [
        "update events set body = replace(body::text, ':', ': ')::json where number = 9",
        "update events set body = replace(body::text, ',\"late\":false', '')::json"
        " where kind = 'ChargeBooked'",
        'update events set body = replace(body::text, \'{"at"\', \'{"open":7,"at"\')::json'
        " where kind = 'HoldClosed'",
    ],
)
def test_an_event_that_no_version_wrote_is_reported(earlier: str, sql: str) -> None:
    """Only what a class has gained since may be absent."""
    with spoilt(earlier, sql) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        assert {"events"} == {one.table for one in rebuild_org(url, org).differences}


LAST_TOLD = {
    "update holds set used = used + 7, absorbed = absorbed + 7 where hold_id = 'h2'": (
        "a hold has the figures of its last event: h2 used: 5007 stored, 5000 expected"
    ),
    "update settings set number = 3 where setting_id = 'k'": (
        "a setting has the value of its last event: key k was set by event: 3 stored, 19 expected"
    ),
    "update settings set body = '{}' where setting_id = 'w'": (
        "a setting has the value of its last event:"
        " webhook w is not what was told by event: 17 stored, 17 expected"
    ),
    "delete from settings where setting_id = 'q'": (
        "a setting has the value of its last event: quota q was set by event: 21 expected"
    ),
}


@pytest.mark.parametrize(("sql", "what"), LAST_TOLD.items())
def test_a_corruption_that_only_the_last_event_contradicts_is_reported(
    told: str, sql: str, what: str
) -> None:
    """Rows that add up among themselves may still not be what was told of them (L1)."""
    with spoilt(told, sql) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        assert [f"{org}: {what}"] == [str(one) for one in verify(connection)]


def test_an_event_tells_of_its_hold_what_it_makes_of_it(told: str) -> None:
    """A total that was changed on the way is told with the event's number (L1)."""
    with spoilt(told, SPOILING["events: another total on the way"]) as url:
        with connected(url) as connection:
            [org] = orgs_of(connection)
            [(number,)] = connection.execute(
                "select number from events where body ->> 'hold' = 'h2' and kind = 'HoldOpened'"
            ).fetchall()
        [first, *_] = [one for one in rebuild_org(url, org).differences if one.table == "events"]

    assert (number,) == first.key
    assert "open and used of the hold differ from its event (hold='h2'" in str(first)
    assert "recorded=(201, 0), is_now=(200, 0))" in str(first)


def test_a_cycle_of_accounts_is_reported_and_ends(told: str) -> None:
    """Who goes up from there would never arrive."""
    sql = "update accounts set parent = 'team' where account_id = 'org'"
    with spoilt(told, sql) as url, connected(url) as connection:
        connection.execute("set statement_timeout = '20s'")
        found = [str(one) for one in verify(connection)]

    assert any("org lies below itself, by team" in one for one in found)
    assert any("team lies below itself, by org" in one for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_rows_of_an_org_that_does_not_exist_are_reported(told: str, table: str) -> None:
    """By both, though no org's row leads to them."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        columns = ", ".join(
            name
            for (name,) in connection.execute(
                "select column_name from information_schema.columns where table_name = %s"
                " and table_schema = 'public' and column_name <> 'org_id'"
                " and is_generated = 'NEVER'",
                [table],
            )
        )
        connection.execute(
            f"insert into {table} (org_id, {columns})"
            f" select 'ghost', {columns} from {table} limit 1"
        )
        assert any("ghost: every row belongs to an org" in str(one) for one in verify(connection))
        orgs = orgs_of(connection)
        found = {one.org: one.differences for one in rebuild(url, orgs, 1)}

    assert 2 == len(found)
    assert found.pop("ghost")
    assert [()] == list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("stretch", [1, 7, 10_000])
def test_events_are_read_in_pages_of_any_length(
    told: str, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    """What is compared stretch by stretch is compared wholly."""
    monkeypatch.setattr(rebuilding, "EVENTS_AT_ONCE", stretch)
    with connected(told) as connection:
        [org] = orgs_of(connection)
    assert () == rebuild_org(told, org).differences

    for number in (3, 14, 9_000):
        sql = (
            f"update postings set number = {number}, place = 77"
            " where (org_id, number, place) = (select org_id, number, place from postings limit 1)"
        )
        with spoilt(told, sql) as url:
            keys = [(one.table, one.key) for one in rebuild_org(url, org).differences]
            assert ("postings", (number, 77)) in keys
            assert 2 == len([table for table, _ in keys if table == "postings"])


def test_garbage_collection_is_on_after_verify(told: str) -> None:
    with connected(told) as connection:
        [org] = orgs_of(connection)
    rebuild_org(told, org)

    assert gc.isenabled()


def test_the_largest_orgs_come_first_and_small_ones_together() -> None:
    """So that no worker is left alone with a large one, and none connects for a handful of rows."""
    few = {f"few {number}": 10 for number in range(3)}
    share = rebuilding.SHARE_EVENTS

    assert [] == rebuilding.shared({})
    assert [
        ("most",),
        ("more",),
        ("some", "few 0", "few 1", "few 2"),
    ] == rebuilding.shared({**few, "some": share // 2, "more": share, "most": 2 * share})


def test_several_workers_share_the_orgs(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each org is told once, whoever has done it."""
    monkeypatch.setattr(rebuilding, "SHARE_EVENTS", 1)
    with migrated(told, copy=True) as url:
        with connected(url) as connection:
            for _ in range(3):
                new_org(connection)
            connection.execute("update accounts set used = used + 1 where account_id = 'team'")
            orgs = orgs_of(connection)
        assert 4 == len(rebuilding.shared(orgs))
        done = list(rebuild(url, orgs, 2))

    assert sorted(orgs) == sorted(one.org for one in done)
    assert sum(orgs.values()) == sum(one.events for one in done)
    assert [("accounts", ("team",))] == [
        (difference.table, difference.key) for one in done for difference in one.differences
    ]


# Repair

CAN_BE_REPAIRED = [name for name in SPOILING if name.partition(":")[0] not in rebuilding.IMMUTABLE]


@pytest.mark.slow
@pytest.mark.parametrize("name", CAN_BE_REPAIRED)
def test_each_corruption_is_repaired(told: str, name: str) -> None:
    """Whatever the derived tables say: events alone bring them back, and work goes on (L1)."""
    with spoilt(told, SPOILING[name]) as url, connected(url) as connection:
        orgs = orgs_of(connection)
        [org] = orgs
        before = _for_ever(connection)
        [done] = repair(url, orgs)
        assert () == done.remaining
        assert name.partition(":")[0] in {one.table for one in done.repaired}
        assert before == _for_ever(connection)
        _is_sound(url, connection)

        with Ledger(lambda: connected(url), PRICES) as ledger:
            tomorrow = money_time(connection) + DAY
            answer = ledger.ask(org, "after", ask.reserve("h9", 100, until=tomorrow))
            assert isinstance(answer.outcome, tuple)
            assert isinstance(ledger.ask(org, "too", ask.charge("h9", 40)).outcome, tuple)
        _is_sound(url, connection)


def test_every_table_at_once_is_repaired(told: str) -> None:
    """All that is derived is thrown away and made again, the org's own row included."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        before = _everything(connection)
        for table in ("orgs", *DELETES):
            connection.execute(f"delete from {table}")
        orgs = orgs_of(connection)
        [done] = repair(url, orgs)

        assert () == done.remaining
        assert {"orgs", *DELETES} == {one.table for one in done.repaired}
        _is_sound(url, connection)
        after = _everything(connection)
        assert before.pop("orgs clock") != after.pop(
            "orgs clock"
        )  # nobody takes it for the old one
        assert before == after


def test_every_table_is_repaired_or_for_ever() -> None:
    """A new table must say which."""
    assert set(TABLES) == {*DELETES, *rebuilding.IMMUTABLE}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SPOILING if name.partition(":")[0] == "events"])
def test_an_org_with_wrong_events_is_not_changed(told: str, name: str) -> None:
    """Derived rows may be all that is left of what was true."""
    with spoilt(told, SPOILING[name]) as url, connected(url) as connection:
        before = _everything(connection)
        [done] = repair(url, orgs_of(connection))

        assert () == done.repaired
        assert done.remaining
        assert before == _everything(connection)


def test_books_that_contradict_themselves_are_not_written(told: str) -> None:
    """Events that can be followed to where nothing adds up are wrong, whatever the rows say."""
    sql = "update events set kind = 'DebtAbsorbed' where kind = 'DebtRepaid'"
    with spoilt(told, sql) as url, connected(url) as connection:
        before = _everything(connection)
        [done] = repair(url, orgs_of(connection))

        assert () == done.repaired
        assert any("contradict themselves" in str(one) for one in done.remaining)
        assert before == _everything(connection)


def test_requests_are_never_changed_and_prevent_no_repair(told: str) -> None:
    with spoilt(told, "update requests set at = at + 1 where first = 9") as url:
        with connected(url) as connection:
            connection.execute("update accounts set used = used + 1")
            before = _for_ever(connection)
            [done] = repair(url, orgs_of(connection))

            assert before == _for_ever(connection)
        assert {"accounts"} == {one.table for one in done.repaired}
        assert {"requests"} == {one.table for one in done.remaining}


def test_rows_without_an_org_are_removed(told: str) -> None:
    """An org that has neither events nor requests never was."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        connection.execute("insert into users (org_id, user_id) values ('ghost', 'ann')")
        done = {one.org: one for one in repair(url, orgs_of(connection), 1)}

        assert ["users"] == [one.table for one in done["ghost"].repaired]
        assert "ghost" not in orgs_of(connection)
        _is_sound(url, connection)


def test_a_frozen_org_accepts_commands_after_its_repair(told: str) -> None:
    """Also one whose rows are sound by now; what kept it is told."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        orgs = orgs_of(connection)
        [org] = orgs
        for sql in ("update accounts set used = 0", "select 1"):
            connection.execute(sql)
            freeze(connection, org, "compartments do not add up")
            [seen] = rebuild(url, orgs)
            assert "compartments do not add up" == seen.frozen
            with Ledger(lambda: connected(url), PRICES) as ledger:
                with pytest.raises(OrgFrozen):
                    ledger.ask(org, sql, ask.lapse())

                [done] = repair(url, orgs)
                assert ("compartments do not add up", True) == (done.frozen, done.thawed)
                assert isinstance(ledger.ask(org, sql, ask.lapse()).outcome, tuple)


def test_a_frozen_org_whose_events_are_wrong_stays_frozen(told: str) -> None:
    with spoilt(told, SPOILING["events: nothing in it"]) as url, connected(url) as connection:
        orgs = orgs_of(connection)
        [org] = orgs
        freeze(connection, org, "why")
        [done] = repair(url, orgs)

        assert ("why", False) == (done.frozen, done.thawed)
        assert [("why",)] == connection.execute("select frozen from orgs").fetchall()


def test_a_ledger_that_read_wrong_rows_reads_them_again_after_a_repair(told: str) -> None:
    """Books in memory are not taken for the repaired ones, though no event tells them apart."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        orgs = orgs_of(connection)
        [org] = orgs
        connection.execute("update accounts set used = used + 1000")
        with Ledger(lambda: connected(url), PRICES) as ledger:
            tomorrow = money_time(connection) + DAY
            first = ledger.ask(org, "a", ask.reserve("h9", 100, until=tomorrow))
            assert isinstance(first.outcome, tuple)
            assert ledger.ask(org, "b", ask.charge("h9", 10, charge="c9")).outcome
            for _ in range(2):
                connection.execute("update accounts set used = used + 1000")
                [done] = repair(url, orgs)
                assert done.repaired
            last = ledger.ask(org, "c", ask.charge("h9", 20, charge="c10"))
            assert isinstance(last.outcome, tuple)
        _is_sound(url, connection)


def test_a_repair_is_rolled_back_if_the_database_refuses_a_part(told: str) -> None:
    """It is told, and other orgs are not kept waiting."""
    sql = "update accounts set used = used + 1"
    with spoilt(told, sql) as url, connected(url) as connection:
        no = "alter table accounts add constraint accounts_no check (used < 0) not valid"
        connection.execute(no)
        before = _everything(connection)
        [done] = repair(url, orgs_of(connection))
        after = _everything(connection)

    assert () == done.repaired
    assert any("accounts_no" in str(one) for one in done.remaining)
    assert before == after


def test_a_repair_waits_for_the_org_and_makes_others_wait(told: str) -> None:
    """It works on what the last batch has left."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        connection.execute("update accounts set used = used + 1")
        orgs = orgs_of(connection)
        with connected(url) as other, other.transaction():
            other.execute("select from orgs for update")
            with pytest.raises(errors.LockNotAvailable):
                list(repair(f"{url} options='-c lock_timeout=200'", orgs, 1))
        [done] = repair(url, orgs)
        assert done.repaired


def _is_sound(url: str, connection: Connection) -> None:
    assert () == verify(connection)
    for one in rebuild(url, orgs_of(connection), 1):
        assert () == one.differences


def _for_ever(connection: Connection) -> list[object]:
    return [
        connection.execute(f"select * from {table} t order by t::text").fetchall()
        for table in rebuilding.IMMUTABLE
    ]


def _everything(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    """All rows as text; those of lanes that are empty may be there or not."""
    rows = {
        table: connection.execute(f"select t::text from {table} t order by 1").fetchall()
        for table in TABLES
    }
    rows["lanes"] = connection.execute(
        "select t::text from lanes t where total <> 0 order by 1"
    ).fetchall()
    columns = "org_id, number, now, issued, root, tier, policy::text, prices::text, frozen"
    rows["orgs"] = connection.execute(f"select {columns} from orgs").fetchall()
    rows["orgs clock"] = connection.execute("select clock from orgs").fetchall()
    return rows
