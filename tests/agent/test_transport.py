"""The way over HTTP: what is said arrives, what fails is told apart."""

import threading
from collections.abc import Iterator

import pytest

from bursar.agent import registration
from bursar.agent.registration import register_node
from bursar.agent.transport import HttpTransport, LogRefused, NoAnswer
from bursar.client import Problem
from bursar.core.dispatch.reports import NodeReport
from bursar.core.value import replace
from bursar.wire.agents import LogRequest, NodeRequest
from tests.support.agent_node import N1
from tests.support.agent_pool import OverHttp, RealPool

HELLO = NodeReport(node=N1, boot=1, number=1, at=5, answered_at=None)
NODE = NodeRequest(gpu_type="H100", gpus=2, labels=["fast"])


@pytest.fixture
def office() -> Iterator[OverHttp]:
    with OverHttp(RealPool()) as office:
        yield office


@pytest.fixture
def http(office: OverHttp) -> Iterator[HttpTransport]:
    http = HttpTransport([office.url], OverHttp.KEY, "p1", N1, 1_000)
    yield http
    http.close()


def test_node_registers_its_hardware(office: OverHttp, http: HttpTransport) -> None:
    http.register(NODE)

    assert {"n1": NODE} == office.nodes


def test_report_is_answered_with_orders(office: OverHttp, http: HttpTransport) -> None:
    """None if the pool has heard it before."""
    orders = http.exchange(HELLO, 0)

    assert orders is not None
    assert (N1, 1, 1, ()) == (orders.node, orders.boot, orders.number, orders.leases)
    assert [HELLO] == office.pool.reports
    assert http.exchange(HELLO, 0) is None
    assert ["wait_ms=0"] * 2 == office.waits


def test_every_failure_of_a_report_is_no_answer(office: OverHttp, http: HttpTransport) -> None:
    """Down, refused, or not there at all: the next report tries again."""
    office.down = True
    with pytest.raises(NoAnswer, match="nope"):
        http.exchange(HELLO, 0)
    with pytest.raises(NoAnswer):
        http.send_log(LogRequest(fence=1, offset=0, size=1, text="x"))
    wrong = HttpTransport([office.url], "another", "p1", N1, 0)
    with pytest.raises(NoAnswer):
        wrong.exchange(HELLO, 0)
    wrong.close()
    nowhere = HttpTransport(["http://127.0.0.1:9"], OverHttp.KEY, "p1", N1, 0)
    with pytest.raises(NoAnswer):
        nowhere.exchange(HELLO, 0)
    nowhere.close()


def test_malformed_answer_is_no_answer(
    office: OverHttp, http: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office, "answer", lambda path, body: (200, {"orders": 7, "offset": -1}))
    with pytest.raises(NoAnswer, match="orders"):
        http.exchange(HELLO, 0)
    with pytest.raises(NoAnswer, match="offset"):
        http.send_log(LogRequest(fence=1, offset=0, size=1, text="x"))


def test_log_arrives(office: OverHttp, http: HttpTransport) -> None:
    """And one that the pool does not know is told apart from a pool that does not answer."""
    assert 1 == http.send_log(LogRequest(fence=1, offset=0, size=1, text="x", progress_ppm=5))
    assert ({1: "x"}, {1: 5}) == (office.logs, office.progress)
    elsewhere = HttpTransport([office.url], OverHttp.KEY, "p/2", N1, 0)
    with pytest.raises(LogRefused):
        elsewhere.send_log(LogRequest(fence=1, offset=0, size=1, text="x"))
    elsewhere.close()


def test_registration_is_retried_until_it_succeeds(office: OverHttp, http: HttpTransport) -> None:
    """A service that is down is waited for, one that says no is not."""
    tried: list[bool] = []

    def register() -> None:
        office.down = not tried
        tried.append(True)
        http.register(NODE)

    assert register_node(register, threading.Event())
    assert [True, True] == tried
    wrong = HttpTransport([office.url], "another", "p1", N1, 0)
    with pytest.raises(Problem):
        register_node(lambda: wrong.register(NODE), threading.Event())
    wrong.close()
    stopped = threading.Event()
    stopped.set()
    assert not register_node(lambda: http.register(NODE), stopped)


def test_registration_waits_a_while_for_an_unknown_pool(
    office: OverHttp, http: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been begun at another process a moment ago; what was mistyped is told in time."""
    monkeypatch.setattr(registration, "WAIT_FIRST_S", 0.01)
    elsewhere = HttpTransport([office.url], OverHttp.KEY, "p2", N1, 0)
    tried: list[HttpTransport] = []

    def register() -> None:
        tried.append(http if len(tried) > 2 else elsewhere)
        tried[-1].register(NODE)

    assert register_node(register, threading.Event())
    assert [elsewhere] * 3 + [http] == tried
    with pytest.raises(Problem):
        register_node(lambda: elsewhere.register(NODE), threading.Event())
    elsewhere.close()


def test_call_that_fails_at_one_address_is_followed_by_the_next(office: OverHttp) -> None:
    """And the transport stays there; a refusal is an answer, and changes nothing."""
    gone = "http://127.0.0.1:9"
    http = HttpTransport([gone, office.url], OverHttp.KEY, "p1", N1, 0)
    with pytest.raises(NoAnswer, match=gone):
        http.exchange(replace(HELLO, number=1), 0)
    http.exchange(replace(HELLO, number=2), 0)
    http.exchange(replace(HELLO, number=3), 0)
    office.down = True
    with pytest.raises(NoAnswer, match="no"):
        http.exchange(replace(HELLO, number=4), 0)
    office.down = False
    http.exchange(replace(HELLO, number=5), 0)  # one error is no reason to try a dead address
    http.close()

    wrong = HttpTransport([office.url, gone], "another", "p1", N1, 0)
    for number in (1, 2):
        with pytest.raises(NoAnswer, match="no"):
            wrong.exchange(replace(HELLO, number=number), 0)
    wrong.close()


def test_agent_follows_the_addresses_that_the_service_names(office: OverHttp) -> None:
    """They are stored, and named again only if they change; they serve when the given one fails."""
    with OverHttp(RealPool()) as other:
        office.addresses = [office.url, other.url]
        stored: list[list[str]] = []
        http = HttpTransport(
            [office.url], OverHttp.KEY, "p1", N1, 0, on_learned=lambda urls: stored.append([*urls])
        )
        for number in (1, 2):
            http.exchange(replace(HELLO, number=number), 0)
        assert [[office.url, other.url]] == stored
        assert [True, False] == office.named
        office.down = True
        for number in (3, 4, 5):
            with pytest.raises(NoAnswer):
                http.exchange(replace(HELLO, number=number), 0)
        http.exchange(replace(HELLO, number=6), 0)
        http.close()

        again = HttpTransport([office.url], OverHttp.KEY, "p1", N1, 0, learned=stored[0])
        for _ in range(3):
            with pytest.raises(Problem):
                again.register(NODE)
        again.register(NODE)
        assert {"n1": NODE} == other.nodes
        again.close()


def test_addresses_that_cannot_be_stored_are_used_all_the_same(office: OverHttp) -> None:
    """A full disk must not cost the node its orders."""
    office.addresses = [office.url]

    def fail(urls: object) -> None:
        raise OSError("full")

    http = HttpTransport([office.url], OverHttp.KEY, "p1", N1, 0, on_learned=fail)
    assert http.exchange(HELLO, 0) is not None
    http.close()
