"""A pool that lives by the real rules and the real clock: in memory, or behind HTTP."""

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from bursar.agent.transport import NoAnswer
from bursar.core.dispatch.reports import LeaseOrders, NodeReport, receive_report
from bursar.core.dispatch.state import JobKey, PoolJob, PoolTransaction
from bursar.core.ids import JobId
from bursar.core.instant import HOUR
from bursar.core.leases import Denied
from bursar.core.messages import Ended, JobSpec, Program, ToOrg, Withdraw
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace
from bursar.wire.agents import (
    LogRequest,
    LogResponse,
    NodeRequest,
    ReportRequest,
    ReportResponse,
    addresses_digest,
    to_json_values,
)
from bursar.wire.strict_json import parse_json
from tests.support.builders import T0
from tests.support.dispatch_pool import N1, Trial, asking


class RealPool:
    """A pool, whose clock is the machine's; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._began = time.monotonic_ns()
        self._trial = Trial()
        self.reports: list[NodeReport] = []

    @contextmanager
    def now(self) -> Iterator[Trial]:
        """The pool as it is now, for one call."""
        with self._lock:
            self._trial.now = T0 + (time.monotonic_ns() - self._began) // 1_000
            yield self._trial

    def enqueue(self, name: str, *command: str, **program: Any) -> JobKey:
        """A job that may run for ten minutes, and has credits enough."""
        key = "acme", JobId(name)
        spec = JobSpec(
            shape=Shape(types=("H100",)),
            program=Program(command=command, **program),
            requeues=9,
        )
        with self.now() as trial:
            ask = asking(
                run_ms=600_000, hold_micros=600_000, hold_until=trial.now + HOUR, spec=spec
            )
            assert trial.post(ask, 1, key)
        return key

    def place(self, key: JobKey, *gpus: int) -> int | Denied:
        """Lease GPUs of the node to a job; the fence."""
        with self.now() as trial:
            lease = trial.place((Piece(N1, gpus or (0,), 1),), key=key)
            self._news.notify_all()
            return lease if isinstance(lease, Denied) else lease.fence

    def preempt(self, key: JobKey) -> None:
        with self.now() as trial:
            assert trial.preempt(key) is None
            self._news.notify_all()

    def withdraw(self, key: JobKey) -> None:
        with self.now() as trial:
            assert trial.post(Withdraw(), 2, key)

    def take(self, told: NodeReport, wait_ms: int = 0) -> LeaseOrders | None:
        """Hear a report, and answer it: at once if there is news, or when some comes."""
        with self.now():
            self.reports.append(told)
            orders = self._heard(told)
        if orders is not None and wait_ms and not is_news(orders, told):
            with self._news:
                self._news.wait(wait_ms / 1_000)
            with self.now() as trial:
                machine = trial.pool.machines[told.node]
                if (machine.boot, machine.n) == (
                    told.boot,
                    told.number,
                ):  # it has said nothing since
                    trial.pool.machines[told.node] = replace(machine, n=told.number - 1)
                    return self._heard(told)
        return orders

    def _heard(self, told: NodeReport) -> LeaseOrders | None:
        with self.now() as trial:
            work = PoolTransaction(trial.pool, trial.now)
            orders = receive_report(work, told)
            work.commit()
            trial.expire()
            return orders

    def job(self, key: JobKey) -> PoolJob:
        with self.now() as trial:
            return trial.job(key)

    def told(self, key: JobKey) -> list[ToOrg]:
        with self.now() as trial:
            return trial.told(key)

    def ends(self, key: JobKey) -> list[Ended]:
        """How its attempts ended."""
        return [one for one in self.told(key) if isinstance(one, Ended)]


def is_news(orders: LeaseOrders, told: NodeReport) -> bool:
    """Whether there is something in an answer that its node did not say itself."""
    known = {one.fence for one in told.readings if one.exit is None}
    return any(one.stop or one.fence not in known for one in orders.leases)


class InMemory:
    """A way to the pool on which messages get lost, either way."""

    def __init__(self, pool: RealPool, *, lost: float = 0.0, seed: int = 1) -> None:
        self._pool = pool
        self._lost = lost
        self._random = random.Random(seed)

    def exchange(self, told: NodeReport, wait_ms: int) -> LeaseOrders | None:
        if self._random.random() < self._lost:
            raise NoAnswer("the report was lost")
        orders = self._pool.take(told)
        if self._random.random() < self._lost:
            raise NoAnswer("the answer was lost")
        return orders


class OverHttp:
    """The three addresses that an agent calls, on this machine."""

    KEY = "a-key"

    def __init__(self, pool: RealPool) -> None:
        self.pool = pool
        self.nodes: dict[str, NodeRequest] = {}
        self.logs: dict[int, str] = {}
        self.sizes: dict[int, int] = {}  # bytes of each log
        self.progress: dict[int, int | None] = {}
        self.waits: list[str] = []
        self.down = False
        self.addresses: list[str] | None = None  # of the service, as it names them
        self.named: list[bool] = []  # whether an answer has named them
        office = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                allowed = self.headers["Authorization"] == f"Bearer {OverHttp.KEY}"
                status, told = office.answer(self.path, body) if allowed else (401, PROBLEM)
                text = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """Whoever asked was killed meanwhile."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "OverHttp":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        parts = urlsplit(path)
        found = re.fullmatch(r"/v1/pools/p1/nodes/(\w+)(/\w+)?", parts.path)
        if found is None or self.down:
            return (404, PROBLEM) if found is None else (503, PROBLEM)
        told = parse_json(body)
        if found[2] is None:
            self.nodes[found[1]] = NodeRequest.model_validate(told)
            return 200, {}
        if found[2] == "/logs":
            return 200, self._log(LogRequest.model_validate(told))
        self.waits.append(parts.query)
        wait_ms = int(parts.query.removeprefix("wait_ms="))
        request = ReportRequest.model_validate(told)
        orders = self.pool.take(request.to_core(found[1]), wait_ms)
        addresses = self.addresses
        if addresses is not None and addresses_digest(addresses) == request.addresses_digest:
            addresses = None
        self.named.append(addresses is not None)
        answer = to_json_values(ReportResponse.from_core(orders, addresses))
        return 200, {"orders": None, **answer}

    def _log(self, ask: LogRequest) -> dict[str, Any]:
        has = self.sizes.setdefault(ask.fence, 0)
        if ask.offset == has:
            self.logs[ask.fence] = self.logs.get(ask.fence, "") + ask.text
            self.sizes[ask.fence] = has + ask.size
            self.progress[ask.fence] = ask.progress_ppm
        return to_json_values(LogResponse(offset=self.sizes[ask.fence]))


PROBLEM = {"code": "nope", "title": "no", "detail": "no", "remedy": ""}
