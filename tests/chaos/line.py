"""A line that fails: before the database, and before the HTTP interface.

It passes bytes on until somebody lets it refuse, delay, swallow or cut. What was swallowed in one
direction only leaves a connection half open: one end believes that all is well. Once something is
lost on a connection nothing more passes there, as nothing would that makes sense.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

from tests.support.database_proxy import CHUNK, LOOPBACK, Messages, is_commit


class Way(Enum):
    """A direction."""

    FORTH = "from who has called"
    BACK = "to who has called"


BOTH: Final = frozenset(Way)


class _Pair:
    """The two ends of a connection."""

    def __init__(self, caller: socket.socket, called: socket.socket) -> None:
        self.ends = {Way.FORTH: (caller, called), Way.BACK: (called, caller)}
        self.broken = False  # something was lost on it

    def close(self) -> None:
        """Close both ends under whoever waits at them."""
        for end, _ in self.ends.values():
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Line:
    """The line itself; a thread for each direction of each connection."""

    def __init__(self, connect: Callable[[], socket.socket], *, commits: bool = False) -> None:
        """`commits`: it leads to PostgreSQL, and answers to commits can be lost."""
        self._connect = connect
        self._commits = commits
        self._door = socket.create_server((LOOPBACK, 0))
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self.port: int = self._door.getsockname()[1]
        self.refuses = False
        self.delay_s = 0.0  # of whatever passes
        self.swallows: frozenset[Way] = frozenset()
        self.loses: Callable[[], bool] = lambda: False  # the next answer to a commit
        self.lost_commits = 0
        self.broken = 0  # connections that something was lost on, or that were cut
        threading.Thread(target=self._welcome, daemon=True).start()

    def cut(self, *, only_broken: bool = False) -> None:
        """Break all connections, or those that something was lost on."""
        with self._lock:
            found = [pair for pair in self._pairs if pair.broken or not only_broken]
            self._pairs = [pair for pair in self._pairs if pair not in found]
            self.broken += sum(not pair.broken for pair in found)
        for pair in found:
            pair.close()

    def heal(self) -> None:
        """Be a line again."""
        self.refuses, self.delay_s, self.swallows = False, 0.0, frozenset()
        self.loses = lambda: False
        self.cut(only_broken=True)

    def close(self) -> None:
        """Be no more."""
        self.refuses = True
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.cut()

    def _welcome(self) -> None:
        with suppress(OSError):  # the door was closed
            while True:
                caller, _ = self._door.accept()
                if self.refuses:
                    caller.close()
                else:
                    threading.Thread(target=self._join, args=(caller,), daemon=True).start()

    def _join(self, caller: socket.socket) -> None:
        try:
            called = self._connect()
        except OSError:
            caller.close()
            return
        for end in (caller, called):
            if end.family == socket.AF_INET:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(caller, called)
        with self._lock:
            self._pairs.append(pair)
        for way in Way:
            threading.Thread(target=self._carry, args=(pair, way), daemon=True).start()

    def _carry(self, pair: _Pair, way: Way) -> None:
        source, sink = pair.ends[way]
        messages = Messages() if self._commits and way is Way.BACK else None
        with suppress(OSError):
            while sent := source.recv(CHUNK):
                if self.delay_s:
                    time.sleep(self.delay_s)
                if way in self.swallows and not pair.broken:
                    pair.broken = True
                    self.broken += 1
                if pair.broken:
                    continue
                if messages is not None:
                    sent, lost = self._without_commit(messages, sent)
                    sink.sendall(sent)
                    if lost:
                        break
                else:
                    sink.sendall(sent)
        if not pair.broken:
            self._end(pair)

    def _without_commit(self, messages: Messages, sent: bytes) -> tuple[bytes, bool]:
        """What passes of the server's messages; whether the answer to a commit is lost there."""
        passes = b""
        for message in messages.whole(sent):
            if is_commit(message) and self.loses():
                self.lost_commits += 1
                return passes, True
            passes += message
        return passes, False

    def _end(self, pair: _Pair) -> None:
        with self._lock, suppress(ValueError):
            self._pairs.remove(pair)
        pair.close()
