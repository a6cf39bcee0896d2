"""Follows server-sent events, and resumes after an interruption where it stopped."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from bursar.client.http import Client
from bursar.client.problem import NO_RESPONSE, Problem

MEDIA_TYPE: Final = "text/event-stream"
RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})
TRIES: Final = 10  # in a row without an event
PATIENT_TRIES: Final = 120  # after the first event: a restarted service comes back
WAIT_S: Final = 1.0
T = TypeVar("T")


class StreamEvent(NamedTuple):
    """One event of a stream."""

    id: str | None
    kind: str
    body: Any


def follow(
    client: Client, path: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[StreamEvent]:
    """Yield all events, each id once, until the stream is complete."""
    last, tries, most = "", 0, TRIES
    while True:
        headers = {"Accept": MEDIA_TYPE} | ({"Last-Event-ID": last} if last else {})
        try:
            with client.stream(path, headers) as response:
                if response.status_code == 204:
                    return
                for event in _events(response.iter_lines()):
                    last, tries, most = event.id or last, 0, PATIENT_TRIES
                    yield event
        except Problem as problem:
            tries += 1
            if not is_temporary(problem) or tries == most:
                raise
        sleep(WAIT_S if tries else 0)


def retry_patiently(call: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Repeat a call while the service does not respond, for up to two minutes."""
    tries = 0
    while True:
        try:
            return call()
        except Problem as problem:
            tries += 1
            if not is_temporary(problem) or tries == PATIENT_TRIES:
                raise
        sleep(WAIT_S)


def is_temporary(problem: Problem) -> bool:
    """Whether the same call can succeed a moment later."""
    return problem.code == NO_RESPONSE or problem.status in RETRIED_STATUSES


def _events(lines: Iterator[str]) -> Iterator[StreamEvent]:
    id, kind = None, "message"
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            id = value
        elif name == "event":
            kind = value
        elif name == "data":
            yield StreamEvent(id, kind, json.loads(value))
        elif not line:
            id, kind = None, "message"
