"""Streams that are taken up again where they broke off."""

import pytest

from bursar.client import Client, Problem
from bursar.client.event_stream import PATIENT_TRIES, TRIES, StreamEvent, follow, retry_patiently
from tests.support.scripted_server import Reply, Scripted, problem, scripted

PATH = "/v1/jobs/j/events"
STREAM = {"Content-Type": "text/event-stream"}


def told(text: str, **headers: str) -> Reply:
    return Reply(200, text.encode(), {**STREAM, **headers})


def step(number: int) -> str:
    return f'id: {number}\nevent: step\ndata: {{"number":{number}}}\n\n'


def seen(script: Scripted) -> tuple[list[StreamEvent], list[float]]:
    """The events that a client gets until the end of the stream, and its pauses."""
    pauses: list[float] = []
    with Client(script.url, "key") as client:
        return list(follow(client, PATH, pauses.append)), pauses


def test_each_event_is_returned_once_until_the_stream_ends() -> None:
    """The client reconnects after the last event that it got (S9)."""
    first = f'retry: 1000\n\n{step(1)}event: spent\ndata: {{"x":1}}\n\n:\n\n{step(2)}'
    with scripted(told(first), told(step(3)), Reply(204, b"")) as script:
        found, pauses = seen(script)

    assert [("1", "step"), (None, "spent"), ("2", "step"), ("3", "step")] == [
        (one.id, one.kind) for one in found
    ]
    assert [None, "2", "3"] == [one.headers.get("last-event-id") for one in script.asked]
    assert {"text/event-stream"} == {one.headers["accept"] for one in script.asked}
    assert [0, 0] == pauses


def test_broken_stream_is_resumed() -> None:
    """After a broken connection, a temporary refusal, or no response."""
    cut = told(step(1), **{"Content-Length": "999"})
    busy = Reply(503, problem("busy", 503))
    with scripted(cut, busy, Reply(0), told(step(2)), Reply(204, b"")) as script:
        found, pauses = seen(script)

    assert ["1", "2"] == [one.id for one in found]
    assert ["1", "1", "1", "2"] == [one.headers["last-event-id"] for one in script.asked[1:]]
    assert [1, 1, 1, 0] == pauses


def test_permanent_error_is_raised_at_once() -> None:
    with scripted(Reply(404, problem("job_unknown", 404))) as script:
        with pytest.raises(Problem) as error:
            seen(script)
        assert "job_unknown" == error.value.code


def test_stream_gives_up_after_a_time() -> None:
    replies = [Reply(503, problem("busy", 503))] * TRIES
    with scripted(*replies) as script:
        with pytest.raises(Problem) as error:
            seen(script)
        assert ("busy", TRIES) == (error.value.code, len(script.asked))


def test_stream_that_was_connected_retries_for_longer() -> None:
    """A restart of the service does not end a stream that a client reads for days."""
    busy = [Reply(503, problem("busy", 503))] * (TRIES + 1)
    with scripted(told(step(1)), *busy, told(step(2)), Reply(204, b"")) as script:
        found, pauses = seen(script)

    assert ["1", "2"] == [one.id for one in found]
    assert [1] * (TRIES + 1) == pauses[1:-1]


def test_patient_read_retries_until_it_is_answered() -> None:
    """It ends with a response, a permanent error, or the last try."""
    pauses: list[float] = []
    wrong = [Problem.from_response(503, problem("busy", 503)), Problem.local("no_answer", "gone")]

    def ask() -> str:
        if wrong:
            raise wrong.pop()
        return "told"

    assert "told" == retry_patiently(ask, pauses.append)
    assert [1, 1] == pauses
    wrong = [Problem.from_response(404, problem("job_unknown", 404))]
    with pytest.raises(Problem, match="job_unknown"):
        retry_patiently(ask, pauses.append)
    wrong = [Problem.from_response(503, problem("busy", 503))] * (PATIENT_TRIES + 1)
    with pytest.raises(Problem, match="busy"):
        retry_patiently(ask, pauses.append)
    assert 1 == len(wrong)
