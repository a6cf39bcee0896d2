"""A batch of commands in one transaction is what the core decides, and is stored whole (D3)."""

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    GrantId,
    HoldId,
    make_id,
)
from bursar.core.instant import Instant
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Charge,
    Command,
    Issue,
    Lapse,
    Reserve,
    SetBudget,
    SetPolicy,
    SetPrice,
    SetTier,
    Settle,
)
from bursar.core.ledger.events import Event
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import BudgetTarget, Context, CreditKind, OrgPolicy
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Code, InvariantBroken, Refusal
from bursar.service.ledger.batch import Answer, Batch, CommandRequest, OrgUnknown
from bursar.store.ledger.loader import lock_orgs
from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.ledger.writer import OrgExists, create_org, freeze
from bursar.store.sql import codec
from bursar.store.sql.connection import Connection
from tests.support.builders import T0, hours, prices
from tests.support.databases import connected, new_org, waits
from tests.support.org_desk import ANN, FEW, ORG, Desk
from tests.support.patience import eventually
from tests.support.strategies import History, histories


@pytest.mark.property
@FEW
@given(history=histories(), forgets=st.booleans())
def test_the_database_stores_the_decisions_of_the_core(
    connection: Connection, history: History, forgets: bool
) -> None:
    """Same answers, same numbers, same rows as books in memory, from parts (L1, D2)."""
    desk = Desk(connection, history.prices, forgets=forgets)
    journal = Journal(history.prices)
    for now, command in history.steps:
        want = journal.do(command, now)

        [answer] = desk.asks(command, now=now)

        assert (want, journal.books.header.number) == (answer.outcome, answer.number)
    desk.holds(journal.books)


@pytest.mark.property
@FEW
@given(
    history=histories(),
    cuts=st.sets(st.integers(1, 60)),
    forgets=st.booleans(),
    blind=st.booleans(),
)
def test_a_batch_is_a_sequence(
    connection: Connection, history: History, cuts: set[int], forgets: bool, blind: bool
) -> None:
    """Commands of one instant in one transaction, or in many: the same (IL24).

    Whether or not their batch begins with nothing in memory, and whatever it looks up ahead.
    """
    now = max((now for now, _ in history.steps), default=T0)
    commands = [command for _, command in history.steps]
    together = Desk(connection, history.prices, forgets=forgets, blind=blind)
    apart = Desk(connection, history.prices)

    want = [apart.outcomes(command, now=now)[0] for command in commands]

    got: list[tuple[Event, ...] | Refusal] = []
    for batch in _cut(commands, cuts):
        got += together.outcomes(*batch, now=now)
    assert want == got
    for mapping in TABLE_MAPPINGS:
        stored = [desk.stored(mapping.table, mapping.columns) for desk in (together, apart)]
        assert stored[0] == stored[1], mapping.table


def _cut(commands: Sequence[Command], cuts: set[int]) -> list[Sequence[Command]]:
    """Commands in pieces."""
    places = [0, *sorted(cut for cut in cuts if cut < len(commands)), len(commands)]
    return [commands[one:two] for one, two in pairwise(places)]


@pytest.mark.property
@FEW
@given(history=histories(), who=st.lists(st.booleans(), min_size=1, max_size=20))
def test_two_processes_may_have_books_of_one_org_in_memory(
    connection: Connection, history: History, who: list[bool]
) -> None:
    """What one of them decided is seen by the other before it decides (IL25)."""
    journal = Journal(history.prices)
    one, other = Desk(connection, history.prices), Desk(connection, history.prices)
    other.org = one.org
    for (now, command), first in zip(history.steps, cycle(who), strict=False):
        want = journal.do(command, now)
        one._keys = other._keys = one._keys + 1

        [got] = (one if first else other).outcomes(command, now=now)

        assert want == got
    one.holds(journal.books)


def test_a_request_key_has_one_effect(connection: Connection) -> None:
    """The first answer again, from the database too; another command under it is refused (L7)."""
    desk = Desk(connection, forgets=True)
    desk.opens()
    ask = desk.reserve("h1", 100)

    [first] = desk.asks(ask, key="k")
    [second] = desk.asks(ask, key="k", now=hours(1))
    [refused] = desk.asks(desk.reserve("h1", 101), key="k")

    assert not first.replayed
    assert second.replayed
    assert (first.outcome, first.number) == (second.outcome, second.number)
    assert Refusal(Code.KEY_REUSED, {"key": "k", "field": "amount"}) == refused.outcome
    assert 1 == len(desk.stored("holds", {"hold_id": "text"}))


