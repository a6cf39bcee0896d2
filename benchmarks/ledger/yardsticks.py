"""What the same server does on the same machine without us: pgbench, run before every load.

T is pgbench's own TPC-B. P is the plain way to reserve: lock the account's row, change it, write
down what happened; P-hot is the same with one account for everybody. The script of P is fixed:
changing it would make figures of different days incomparable.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.environment import SEED, Log
from benchmarks.ledger.orgs import vacuum_and_checkpoint
from benchmarks.ledger.sizes import LedgerSizes
from bursar.service.database import Database, ScratchDatabase, program_path, scratch_database

PLAIN_WAY: Final = """\
begin;
select balance from plain_accounts where id = :a for update;
update plain_accounts set balance = balance - 1000, held = held + 1000 where id = :a and balance >= 1000;
insert into plain_entries(account_id, kind, amount, request_id) values (:a, 'hold', 1000, gen_random_uuid());
commit;
"""  # noqa: E501  # as it was fixed

PLAIN_TABLES: Final = """
    create table plain_accounts (
        id      bigint primary key,
        balance bigint not null,
        held    bigint not null
    );
    create table plain_entries (
        account_id bigint not null,
        kind       text not null,
        amount     bigint not null,
        request_id uuid not null unique
    )
"""
PLAIN_ACCOUNTS: Final = """
    insert into plain_accounts (id, balance, held)
    select id, 1000000000000000, 0 from generate_series(1, %s) as id
"""
THREADS: Final = 2
_TPS: Final = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)

WHAT: Final = {
    "T(8)": "pgbench TPC-B, 8 clients",
    "T(64)": "pgbench TPC-B, 64 clients",
    "P": "the plain way to reserve, 64 clients",
    "P-hot": "the plain way to reserve, 64 clients, one account",
}


def measure_yardsticks(
    server: Database, sizes: LedgerSizes, wanted: Iterable[str], log: Log
) -> dict[str, float]:
    """Transactions a second of the yardsticks of these names."""
    rates: dict[str, float] = {}
    names = [name for name in WHAT if name in set(wanted)]
    tpc_b = [name for name in names if name.startswith("T")]
    plain = [name for name in names if name.startswith("P")]
    if tpc_b:
        with scratch_database(server, "bursar_bench_tpcb") as database:
            log(f"yardstick T: filling pgbench's tables, scale {sizes.scale}")
            _run_pgbench(database, ["--initialize", "--quiet", f"--scale={sizes.scale}"])
            for name in tpc_b:
                log(f"yardstick {name}: {WHAT[name]}")
                clients = int(name[2:-1])
                rates[name] = _measure_tps(database, sizes, clients, ["--builtin=tpcb-like"])
    if plain:
        with scratch_database(server, "bursar_bench_plain") as database:
            _fill_plain_tables(database, sizes)
            for name in plain:
                log(f"yardstick {name}: {WHAT[name]}")
                rates[name] = _measure_plain_way(database, sizes, hot=name == "P-hot")
    return rates


def _fill_plain_tables(database: ScratchDatabase, sizes: LedgerSizes) -> None:
    with database.connect(timeouts=None) as connection:
        connection.execute(PLAIN_TABLES)
        connection.execute(PLAIN_ACCOUNTS, [sizes.plain_accounts])


def _measure_plain_way(database: ScratchDatabase, sizes: LedgerSizes, *, hot: bool) -> float:
    drawn = "1" if hot else f"random(1, {sizes.plain_accounts})"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "plain.sql")
        script.write_text(f"\\set a {drawn}\n{PLAIN_WAY}")
        return _measure_tps(database, sizes, 64, ["--protocol=prepared", f"--file={script}"])


def _measure_tps(
    database: ScratchDatabase, sizes: LedgerSizes, clients: int, options: list[str]
) -> float:
    vacuum_and_checkpoint(database)
    length = f"--time={sizes.seconds:.0f}"
    if sizes.transactions is not None:
        length = f"--transactions={sizes.transactions}"
    running = [f"--client={clients}", f"--jobs={THREADS}", length, "--no-vacuum"]
    output = _run_pgbench(database, [*running, f"--random-seed={SEED}", *options])
    match = _TPS.search(output)
    if match is None:
        raise RuntimeError(f"pgbench told no figure: {output}")
    return float(match.group(1))


def _run_pgbench(database: ScratchDatabase, options: list[str]) -> str:
    """Run it, and return what it printed."""
    address = conninfo_to_dict(database.url)
    # Not on the command line, which everybody on the machine can read.
    secret = str(address.pop("password", ""))
    result = subprocess.run(
        [program_path("pgbench"), *options, make_conninfo("", **address)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **({"PGPASSWORD": secret} if secret else {})},
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(f"pgbench failed: {result.stderr.strip()}")
    return result.stdout
