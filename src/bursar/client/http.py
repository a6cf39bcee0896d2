"""Client: calls the HTTP API, with retries.

Every change has an Idempotency-Key, so a retry has no second effect. Calls that fail because the
service is busy, unreachable or was interrupted are retried with the same key, a few times, with
growing pauses.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit
from uuid import uuid4

from bursar.client.problem import NO_RESPONSE, NOT_BURSAR, Problem

if TYPE_CHECKING:
    import httpx2

CONNECT_S: Final = 5.0
RESPONSE_S: Final = 30.0
SILENCE_S: Final = 45.0  # of a stream, which sends keep-alives more often
TRIES: Final = 5
WAIT_FIRST_S: Final = 0.2  # the most before the second try; doubles with each try
WAIT_MAX_S: Final = 10.0  # a longer Retry-After is not followed
RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """The response to a call."""

    text: str  # the body as it was sent
    replayed: bool = False  # the stored response to an earlier call with this key
    event: str | None = None  # the last event that it includes, as stream:number

    @property
    def body(self) -> Any:
        """The parsed body."""
        return json.loads(self.text)


class Client:
    """The API at a URL, with a key. Close it, or use it in a `with`."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        tries: int = TRIES,
        response_s: float = RESPONSE_S,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """An answer is waited for `answer_s`; `sleep` waits for seconds, `chance` draws from
        [0, 1)."""
        import httpx2  # imported late: it is slow, and not every command calls the API

        self.url = url.rstrip("/")
        self._tries = tries
        self._sleep = sleep
        self._chance = chance
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=httpx2.Timeout(response_s, connect=CONNECT_S),
            trust_env=not is_local(self.url),  # no proxy for calls on this machine
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> ApiResponse:
        """Send a GET. Parameters that are None are omitted."""
        return self._call("GET", path, params, None, None)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        key: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> ApiResponse:
        """Send a POST; without `key`, under a new Idempotency-Key."""
        return self._call("POST", path, params, body, key or str(uuid4()))

    def put(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        key: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> ApiResponse:
        """Send a PUT; without `key`, under a new Idempotency-Key."""
        return self._call("PUT", path, params, body, key or str(uuid4()))

    def patch(self, path: str, body: Mapping[str, Any], *, key: str | None = None) -> ApiResponse:
        """Send a PATCH; without `key`, under a new Idempotency-Key."""
        return self._call("PATCH", path, None, body, key or str(uuid4()))

    def delete(
        self, path: str, *, key: str | None = None, params: Mapping[str, Any] | None = None
    ) -> ApiResponse:
        """Send a DELETE; without `key`, under a new Idempotency-Key."""
        return self._call("DELETE", path, params, None, key or str(uuid4()))

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[ApiResponse]:
        """Yield all pages, from the first or from the one that `after` names."""
        query = dict(params or {})
        while True:
            page = self.get(path, query)
            yield page
            query["after"] = page.body["next"]
            if query["after"] is None:
                return

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator["httpx2.Response"]:
        """Open a streamed response. If it breaks, a Problem `no_answer` is raised."""
        import httpx2

        silence = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        try:
            with self._http.stream("GET", path, headers=headers, timeout=silence) as response:
                if not response.is_success:
                    response.read()
                    id = response.headers.get("request-id")
                    raise Problem.from_response(
                        response.status_code, _parse_body(response), request_id=id
                    )
                yield response
        except httpx2.RequestError as error:
            detail = f"{self.url} does not answer: {str(error) or type(error).__name__}"
            raise Problem.local(NO_RESPONSE, detail) from None

    def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        key: str | None,
    ) -> ApiResponse:
        request = self._http.build_request(
            method,
            path,
            params={name: it for name, it in (params or {}).items() if it is not None},
            json=body,
            headers={} if key is None else {"Idempotency-Key": key},
        )
        for tried in range(1, self._tries + 1):
            outcome = self._send(request, key)
            if isinstance(outcome, ApiResponse):
                return outcome
            problem, wait_s = outcome
            if wait_s is None or tried == self._tries:
                break
            least = WAIT_FIRST_S * 2 ** (tried - 1) * self._chance()
            self._sleep(max(wait_s, min(least, WAIT_MAX_S)))
        raise problem

    def _send(
        self, request: "httpx2.Request", key: str | None
    ) -> ApiResponse | tuple[Problem, float | None]:
        """The response; or the problem, and the minimum wait before a retry (None: no retry)."""
        import httpx2

        try:
            response = self._http.send(request)
        except httpx2.RequestError as error:
            said = str(error) or type(error).__name__
            detail = f"{self.url} does not answer: {said}"
            return Problem.local(NO_RESPONSE, detail, key=key), 0.0
        if response.is_success:
            return _parse_response(response, key)
        body = _parse_body(response)
        request_id = response.headers.get("request-id")
        problem = Problem.from_response(response.status_code, body, request_id=request_id, key=key)
        return problem, _wait_s(response)


def _parse_response(response: "httpx2.Response", key: str | None) -> ApiResponse:
    if _parse_body(response) is None:
        raise Problem.local(
            NOT_BURSAR,
            f"it answered {response.status_code}, but not with JSON",
            status=response.status_code,
            request_id=response.headers.get("request-id"),
            key=key,
        )
    return ApiResponse(
        text=response.text,
        replayed=response.headers.get("idempotent-replayed") == "true",
        event=response.headers.get("bursar-event"),
    )


def _parse_body(response: "httpx2.Response") -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _wait_s(response: "httpx2.Response") -> float | None:
    """The minimum wait before a retry; None if a retry makes no sense."""
    if response.status_code not in RETRIED_STATUSES:
        return None
    header = response.headers.get("retry-after", "0")
    if not header.isdecimal() or len(header) > 9:
        return 0.0  # a date or invalid: the usual pause
    return None if int(header) > WAIT_MAX_S else float(header)


def is_local(url: str) -> bool:
    """Whether a URL points at this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
