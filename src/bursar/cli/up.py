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

from bursar.agent.local.isolation import (
    ISOLATION_REMEDY,
    Isolation,
    describe_gap,
    find_isolation,
)
from bursar.api.context import Service
from bursar.api.http_protocol import InvalidBound
from bursar.api.server import FIRST_KEY, bind_socket, open_service, serve, url_of
from bursar.cli.admin import open_database_or_exit
from bursar.cli.credentials import announce_service, withdraw_service
from bursar.cli.local_cluster.launcher import LocalCluster, ServiceAccess
from bursar.cli.local_cluster.nodes import (
    DEMO_NODES,
    NODES_FOLDER,
    LocalNode,
    describe_nodes,
    parse_nodes,
)
from bursar.cli.local_cluster.provisioning import LocalProvisioner
from bursar.client.http import is_local
from bursar.service.database import Database, state_folder
from bursar.service.ledger.clock import ClockRefused
from bursar.service.pools.provisioning import CommandHook
from bursar.service.secrets import SecretUnusable
from bursar.service.webhooks.safe_http import SafeHttpClient
from bursar.wire.agents import check_address

SIMULATED: Final = "simulated"  # nodes with simulated GPUs, on this machine
STOPPED: Final = "stopped; running jobs end within 20 seconds unless the service is started again"


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The options of the listening service."""

    host: str
    port: int
    plain_http: bool
    share_port: bool
    private_webhooks: bool = False
    provisioner: str | None = None  # a program that provides nodes, or SIMULATED
    advertise: str | None = None  # the address at which nodes reach this process
    allow_unisolated_jobs: bool = False  # on nodes of this machine


def run_service(
    state: Path | None, options: ListenOptions, *, json: bool, demo: bool, nodes: str | None = None
) -> None:
    """Start the database and the HTTP API, print their addresses, and run until stopped.

    `nodes` also starts nodes with simulated GPUs, and `demo` tenants with jobs.
    """
    folder = state_folder(state)
    local_nodes = _parse_nodes(nodes or (DEMO_NODES if demo else ""))
    program = options.provisioner or (SIMULATED if local_nodes else "")
    _check_provisioner(program)
    outbound = SafeHttpClient(options.private_webhooks)
    advertise = _check_advertised(options)
    with _bind(options) as listening, open_database_or_exit(state) as database:
        isolation = _find_isolation(folder, options, demo=demo) if program == SIMULATED else None
        allow_unisolated = isolation is not None and not isolation.is_complete
        provisioner = _make_provisioner(program, folder, allow_unisolated=allow_unisolated)
        try:
            with open_service(database, folder, outbound, provisioner, advertise) as (
                service,
                key,
            ):
                if demo:
                    _seed_database(database, service)
                info = ServiceInfo(database, url_of(listening), key, folder, local_nodes, isolation)
                local_provisioner = (
                    provisioner if isinstance(provisioner, LocalProvisioner) else None
                )
                service_access = ServiceAccess(info.url, key, folder, allow_unisolated)
                cluster = LocalCluster(
                    service_access, local_nodes, demo=demo, provisioner=local_provisioner
                )
                try:
                    serve(
                        service,
                        listening,
                        lambda: cluster.start(lambda: _announce(info, json=json, demo=demo)),
                        cluster.stop,
                    )
                finally:
                    cluster.wait()
                    withdraw_service(folder)
                    if local_nodes and not json:
                        print(STOPPED, flush=True)
        except (SecretUnusable, InvalidBound, ClockRefused) as error:
            _exit_with_error(str(error))


def _find_isolation(folder: Path, options: ListenOptions, *, demo: bool) -> Isolation:
    """How jobs of nodes on this machine are kept apart. The demo runs its own jobs without."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    isolation = find_isolation(folder)
    if not isolation.is_complete and not demo and not options.allow_unisolated_jobs:
        _exit_with_error(f"{describe_gap(isolation)} {ISOLATION_REMEDY}")
    return isolation


def _check_provisioner(program: str) -> None:
    if program and program != SIMULATED and shutil.which(shlex.split(program)[0]) is None:
        _exit_with_error(f"--provisioner: {shlex.split(program)[0]} is not an executable program")


def _make_provisioner(
    program: str, folder: Path, *, allow_unisolated: bool
) -> CommandHook | LocalProvisioner | None:
    """The provisioner of ordered nodes, if one is configured."""
    if not program:
        return None
    if program == SIMULATED:
        return LocalProvisioner(folder, allow_unisolated_jobs=allow_unisolated)
    return CommandHook(shlex.split(program))


