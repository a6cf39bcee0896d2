"""Calls the provisioner: an operator's program that provides nodes (S12).

    {"action": "order",  "pool": …, "order": …, "node": …, "offer": …, "gpu_type": …, "gpus": …, …}
    {"action": "remove", "pool": …, "order": …, "node": …, "offer": …}
    {"action": "list",   "pool": …}

The program is started for each call, reads one line of JSON from its standard input, writes its
answer as JSON to its standard output, and exits with 0. After anything else the call is repeated. A
call may be repeated at any time, and by several processes at once: an order's id stands for one
node, which is provided once however often it is ordered, and never again after its removal.

The answer is complete when the program exits. Processes that it has left running may still have its
output open. So the output is a file: with a pipe, a reader would wait for those processes.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple, Protocol

from bursar.core.dispatch.node_orders import NodeOrder, ProviderReply
from bursar.core.ids import PoolId

CALL_TIMEOUT_S: Final = 60.0  # for one call
ANSWER_MAX: Final = 1024 * 1024  # bytes
STDERR_MAX: Final = 4 * 1024  # bytes of its error output that are read
REASON_MAX: Final = 200  # characters of a reason
# Secrets of the service that the program does not get.
_NOT_PASSED: Final = frozenset({"BURSAR_DATABASE_URL", "BURSAR_SECRET_KEY"})
_ORDER_REPLIES: Final[Mapping[str, ProviderReply | None]] = {
    "coming": ProviderReply.YES,
    "refused": ProviderReply.NO,
}
_REMOVE_REPLIES: Final[Mapping[str, ProviderReply | None]] = {
    "removed": ProviderReply.REMOVED,
    "removing": None,
}


class ProviderAnswer(NamedTuple):
    """The answer about an order; the reply is None if the call must be repeated."""

    reply: ProviderReply | None
    reason: str = ""  # for people


class NotDone(Exception):
    """It was not done, or the outcome is unknown: the call is repeated."""


class NodeProvider(Protocol):
    """A provider of nodes; several threads call it at once. Each method may raise `NotDone`."""

    def order(self, pool: PoolId, order: NodeOrder) -> ProviderAnswer:
        """Provide the node of an order, unless that was done before."""
        ...

    def remove(self, pool: PoolId, order: NodeOrder) -> ProviderAnswer:
        """Remove the node of an order, if it exists."""
        ...

    def listed(self, pool: PoolId) -> frozenset[str]:
        """The orders of a pool whose nodes exist or will."""
        ...

    def close(self) -> None:
        """Abort the calls in progress."""
        ...


class CommandHook:
    """A provisioner that is a program."""

    def __init__(self, command: Sequence[str], limit_s: float = CALL_TIMEOUT_S) -> None:
        self._command = tuple(command)
        self._limit_s = limit_s
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def order(self, pool: PoolId, order: NodeOrder) -> ProviderAnswer:
        """Provide the node of an order."""
        answer = self._ask({"action": "order", **_order_fields(pool, order), **_node_fields(order)})
        return _parse_reply(answer, _ORDER_REPLIES)

    def remove(self, pool: PoolId, order: NodeOrder) -> ProviderAnswer:
        """Remove the node of an order."""
        return _parse_reply(
            self._ask({"action": "remove", **_order_fields(pool, order)}), _REMOVE_REPLIES
        )

    def listed(self, pool: PoolId) -> frozenset[str]:
        """The orders whose nodes exist or will."""
        orders = self._ask({"action": "list", "pool": pool}).get("orders")
        if not isinstance(orders, list) or not all(isinstance(order, str) for order in orders):
            raise NotDone('its answer has no list of texts named "orders"')
        return frozenset(orders)

    def close(self) -> None:
        """End running calls; the next leader repeats them."""
        with self._lock:
            self._closed = True
            running = tuple(self._running)
        for process in running:
            _kill(process)

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
            stdin.write(f"{json.dumps(question)}\n".encode())
            stdin.seek(0)
            status = self._wait_for_end(self._start(stdin, stdout, stderr))
            if status != 0:
                raise NotDone(f"it exited with {status}: {_shorten(_read_end(stderr))}")
            stdout.seek(0)
            return _parse_object(stdout.read(ANSWER_MAX).decode(errors="replace"))

    def _wait_for_end(self, process: "subprocess.Popen[bytes]") -> int:
        """The exit status of the program; kills it if it takes too long."""
        try:
            return process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            raise NotDone(f"it took more than {self._limit_s:g} seconds") from None
        finally:
            with self._lock:
                self._running.discard(process)

    def _start(
        self, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start the program in a process group of its own, so that all of it can be killed."""
        environment = {
            name: setting for name, setting in os.environ.items() if name not in _NOT_PASSED
        }
        with self._lock:
            if self._closed:
                raise NotDone("the service is stopping")
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise NotDone(f"it cannot be started: {error.strerror}") from None
            self._running.add(process)
        return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_end(file: IO[bytes]) -> str:
    """The last bytes of a file, as text."""
    file.seek(max(file.seek(0, os.SEEK_END) - STDERR_MAX, 0))
    return file.read().decode(errors="replace")


def _order_fields(pool: PoolId, order: NodeOrder) -> dict[str, Any]:
    return {"pool": pool, "order": order.id, "node": order.node.id, "offer": order.offer}


def _node_fields(order: NodeOrder) -> dict[str, Any]:
    node = order.node
    return {
        "gpu_type": node.gpu_type,
        "gpus": node.gpus,
        "slots": node.slots,
        "memory_gib": node.memory_gib,
        "region": node.region,
        "rack": node.rack,
        "labels": list(node.labels),
    }


def _parse_object(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        raise NotDone(f"its answer is not JSON: {_shorten(text)!r}") from None
    if not isinstance(answer, dict):
        raise NotDone(f"its answer is not a JSON object: {_shorten(text)!r}")
    return answer


def _parse_reply(
    answer: Mapping[str, Any], meanings: Mapping[str, ProviderReply | None]
) -> ProviderAnswer:
    state = str(answer.get("state"))
    if state not in meanings:
        raise NotDone(f'"state" is none of {", ".join(meanings)}: {_shorten(state)!r}')
    return ProviderAnswer(meanings[state], _shorten(str(answer.get("reason", ""))))


def _shorten(text: str) -> str:
    """The last characters of a text, in one line."""
    return " ".join(text.split())[-REASON_MAX:]
