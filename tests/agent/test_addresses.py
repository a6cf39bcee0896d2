"""Which address of the service an agent uses (S10)."""

from typing import Any

import pytest

from bursar.agent import addresses
from bursar.agent.addresses import ServiceAddresses
from bursar.wire.agents import addresses_digest

A, B, C, D = (f"https://{name}.example" for name in "abcd")
LOCAL = "http://127.0.0.1:8765"


class Line:
    """A client that only knows whether it was closed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_closed = False

    def close(self) -> None:
        """Close it."""
        self.is_closed = True


class Desk:
    """Addresses, with a clock and lines in a test's hands."""

    def __init__(self, *named: str, node: str = "n1", plain_http: bool = False) -> None:
        self.now_s = 100.0
        self.lines: dict[str, Line] = {}
        connect: Any = self._connect
        self.addresses = ServiceAddresses(
            named, node, connect, plain_http=plain_http, now_s=lambda: self.now_s
        )

    def _connect(self, url: str) -> Line:
        self.lines[url] = Line(url)
        return self.lines[url]

    def call(self, outcome: str = "ok") -> str:
        """Make a call, which is answered, answered with an error, or not answered; by whom."""
        address = self.addresses.begin_call()
        failed = outcome != "ok"
        self.addresses.end_call(address, failed=failed, answered=outcome != "silence")
        return address.url


def test_an_agent_stays_with_an_address_until_it_fails() -> None:
    """And with the next one then, although the first may be back."""
    desk = Desk(A, B)

    assert [A, A, A] == [desk.call(), desk.call(), desk.call("silence")]
    desk.now_s += 600
    assert [B, B] == [desk.call(), desk.call()]


def test_an_agent_does_not_return_to_a_dead_address_after_one_error() -> None:
    """A process that answers with an error is alive; only some errors in a row count as a death."""
    desk = Desk(A, B)
    desk.call("silence")
    desk.now_s += 600

    assert [B] * 3 == [desk.call("error"), desk.call("error"), desk.call()]
    assert [B] * 3 == [desk.call("error") for _ in range(addresses.FAILURES_MAX)]
    assert A == desk.call("silence")
    assert B == desk.call(), "it is tried again first"


def test_an_address_that_fails_again_and_again_is_avoided_for_longer() -> None:
    """So a dead one costs less and less while a live one fails now and then."""
    desk = Desk(A, B)
    spans: list[float] = []
    while len(spans) < 8:
        began_s = desk.now_s
        if desk.call("silence") != A:
            desk.now_s += 0.5
            continue
        [span_s] = [
            address.avoid_until_s - began_s
            for address in desk.addresses._addresses
            if address.url == A
        ]
        spans.append(span_s)

    assert spans == sorted(spans)
    assert (addresses.AVOID_FIRST_S, addresses.AVOID_MAX_S) == (spans[0], spans[-1])


def test_an_address_that_works_is_forgiven() -> None:
    """Its next failure counts as the first."""
    desk = Desk(A)
    for _ in range(3):
        desk.call("silence")
        desk.call()
        [only] = desk.addresses._addresses
        assert (0, 0) == (only.failures, only.avoided)


def test_if_all_addresses_fail_the_first_to_be_tried_again_is_used() -> None:
    """An agent never waits for an address: the next call is made at once."""
    desk = Desk(A, B, C)

    assert [A, B, C, A, B, C] == [desk.call("silence") for _ in range(6)]


def test_learned_addresses_are_used_after_the_named_ones() -> None:
    """The named ones stay, whatever the service says."""
    desk = Desk(A, B)
    assert desk.addresses.learn([B, C])
    assert not desk.addresses.learn([B, C])

    assert [A, B, C] == [*desk.addresses.urls]
    assert [A, B, C] == [desk.call("silence") for _ in range(3)]
    assert desk.addresses.learn([])
    assert [A, B] == [*desk.addresses.urls]


def test_nodes_use_learned_addresses_in_different_orders() -> None:
    """The nodes of a process that dies do not all go to the same other one."""
    second = set()
    for number in range(20):
        desk = Desk(A, node=f"n{number}")
        desk.addresses.learn([B, C, D])
        second.add(desk.addresses.urls[1])

    assert {B, C, D} == second


def test_a_dropped_address_is_closed_when_its_last_call_has_ended() -> None:
    """And is used no more."""
    desk = Desk(A)
    desk.addresses.learn([B])
    desk.call("silence")
    under_way = desk.addresses.begin_call()
    assert B == under_way.url

    desk.addresses.learn([C])
    assert not desk.lines[B].is_closed
    desk.addresses.end_call(under_way, failed=True, answered=False)
    assert desk.lines[B].is_closed
    assert C == desk.call()
    desk.addresses.close()
    assert desk.lines[A].is_closed
    assert desk.lines[C].is_closed


@pytest.mark.parametrize(
    ("named", "plain_http", "learned"),
    [
        (A, False, (A, B)),
        (A, True, (A, B, "http://d.example")),
        (LOCAL, False, (LOCAL, B, "http://127.0.0.1:9")),
    ],
)
def test_a_key_is_sent_only_where_it_may_be_sent(
    named: str, plain_http: bool, learned: tuple[str, ...]
) -> None:
    """Not without TLS, and not to this machine if the service is elsewhere."""
    desk = Desk(named, plain_http=plain_http)

    desk.addresses.learn([B, "http://d.example", "http://127.0.0.1:9"])

    assert set(learned) == set(desk.addresses.urls)
    told = addresses_digest([B, "http://d.example", "http://127.0.0.1:9"])
    assert told == desk.addresses.digest, "they are not named again"