def _check_advertised(options: ListenOptions) -> str | None:
    """The address to announce, if there is one; nodes send their keys to it."""
    if options.advertise is None:
        return None
    try:
        url = check_address(options.advertise)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--advertise") from None
    if url.startswith("http:") and not is_local(url) and not options.plain_http:
        raise typer.BadParameter(
            f"nodes would send their keys to {url} without TLS: use https, or add --plain-http",
            param_hint="--advertise",
        )
    return url


def _parse_nodes(text: str) -> tuple[LocalNode, ...]:
    try:
        return parse_nodes(text) if text else ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--nodes") from None


def _seed_database(database: Database, service: Service) -> None:
    from bursar.cli.sample_data import seed_sample_data

    with database.connect() as connection:
        seed_sample_data(connection, service.ledger, service.clock(connection))


def _bind(options: ListenOptions) -> socket:
    """Bind the socket, or exit with an error message."""
    if not options.plain_http and not _is_loopback(options.host):
        _exit_with_error(
            f"{options.host} is reachable from other machines, and the service itself has no TLS."
            " Put a TLS proxy in front and add --plain-http, or listen on 127.0.0.1."
        )
    try:
        return bind_socket(options.host, options.port, share=options.share_port)
    except OSError as error:
        _exit_with_error(
            f"cannot listen on {options.host} port {options.port}: {error.strerror}."
            " Choose another port with --port; 0 takes any free port."
        )


def _is_loopback(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _exit_with_error(message: str) -> NoReturn:
    print(f"bursar: {message}", file=sys.stderr)
    raise typer.Exit(2)


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What `bursar up` prints about the running service."""

    database: Database
    url: str
    key: str
    folder: Path
    nodes: tuple[LocalNode, ...]
    isolation: Isolation | None  # of jobs on these nodes


def _announce(info: ServiceInfo, *, json: bool, demo: bool) -> None:
    """Print the addresses; the admin key only in JSON and in the demo."""
    announce_service(info.folder, info.url)
    if json:
        print(json_text.dumps(_info_as_json(info)), flush=True)
    else:
        _print_info(info, demo=demo)


def _info_as_json(info: ServiceInfo) -> dict[str, object]:
    embedded = info.database.embedded
    fields: dict[str, object] = {
        "url": info.url,
        "admin_key": info.key,
        "pid": os.getpid(),
        "database_url": info.database.display_url if embedded is None else info.database.url,
        "embedded": embedded is not None,
    }
    if embedded is not None:
        running = embedded.info
        fields["postgresql"] = running.version
        fields["postgres_pid"] = running.postgres_pid
        fields["supervisor_pid"] = running.supervisor_pid
    return fields


def _print_info(info: ServiceInfo, *, demo: bool) -> None:
    embedded = info.database.embedded
    server = "" if embedded is None else f" (PostgreSQL {embedded.info.version}, embedded)"
    key = info.folder / FIRST_KEY
    print(f"database   {info.database.display_url}{server}")
    print(f"url        {info.url}")
    print(f"admin key  {info.key if demo else f'in {key}'}")
    if info.nodes:
        print(f"nodes      {describe_nodes(info.nodes)}; logs in {info.folder / NODES_FOLDER}")
    if info.isolation is not None:
        print(f"jobs       have {info.isolation.describe()}")
        if not info.isolation.is_complete:
            print(f"           {describe_gap(info.isolation)} Submit no jobs of others here.")
    print(f"dashboard  {info.url}/{f'#key={info.key}' if demo else ''}")
    print()
    print("Try, in another terminal:")
    if (folder := folder_off_path(sys.argv[0])) is not None:
        print(f"  export PATH={shlex.quote(str(folder))}:$PATH")
    print(f"  export BURSAR_URL={info.url} BURSAR_KEY=$(cat {shlex.quote(str(key))})")
    for command in _suggest_commands(demo=demo):
        print(f"  {command}")
    print()
    print("ready; stop with Ctrl-C", flush=True)


def folder_off_path(program: str) -> Path | None:
    """The folder of this program; None if it is on the PATH."""
    own_path = Path(program).absolute()
    on_path = shutil.which("bursar")
    if own_path.name != "bursar" or not own_path.is_file():
        return None  # started in another way, such as `python -c`
    return None if on_path is not None and own_path.samefile(on_path) else own_path.parent


def _suggest_commands(*, demo: bool) -> tuple[str, ...]:
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