def test_a_refusal_is_remembered_as_well(connection: Connection) -> None:
    """Though there would be credits by now (L7)."""
    desk = Desk(connection, forgets=True)
    desk.opens(credits=50)
    ask = desk.reserve("h1", 100)
    [first] = desk.asks(ask, key="k")
    assert isinstance(first.outcome, Refusal)
    desk.asks(Issue(grant=GrantId("more"), account=ORG, amount=500, kind=CreditKind.PAID))

    [second] = desk.asks(ask, key="k")

    assert second.replayed
    assert (first.outcome, first.number) == (second.outcome, second.number)


def test_a_repeated_refusal_has_all_its_figures(connection: Connection) -> None:
    """Equal to the first, tuples and all (L7)."""
    desk = Desk(connection, forgets=True)
    desk.opens()
    ask = Reserve(
        hold=HoldId("h1"),
        account=ORG,
        user=ANN,
        run_ms=5,
        context=Context(gpu_types=("h100", "a100"), milli_gpus=1_000),
        expires_at=hours(9),
    )

    first, second = (desk.asks(ask, key="k")[0].outcome for _ in range(2))

    assert Refusal(Code.PRICE_UNKNOWN, {"gpu_types": ("h100", "a100")}) == first == second


def test_a_key_twice_in_one_batch_has_one_effect(connection: Connection) -> None:
    """A caller that was too impatient (L7)."""
    desk = Desk(connection)
    desk.opens()

    first, second = desk.asks(*[desk.reserve("h1", 100)] * 2, key="k")

    assert (False, True) == (first.replayed, second.replayed)
    assert first.outcome == second.outcome


def test_a_refusal_does_not_disturb_its_neighbours(connection: Connection) -> None:
    """20 callers ask for 75 of 500: six get them, whatever else is in the batch (L5)."""
    desk = Desk(connection)
    desk.opens(credits=500)

    outcomes = desk.outcomes(*(desk.reserve(f"h{index}", 75) for index in range(20)))

    codes = [one.code if isinstance(one, Refusal) else "held" for one in outcomes]
    assert ["held"] * 6 + [Code.INSUFFICIENT_CREDITS] * 14 == codes


def test_an_org_that_does_not_exist_is_reported(connection: Connection) -> None:
    """And its neighbours in the batch are served."""
    desk = Desk(connection)
    desk.opens()
    asks = [
        CommandRequest(desk.org, "k1", desk.reserve("h1", 100)),
        CommandRequest("nobody", "k2", desk.reserve("h1", 100)),
    ]

    told = Batch(connection, PriceBook(), desk.cache, clock=lambda _: T0).run(asks)

    assert isinstance(told[0], Answer)
    assert isinstance(told[0].outcome, tuple)
    assert isinstance(told[1], OrgUnknown)
    assert [("h1",)] == desk.stored("holds", {"hold_id": "text"})


def test_time_does_not_go_back_within_an_org(connection: Connection) -> None:
    """A database whose clock was put back does not put the books back (D5)."""
    desk = Desk(connection)
    desk.opens()
    desk.asks(desk.reserve("h1", 100), now=hours(2))

    [events] = desk.outcomes(desk.reserve("h2", 100), now=hours(1))

    assert isinstance(events, tuple)
    assert [hours(2)] == [event.at for event in events]


def test_the_clock_is_read_once_under_the_lock(connection: Connection, database_url: str) -> None:
    """One that had to wait is decided at an instant after the wait, not before it (D5)."""
    org = new_org(connection)
    added = CommandRequest(org, "k", AddAccount(account=ORG, parent=None, name="o"))

    with connected(database_url) as other, ThreadPoolExecutor(1) as beside:
        with connection.transaction():
            lock_orgs(connection, [org])
            answers = beside.submit(Batch(other, PriceBook(), {}).run, [added])
            eventually(lambda: waits(connection, other), "the batch waits for the lock")
            sql = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
            [(waited_until,)] = connection.execute(sql).fetchall()
        [answer] = answers.result()

    assert isinstance(answer, Answer)
    assert isinstance(answer.outcome, tuple)
    assert waited_until <= answer.outcome[0].at


