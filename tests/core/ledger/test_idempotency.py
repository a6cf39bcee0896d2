"""One request, one effect: what a key that was seen before means (L7)."""

from dataclasses import fields, replace

import pytest

from bursar.core.ids import AccountId, GrantId, HoldId, PriceVersionId, UserId, make_id
from bursar.core.ledger.commands import Command, Issue, Release, Reserve, SetPrice, Transfer
from bursar.core.ledger.idempotency import Reply, first_difference, replay
from bursar.core.ledger.values import Context, CreditKind, GrantPolicy
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, days, hours, prices

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
    first = reply(org.asking("h", 60), events, org.journal.books.header.number)
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
            kind=CreditKind.PROMO,
            policy=GrantPolicy(gpu_types=frozenset(types)),
        )

    assert first_difference(issue("a", "b"), issue("b", "a")) is None
    assert "policy" == first_difference(issue("a"), issue("b"))


# Ids that are left to us

NOW, LATER = T0 // 1_000, T0 // 1_000 + 5


def made(at_ms: int, label: str = "hold", key: str = "k") -> str:
    """An id as it is made for a request under a key at a time."""
    return make_id("acme", key, label, at_ms)


def holding(hold: str, amount: int = 5) -> Reserve:
    """A hold with an id."""
    return replace(RESERVE, hold=HoldId(hold), amount=amount)


def reused(field: str) -> Refusal:
    """That the key stands for something else."""
    return Refusal(Code.KEY_REUSED, {"key": "k", "field": field})


def test_an_id_of_our_making_may_be_of_another_time() -> None:
    """Who leaves an id to us and asks again leaves it to us again (L7)."""
    first = reply(holding(made(NOW)))

    assert first is replay("k", first, holding(made(LATER)), ("hold",))
    assert first is replay("k", first, holding(made(NOW)), ("hold",))
    assert reused("amount") == replay("k", first, holding(made(LATER), amount=6), ("hold",))


def test_an_id_of_another_making_is_another_request() -> None:
    """A time is all in which they may differ (L7)."""
    first = reply(holding(made(NOW)))

    for other in (made(LATER, "grant"), made(LATER, key="other"), "h"):
        assert reused("hold") == replay("k", first, holding(other), ("hold",))


def test_an_id_that_the_caller_gave_is_not_taken_for_one_of_ours() -> None:
    """Given first and left to us later, or the other way round: another request (L7)."""
    given, left = reply(holding("mine")), reply(holding(made(NOW)))

    assert reused("hold") == replay("k", given, holding(made(NOW)), ("hold",))
    assert reused("hold") == replay("k", left, holding("mine"))


def test_a_retry_may_name_the_generated_id() -> None:
    """The same id; one with another time was never answered (L7)."""
    first = reply(holding(made(NOW)))

    assert first is replay("k", first, holding(made(NOW)))
    assert reused("hold") == replay("k", first, holding(made(LATER)))


def test_only_the_ids_that_were_left_to_us_may_differ() -> None:
    """One field may be ours and another the caller's (L7)."""

    def move(grant: str, to: str) -> Transfer:
        names = {"grant": GrantId(grant), "to_grant": GrantId(to)}
        return Transfer(**names, account=AccountId("org"), amount=1)

    first = reply(move(made(NOW, "grant"), made(NOW, "to_grant")))
    again = move(made(LATER, "grant"), made(LATER, "to_grant"))

    assert first is replay("k", first, again, ("grant", "to_grant"))
    assert reused("grant") == replay("k", first, again, ("to_grant",))
    assert reused("to_grant") == replay("k", first, again, ("grant",))


def test_a_price_version_may_have_an_id_of_our_making() -> None:
    """Its rates and its time are the caller's (L7, B1)."""
    first = reply(SetPrice(version=prices(made(NOW, "version"), hours(1), h100=5)))
    again = prices(made(LATER, "version"), hours(1), h100=5)

    assert first is replay("k", first, SetPrice(version=again), ("version",))
    assert reused("version") == replay("k", first, SetPrice(version=again))
    for other in (
        replace(again, effective_at=hours(2)),
        prices(again.id, hours(1), h100=6),
        replace(again, id=PriceVersionId("mine")),
    ):
        assert reused("version") == replay("k", first, SetPrice(version=other), ("version",))
    now = SetPrice(version=again, from_now=True)
    assert reused("from_now") == replay("k", first, now, ("version",))


def test_a_value_that_is_no_generated_id_is_compared_as_it_is() -> None:
    """A field that is named by mistake counts like any other (L7)."""
    first = reply(RESERVE)

    assert reused("amount") == replay("k", first, replace(RESERVE, amount=6), ("amount",))
    assert reused("context") == replay(
        "k", first, replace(RESERVE, context=Context(region="eu")), ("context",)
    )
