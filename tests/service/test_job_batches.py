"""Commands for jobs in any batches, on stored rows: the same answers and the same rows (D3)."""

from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.core.ledger.books import Books
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.store.sql.connection import Connection
from tests.support.databases import new_org
from tests.support.job_histories import SELDOM, AskedCommand, JobHistory, copied, random_history
from tests.support.jobs import PRICES
from tests.support.org_desk import FEW

TABLES = ("jobs", "arrays", "job_steps", "org_outbox", "org_inbox", "holds", "events")


@pytest.mark.property
@settings(FEW, max_examples=15)
@given(seed=st.integers(0, 2**32), cuts=st.sets(st.integers(1, 60)))
def test_any_batches_of_the_same_commands_store_the_same_rows(
    connection: Connection, seed: int, cuts: set[int]
) -> None:
    """Commands of one instant in one transaction, or in many (IL24, S13)."""
    history = random_history(Random(seed), SELDOM)
    alone = _run(connection, history, set(range(len(history.asked))))

    assert alone == _run(connection, history, cuts)


def _run(connection: Connection, history: JobHistory, cuts: set[int]) -> Any:
    """The answers to all commands, and the rows afterwards; a batch ends before each cut."""
    org = new_org(connection)
    cache: dict[str, Books] = {}
    answers: list[Any] = []
    places = iter(range(len(history.asked)))
    number = 0

    def batch_of(asked: AskedCommand) -> tuple[int, int]:
        nonlocal number
        number += next(places) in cuts
        return asked.now, number

    for (now, _), commands in groupby(history.asked, key=batch_of):
        asks = [
            CommandRequest(org, asked.key, asked.command, copied(asked.effect))
            for asked in commands
        ]
        batch = Batch(connection, PRICES, cache, clock=lambda _, now=now: now)  # type: ignore[misc]
        results = batch.run(asks)
        answers += [answer.outcome for answer in results if isinstance(answer, Answer)]
        assert len(asks) == len([answer for answer in results if isinstance(answer, Answer)])
    rows = {
        table: sorted(
            connection.execute(
                f"select to_jsonb(t) - 'org_id' from {table} t where org_id = %s", [org]
            ).fetchall(),
            key=repr,
        )
        for table in TABLES
    }
    return answers, rows