def test_garbage_is_collected_between_batches_only(connection: Connection) -> None:
    """Also after one that failed."""
    collects: list[bool] = []

    def clock(_: Connection) -> Instant:
        collects.append(gc.isenabled())
        return T0

    org = new_org(connection)
    batch = Batch(connection, PriceBook(), {}, clock)
    batch.run([CommandRequest(org, "key", AddUser(user=ANN))])
    assert gc.isenabled()

    with pytest.raises(KeyError):
        batch.run([CommandRequest(org, "other", 5)])  # type: ignore[arg-type]
    assert gc.isenabled()
    assert [False, False] == collects


def test_rows_in_memory_are_not_loaded_again(connection: Connection) -> None:
    """A second hold looks up its own id, and nothing else."""
    desk = Desk(connection)
    desk.opens()
    desk.asks(desk.reserve("h1", 100))
    desk.asks(desk.reserve("h2", 100))

    assert 1 == desk.rounds


def test_finished_holds_do_not_stay_in_memory(connection: Connection) -> None:
    """Books grow with what is open, not with what an org has done (D3)."""
    desk = Desk(connection)
    desk.opens()
    sizes = []
    for number in range(4):
        hold = f"h{number}"
        desk.asks(desk.reserve(hold, 10))
        desk.asks(Charge(charge=ChargeId(f"{hold}/1"), hold=HoldId(hold), amount=1))
        desk.asks(Settle(charge=ChargeId(f"{hold}/2"), hold=HoldId(hold)))
        sizes.append(desk.cache[desk.org].size)

    assert sizes[1:] == sizes[:-1]


def test_holds_that_another_process_finished_do_not_stay_in_memory(
    connection: Connection,
) -> None:
    """Books that follow another process's events forget what these have finished (D3)."""
    desk, other = Desk(connection), Desk(connection)
    desk.opens()
    other.org = desk.org
    sizes = []
    for number in range(4):
        other._keys = desk._keys
        other.asks(desk.reserve(f"o{number}", 10))
        other.asks(Settle(charge=ChargeId(f"o{number}/1"), hold=HoldId(f"o{number}")))
        desk._keys = other._keys
        desk.asks(desk.reserve(f"h{number}", 10))
        desk.asks(Settle(charge=ChargeId(f"h{number}/1"), hold=HoldId(f"h{number}")))
        sizes.append(desk.cache[desk.org].size)

    assert sizes[1:] == sizes[:-1]


