"""What an org keeps besides money: new, changed, dropped; told in events like everything else."""

import pytest

from bursar.core.ids import SettingId
from bursar.core.instant import Instant
from bursar.core.ledger.commands import SETTING_MAX
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, minutes

UNKNOWN = Refusal(Code.SETTING_UNKNOWN, {"kind": "webhook", "id": "w"})
TAKEN = Refusal(Code.ALREADY_EXISTS, {"kind": "webhook", "id": "w"})


def kept(org: Org, kind: str = "webhook", setting: str = "w") -> Setting | None:
    """What the org keeps under a name."""
    return org.journal.books.settings.get((kind, SettingId(setting)))


def setting(body: str | None, number: int, at: Instant = T0) -> Setting:
    """The webhook `w` as an event left it."""
    return Setting(kind="webhook", id=SettingId("w"), body=body, number=number, at=at)


def number(org: Org) -> int:
    """The number of the org's last event."""
    return org.journal.books.header.number


def test_a_new_setting_is_stored_with_the_number_of_its_event() -> None:
    """So that a client can state which version it has read."""
    org = Org()
    org.later(minutes=1)

    events = org.does(ask.keep("webhook", "w", '{"url":"x"}', before=0))

    webhook = SettingId("w")
    told = SettingSet(at=minutes(1), kind="webhook", id=webhook, body='{"url":"x"}')
    assert (told,) == events
    assert setting('{"url":"x"}', number(org), minutes(1)) == kept(org)
    org.rebuilds()


def test_creating_an_existing_setting_is_refused() -> None:
    """A client that does not know it does not overwrite it."""
    org = Org()
    org.does(ask.keep("webhook", "w", "1", before=0))
    before = kept(org)

    assert TAKEN == org.refuses(ask.keep("webhook", "w", "1", before=0))

    assert before == kept(org)


def test_a_name_is_of_one_kind() -> None:
    """The same name of another kind is another thing."""
    org = Org()
    org.does(ask.keep("webhook", "w", "1", before=0))

    unknown = Refusal(Code.SETTING_UNKNOWN, {"kind": "key", "id": "w"})
    assert unknown == org.refuses(ask.keep("key", "w", "2"))
    org.does(ask.keep("key", "w", "2", before=0))
    org.does(ask.keep("key", "w", None))

    webhook, key = kept(org), kept(org, "key")
    assert webhook is not None
    assert key is not None
    assert ("1", None) == (webhook.body, key.body)


@pytest.mark.parametrize("body", ["2", None])
@pytest.mark.parametrize("before", [None, 1, 6])
def test_a_missing_setting_cannot_be_changed_or_deleted(
    body: str | None, before: int | None
) -> None:
    """With any version number."""
    assert UNKNOWN == Org().refuses(ask.keep("webhook", "w", body, before=before))


def test_a_change_is_made_to_what_was_seen() -> None:
    """By its number: then two who change it at once do not undo each other unseen."""
    org = Org()
    org.does(ask.keep("webhook", "w", "1", before=0))
    first = number(org)
    org.issue("g", 100)  # other events do not matter
    org.does(ask.keep("webhook", "w", "2", before=first))
    second = number(org)
    assert second > first + 1

    changed = Refusal(Code.CHANGED_SINCE, {"kind": "webhook", "id": "w", "number": second})
    for before in (first, second - 1, second + 1):
        assert changed == org.refuses(ask.keep("webhook", "w", "3", before=before))
        assert changed == org.refuses(ask.keep("webhook", "w", None, before=before))
    assert setting("2", second) == kept(org)
    org.does(ask.keep("webhook", "w", None, before=second))
    assert setting(None, second + 1) == kept(org)
    org.rebuilds()


def test_a_change_that_names_no_number_is_made_to_whatever_is_there() -> None:
    """Also to the same text: the number tells that it was set again."""
    org = Org()
    org.does(ask.keep("webhook", "w", "1", before=0))
    first = number(org)

    org.later(minutes=1)
    org.does(ask.keep("webhook", "w", "1"))

    assert setting("1", first + 1, minutes(1)) == kept(org)


def test_the_name_of_what_was_dropped_is_not_used_again() -> None:
    """Not as new, not as if it were there, not by the number of its end."""
    org = Org()
    org.does(ask.keep("webhook", "w", "1", before=0))
    org.does(ask.keep("webhook", "w", None))
    end = number(org)

    assert TAKEN == org.refuses(ask.keep("webhook", "w", "2", before=0))
    for body in ("2", None):
        for before in (None, end, end - 1):
            assert UNKNOWN == org.refuses(ask.keep("webhook", "w", body, before=before))
    assert setting(None, end) == kept(org)


def test_the_longest_text_and_the_shortest_are_kept_as_they_are() -> None:
    """The rules look at none of it."""
    org = Org()
    for setting, body in (("long", '"' + "ä" * (SETTING_MAX // 2 - 1) + '"'), ("short", "0")):
        org.does(ask.keep("key", setting, body, before=0))

        found = kept(org, "key", setting)
        assert found is not None
        assert body == found.body
    org.rebuilds()
