"""What nodes and pools tell each other: all of it, and nothing else (S9, S10)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.core.dispatch.reports import LeaseOrder, LeaseOrders, NodeReport, Reading
from bursar.core.dispatch.state import Exit
from bursar.core.ids import JobId, NodeId
from bursar.core.messages import Program
from bursar.core.money import AMOUNT_MAX
from bursar.core.scheduling.model.nodes import Node, Piece
from bursar.wire.agents import (
    LOG_MAX,
    RESULT_MAX,
    LogRequest,
    NodeRequest,
    ReportRequest,
    ReportResponse,
    find_result_error,
    parse_report_answer,
    to_json_values,
)

FEW = settings(max_examples=max(settings().max_examples // 5, 10))  # they take long to make up
N1 = NodeId("n1")
WHOLE = st.integers(0, AMOUNT_MAX)
SOME = st.integers(1, AMOUNT_MAX)
TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)
RESULTS = st.sampled_from([None, "[]", '[{"inline": "x"}]'])

READINGS = st.builds(
    Reading,
    fence=SOME,
    run_ms=WHOLE,
    saved_ms=WHOLE,
    exit=st.sampled_from([None, *Exit]),
    exit_code=st.none() | st.integers(0, 255),
    result=RESULTS,
)
REPORTS = st.builds(
    NodeReport,
    node=st.just(N1),
    boot=SOME,
    number=SOME,
    at=WHOLE,
    answered_at=st.none() | WHOLE,
    readings=st.lists(READINGS, max_size=3).map(tuple),
)
PIECES = st.builds(
    Piece,
    node=st.just(N1),
    gpus=st.lists(st.integers(0, 7), unique=True).map(sorted).map(tuple),
    slots=st.integers(1, 10),
    cpu_milli=WHOLE,
    ram_mib=WHOLE,
)
PROGRAMS = st.builds(
    Program,
    command=st.lists(TEXT).map(tuple),
    env=st.dictionaries(TEXT.filter(lambda name: "=" not in name), TEXT).map(
        lambda env: tuple(sorted(env.items()))
    ),
    memory_mib=WHOLE,
    checkpoint_every_ms=WHOLE,
)
ORDERS = st.builds(
    LeaseOrder,
    fence=SOME,
    org=TEXT,
    job=TEXT.map(JobId),
    attempt=SOME,
    piece=PIECES,
    ttl_us=WHOLE,
    run_ms_max=WHOLE,
    program=PROGRAMS,
    nodes=st.lists(TEXT.map(NodeId), min_size=1).map(tuple),
    stop=st.booleans(),
)
ANSWERS = st.builds(
    LeaseOrders,
    node=st.just(N1),
    boot=SOME,
    number=SOME,
    at=WHOLE,
    leases=st.lists(ORDERS, max_size=3).map(tuple),
)


@FEW
@given(REPORTS)
def test_report_survives_the_round_trip(report: NodeReport) -> None:
    text = json.dumps(to_json_values(ReportRequest.from_core(report)))

    assert report == ReportRequest.model_validate(json.loads(text)).to_core(N1)


@FEW
@given(st.none() | ANSWERS)
def test_orders_survive_the_round_trip(orders: LeaseOrders | None) -> None:
    text = json.dumps(to_json_values(ReportResponse.from_core(orders)))

    assert (orders, None) == parse_report_answer(text, N1)


def test_node_survives_the_round_trip() -> None:
    ask = NodeRequest(gpu_type="H100", gpus=8, memory_gib=80, region="eu", labels=["b", "a", "b"])
    told = NodeRequest.model_validate(json.loads(json.dumps(to_json_values(ask))))

    assert (
        Node(id=N1, gpu_type="H100", gpus=8, memory_gib=80, region="eu", labels=("a", "b"))
        == told.to_core(N1)
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"boot": 0},
        {"number": "1"},
        {"at_us": -1},
        {"at_us": 1.5},
        {"more": 1},
        {"readings": [{"fence": 0, "run_ms": 1}]},
        {"readings": [{"fence": 1, "run_ms": -1}]},
        {"readings": [{"fence": 1, "run_ms": 1, "exit": "vanished"}]},
        {"readings": [{"fence": 1, "run_ms": 1, "exit_code": 256}]},
        {"readings": [{"fence": 1, "run_ms": 1, "result": "{}"}]},
        {"readings": [{"fence": 1, "run_ms": 1, "result": " " * (RESULT_MAX + 1)}]},
        {"readings": [{"fence": 1}] * 5_000},
    ],
)
def test_invalid_report_is_refused(change: dict[str, Any]) -> None:
    """Reports are checked strictly: a compromised node may send anything (K35, K36)."""
    good = {"boot": 1, "number": 1, "at_us": 0, "readings": [{"fence": 1, "run_ms": 1}]}
    ReportRequest.model_validate(good)

    with pytest.raises(ValueError, match="validation error"):
        ReportRequest.model_validate({**good, **change})


@pytest.mark.parametrize("text", ["", "null", "[]", '{"orders": 1}', '{"orders": null, "x": 1}'])
def test_invalid_response_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_report_answer(text, N1)


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_invalid_name_of_a_variable_is_refused(name: str) -> None:
    """A process cannot be started with it."""
    order = {
        "fence": 1, "org": "o", "job": "j", "attempt": 1, "piece": {"gpus": [0], "slots": 1},
        "ttl_us": 1, "run_ms_max": 1, "program": {"command": [], "env": {name: "x"}},
        "nodes": ["n1"],
    }  # fmt: skip
    told = {"orders": {"boot": 1, "number": 1, "at_us": 1, "leases": [order]}}

    with pytest.raises(ValueError, match="env"):
        parse_report_answer(json.dumps(told), N1)


@pytest.mark.parametrize(
    ("result", "wrong"),
    [
        ("[]", None),
        ('[{"name": "a", "inline": "", "type": "text/plain"}]', None),
        ('[{"uri": "s3://x", "sha256": "' + "a" * 64 + '"}]', None),
        ('[{"uri": "s3://x", "sha256": "' + "A" * 64 + '"}]', "sha256"),
        ('[{"uri": "s3://x"}]', "sha256"),
        *(
            ('[{"uri": "' + uri + '", "sha256": "' + "a" * 64 + '"}]', "a uri")
            for uri in (
                "javascript:alert(1)",
                "JavaScript://%0aalert(1)",
                "data:text/html,x",
                "//host/path",
                "x",
                "https://",
                " https://host",
                r"https://host/\u001b[2J",
                r"java\nscript://x",
            )
        ),
        ('[{"uri": "HTTPS://x", "sha256": "' + "a" * 64 + '"}]', None),
        ("[{}]", "uri or inline"),
        ("[1.5]", "whole"),
        ("\ud800", "surrogates"),
        ("[" * 100_000, "bytes"),
        ("[" * 50_000, "nested"),
    ],
)
def test_a_result_is_a_list_of_outputs(result: str, wrong: str | None) -> None:
    told = find_result_error(result)

    assert wrong in told if wrong is not None and told is not None else told is wrong


def test_log_with_an_unstorable_character_is_refused() -> None:
    LogRequest(fence=1, offset=0, size=1, text="x")
    for text in ("\0", "x" * (LOG_MAX + 1)):
        with pytest.raises(ValueError, match="text"):
            LogRequest(fence=1, offset=0, size=1, text=text)
