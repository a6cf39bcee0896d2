"""Serving: bring everything up, say where it is, stay until told to stop."""

import ipaddress
import json as json_text
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Final, NoReturn

import typer

from bursar.api.context import Service
from bursar.api.http_protocol import BoundUnusable
from bursar.api.server import FIRST_KEY, address_of, bound, serve, service_of
from bursar.cli.admin import database_of
from bursar.cli.credentials import announce, withdraw
from bursar.cli.local_cluster.launcher import LocalCluster, Setting
from bursar.cli.local_cluster.nodes import DEMO, FOLDER, Node, described, nodes_of
from bursar.cli.local_cluster.provisioning import MadeUp
from bursar.service.database import Database, money_time, state_of
from bursar.service.pools.provisioning import CommandHook
from bursar.service.secrets import SecretUnusable
from bursar.service.webhooks.safe_http import Outbound

SIMULATED: Final = "simulated"  # nodes with made-up GPUs, on this machine
STOPPED: Final = (
    "stopped; what still runs ends within 20 seconds, unless this is started again before"
)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen."""

    host: str
    port: int
    plain_http: bool
    share_port: bool
    private_webhooks: bool = False
    provisioner: str | None = None  # a program that provides nodes, or SIMULATED


def up(
    state: Path | None, where: Listening, *, json: bool, demo: bool, nodes: str | None = None
) -> None:
    """Bring up database and HTTP interface, say where they are, and stay until told to stop.

    Beside them: nodes with made-up GPUs, if some are named, and with `demo` jobs for them.
    """
    folder = state_of(state)
    wanted = _nodes(nodes or (DEMO if demo else ""))
    provisioner = _provisioner(where.provisioner or (SIMULATED if wanted else ""), folder)
    outbound = Outbound(where.private_webhooks)
    with _bound(where) as listening, database_of(state) as database:
        try:
            with service_of(database, folder, outbound, provisioner) as (service, key):
                if demo:
                    _seed(database, service)
                told = Told(database, address_of(listening), key, folder, wanted)
                made_up = provisioner if isinstance(provisioner, MadeUp) else None
                setting = Setting(told.url, key, folder)
                company = LocalCluster(setting, wanted, demo=demo, provisioner=made_up)
                try:
                    serve(
                        service,
                        listening,
                        lambda: company.begin(lambda: _tell(told, json=json, demo=demo)),
                        company.end,
                    )
                finally:
                    company.see_it_end()
                    withdraw(folder)
                    if wanted and not json:
                        print(STOPPED, flush=True)
        except (SecretUnusable, BoundUnusable) as error:
            _stop(str(error))


def _provisioner(given: str, folder: Path) -> CommandHook | MadeUp | None:
    """Who provides nodes when they are ordered, if somebody does."""
    if not given:
        return None
    if given == SIMULATED:
        return MadeUp(folder)
    command = shlex.split(given)
    if shutil.which(command[0]) is None:
        _stop(f"{command[0]} is no program that can be run: see --provisioner")
    return CommandHook(command)


def _nodes(text: str) -> tuple[Node, ...]:
    try:
        return nodes_of(text) if text else ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--nodes") from None


def _seed(database: Database, service: Service) -> None:
    from bursar.cli.sample_data import seed

    with database.connect() as connection:
        seed(connection, service.ledger, money_time(connection))


def _bound(where: Listening) -> socket:
    """The socket, or a sentence on why there is none."""
    if not where.plain_http and not _is_here(where.host):
        _stop(
            f"{where.host} can be reached from other machines, and what is said to it could be"
            " read on the way. Put a proxy with TLS in front and say --plain-http, or listen on"
            " 127.0.0.1."
        )
    try:
        return bound(where.host, where.port, share=where.share_port)
    except OSError as error:
        _stop(
            f"nobody can listen on {where.host} port {where.port}: {error.strerror}."
            " Choose another with --port; 0 takes any that is free."
        )


def _is_here(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _stop(why: str) -> NoReturn:
    print(f"bursar: {why}", file=sys.stderr)
    raise typer.Exit(2)


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to tell of a service."""

    database: Database
    url: str
    key: str
    folder: Path
    nodes: tuple[Node, ...]


def _tell(told: Told, *, json: bool, demo: bool) -> None:
    """Say where everything is: secrets to programs, and where nothing depends on them."""
    announce(told.folder, told.url)
    if json:
        print(json_text.dumps(_as_object(told)), flush=True)
    else:
        _tell_people(told, demo=demo)


def _as_object(told: Told) -> dict[str, object]:
    ours = told.database.embedded
    found: dict[str, object] = {
        "url": told.url,
        "admin_key": told.key,
        "pid": os.getpid(),
        "database_url": told.database.shown if ours is None else told.database.url,
        "embedded": ours is not None,
    }
    if ours is not None:
        running = ours.running
        found["postgresql"] = running.version
        found["postgres_pid"] = running.postgres_pid
        found["keeper_pid"] = running.keeper_pid
    return found


def _tell_people(told: Told, *, demo: bool) -> None:
    ours = told.database.embedded
    server = "" if ours is None else f" (PostgreSQL {ours.running.version}, embedded)"
    key = told.folder / FIRST_KEY
    print(f"database   {told.database.shown}{server}")
    print(f"url        {told.url}")
    print(f"admin key  {told.key if demo else f'in {key}'}")
    if told.nodes:
        print(f"nodes      {described(told.nodes)}; logs in {told.folder / FOLDER}")
    print(f"look       {told.url}/{f'#key={told.key}' if demo else ''}")
    print()
    print("Try, in another terminal:")
    if (folder := hidden_folder(sys.argv[0])) is not None:
        print(f"  export PATH={shlex.quote(str(folder))}:$PATH")
    print(f"  export BURSAR_URL={told.url} BURSAR_KEY=$(cat {shlex.quote(str(key))})")
    for command in _to_try(demo=demo):
        print(f"  {command}")
    print()
    print("ready; stop with Ctrl-C", flush=True)


def hidden_folder(program: str) -> Path | None:
    """The folder of the program that runs; None if a shell finds the same one without it."""
    mine = Path(program).absolute()
    found = shutil.which("bursar")
    if mine.name != "bursar" or not mine.is_file():
        return None  # it is called in a way of its own, such as `python -c`
    return None if found is not None and mine.samefile(found) else mine.parent


def _to_try(*, demo: bool) -> tuple[str, ...]:
    """Commands that have something to show."""
    if not demo:
        return ("bursar org create Acme", "bursar org list", "bursar hold --help")
    from bursar.cli.sample_data import ORGS

    org = ORGS[0]
    hello = "sh -c 'echo hello from $BURSAR_NODE'"
    return (
        "bursar org list",
        "bursar pools",
        f"bursar jobs --org {org.id} --limit 10",
        f"bursar submit --account {org.account('vision')} --gpus 1xA100 --max-run 1m --yes --follow"
        f" -- {hello}",
        f"bursar balance {org.account('')}",
    )
