"""A PostgreSQL of our own, for whoever has none: nothing to install, no account, no open port.

The problem. `bursar` must work on a bare machine within seconds, several processes at once must
share one database, and whichever of them is killed, in whatever order, neither a committed row
may be lost nor a server be left behind.

    with EmbeddedDatabase() as database:
        psycopg.connect(database.url)

How. The programs come from a wheel, of which only the files are used. They run under a *keeper*,
a small process of its own session, and three locks of the kernel (flock) say who is alive:

    keeper.lock   held by the keeper for as long as it lives, so there is never a second one
    guests.lock   shared by all *guests*, the processes that use the database; when nobody has it
                  any more the keeper takes it alone, shuts PostgreSQL down and ends
    server.lock   inherited by PostgreSQL and all its backends; free means that none of them lives

The kernel gives a lock back when its process dies, however it dies. So a stale pid file, a zombie,
or a pid that now belongs to somebody else deceives nobody: a pid is written down for people to
read, and is never asked whether it lives. Whether the database serves is asked by connecting.

If PostgreSQL is killed the keeper starts it again. If the keeper is killed, the kernel tells
PostgreSQL to shut down, and the next `ensure()` of any guest starts another keeper.

Roads not taken. The wheel's own supervisor believes pids, adds an operating-system user and opens
every folder above its data to the world. `pg_ctl` leaves the server behind when its caller is
killed. One guest as the parent of the server would take it away from the others when it ends.

Linux only: it needs /proc and the signal at a parent's death.
"""

from bursar.store.embedded.database import EmbeddedDatabase
from bursar.store.embedded.errors import DatabaseDown, StateUnusable
from bursar.store.embedded.folder import default_state
from bursar.store.embedded.server_info import Running

__all__ = ["DatabaseDown", "EmbeddedDatabase", "Running", "StateUnusable", "default_state"]
