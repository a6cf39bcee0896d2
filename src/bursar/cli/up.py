"""`bursar up` and `bursar api`: start the service, print its address, run until stopped."""

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
from bursar.api.http_protocol import InvalidBound
from bursar.api.server import FIRST_KEY, bind_socket, open_service, serve, url_of
from bursar.cli.admin import database_of
from bursar.cli.credentials import announce, withdraw
from bursar.cli.local_cluster.launcher import LocalCluster, Setting
from bursar.cli.local_cluster.nodes import DEMO, FOLDER, Node, described, nodes_of
from bursar.cli.local_cluster.provisioning import MadeUp
from bursar.service.database import Database, money_time, state_folder
from bursar.service.pools.provisioning import CommandHook
from bursar.service.secrets import SecretUnusable
from bursar.service.webhooks.safe_http import Outbound

SIMULATED: Final = "simulated"  # nodes with simulated GPUs, on this machine
STOPPED: Final = "stopped; running jobs end within 20 seconds unless the service is started again"


@dataclass(frozen=True, slots=True)
class Listening:
    """The options of the listening service."""

    host: str
    port: int
    plain_http: bool
    share_port: bool
    private_webhooks: bool = False
    provisioner: str | None = None  # a program that provides nodes, or SIMULATED


def up(
    state: Path | None, where: Listening, *, json: bool, demo: bool, nodes: str | None = None
) -> None:
    """Start the database and the HTTP API, print their addresses, and run until stopped.

    `nodes` also starts nodes with simulated GPUs, and `demo` tenants with jobs.
    """
    folder = state_folder(state)
    wanted = _nodes(nodes or (DEMO if demo else ""))
    provisioner = _provisioner(where.provisioner or (SIMULATED if wanted else ""), folder)
    outbound = Outbound(where.private_webhooks)
    with _bound(where) as listening, database_of(state) as database:
        try:
            with open_service(database, folder, outbound, provisioner) as (service, key):
                if demo:
                    _seed(database, service)
                told = Told(database, url_of(listening), key, folder, wanted)
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
        except (SecretUnusable, InvalidBound) as error:
            _stop(str(error))


def _provisioner(given: str, folder: Path) -> CommandHook | MadeUp | None:
    """The provisioner of ordered nodes, if one is configured."""
    if not given:
        return None
    if given == SIMULATED:
        return MadeUp(folder)
    command = shlex.split(given)
    if shutil.which(command[0]) is None:
        _stop(f"--provisioner: {command[0]} is not an executable program")
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
    """Bind the socket, or exit with an error message."""
    if not where.plain_http and not _is_here(where.host):
        _stop(
            f"{where.host} is reachable from other machines, and the service itself has no TLS."
            " Put a TLS proxy in front and add --plain-http, or listen on 127.0.0.1."
        )
    try:
        return bind_socket(where.host, where.port, share=where.share_port)
    except OSError as error:
        _stop(
            f"cannot listen on {where.host} port {where.port}: {error.strerror}."
            " Choose another port with --port; 0 takes any free port."
        )


def _is_here(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _stop(why: str) -> NoReturn:
    print(f"bursar: {why}", file=sys.stderr)
    raise typer.Exit(2)


@dataclass(frozen=True, slots=True)
class Told:
    """What `bursar up` prints about the running service."""

    database: Database
    url: str
    key: str
    folder: Path
    nodes: tuple[Node, ...]


def _tell(told: Told, *, json: bool, demo: bool) -> None:
    """Print the addresses; the admin key only in JSON and in the demo."""
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
        "database_url": told.database.display_url if ours is None else told.database.url,
        "embedded": ours is not None,
    }
    if ours is not None:
        running = ours.info
        found["postgresql"] = running.version
        found["postgres_pid"] = running.postgres_pid
        found["supervisor_pid"] = running.supervisor_pid
    return found


def _tell_people(told: Told, *, demo: bool) -> None:
    ours = told.database.embedded
    server = "" if ours is None else f" (PostgreSQL {ours.info.version}, embedded)"
    key = told.folder / FIRST_KEY
    print(f"database   {told.database.display_url}{server}")
    print(f"url        {told.url}")
    print(f"admin key  {told.key if demo else f'in {key}'}")
    if told.nodes:
        print(f"nodes      {described(told.nodes)}; logs in {told.folder / FOLDER}")
    print(f"dashboard  {told.url}/{f'#key={told.key}' if demo else ''}")
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
    """The folder of this program; None if it is on the PATH."""
    mine = Path(program).absolute()
    found = shutil.which("bursar")
    if mine.name != "bursar" or not mine.is_file():
        return None  # started in another way, such as `python -c`
    return None if found is not None and mine.samefile(found) else mine.parent


def _to_try(*, demo: bool) -> tuple[str, ...]:
    """Commands to suggest."""
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
