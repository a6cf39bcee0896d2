"""An embedded PostgreSQL, for machines without one: nothing to install, no account, no open port.

The problem. `bursar` must work on a bare machine within seconds, and several processes at once must
share one database. Whichever of them is killed, in whatever order, no committed row is lost and no
server is left behind.

    with EmbeddedDatabase() as database:
        psycopg.connect(database.url)

How. The programs come from a wheel, of which only the files are used. They run under a
*supervisor*, a small process in its own session. Three locks of the kernel (flock) show which
processes are alive:

    supervisor.lock   held by the supervisor while it lives, so there is never a second one
    guests.lock       shared by all *guests*, the processes that use the database; when it is free,
                      the supervisor takes it exclusively, shuts PostgreSQL down and ends
    server.lock       inherited by PostgreSQL and all its backends; free: none of them lives

The kernel releases a lock when its process dies, however it dies. So stale pid files, zombies and
reused pids do no harm: pids are written for people to read and are never used to check whether a
process lives. Whether the database serves is checked by connecting.

If PostgreSQL is killed, the supervisor starts it again. If the supervisor is killed, the kernel
signals PostgreSQL to shut down, and the next `ensure()` of any guest starts another supervisor.

Rejected. The wheel's own supervisor trusts pids, adds an operating-system user and opens
every folder above its data to the world. `pg_ctl` leaves the server behind when its caller is
killed. One guest as the parent of the server would take it away from the others when it ends.

Linux only: it needs /proc and the signal at a parent's death.
"""

from bursar.store.embedded.database import EmbeddedDatabase
from bursar.store.embedded.errors import DatabaseDown, StateUnusable
from bursar.store.embedded.folder import default_state
from bursar.store.embedded.server_info import ServerInfo

__all__ = ["DatabaseDown", "EmbeddedDatabase", "ServerInfo", "StateUnusable", "default_state"]
