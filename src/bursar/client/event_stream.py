"""What happens, as it happens: server-sent events that are taken up again where they broke off."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from bursar.client.http import Client
from bursar.client.problem import NO_ANSWER, Problem

ACCEPTED: Final = "text/event-stream"
AGAIN: Final = frozenset({429, 502, 503, 504})
TRIES: Final = 10  # without a single event in between
PATIENT_TRIES: Final = 120  # once something was heard: a service that is started again comes back
WAIT_S: Final = 1.0
T = TypeVar("T")


class Happening(NamedTuple):
    """Something that was told."""

    id: str | None
    kind: str
    body: Any


def watched(
    client: Client, path: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Happening]:
    """All that happens, each thing with an id once, until there is no more to come."""
    last, tries, most = "", 0, TRIES
    while True:
        headers = {"Accept": ACCEPTED} | ({"Last-Event-ID": last} if last else {})
        try:
            with client.streamed(path, headers) as response:
                if response.status_code == 204:
                    return
                for one in _events(response.iter_lines()):
                    last, tries, most = one.id or last, 0, PATIENT_TRIES
                    yield one
        except Problem as problem:
            tries += 1
            if not is_passing(problem) or tries == most:
                raise
        sleep(WAIT_S if tries else 0)


def patiently(ask: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """What is asked for, although nobody may answer for a while."""
    tries = 0
    while True:
        try:
            return ask()
        except Problem as problem:
            tries += 1
            if not is_passing(problem) or tries == PATIENT_TRIES:
                raise
        sleep(WAIT_S)


def is_passing(problem: Problem) -> bool:
    """Whether the same may be answered a moment later."""
    return problem.code == NO_ANSWER or problem.status in AGAIN


def _events(lines: Iterator[str]) -> Iterator[Happening]:
    id, kind = None, "message"
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            id = value
        elif name == "event":
            kind = value
        elif name == "data":
            yield Happening(id, kind, json.loads(value))
        elif not line:
            id, kind = None, "message"
