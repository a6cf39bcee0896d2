"""One request, one effect: what a key that was seen before means (L7)."""

from dataclasses import fields, replace

import pytest

from bursar.core.ids import AccountId, GrantId, HoldId, UserId
from bursar.core.ledger.commands import Command, Issue, Release, Reserve
from bursar.core.ledger.idempotency import Reply, first_difference, replay
from bursar.core.ledger.values import Context, Kind, Policy
from bursar.core.refusal import Code, Refusal
from tests import asking as ask
from tests.builders import T0, Org, days

RESERVE = Reserve(
    hold=HoldId("h"), account=AccountId("org"), user=UserId("ann"), amount=5, expires_at=days(1)
)


def reply(command: Command, outcome: object = (), number: int = 7) -> Reply:
    """What was answered to a command."""
    assert isinstance(outcome, (tuple, Refusal))
    return Reply(command=command, outcome=outcome, number=number)


def test_a_new_key_has_no_answer_yet() -> None:
    """The command is to be decided (L7)."""
    assert replay("k", None, RESERVE) is None


def test_the_same_request_gets_the_first_answer_again() -> None:
    """The very events, and the number of the last one (L7)."""
    org = Org()
    org.issue("g", 100)
    events = org.reserve("h", 60)
    first = reply(org.asking("h", 60), events, org.journal.books.singles.number)
    org.later(hours=1)
    org.issue("more", 100)

    assert first is replay("k", first, org.asking("h", 60, until=T0 + 12 * 3_600_000_000))
    assert (events, 7) == (first.outcome, first.number)


def test_a_refusal_is_an_answer_too() -> None:
    """Decided under the org's lock, it is given again even if it could be granted now (L7)."""
    org = Org()
    refused = org.refuses(org.asking("h", 60))
    first = reply(org.asking("h", 60), refused)
    org.issue("g", 100)

    again = replay("k", first, org.asking("h", 60))

    assert again is first
    assert Code.INSUFFICIENT_CREDITS == refused.code


def test_another_request_under_the_same_key_is_refused() -> None:
    """With the key and the first field that differs (L7)."""
    first = reply(RESERVE)
    other = replace(RESERVE, account=AccountId("team"), amount=6)

    assert Refusal(Code.KEY_REUSED, {"key": "k", "field": "account"}) == replay("k", first, other)


def test_a_command_of_another_kind_differs_in_what_it_is() -> None:
    """Though they may name the same hold (L7)."""
    release = Release(hold=HoldId("h"))

    assert "command" == first_difference(RESERVE, release)
    assert Refusal(Code.KEY_REUSED, {"key": "k", "field": "command"}) == replay(
        "k", reply(release), RESERVE
    )
    assert "command" == first_difference(ask.revoke("g"), ask.void("g"))


@pytest.mark.parametrize(
    "change",
    [
        {"hold": HoldId("other")},
        {"account": AccountId("other")},
        {"user": UserId("other")},
        {"expires_at": days(2)},
        {"amount": 6},
        {"context": Context(region="eu")},
    ],
    ids=lambda change: str(*change),
)
def test_every_field_of_a_request_counts(change: dict[str, object]) -> None:
    """One field changed is the field that differs (L7)."""
    [name] = change

    assert name == first_difference(RESERVE, replace(RESERVE, **change))  # type: ignore[arg-type]
    assert name in {one.name for one in fields(Reserve)}


def test_the_run_time_of_a_request_counts() -> None:
    """As any other field (L7)."""
    gpu = Context(gpu_types=("h100",), milli_gpus=1)
    by_time = replace(RESERVE, amount=None, run_ms=1, context=gpu)

    assert "run_ms" == first_difference(by_time, replace(by_time, run_ms=2))
    assert "amount" == first_difference(RESERVE, by_time)


def test_equal_requests_do_not_differ() -> None:
    """Equality is that of the values, however they were made (L7)."""

    def issue(*types: str) -> Issue:
        return Issue(
            grant=GrantId("g"),
            account=AccountId("org"),
            amount=1,
            kind=Kind.PROMO,
            policy=Policy(gpu_types=frozenset(types)),
        )

    assert first_difference(issue("a", "b"), issue("b", "a")) is None
    assert "policy" == first_difference(issue("a"), issue("b"))