def test_large_books_and_many_orgs_are_evicted(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded; what is let go is loaded again."""
    desk = Desk(connection)
    desk.opens()
    assert desk.org in desk.cache
    monkeypatch.setattr("bursar.service.ledger.batch.ORGS_MAX", 1)
    other = Desk(connection)
    other.cache = desk.cache
    other.opens()
    assert [other.org] == list(desk.cache)

    monkeypatch.setattr("bursar.service.ledger.batch.SIZE_MAX", 5)
    assert isinstance(desk.outcomes(desk.reserve("h1", 10))[0], tuple)

    assert desk.org not in desk.cache
    assert isinstance(desk.outcomes(desk.reserve("h2", 10))[0], tuple)


def test_policy_and_prices_are_written_only_when_they_change(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of holds and charges writes the counters of its org, not its settings (D3)."""
    desk = Desk(connection)
    desk.opens()
    encoded: list[object] = []

    def text_of(value: object) -> str:
        encoded.append(value)
        return codec.text_of(value)

    monkeypatch.setattr("bursar.store.ledger.writer.text_of", text_of)
    policy, book = OrgPolicy(debt_max=7), PriceBook(versions=(prices("v", T0, h100=5),))
    settings: list[tuple[int, int]] = []
    for commands in (
        [desk.reserve("h1", 10)],
        [SetPolicy(policy=policy), desk.reserve("h2", 10)],
        [desk.reserve("h3", 10)],
        [SetPrice(version=prices("v", T0, h100=5))],
        [desk.reserve("h4", 10)],
        [SetTier(tier="gold")],
    ):
        encoded.clear()
        desk.asks(*commands)
        kinds = [type(value) for value in encoded]
        settings.append((kinds.count(OrgPolicy), kinds.count(PriceBook)))

    assert [(0, 0), (1, 1), (0, 0), (1, 1), (0, 0), (1, 1)] == settings
    columns = {"tier": "text", "policy": "json", "prices": "json"}
    assert [("gold", codec.text_of(policy), codec.text_of(book))] == desk.stored("orgs", columns)


def test_a_cached_row_that_was_deleted_is_a_contradiction(connection: Connection) -> None:
    """Nothing is answered that was not written (D9)."""
    desk = Desk(connection)
    desk.opens()
    connection.execute("delete from totals where org_id = %s", [desk.org])

    with pytest.raises(InvariantBroken, match=r"loaded rows are missing .*totals"):
        desk.asks(desk.reserve("h1", 10))

    assert [] == desk.stored("holds", {"hold_id": "text"})
    assert {} == desk.cache, "books that have a hold which was never written"


@pytest.mark.parametrize("blind", [False, True])
def test_changed_rows_are_not_loaded_again_in_a_batch(connection: Connection, blind: bool) -> None:
    """A budget that was set goes for the commands behind it, though they load its row (B3)."""
    desk = Desk(connection, forgets=True, blind=blind)
    desk.opens(credits=1_000)
    desk.asks(_budget(500))
    sub = AccountId("sub")
    hold = Reserve(hold=HoldId("h"), account=sub, user=ANN, amount=100, expires_at=hours(9))

    *_, refused = desk.outcomes(_budget(10), AddAccount(account=sub, parent=ORG, name="s"), hold)

    assert isinstance(refused, Refusal)
    assert Code.BUDGET_EXCEEDED is refused.code
    [[limit]] = desk.connection.execute(
        "select body -> 'limit' from budgets where org_id = %s", [desk.org]
    ).fetchall()
    assert 10 == limit


def _budget(limit: int) -> SetBudget:
    return SetBudget(
        budget=BudgetId("b"),
        target=BudgetTarget(account=ORG),
        every=PeriodKind.MONTH,
        limit=limit,
        hard=True,
    )


def test_an_existing_org_is_not_created_again(connection: Connection) -> None:
    """The one constraint that a caller can run into; and a name that cannot be kept is refused."""
    org = new_org(connection)

    with pytest.raises(OrgExists, match=org):
        create_org(connection, org)
    with pytest.raises(ValueError, match="cannot be stored"):
        create_org(connection, "a\0b")


# Ids that are left to us, and who asked


def _made(desk: Desk, at_ms: int, amount: int = 100, label: str = "hold") -> CommandRequest:
    """A hold whose id is made for the key `k` at a time."""
    hold = make_id(desk.org, "k", label, at_ms)
    return CommandRequest(desk.org, "k", desk.reserve(hold, amount), generated_fields=("hold",))


def _run(desk: Desk, *asks: CommandRequest) -> list[Answer]:
    """The answers to asks in one batch, which begins with nothing in memory."""
    batch = Batch(desk.connection, desk.prices, {}, clock=lambda _: T0)
    return [told for told in batch.run(asks) if isinstance(told, Answer)]


def _holds(desk: Desk) -> list[tuple[Any, ...]]:
    return desk.stored("holds", {"hold_id": "text"})


def test_a_repeated_request_without_an_id_gets_the_first_id(connection: Connection) -> None:
    """Asked again, from the database: the first id, whatever would be made now (L7)."""
    desk = Desk(connection)
    desk.opens()

    [first] = _run(desk, _made(desk, 1_000))
    [second] = _run(desk, _made(desk, 2_000))

    assert (False, True) == (first.replayed, second.replayed)
    assert (first.outcome, first.number) == (second.outcome, second.number)
    assert _made(desk, 1_000).command == first.command == second.command
    assert [(make_id(desk.org, "k", "hold", 1_000),)] == _holds(desk)


def test_two_equal_requests_in_one_batch_have_one_effect(connection: Connection) -> None:
    """Though an id was made for each at a time of its own (L7)."""
    desk = Desk(connection)
    desk.opens()

    first, second = _run(desk, _made(desk, 2_000), _made(desk, 1_000))

    assert (False, True) == (first.replayed, second.replayed)
    assert (first.command, first.outcome) == (second.command, second.outcome)
    assert [(make_id(desk.org, "k", "hold", 2_000),)] == _holds(desk)


def test_an_id_from_the_caller_differs_from_a_generated_id(connection: Connection) -> None:
    """Given the first time and not the second, or the other way round: another request (L7)."""
    desk = Desk(connection)
    desk.opens()
    given = CommandRequest(desk.org, "k", desk.reserve("mine", 100))
    _run(desk, given)

    [left] = _run(desk, _made(desk, 1_000))

    assert Refusal(Code.KEY_REUSED, {"key": "k", "field": "hold"}) == left.outcome
    assert _made(desk, 1_000).command == left.command
    assert not left.replayed
    assert [("mine",)] == _holds(desk)

    other = Desk(connection)
    other.opens()
    [_, named] = _run(other, _made(other, 1_000), given._replace(org=other.org))
    assert Refusal(Code.KEY_REUSED, {"key": "k", "field": "hold"}) == named.outcome


def test_a_repeated_request_with_other_fields_is_refused(connection: Connection) -> None:
    """The id may differ in its time, and nothing else in anything (L7)."""
    desk = Desk(connection)
    desk.opens()
    _run(desk, _made(desk, 1_000))

    for ask, field in (
        (_made(desk, 2_000, amount=101), "amount"),
        (_made(desk, 2_000, label="grant"), "hold"),
        (_made(desk, 2_000)._replace(generated_fields=()), "hold"),
    ):
        [refused] = _run(desk, ask)
        assert Refusal(Code.KEY_REUSED, {"key": "k", "field": field}) == refused.outcome


def test_a_price_with_a_generated_id_is_set_once(connection: Connection) -> None:
    """From the time when it was set first (L7, B1)."""
    desk = Desk(connection)
    desk.opens()

    def ask(at_ms: int) -> CommandRequest:
        version = prices(make_id(desk.org, "k", "version", at_ms), h100=5)
        return CommandRequest(
            desk.org, "k", SetPrice(version=version, from_now=True), generated_fields=("version",)
        )

    [first], [second] = _run(desk, ask(1)), _run(desk, ask(2))

    assert (False, True, first.outcome) == (first.replayed, second.replayed, second.outcome)
    [[stored]] = connection.execute(
        "select prices -> 'versions' from orgs where org_id = %s", [desk.org]
    ).fetchall()
    [version] = stored
    assert (make_id(desk.org, "k", "version", 1), T0) == (version["id"], version["effective_at"])


def test_a_frozen_org_still_answers_repeated_requests(connection: Connection) -> None:
    """The first answer needs nothing of the books (L7)."""
    desk = Desk(connection)
    desk.opens()
    [first] = _run(desk, _made(desk, 1_000))
    freeze(connection, desk.org, "why")

    [second] = _run(desk, _made(desk, 2_000))

    assert second.replayed
    assert (first.command, first.outcome) == (second.command, second.outcome)


def test_the_caller_is_stored_with_each_event(connection: Connection) -> None:
    """Whose key it was the first time; nobody's when Bursar itself asks; of refusals too."""
    desk = Desk(connection)
    desk.opens()
    held, *_ = _run(
        desk,
        CommandRequest(desk.org, "held", desk.reserve("h1", 100), actor="key-1"),
        CommandRequest(desk.org, "refused", desk.reserve("h2", 10**6), actor="key-2"),
        CommandRequest(desk.org, "ours", Lapse(most=1)),
    )
    _run(desk, CommandRequest(desk.org, "held", desk.reserve("h1", 100), actor="key-3"))

    written = dict(desk.stored("requests", {"key": "text", "actor": "text"}))
    assert {"held": "key-1", "refused": "key-2", "ours": ""} == {
        key: actor for key, actor in written.items() if not key.startswith("key-")
    }
    events = dict(desk.stored("events", {"number": "bigint", "actor": "text"}))
    assert {held.number: "key-1"} == {number: actor for number, actor in events.items() if actor}
