"""A process that leads a pool and orders its nodes, until it is killed: URL POOL FOLDER WHO."""

import sys
from pathlib import Path
from threading import Event

from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolReplica, open_pool
from bursar.service.pools.provisioning import CommandHook
from bursar.service.pools.scaling import scaling_pools
from tests.service.test_pools import POLICY, Ears
from tests.service.test_scaling import PROVIDER, Pools
from tests.support.databases import connected


def main(url: str, pool: str, folder: Path, who: str) -> None:
    """Look ten times a second."""
    ears = Ears()
    hook = CommandHook((sys.executable, "-I", "-S", str(PROVIDER), str(folder)))
    with (
        open_pool(lambda: connected(url), PoolReplica(pool, ears)) as handle,
        PoolLeader(handle, POLICY, who) as leading,
    ):
        ears.leading = leading
        with scaling_pools(Pools(handle, leading), lambda: connected(url), hook, 0.1):
            Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
