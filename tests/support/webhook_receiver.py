"""A receiver of webhooks: a real HTTP server on loopback that remembers what it was sent."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from tests.support.patience import eventually


@dataclass(frozen=True)
class Got:
    """One call that came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """What the delivery is called."""
        return self.headers["webhook-id"]

    @property
    def data(self) -> Any:
        """What it is about."""
        return json.loads(self.body)["data"]

    def verified(self, secret: str) -> Any:
        """What it says, if another hand's reading of the standard finds it signed by a secret."""
        return Webhook(secret).verify(self.body, self.headers)


@dataclass
class Receiver:
    """What came, and what is answered to it."""

    url: str = ""
    got: list[Got] = field(default_factory=list)
    answers: list[int | Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)
    always: int = 204  # when no other answers are left

    def at(self, path: str) -> list[Got]:
        """What came to a path."""
        return [one for one in self.got if one.path == path]

    def wait(self, count: int, path: str | None = None) -> list[Got]:
        """All calls, or all to one path, once there are so many."""

        def calls() -> list[Got]:
            return list(self.got) if path is None else self.at(path)

        eventually(lambda: len(calls()) >= count, lambda: f"{count} calls: {calls()}")
        return calls()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver, for as long as it is wanted."""
    receiver = Receiver()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                receiver.got.append(Got(self.path, headers, body))
                answer = receiver.answers.pop(0) if receiver.answers else receiver.always
            if callable(answer):
                answer(self)
                return
            self.send_response(answer)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A caller that hangs up is part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
