"""What runs processes: the little that the rules of an agent ask of it.

`core.dispatch.agent` decides; a backend does, one method for each kind of action, and keeps the
table of processes. It is what is to be written for another engine (Ray, Slurm, Kubernetes):

- what runs is found by its *fence*: it is the name under which an engine is given it, and by which
  a backend that is started again finds it there. `run` is called once for each fence at most;
- `until` is an instant of `clock.running_time()`. Something that does not need this program ends
  the process then: a guard beside it, or a limit of the engine's that can be moved on;
- an entry stays in the table, with how it ended, until `forget`; so an end is never overlooked.

A method may raise OSError: the agent says so and goes on, and the next answer of the pool brings
again what is still to be done.
"""

from typing import Protocol

from bursar.core.dispatch.agent import Forget, Kill, Process, Prolong, Run, Stop
from bursar.core.instant import Instant


class Backend(Protocol):
    """A node's processes."""

    def table(self) -> dict[int, Process]:
        """All that runs or has ended and is not forgotten, by fence."""
        ...

    def run(self, run: Run) -> None:
        """Start what is ordered, to be ended at an instant; return without waiting for it."""
        ...

    def prolong(self, fence: int, until: Instant) -> None:
        """Let it go on for longer."""
        ...

    def stop(self, fence: int, until: Instant) -> None:
        """Ask it to save its work and to end; it is ended then at the latest."""
        ...

    def kill(self, fence: int) -> None:
        """End it at once."""
        ...

    def forget(self, fence: int) -> None:
        """Take what has ended out of the table."""
        ...


def act(backend: Backend, action: Run | Prolong | Stop | Kill | Forget) -> None:
    """Do what an agent wants done with a process."""
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
