"""A whole deployment to be harmed: PostgreSQL, services, nodes and tenants, all of them real.

    tenants ─┐              ┌─ service 1 ─┐
             ├─ api line ───┤             ├─ database line ── PostgreSQL
    agents ──┘              └─ service 2 ─┘
      └─ guards ── jobs

Only the lines and the tenants are threads of this process; everything else is a process of its own.
"""

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bursar import failpoints
from bursar.client import Client, Problem
from tests.chaos.line import Line
from tests.chaos.nursery import Nursery
from tests.chaos.programs import FAKETIME, Clock, Points, Program, end_all_in
from tests.chaos.tenants import JOB, POOL, POOR, PRICES, RICH, TIERS, Score, Tenant
from tests.support.agent_node import PYTHON_FOLDERS
from tests.support.database_proxy import LOOPBACK
from tests.support.patience import eventually
from tests.support.postgres import Cluster, migrated_cluster

SERVICES: Final = 2
NODES: Final = {"n1": "8xH100", "n2": "8xH100", "n3": "8xA100"}
# Each node has a clock of its own, minutes off the others'.
OFF_S: Final = {"n1": 0, "n2": 420, "n3": 180}
WALL: Final = {"n1": "-4m", "n2": "+0", "n3": "+5m"}
TAKEOVER_S: Final = 20.0  # that a process which stands still is left so, for another to lead
STILL_S: Final = 3.0  # or as long as this, if it is no leader
SECRET: Final = "chaos" * 8
SERVICE_MODULES: Final = ("bursar.cli.app", "bursar.cli.up", "bursar.service.ledger.rebuild")
AGENT_MODULES: Final = ("bursar.cli.app", "bursar.cli.commands.agent", "httpx2")
READABLE: Final = (*PYTHON_FOLDERS, JOB.parent)  # for jobs
SETTINGS: Final = {"max_connections": "120"}


