"""What an org keeps besides money goes the way of money: by keys, in batches, with events (D3)."""

import json

import pytest

from bursar.core.ids import SettingId
from bursar.core.ledger.commands import SETTING_MAX
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.journal import Journal
from bursar.core.refusal import Code, Refusal
from bursar.service.ledger.audit import rebuild_org
from bursar.service.queries.settings import SETTINGS_MAX, has_room
from bursar.store.sql.connection import Connection
from tests.support import commands as ask
from tests.support.builders import T0
from tests.support.org_desk import Desk

MANY = 300
COLUMNS = {"kind": "text", "setting_id": "text", "body": "json", "number": "bigint"}
# JSON that is not as we would write it, and that a database must not improve.
WORDS = ('{"b": 1, "a":2, "b": 3}', "1.00", '"\\u00fc\\u0000"', " [ ] ", "null", '"ü😀"')


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("blind", [False, True])
def test_a_setting_is_read_or_missing(connection: Connection, forgets: bool, blind: bool) -> None:
    """Whether it is in memory, was looked up ahead, or is missed in the middle of a batch."""
    desk = Desk(connection, forgets=forgets, blind=blind)

    new, taken = desk.asks(ask.keep("key", "k", "1", before=0), ask.keep("key", "k", before=0))
    unknown, stale, changed = desk.asks(
        ask.keep("webhook", "k", "2"),
        ask.keep("key", "k", "2", before=new.number + 1),
        ask.keep("key", "k", "2", before=new.number),
    )
    [dropped] = desk.asks(ask.keep("key", "k", None))
    again, gone = desk.outcomes(ask.keep("key", "k", before=0), ask.keep("key", "k", "3"))

    name = {"kind": "key", "id": "k"}
    assert Refusal(Code.ALREADY_EXISTS, name) == taken.outcome == again
    assert Refusal(Code.SETTING_UNKNOWN, {**name, "kind": "webhook"}) == unknown.outcome
    assert Refusal(Code.CHANGED_SINCE, {**name, "number": new.number}) == stale.outcome
    assert Refusal(Code.SETTING_UNKNOWN, name) == gone
    assert isinstance(changed.outcome, tuple)
    assert [("key", "k", None, dropped.number)] == desk.stored("settings", COLUMNS)


def test_only_the_settings_that_are_named_are_loaded(connection: Connection) -> None:
    """An org may have many; a batch reads those it speaks of, in one round (L16)."""
    desk = Desk(connection)
    desk.asks(*(ask.keep("key", f"k{n}", f"{n}", before=0) for n in range(MANY)))
    desk.cache.clear()

    desk.outcomes(*(ask.keep("key", f"k{n}", "0") for n in range(0, MANY, 100)))

    assert 1 == desk.rounds
    [books] = desk.cache.values()
    assert {f"k{n}" for n in range(0, MANY, 100)} == {id for (_, id), _ in books.settings.items()}


def test_many_settings_in_one_batch_are_all_kept(connection: Connection, database_url: str) -> None:
    """New, changed and dropped in one transaction; rebuilt from events they are the same (L1)."""
    desk = Desk(connection, forgets=True)
    journal = Journal(desk.prices)
    commands = [
        *(ask.keep("key", f"k{n}", WORDS[n % len(WORDS)], before=0) for n in range(MANY)),
        *(ask.keep("key", f"k{n}", json.dumps(n)) for n in range(0, MANY, 3)),
        *(ask.keep("key", f"k{n}", None) for n in range(0, MANY, 7)),
    ]

    outcomes = desk.outcomes(*commands)

    assert [journal.do(command, T0) for command in commands] == outcomes
    assert all(isinstance(outcome, tuple) for outcome in outcomes)
    assert MANY == len(desk.stored("settings", COLUMNS))
    desk.holds(journal.books)
    rebuilt = rebuild_org(database_url, desk.org)
    assert (len(commands), ()) == (rebuilt.events, rebuilt.differences)


@pytest.mark.parametrize("body", [*WORDS, '"' + "x" * (SETTING_MAX - 2) + '"'])
def test_the_text_of_a_setting_is_stored_unchanged(connection: Connection, body: str) -> None:
    """And told again to whoever repeats the request (L7)."""
    desk = Desk(connection, forgets=True)

    first, second = (desk.asks(ask.keep("key", "k", body, before=0), key="k")[0] for _ in range(2))

    told = SettingSet(at=T0, kind="key", id=SettingId("k"), body=body)
    assert (told,) == first.outcome == second.outcome
    assert (False, True) == (first.replayed, second.replayed)
    assert [("key", "k", body, first.number)] == desk.stored("settings", COLUMNS)


def test_the_number_of_settings_of_a_kind_is_limited(connection: Connection) -> None:
    """Deleted settings, and those of other kinds, do not count."""
    desk = Desk(connection)
    ids = [f"w{n}" for n in range(SETTINGS_MAX)]
    desk.asks(*(ask.keep("webhook", id, "1", before=0) for id in ids[:-1]))
    assert has_room(connection, desk.org, "webhook")

    desk.asks(ask.keep("webhook", ids[-1], "1", before=0))
    assert not has_room(connection, desk.org, "webhook")
    assert has_room(connection, desk.org, "alert_rule")

    desk.asks(ask.keep("webhook", ids[0], None))
    assert has_room(connection, desk.org, "webhook")
