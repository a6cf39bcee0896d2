"""The way over HTTP: what is said arrives, what fails is told apart."""

import threading
from collections.abc import Iterator

import pytest

from bursar.agent import registration
from bursar.agent.registration import registered
from bursar.agent.transport import Http, Refused, Unheard
from bursar.client import Problem
from bursar.core.dispatch.reports import NodeReport
from bursar.wire.agents import LogRequest, NodeRequest
from tests.support.agent_node import N1
from tests.support.agent_pool import OverHttp, RealPool

HELLO = NodeReport(node=N1, boot=1, n=1, at=5, heard=None)
NODE = NodeRequest(gpu_type="H100", gpus=2, labels=["fast"])


@pytest.fixture
def office() -> Iterator[OverHttp]:
    with OverHttp(RealPool()) as office:
        yield office


@pytest.fixture
def http(office: OverHttp) -> Iterator[Http]:
    http = Http(office.url, OverHttp.KEY, "p1", N1, 1_000)
    yield http
    http.close()


def test_a_node_says_what_it_is(office: OverHttp, http: Http) -> None:
    http.register(NODE)

    assert {"n1": NODE} == office.nodes


def test_a_report_is_answered_with_orders(office: OverHttp, http: Http) -> None:
    """None if the pool has heard it before."""
    orders = http.exchange(HELLO, 0)

    assert orders is not None
    assert (N1, 1, 1, ()) == (orders.node, orders.boot, orders.n, orders.leases)
    assert [HELLO] == office.pool.reports
    assert http.exchange(HELLO, 0) is None
    assert ["wait_ms=0"] * 2 == office.waits


def test_whatever_fails_is_unheard(office: OverHttp, http: Http) -> None:
    """Down, refused, or not there at all: the next report tries again."""
    office.down = True
    with pytest.raises(Unheard, match="nope"):
        http.exchange(HELLO, 0)
    with pytest.raises(Unheard):
        http.send_log(LogRequest(fence=1, offset=0, size=1, text="x"))
    wrong = Http(office.url, "another", "p1", N1, 0)
    with pytest.raises(Unheard):
        wrong.exchange(HELLO, 0)
    wrong.close()
    nowhere = Http("http://127.0.0.1:9", OverHttp.KEY, "p1", N1, 0)
    with pytest.raises(Unheard):
        nowhere.exchange(HELLO, 0)
    nowhere.close()


def test_an_answer_that_is_none_is_unheard(
    office: OverHttp, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office, "answer", lambda path, body: (200, {"orders": 7, "offset": -1}))
    with pytest.raises(Unheard, match="orders"):
        http.exchange(HELLO, 0)
    with pytest.raises(Unheard, match="offset"):
        http.send_log(LogRequest(fence=1, offset=0, size=1, text="x"))


def test_a_log_arrives(office: OverHttp, http: Http) -> None:
    """And one that the pool does not know is told apart from a pool that does not answer."""
    assert 1 == http.send_log(LogRequest(fence=1, offset=0, size=1, text="x", progress_ppm=5))
    assert ({1: "x"}, {1: 5}) == (office.logs, office.progress)
    elsewhere = Http(office.url, OverHttp.KEY, "p/2", N1, 0)
    with pytest.raises(Refused):
        elsewhere.send_log(LogRequest(fence=1, offset=0, size=1, text="x"))
    elsewhere.close()


def test_registering_is_tried_until_it_helps(office: OverHttp, http: Http) -> None:
    """A service that is down is waited for, one that says no is not."""
    tried: list[bool] = []

    def register() -> None:
        office.down = not tried
        tried.append(True)
        http.register(NODE)

    assert registered(register, threading.Event())
    assert [True, True] == tried
    wrong = Http(office.url, "another", "p1", N1, 0)
    with pytest.raises(Problem):
        registered(lambda: wrong.register(NODE), threading.Event())
    wrong.close()
    stopped = threading.Event()
    stopped.set()
    assert not registered(lambda: http.register(NODE), stopped)


def test_a_pool_that_is_not_known_yet_is_waited_for_a_while(
    office: OverHttp, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been begun at another process a moment ago; what was mistyped is told in time."""
    monkeypatch.setattr(registration, "WAIT_FIRST_S", 0.01)
    elsewhere = Http(office.url, OverHttp.KEY, "p2", N1, 0)
    tried: list[Http] = []

    def register() -> None:
        tried.append(http if len(tried) > 2 else elsewhere)
        tried[-1].register(NODE)

    assert registered(register, threading.Event())
    assert [elsewhere] * 3 + [http] == tried
    with pytest.raises(Problem):
        registered(lambda: elsewhere.register(NODE), threading.Event())
    elsewhere.close()