@dataclass
class World:
    """All of it, and what has happened to it."""

    folder: Path
    server: Cluster
    url: str  # of the database, past its line
    chance: random.Random
    points: Points
    database: Line
    api: Line
    score: Score = field(default_factory=Score)
    services: list[Program] = field(default_factory=list)
    agents: dict[str, Program] = field(default_factory=dict)
    tenants: list[Tenant] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    two_leaders: int = 0  # a leader went on after another had taken over
    takeovers_s: list[float] = field(default_factory=list)  # how long that took
    stopped: threading.Event = field(default_factory=threading.Event)  # no more jobs
    over: threading.Event = field(default_factory=threading.Event)  # no more of anything
    nurseries: dict[str, Nursery] = field(default_factory=dict)
    clocks_off: int = 0  # nodes whose clock is not this machine's
    ports: list[int] = field(default_factory=list)  # of the services
    _still: set[int] = field(default_factory=set)  # leaders that stand still

    # Looking

    @property
    def programs(self) -> list[Program]:
        """Services and agents."""
        return [*self.services, *self.agents.values()]

    def ask(self, sql: str, *given: Any) -> list[tuple[Any, ...]]:
        """What the database says, past its line and however often it has to be asked."""

        def asked() -> list[list[tuple[Any, ...]]]:
            with suppress(psycopg.Error), psycopg.connect(self.url, connect_timeout=5) as one:
                one.execute("set statement_timeout = '20s'")
                return [one.execute(sql, given).fetchall()]
            return []

        [found] = eventually(asked, "the database answers")
        return list(found)

    def epoch(self) -> tuple[int, int]:
        """The pool's epoch, and the process that leads it."""
        [(epoch, leader)] = self.ask("select epoch, leader from pools where pool_id = %s", POOL)
        with suppress(ValueError, IndexError):
            return int(epoch), int(leader.split("/")[1])
        return int(epoch), 0

    def starts(self) -> int:
        """How many processes have said that they start."""
        with suppress(OSError):
            return (self.folder / "jobs" / "runs").read_text().count("start ")
        return 0

    # Keeping it going

    def look_after(self) -> None:
        """Start again what has ended, let go on what stands still; until all is over."""
        while not self.over.wait(0.1):
            for one in self.programs:
                if not self.over.is_set():
                    one.look()
                    self._let_go(one)

    def say(self, what: str) -> None:
        """Keep a note of when something was done."""
        with (self.folder / "told").open("a") as file:
            file.write(f"{time.time():.2f} {what}\n")

    def operate(self, path: str, body: dict[str, Any]) -> None:
        """Do something as an operator, if somebody answers."""
        key = (self.folder / "service-0" / "admin.key").read_text().strip()
        with Client(self.api_url, key, tries=1) as operator, suppress(Problem):
            operator.post(path, body)

    def keep_tables(self) -> None:
        """Write down all that is stored, for whoever wants to know what went wrong."""
        (self.folder / "tables").mkdir(exist_ok=True)
        sql = "select table_name from information_schema.tables where table_schema = 'public'"
        for (name,) in self.ask(sql):
            with psycopg.connect(self.url) as one, one.cursor() as cursor:
                path = self.folder / "tables" / f"{name}.csv"
                with (
                    path.open("wb") as file,
                    cursor.copy(f'copy "{name}" to stdout with (format csv, header)') as rows,
                ):
                    for row in rows:
                        file.write(row)

    def _let_go(self, one: Program) -> None:
        """Let a program that has stopped itself go on: a leader once another leads, also if it has
        the pool's row."""
        still_s = one.still_s
        if still_s and still_s >= (TAKEOVER_S if self._leads(one.pid, still_s) else STILL_S):
            one.signal(signal.SIGCONT)

    def _leads(self, pid: int, still_s: float) -> bool:
        """Whether nobody leads in the place of a leader that stands still; if somebody does, there
        are two."""
        _, leader = self.epoch()
        if leader == pid:
            self._still.add(pid)
        elif pid in self._still:
            self._still.remove(pid)
            self.two_leaders += 1
            self.takeovers_s.append(still_s)
        return leader == pid

    def prepare(self) -> None:
        """Have processes ready to be copied: of services, and of each node by its own clock."""
        self.nurseries["services"] = Nursery(SERVICE_MODULES, _environment())
        for node, off_s in OFF_S.items():
            clock = Clock(off_s)
            wall = {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": WALL[node]} if FAKETIME else {}
            given = {**_environment(), **wall, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            self.nurseries[node] = Nursery(AGENT_MODULES, given, clock.begun)
            self.clocks_off += clock.off_s != 0

    def start(self) -> None:
        """Start everything, with nothing armed; return when it serves."""
        for one in self.services:
            one.start()
        self.found()
        for one in self.agents.values():
            one.start()
        threading.Thread(target=self.look_after, daemon=True).start()
        sql = "select count(*) from nodes where reported_at is not null"
        eventually(lambda: self.ask(sql) == [(len(NODES),)], "all nodes have reported")

    def found(self) -> None:
        """Have a pool, keys for its nodes, and tenants with credits."""
        key_file = self.folder / "service-0" / "admin.key"
        eventually(key_file.exists, "there is a service")
        with Client(self.api_url, key_file.read_text().strip()) as operator:
            eventually(lambda: _answers(operator), "a service answers")
            operator.post("/v1/pools", {"id": POOL})
            rates = [
                {"gpu_type": name, "micros_per_gpu_hour": rate} for name, rate in PRICES.items()
            ]
            for node, gpus in NODES.items():
                ask = {"name": node, "scopes": ["work"], "node": f"{POOL}/{node}"}
                key = operator.post("/v1/keys", ask).body["key"]
                self.agents[node] = self._agent(node, gpus, key)
            for name, tier in TIERS.items():
                made = operator.post("/v1/orgs", {"name": name, "tier": tier}).body
                operator.post("/v1/prices", {"org_id": made["id"], "rates": rates})
                amount = POOR if name == "Delta" else RICH
                grant = {"account_id": made["account_id"], "amount_micros": amount, "kind": "paid"}
                operator.post("/v1/grants", grant)
                scopes = {"name": name, "scopes": ["read", "spend", "issue"]}
                ask = {**scopes, "account_id": made["account_id"]}
                key = operator.post("/v1/keys", ask).body["key"]
                self.tenants.append(self._tenant(name, made, key))

    @property
    def api_url(self) -> str:
        """Where tenants and agents call."""
        return f"http://{LOOPBACK}:{self.api.port}"

    def _tenant(self, name: str, org: dict[str, Any], key: str) -> Tenant:
        return Tenant(
            name=name,
            org=org["id"],
            account=org["account_id"],
            url=self.api_url,
            key=key,
            folder=self.folder / "jobs",
            score=self.score,
            chance=random.Random(f"{name}/{self.chance.random()}"),
            stopped=self.stopped,
            over=self.over,
        )

    def _agent(self, node: str, gpus: str, key: str) -> Program:
        folder = self.folder / "nodes" / node
        folder.mkdir(parents=True)
        return Program(
            node,
            [
                *("agent", "--server", self.api_url, "--pool", POOL, "--node", node),
                *("--gpus", gpus, "--state", str(folder / "state")),
                *("--checkpoints", str(self.folder / "nodes" / "checkpoints")),
                *("--writable", str(self.folder / "jobs")),
                *(word for path in READABLE for word in ("--readable", str(path))),
            ],
            {**_environment(), "BURSAR_KEY": key},
            lambda some: self.points.armed([*failpoints.AGENT, *failpoints.GUARD], some=some),
            folder / "log",
            self.nurseries[node],
        )

    def add_service(self, number: int, port: int) -> None:
        """Have another service, on a port of its own."""
        folder = self.folder / f"service-{number}"
        folder.mkdir(mode=0o700)
        address = {**conninfo_to_dict(self.url), "host": LOOPBACK, "port": self.database.port}
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        self.services.append(
            Program(
                f"service-{number}",
                ["api", "--port", str(port), "--state", str(folder)],
                {
                    **_environment(),
                    "BURSAR_DATABASE_URL": make_conninfo("", **{**address, **plain}),
                    "BURSAR_SECRET_KEY": SECRET,
                },
                lambda some: self.points.armed(failpoints.SERVICE, some=some),
                folder / "log",
                self.nurseries["services"],
            )
        )

    def end(self) -> None:
        """End everything that was started."""
        self.stopped.set()
        self.over.set()
        for one in self.programs:
            one.signal(signal.SIGCONT)
            one.kill()
        end_all_in(self.folder)
        for nursery in self.nurseries.values():
            nursery.close()
        self.database.close()
        self.api.close()


def _environment() -> dict[str, str]:
    """Our own, without what is ours alone."""
    mine = ("BURSAR_DATABASE_URL", "BURSAR_STATE", "BURSAR_URL", "BURSAR_KEY")
    return {name: text for name, text in os.environ.items() if name not in mine}


def _answers(operator: Client) -> bool:
    with suppress(Problem):
        operator.get("/v1/orgs")
        return True
    return False


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _to_database(url: str) -> Callable[[], socket.socket]:
    """A connection to PostgreSQL's socket."""
    found = conninfo_to_dict(url)
    path = f"{found['host']}/.s.PGSQL.{found.get('port', 5432)}"

    def connect() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(path)
        except OSError:
            made.close()
            raise
        return made

    return connect


def _to_any(ports: list[int], chance: random.Random) -> Callable[[], socket.socket]:
    """A connection to a service that takes one."""

    def connect() -> socket.socket:
        for port in chance.sample(ports, len(ports)):
            with suppress(OSError):
                made = socket.create_connection((LOOPBACK, port), timeout=2)
                made.settimeout(None)
                return made
        raise ConnectionRefusedError

    return connect


@contextmanager
def deployed(folder: Path, seed: int) -> Iterator[World]:
    """A world that runs; gone afterwards, but for its folder."""
    chance = random.Random(seed)
    folder.chmod(0o711)
    for name in ("jobs", "jobs/locks", "nodes", "clock"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777 if "jobs" in name else 0o755)
    offset = folder / "clock" / "offset"
    offset.write_text("+0")
    faked = {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_TIMESTAMP_FILE": str(offset),
    } if FAKETIME else {}  # fmt: skip
    with migrated_cluster(settings=SETTINGS, environment=faked) as (server, url):
        ports = [_free_port() for _ in range(SERVICES)]
        world = World(
            folder=folder,
            server=server,
            url=url,
            chance=chance,
            points=Points(folder / "points", random.Random(f"points/{seed}")),
            database=Line(_to_database(url), commits=True),
            api=Line(_to_any(ports, random.Random(f"ports/{seed}"))),
            ports=ports,
        )
        try:
            world.prepare()
            for number, port in enumerate(ports):
                world.add_service(number, port)
            world.start()
            yield world
        finally:
            world.end()
