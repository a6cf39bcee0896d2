"""A server that answers as it was told to, once each, and remembers what it was asked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar


@dataclass
class Reply:
    """An answer; with status 0 the connection is cut instead."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def problem(code: str, status: int, **more: Any) -> dict[str, Any]:
    """A problem document."""
    told = {"type": f"/problems/{code}", "title": f"title of {code}", "status": status}
    return {**told, "code": code, "detail": f"detail of {code}", "remedy": "mend it", **more}


@dataclass
class Scripted:
    """What will be answered, and what was asked."""

    url: str
    replies: list[Reply]
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def scripted(*replies: Reply) -> Iterator[Scripted]:
    """A server on this machine that gives these answers in turn."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        script: ClassVar[Scripted]

        def answer(self) -> None:
            long = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.script.asked.append(Asked(self.command, self.path, headers, self.rfile.read(long)))
            reply = self.script.replies.pop(0)
            self.close_connection = True
            if reply.status == 0:
                return
            raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            told = {"Content-Length": str(len(raw)), "Connection": "close", **reply.headers}
            for name, value in told.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Handler.script = Scripted(f"http://127.0.0.1:{server.server_port}", list(replies))
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Handler.script
        finally:
            server.shutdown()
            thread.join()
