"""Failpoints: named places where a test can kill or stop a process.

    BURSAR_FAILPOINTS="pool.before_commit=kill@3,leader.planned=stop@1"
    BURSAR_FAILPOINTS_MARKS=DIR

The process kills itself the third time that it reaches `pool.before_commit`, as in a power cut:
nothing is cleaned up. `stop` suspends it until it receives SIGCONT. Before that, the process
writes its pid to a mark, the file `pool.before_commit.kill` in DIR. A point whose mark exists is
disarmed in every process. So a restarted program gets further, and the marks show which points
were reached.

Without the variable, a point costs one look at an empty table. Only tests set the variable.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Final, NamedTuple

VARIABLE: Final = "BURSAR_FAILPOINTS"
MARKS: Final = "BURSAR_FAILPOINTS_MARKS"

# For each point: what is done when a process reaches it, and what is not done yet.
SERVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ledger.before_commit": "a batch of commands is written, not committed",
        "ledger.after_commit": "a batch is committed, its callers have no answer",
        "cancellation.after_commit": "a job is marked as cancelled, its pool has no message",
        "messages.between_commands": "one command of a message is done, the next is not started",
        "pool.before_write": "a pool's transaction is decided, nothing is written",
        "pool.before_commit": "a pool's transaction is written, not committed",
        "pool.after_commit": "a pool's transaction is committed, memory is not updated",
        "relay.to_pool.read": "messages of orgs are read, not delivered",
        "relay.to_pool.delivered": "messages of orgs are delivered, not acknowledged",
        "relay.to_pool.acknowledged": "messages of orgs are acknowledged",
        "relay.to_org.read": "messages of a pool are read, not delivered",
        "relay.to_org.delivered": "messages of a pool are delivered, not acknowledged",
        "relay.to_org.acknowledged": "messages of a pool are acknowledged",
        "leader.elected": "a process leads a pool in a new epoch, the pool is not read",
        "leader.planned": "a leader has decided a round, nothing is written",
        "leader.written": "a round is written, the leader's cluster is not updated",
        "rolling_holds.selected": "holds that are too small are selected, none is extended",
    }
)
AGENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "agent.before_report": "a report is made, not sent",
        "agent.after_report": "the pool has answered a report, no order is carried out",
        "agent.fence_saved": "a fence is on disk, its process is not started",
        "agent.folder_created": "the folder of an attempt exists, its guard is not started",
        "agent.guard_spawned": "a guard is started, the agent has not recorded its pid",
        "agent.request_sent": "a request to a guard is in its pipe, not in its file",
        "agent.before_archive": "the pool has the end of an attempt, its folder is not moved",
        "agent.log_sent": "a part of a log is sent, its offset is not saved",
    }
)
GUARD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "guard.before_start": "a guard has its order, its process is not started",
        "guard.process_started": "a guard's process is started, its start is not written",
        "guard.process_ended": "a guard's process has ended, its outcome is not written",
        "guard.outcome_written": "an outcome is written, the guard still runs",
    }
)
POINTS: Final[Mapping[str, str]] = MappingProxyType({**SERVICE, **AGENT, **GUARD})
# Reached only if a provisioner orders nodes.
SCALING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "scaling.planned": "nodes are to be ordered, nothing is written",
        "scaling.order_written": "an order is written, the provider is not called",
        "scaling.provider_answered": "the provider has answered, its answer is not written",
    }
)
ALL: Final[Mapping[str, str]] = MappingProxyType({**POINTS, **SCALING})

_SIGNALS: Final = MappingProxyType({"kill": signal.SIGKILL, "stop": signal.SIGSTOP})


class _ArmedPoint(NamedTuple):
    """An armed point: the action, and the visit at which it happens."""

    action: str
    visit: int  # counted from 1
    visits: Iterator[int]


_ARMED: Final[dict[str, _ArmedPoint]] = {}


def arm() -> None:
    """Arm the points that the variable names; `ValueError` if it is malformed."""
    _ARMED.clear()
    text = os.environ.get(VARIABLE, "")
    if text and MARKS not in os.environ:
        raise ValueError(f"{MARKS} must name a folder")
    for part in filter(None, text.split(",")):
        name, _, trigger = part.partition("=")
        action, _, visit = trigger.partition("@")
        if name not in ALL or action not in _SIGNALS or not visit.isdecimal():
            raise ValueError(f"{VARIABLE}: {part!r} is not POINT=kill@N or POINT=stop@N")
        _ARMED[name] = _ArmedPoint(action, int(visit), count(1))


def failpoint(name: str) -> None:
    """Kill or stop this process, if a test has armed this point for this visit."""
    if _ARMED:
        _trigger(name)


def _trigger(name: str) -> None:
    armed = _ARMED.get(name)
    if (
        armed is not None
        and next(armed.visits) == armed.visit
        and _leave_mark(f"{name}.{armed.action}")
    ):
        os.kill(os.getpid(), _SIGNALS[armed.action])


def _leave_mark(name: str) -> bool:
    """Leave a mark; return whether there was none before."""
    try:
        mark = os.open(f"{os.environ[MARKS]}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    os.write(mark, f"{os.getpid()}\n".encode())
    os.close(mark)
    return True


def child_environment() -> dict[str, str]:
    """The environment variables of failpoints, for child processes."""
    return {name: os.environ[name] for name in (VARIABLE, MARKS) if name in os.environ}


arm()
