"""The agent's HTTP calls to its pool: registration, reports, logs, finished jobs.

The pool may be reachable at several addresses, each of another process of the service. The agent
uses one until a call to it fails, and then the next.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

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
    parse_orders,
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
        self, urls: Sequence[str], key: str, pool: str, node: NodeId, wait_ms_max: int
    ) -> None:
        """`urls` are the addresses of the service, in the order in which they are tried."""
        self._node = node
        self._path = f"/v1/pools/{quote(pool, safe='')}/nodes/{quote(node, safe='')}"
        answer_s = ANSWER_TIMEOUT_S + wait_ms_max / 1_000
        # No retries: the agent's next report has newer figures.
        self._clients = [Client(url, key, tries=1, response_s=answer_s) for url in urls]
        self._current = 0

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _call(self, send: Callable[[Client], ApiResponse]) -> ApiResponse:
        """Send a call to the current address. If it fails there, later calls use the next."""
        current = self._current
        try:
            return send(self._clients[current])
        except Problem as problem:
            has_failed = problem.status == 0 or problem.status >= 500
            if has_failed and len(self._clients) > 1 and self._current == current:
                self._current = (current + 1) % len(self._clients)
                _log.warning(
                    "%s does not answer; trying %s",
                    self._clients[current].url,
                    self._clients[self._current].url,
                )
            raise

    def register(self, request: NodeRequest) -> None:
        """Register this node with its hardware. Raises `Problem`."""
        body = to_json_values(request)
        self._call(lambda client: client.put(self._path, body))

    def exchange(self, report: NodeReport, wait_ms: int) -> LeaseOrders | None:
        """Send a report and return the pool's answer."""
        body = to_json_values(ReportRequest.from_core(report))
        try:
            params = {"wait_ms": wait_ms}
            answer = self._call(
                lambda client: client.post(f"{self._path}/reports", body, params=params)
            )
            return parse_orders(answer.text, self._node)
        except (Problem, ValueError) as error:
            raise NoAnswer(str(error)) from error

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
