"""A plan as a line that people read."""

import pytest

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.decisions import (
    EarmarkGpus,
    Plan,
    PlannedStart,
    Preempt,
    Promise,
    Start,
    Wait,
)
from bursar.core.scheduling.model.jobs import StartReason
from bursar.core.scheduling.model.nodes import Piece
from tests.support.plan_text import render_plan, span
from tests.support.scheduling_cases import T0

A, B = JobId("a"), JobId("b")
PIECES = (Piece(NodeId("n2"), (0, 1), 1), Piece(NodeId("n1"), (3,), 1))


@pytest.mark.parametrize(
    ("length", "want"),
    [
        (0, "0h"), (24 * HOUR, "24h"), (90 * MINUTE, "90m"), (90 * SECOND, "90s"),
        (1_500_000, "1500ms"), (999, "0ms"),
    ],
)  # fmt: skip
def test_a_length_of_time(length: int, want: str) -> None:
    assert want == span(length)


def test_all_decisions_and_waits_of_a_plan_are_rendered() -> None:
    decisions = (
        Start(job=A, gpu_type="H100", pieces=PIECES, why=StartReason.TURN),
        Start(job=A, gpu_type="H100", pieces=PIECES[1:], why=StartReason.BACKFILL),
        Preempt(job=A, wanted_by=B, right="class", lost=1, stops_at=T0),
        EarmarkGpus(job=B, gpu_type="H100", pieces=PIECES, victims=(A,)),
        Promise(job=A, at=T0 + HOUR, since=T0, nodes=()),
    )
    waits = (
        Wait(job=B, reason="capacity", figures=()),  # told already: what is kept for it
        Wait(
            job=A, reason="capacity", figures=(("needs", 4),), planned=PlannedStart(T0, "H100", ())
        ),
        Wait(job=A, reason="ceiling", figures=(("at", "paid"), ("used", 4))),
    )
    plan = Plan(at=T0, decisions=decisions, waits=waits, complete=True, steps=0)

    assert render_plan(plan).split("; ") == [
        "a -> n1:1+n2:2",
        "a -> n1:1 backfill",
        "a preempted for=b by=class",
        "b waits on=n1:1+n2:2",
        "a promised start=1h",
        "a waits needs=4 start=0h",
        "a waits ceiling at=paid used=4",
    ]


def test_an_empty_plan_is_rendered_as_nothing() -> None:
    assert "" == render_plan(Plan(at=T0, decisions=(), waits=(), complete=True, steps=0))
