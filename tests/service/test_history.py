"""What clients saw, replayed in the server's own order on a second ledger, must be what it says.

The rounds are those of `chaos.py`, from fixed seeds; `make soak` goes on with random ones.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.ledger import Ledger
from bursar.store.database import URL_VARIABLE, Database, open_database
from bursar.store.sql.connection import Connection
from tests.support import databases
from tests.support.ledger_caller import answer_line, lines, operation
from tests.support.ledger_chaos import FAULTS, Callers, begin, check, round_of_chaos

ROUNDS = {
    "callers": ["kill_caller"] * 3 + ["stop_caller", "end_backend"],
    "server": ["kill_server", "kill_backend", "stop_backend", "kill_server"],
    "line": ["lose_commits", "break_messages"] * 2 + ["cut", "kill_line", "refuse"],
}
SEED = 20_261_115


@pytest.fixture(scope="module")
def own_database() -> Iterator[Database]:
    """An embedded database whose server may be killed, whatever else there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(URL_VARIABLE, raising=False)
        with databases.new_state() as state, open_database(state) as database:
            yield database


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_the_answers_of_callers_equal_those_of_a_second_ledger(
    own_database: Database, tmp_path: Path, name: str
) -> None:
    """Killed, stopped and cut off at random, four callers see one history (L5, L7, F1, F9, F25)."""
    faults = ROUNDS[name][:]
    random.Random(SEED).shuffle(faults)

    seen = round_of_chaos(own_database, tmp_path, SEED, faults)

    assert seen.answers > 100
    assert seen.refusals > 0
    if name == "line":
        assert seen.lost_commits > 5
        assert seen.replays > 0, "what had happened unseen was told later"


def test_every_kind_of_fault_is_in_a_round() -> None:
    """None is left to the soak alone."""
    assert set(FAULTS) == {fault for faults in ROUNDS.values() for fault in faults}


# A checker that finds nothing wrong must be able to

Lines = list[dict[str, Any]]


def story(url: str, connection: Connection, folder: Path) -> Callers:
    """What one caller saw in peace."""
    org = databases.new_org(connection)
    begin(connection, org)
    callers = Callers(url, org, SEED, folder)
    told: Lines = []
    with Ledger(lambda: databases.connected(url), limits=Limits(lanes=1)) as ledger:
        for number in range(60):
            key = f"caller0-{number}"
            told.append({"key": key, "asked_ns": time.monotonic_ns()})
            answer = ledger.ask(org, key, operation("caller0", number, SEED))
            told.append(answer_line(key, answer))
    written(callers, told)
    return callers


def written(callers: Callers, told: Lines) -> None:
    """Let this be what the caller saw."""
    callers.log("caller0").write_text("".join(json.dumps(line) + "\n" for line in told))


def another_number(told: Lines) -> None:
    """An answer of another event."""
    told[41]["answer"] += 1


def no_refusal(told: Lines) -> None:
    """A refusal that was told as done."""
    next(line for line in told if line.get("refusal"))["refusal"] = None


def unseen(told: Lines) -> None:
    """Something happened that nobody asked for."""
    del told[40:42]


def too_late(told: Lines) -> None:
    """Asked after a later one was answered."""
    told[20]["asked_ns"] = told[61]["answered_ns"] + 1


SPOILT = {
    "an answer of an earlier event": """
        update requests set number = number - 1, first = first - 1
         where org_id = %(org)s and refusal is null and key = 'caller0-20'""",
    "an answer that is forgotten": """
        delete from requests where org_id = %(org)s and key = 'caller0-20'""",
    "a credit too many": """
        update grants set spent = spent - 1, available = available + 1
         where org_id = %(org)s and spent > 0""",
    "a refusal that is none": """
        update requests set refusal = null where org_id = %(org)s and refusal is not null""",
}


@pytest.fixture(scope="module")
def aside(database_url: str) -> Iterator[str]:
    """A database that may be spoilt."""
    with databases.migrated(database_url) as url:
        yield url


@pytest.fixture
def spoilable(aside: str) -> Iterator[Connection]:
    """A connection to it."""
    with databases.connected(aside) as connection:
        yield connection


@pytest.fixture(scope="module")
def peace(aside: str, tmp_path_factory: pytest.TempPathFactory) -> Callers:
    """A true story, which the others are made from."""
    with databases.connected(aside) as connection:
        return story(aside, connection, tmp_path_factory.mktemp("peace"))


@pytest.mark.slow
def test_a_correct_history_is_accepted(spoilable: Connection, peace: Callers) -> None:
    """All of it."""
    assert 60 == check(spoilable, peace.url, peace).answers


@pytest.mark.slow
@pytest.mark.parametrize("change", [another_number, no_refusal, unseen, too_late])
def test_a_changed_history_is_rejected(
    spoilable: Connection, peace: Callers, tmp_path: Path, change: Callable[[Lines], None]
) -> None:
    """Whatever a client saw must be what is stored, in an order that it can believe."""
    told: Lines = lines(peace.log("caller0"))
    change(told)
    callers = Callers(peace.url, peace.org, SEED, tmp_path)
    written(callers, told)

    with pytest.raises(AssertionError):
        check(spoilable, peace.url, callers)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOILT)
def test_a_changed_ledger_is_rejected(
    aside: str, spoilable: Connection, tmp_path: Path, name: str
) -> None:
    """Whatever is stored must be what the model makes of the requests."""
    callers = story(aside, spoilable, tmp_path)
    spoilable.execute(SPOILT[name].encode(), {"org": callers.org})

    with pytest.raises(AssertionError):
        check(spoilable, aside, callers)
