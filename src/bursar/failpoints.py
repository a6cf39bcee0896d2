"""Failpoints: named places where a test can make a process die or stop.

    BURSAR_FAILPOINTS="pool.before_commit=kill@3,leader.planned=stop@1"
    BURSAR_FAILPOINTS_MARKS=DIR

The third time that this process comes to `pool.before_commit` it kills itself, as a power cut
would: nothing is cleaned up. `stop` suspends it until it receives SIGCONT. Before that the process
writes its pid to a mark, the file `pool.before_commit.kill` in DIR. A point whose mark exists is
disarmed in every process: so a restarted program gets further, and the test sees from the marks
which points were reached.

Without the variable a point costs one look at an empty table. Only tests set it.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Final, NamedTuple

VARIABLE: Final = "BURSAR_FAILPOINTS"
MARKS: Final = "BURSAR_FAILPOINTS_MARKS"

# What has happened when a process comes there, and what has not.
SERVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ledger.before_commit": "a batch of commands is written, not committed",
        "ledger.after_commit": "it is committed, and no caller has an answer",
        "withdraw.after_commit": "a job is marked as withdrawn, and its pool has no message",
        "receive.between_commands": "one command of a message is done, the next is not started",
        "pool.before_write": "a transaction of a pool is decided, nothing is written",
        "pool.before_commit": "it is written, not committed",
        "pool.after_commit": "it is committed; neither memory nor the caller knows",
        "post.to_pool.read": "messages of orgs are read, not delivered",
        "post.to_pool.handled": "the pool has them, not acknowledged",
        "post.to_pool.acknowledged": "they are acknowledged",
        "post.to_org.read": "messages of a pool are read, not delivered",
        "post.to_org.handled": "the orgs have them, not acknowledged",
        "post.to_org.acknowledged": "they are acknowledged",
        "leader.leads": "a process leads a pool for another term, and has read nothing",
        "leader.planned": "a leader has decided, and not written it",
        "leader.written": "it is written, and the leader's cluster does not know",
        "rolling.looked": "holds that are too small are known, none is extended",
    }
)
AGENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "agent.before_report": "a report is made, not sent",
        "agent.answered": "the pool has taken it and has answered, nothing is done",
        "agent.remembered": "a fence is on disk, its process is not started",
        "agent.made": "the folder of an attempt is there, its guard is not",
        "agent.spawned": "its guard is, and this process does not know its number",
        "agent.asked": "a guard has an order by its pipe, not by its file",
        "agent.before_forget": "the pool knows of an end, its folder is not put aside",
        "agent.log_sent": "a part of a log is sent, and it is not known how far",
    }
)
GUARD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "guard.begun": "a guard has its order, its process is not started",
        "guard.forked": "its process is started, that is not written down",
        "guard.ended": "its process has ended, that is not written down",
        "guard.told": "it is written down, and the guard is still there",
    }
)
POINTS: Final[Mapping[str, str]] = MappingProxyType({**SERVICE, **AGENT, **GUARD})
# Only where nodes are ordered.
SCALING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "scaling.advised": "nodes are to be ordered, nothing is written",
        "scaling.written": "an order is written, its provider is not asked",
        "scaling.answered": "the provider has answered, that is not written",
    }
)
ALL: Final[Mapping[str, str]] = MappingProxyType({**POINTS, **SCALING})

_SIGNALS: Final = MappingProxyType({"kill": signal.SIGKILL, "stop": signal.SIGSTOP})


class _ArmedPoint(NamedTuple):
    """An armed point: the action, and at which visit it happens."""

    action: str
    at: int  # the how-manyth time
    times: Iterator[int]


_ARMED: Final[dict[str, _ArmedPoint]] = {}


def arm() -> None:
    """Arm the points that the variable names, and no others; `ValueError` if it is malformed."""
    _ARMED.clear()
    wanted = os.environ.get(VARIABLE, "")
    if wanted and MARKS not in os.environ:
        raise ValueError(f"{MARKS} must name a folder")
    for part in filter(None, wanted.split(",")):
        name, _, how = part.partition("=")
        action, _, at = how.partition("@")
        if name not in ALL or action not in _SIGNALS or not at.isdecimal():
            raise ValueError(f"{VARIABLE}: {part!r} is not POINT=kill@N or POINT=stop@N")
        _ARMED[name] = _ArmedPoint(action, int(at), count(1))


def failpoint(name: str) -> None:
    """Die or stop here, if a test has armed this point."""
    if _ARMED:
        _trigger(name)


def _trigger(name: str) -> None:
    armed = _ARMED.get(name)
    if (
        armed is not None
        and next(armed.times) == armed.at
        and _leave_mark(f"{name}.{armed.action}")
    ):
        os.kill(os.getpid(), _SIGNALS[armed.action])


def _leave_mark(what: str) -> bool:
    """Leave a mark; whether there was none before."""
    try:
        mark = os.open(f"{os.environ[MARKS]}/{what}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    os.write(mark, f"{os.getpid()}\n".encode())
    os.close(mark)
    return True


def child_environment() -> dict[str, str]:
    """The environment variables that child processes need."""
    return {name: os.environ[name] for name in (VARIABLE, MARKS) if name in os.environ}


arm()
