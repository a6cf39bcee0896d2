"""Calls over HTTP that are sent again when that may help, and never twice when it may not.

Every change carries an Idempotency-Key, so sending it again has one effect: whatever was busy,
unreachable or cut off in between is tried again with the same key, a few times, ever more slowly.
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

from bursar.client.problem import NO_ANSWER, NOT_BURSAR, Problem

if TYPE_CHECKING:
    import httpx2

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
SILENCE_S: Final = 45.0  # of a stream: it gives a sign of life more often
TRIES: Final = 5
WAIT_FIRST_S: Final = 0.2  # before the second try, at most; twice as long before each one after
WAIT_MOST_S: Final = 10.0  # who asks for a longer wait is not waited for
AGAIN: Final = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call was answered with."""

    text: str  # the body, byte by byte as it was sent
    replayed: bool = False  # it is the first answer to this key, given again
    event: str | None = None  # the last event that it knew, stream:number

    @property
    def body(self) -> Any:
        """What the body says."""
        return json.loads(self.text)


class Client:
    """The HTTP interface at a URL, with a key; close it, or use it in a `with`."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        tries: int = TRIES,
        answer_s: float = ANSWER_S,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """An answer is waited for `answer_s`; `sleep` waits for seconds, `chance` draws from
        [0, 1)."""
        import httpx2  # takes longer to import than all the rest: only who calls pays for it

        self.url = url.rstrip("/")
        self._tries = tries
        self._sleep = sleep
        self._chance = chance
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=httpx2.Timeout(answer_s, connect=CONNECT_S),
            trust_env=not is_here(self.url),  # what is said on this machine goes by no proxy
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Answer:
        """Ask; parameters that are None are left out."""
        return self._call("GET", path, params, None, None)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        key: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Change something, once for each key; a new one is made if none is given."""
        return self._call("POST", path, params, body, key or str(uuid4()))

    def put(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        key: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Change what is there already, once for each key."""
        return self._call("PUT", path, params, body, key or str(uuid4()))

    def delete(
        self, path: str, *, key: str | None = None, params: Mapping[str, Any] | None = None
    ) -> Answer:
        """Drop something, once for each key."""
        return self._call("DELETE", path, params, None, key or str(uuid4()))

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[Answer]:
        """All pages, from the first, or the one that `after` in the parameters asks for."""
        asked = dict(params or {})
        while True:
            page = self.get(path, asked)
            yield page
            asked["after"] = page.body["next"]
            if asked["after"] is None:
                return

    @contextmanager
    def streamed(self, path: str, headers: Mapping[str, str]) -> Iterator["httpx2.Response"]:
        """An answer that comes bit by bit; what breaks on the way is told as no answer."""
        import httpx2

        silence = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        try:
            with self._http.stream("GET", path, headers=headers, timeout=silence) as response:
                if not response.is_success:
                    response.read()
                    id = response.headers.get("request-id")
                    raise Problem.of(response.status_code, _parsed(response), request_id=id)
                yield response
        except httpx2.RequestError as error:
            detail = f"{self.url} does not answer: {str(error) or type(error).__name__}"
            raise Problem.at_the_edge(NO_ANSWER, detail) from None

    def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        key: str | None,
    ) -> Answer:
        request = self._http.build_request(
            method,
            path,
            params={name: it for name, it in (params or {}).items() if it is not None},
            json=body,
            headers={} if key is None else {"Idempotency-Key": key},
        )
        for tried in range(1, self._tries + 1):
            outcome = self._sent(request, key)
            if isinstance(outcome, Answer):
                return outcome
            problem, wait_s = outcome
            if wait_s is None or tried == self._tries:
                break
            least = WAIT_FIRST_S * 2 ** (tried - 1) * self._chance()
            self._sleep(max(wait_s, min(least, WAIT_MOST_S)))
        raise problem

    def _sent(
        self, request: "httpx2.Request", key: str | None
    ) -> Answer | tuple[Problem, float | None]:
        """The answer, or what is wrong and how long to wait at least before trying again."""
        import httpx2

        try:
            response = self._http.send(request)
        except httpx2.RequestError as error:
            said = str(error) or type(error).__name__
            detail = f"{self.url} does not answer: {said}"
            return Problem.at_the_edge(NO_ANSWER, detail, key=key), 0.0
        if response.is_success:
            return _answer(response, key)
        body = _parsed(response)
        request_id = response.headers.get("request-id")
        problem = Problem.of(response.status_code, body, request_id=request_id, key=key)
        return problem, _wait_s(response)


def _answer(response: "httpx2.Response", key: str | None) -> Answer:
    if _parsed(response) is None:
        raise Problem.at_the_edge(
            NOT_BURSAR,
            f"it answered {response.status_code}, but not with JSON",
            status=response.status_code,
            request_id=response.headers.get("request-id"),
            key=key,
        )
    return Answer(
        text=response.text,
        replayed=response.headers.get("idempotent-replayed") == "true",
        event=response.headers.get("bursar-event"),
    )


def _parsed(response: "httpx2.Response") -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _wait_s(response: "httpx2.Response") -> float | None:
    """How long to wait at least before trying again; None if there is no point in it."""
    if response.status_code not in AGAIN:
        return None
    told = response.headers.get("retry-after", "0")
    if not told.isdecimal() or len(told) > 9:
        return 0.0  # a date, or nonsense: our own patience will do
    return None if int(told) > WAIT_MOST_S else float(told)


def is_here(url: str) -> bool:
    """Whether a URL is of this machine alone."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
