"""How an agent talks to its pool: its reports and their answers, its registration, its logs."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from bursar.client import Client, Problem
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
    orders_of,
    written,
)
from bursar.wire.strict_json import parse_json

ANSWER_S: Final = 5.0  # beyond what the pool was asked to wait


class Unheard(Exception):
    """Nobody answered, or not as it must be; whether the report was heard is not known."""


class Owner(NamedTuple):
    """Whose something is: a job, and its org."""

    org: str
    job: str


class Refused(Exception):
    """The pool does not want it, and will not want it later either."""


class Transport(Protocol):
    """A way to the pool."""

    def exchange(self, told: NodeReport, wait_ms: int) -> LeaseOrders | None:
        """Send a report and wait for its answer, which may take so long if there is no news; None
        if the pool has heard a later one. Raises `Unheard`."""
        ...


class Http:
    """The way over the HTTP interface; may be used by several threads."""

    def __init__(self, url: str, key: str, pool: str, node: NodeId, wait_ms_max: int) -> None:
        self._node = node
        self._path = f"/v1/pools/{quote(pool, safe='')}/nodes/{quote(node, safe='')}"
        answer_s = ANSWER_S + wait_ms_max / 1_000
        # What was not heard is said anew, with what is known by then.
        self._client = Client(url, key, tries=1, answer_s=answer_s)

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def register(self, ask: NodeRequest) -> None:
        """Tell the pool what this node is. Raises `Problem`."""
        self._client.put(self._path, written(ask))

    def exchange(self, told: NodeReport, wait_ms: int) -> LeaseOrders | None:
        """Report, and be answered."""
        body = written(ReportRequest.from_core(told))
        try:
            params = {"wait_ms": wait_ms}
            answer = self._client.post(f"{self._path}/reports", body, params=params)
            return orders_of(answer.text, self._node)
        except (Problem, ValueError) as error:
            raise Unheard(str(error)) from error

    def send_log(self, ask: LogRequest) -> int:
        """Send a part of a log; up to where the pool has it. Raises `Unheard` or `Refused`."""
        try:
            answer = self._client.post(f"{self._path}/logs", written(ask))
            return LogResponse.model_validate(parse_json(answer.text.encode())).offset
        except Problem as error:
            if error.status in (400, 404, 409, 410, 413, 422):
                raise Refused(str(error)) from error
            raise Unheard(str(error)) from error
        except ValueError as error:
            raise Unheard(str(error)) from error

    def over_for_s(self, owners: Sequence[Owner]) -> dict[Owner, float]:
        """Which jobs are over, of those that this node has had, and for how many seconds.

        Raises `Unheard`.
        """
        asked = FinishedJobsRequest(jobs=[JobRef(org=one.org, job=one.job) for one in owners])
        try:
            answer = self._client.post(f"{self._path}/finished", written(asked))
            told = FinishedJobsResponse.model_validate(parse_json(answer.text.encode()))
        except (Problem, ValueError) as error:
            raise Unheard(str(error)) from error
        return {Owner(one.org, one.job): one.finished_ms_ago / 1_000 for one in told.jobs}
