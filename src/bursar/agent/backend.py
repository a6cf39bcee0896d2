"""The interface of execution backends: what the agent needs in order to run processes.

`core.dispatch.agent` decides; a backend carries out, with one method per action, and keeps the
table of processes. To support another engine (Ray, Slurm, Kubernetes), implement `Backend`:

- A process is identified by its *fence*. The backend starts it under that name, and after a restart
  finds it again by that name. `run` is called at most once per fence.
- `until` is an instant of `clock.running_time()`. The process must end then even if the agent is
  dead: by a guard process, or by a time limit of the engine that can be extended.
- An ended process stays in the table, with its outcome, until `forget`, so no end is missed.

A method may raise OSError. The agent logs it; the pool's next answer repeats the order.
"""

from typing import Protocol

from bursar.core.dispatch.agent import Forget, Kill, Process, Prolong, Run, Stop
from bursar.core.instant import Instant


class Backend(Protocol):
    """A node's processes."""

    def table(self) -> dict[int, Process]:
        """All processes by fence: running, and ended but not yet forgotten."""
        ...

    def run(self, run: Run) -> None:
        """Start the ordered process, with an instant at which it ends; do not wait for it."""
        ...

    def prolong(self, fence: int, until: Instant) -> None:
        """Move the end of a process to a later instant."""
        ...

    def stop(self, fence: int, until: Instant) -> None:
        """Ask a process to save its work and exit; kill it at `until`."""
        ...

    def kill(self, fence: int) -> None:
        """Kill a process now."""
        ...

    def forget(self, fence: int) -> None:
        """Remove an ended process from the table."""
        ...


def act(backend: Backend, action: Run | Prolong | Stop | Kill | Forget) -> None:
    """Carry out one action of the agent's rules."""
    match action:
        case Run():
            backend.run(action)
        case Prolong():
            backend.prolong(action.fence, action.until)
        case Stop():
            backend.stop(action.fence, action.until)
        case Kill():
            backend.kill(action.fence)
        case Forget():
            backend.forget(action.fence)
