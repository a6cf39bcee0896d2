"""The agent's HTTP calls to its pool: registration, reports, logs, finished jobs.

The pool may be reachable at several addresses, each of another process of the service
(`addresses.py`). The answer to a report names them when they have changed.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from bursar.agent.addresses import ServiceAddresses
from bursar.client import ApiResponse, Client, Problem
from bursar.core.dispatch.reports import LeaseOrders, NodeReport
from bursar.core.ids import NodeId
from bursar.wire.agents import (
    FinishedJobsRequest,
    FinishedJobsResponse,
    JobRef,
    LogRequest,
    LogResponse,
    NodeRequest,
    ReportRequest,
    parse_report_answer,
    to_json_values,
)
from bursar.wire.strict_json import parse_json

ANSWER_TIMEOUT_S: Final = 5.0  # in addition to the time that the pool may hold an answer back

_log = logging.getLogger("bursar.agent")


class NoAnswer(Exception):
    """No answer, or an invalid one. Whether the pool received the request is unknown."""


class CheckpointOwner(NamedTuple):
    """The job that a checkpoint folder belongs to, and its org."""

    org: str
    job: str


class LogRefused(Exception):
    """The pool refused a log; a retry would be refused too."""


class Transport(Protocol):
    """Exchanges reports with the pool."""

    def exchange(self, report: NodeReport, wait_ms: int) -> LeaseOrders | None:
        """Send a report and return the answer, for which the pool may wait up to `wait_ms`.

        Returns None if the pool already has a later report. Raises `NoAnswer`.
        """
        ...


class HttpTransport:
    """Reaches the pool over the HTTP API. Safe for several threads."""

    def __init__(
        self,
        urls: Sequence[str],
        key: str,
        pool: str,
        node: NodeId,
        wait_ms_max: int,
        *,
        learned: Sequence[str] = (),
        on_learned: Callable[[Sequence[str]], None] = lambda urls: None,
        plain_http: bool = False,
    ) -> None:
        """`urls` are the addresses of the service, in the order in which they are tried.

        `learned` are addresses that the service named earlier; `on_learned` stores new ones.
        """
        self._node = node
        self._path = f"/v1/pools/{quote(pool, safe='')}/nodes/{quote(node, safe='')}"
        self._on_learned = on_learned
        answer_s = ANSWER_TIMEOUT_S + wait_ms_max / 1_000
        self._addresses = ServiceAddresses(
            urls,
            node,
            # No retries: the agent's next report has newer figures.
            lambda url: Client(url, key, tries=1, response_s=answer_s),
            plain_http=plain_http,
        )
        self._addresses.learn(learned)

    def close(self) -> None:
        """Close the connections."""
        self._addresses.close()

    def _call(self, send: Callable[[Client], ApiResponse]) -> ApiResponse:
        """Send a call to the current address. If that does not work, later calls use the next."""
        address = self._addresses.begin_call()
        status = 0  # no answer
        try:
            response = send(address.client)
            status = 200
            return response
        except Problem as problem:
            status = problem.status
            raise
        finally:
            failed = status == 0 or status >= 500
            other = self._addresses.end_call(address, failed=failed, answered=status != 0)
            if other is not None:
                _log.warning("%s does not answer; trying %s", address.url, other)

    def _learn(self, urls: Sequence[str]) -> None:
        """Follow the addresses that the service names, and keep them for the next start."""
        if self._addresses.learn(urls):
            _log.info("addresses of the service: %s", ", ".join(self._addresses.urls))
            try:
                self._on_learned(urls)
            except OSError:
                _log.exception("the addresses of the service cannot be stored")

    def register(self, request: NodeRequest) -> None:
        """Register this node with its hardware. Raises `Problem`."""
        body = to_json_values(request)
        self._call(lambda client: client.put(self._path, body))

    def exchange(self, report: NodeReport, wait_ms: int) -> LeaseOrders | None:
        """Send a report and return the pool's answer."""
        request = ReportRequest.from_core(report, self._addresses.digest)
        body = to_json_values(request)
        try:
            params = {"wait_ms": wait_ms}
            answer = self._call(
                lambda client: client.post(f"{self._path}/reports", body, params=params)
            )
            orders, addresses = parse_report_answer(answer.text, self._node)
        except (Problem, ValueError) as error:
            raise NoAnswer(str(error)) from error
        if addresses is not None:
            self._learn(addresses)
        return orders

    def send_log(self, request: LogRequest) -> int:
        """Send a part of a log; return the offset up to which the pool has it.

        Raises `NoAnswer` or `LogRefused`.
        """
        body = to_json_values(request)
        try:
            answer = self._call(lambda client: client.post(f"{self._path}/logs", body))
            return LogResponse.model_validate(parse_json(answer.text.encode())).offset
        except Problem as error:
            if error.status in (400, 404, 409, 410, 413, 422):
                raise LogRefused(str(error)) from error
            raise NoAnswer(str(error)) from error
        except ValueError as error:
            raise NoAnswer(str(error)) from error

    def load_finished_jobs(self, owners: Sequence[CheckpointOwner]) -> dict[CheckpointOwner, float]:
        """The finished ones among jobs that ran on this node, and the seconds since they finished.

        Raises `NoAnswer`.
        """
        request = FinishedJobsRequest(
            jobs=[JobRef(org=owner.org, job=owner.job) for owner in owners]
        )
        body = to_json_values(request)
        try:
            answer = self._call(lambda client: client.post(f"{self._path}/finished", body))
            response = FinishedJobsResponse.model_validate(parse_json(answer.text.encode()))
        except (Problem, ValueError) as error:
            raise NoAnswer(str(error)) from error
        return {
            CheckpointOwner(job.org, job.job): job.finished_ms_ago / 1_000 for job in response.jobs
        }
