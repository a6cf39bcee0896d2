"""`bursar agent`."""

import logging
import os
import platform
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from bursar.agent import gpus as hardware
from bursar.agent.checkpoint_cleanup import KEEP_S, CheckpointCleaner, CheckpointLimits
from bursar.agent.local.cgroups import find_own_cgroup
from bursar.agent.local.environment import folder_name
from bursar.agent.local.isolation import (
    ISOLATION_REMEDY,
    JOB_UIDS,
    Isolation,
    describe_gap,
    find_isolation,
)
from bursar.agent.local.processes import (
    PROCESSES_MAX,
    LocalBackend,
    ProcessSettings,
    default_processes_max,
)
from bursar.agent.logs import LogSender
from bursar.agent.loop import AgentLoop
from bursar.agent.registration import register_node
from bursar.agent.state_dir import StateDir, StateDirInUse
from bursar.agent.transport import HttpTransport
from bursar.cli.api_command import duration_parser
from bursar.cli.credentials import KEY_VARIABLE, find_access
from bursar.cli.problems import LocalProblem
from bursar.cli.signals import stop_event_on_signals
from bursar.client.http import is_local
from bursar.core.dispatch.agent import REPORT_INTERVAL
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND
from bursar.wire.agents import NodeRequest

app = typer.Typer(add_completion=False, rich_markup_mode=None)
CHECKPOINTS_GIB: Final = 100
UID_MAX: Final = 2**32 - 2
NICENESS_CHANGE: Final = -10  # relative to jobs: an agent that is late loses their leases
_WAIT_MS: Final = REPORT_INTERVAL // MILLISECOND
_log = logging.getLogger("bursar.agent")


@app.command()
def agent(
    pool: Annotated[str, typer.Option(metavar="POOL", help="Pool that the node belongs to.")],
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            "--url",
            metavar="URL",
            help="URL of the service. Repeatable, or separated by commas: if one does not answer,"
            " the next is used, also one that the service has named. Default: as for other"
            " commands.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the node. Default: the host name."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="8xH100", help="GPUs of this machine. Default: detected through the driver."
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option(min=1, help="Slots per GPU; each can be leased separately.")
    ] = 1,
    memory_gib: Annotated[
        int | None, typer.Option(min=0, help="Memory of each GPU, in GiB.")
    ] = None,
    region: Annotated[str, typer.Option(help="Region of the node.")] = "",
    rack: Annotated[str, typer.Option(help="Rack of the node.")] = "",
    island: Annotated[str, typer.Option(help="NVLink domain of the node.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(help="Label that jobs can require. Repeatable.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The node's state folder, on a local disk."),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint folder shared by several nodes."),
    ] = None,
    keep_checkpoints: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=duration_parser,
            help="Remove checkpoints this long after their job finished. Default: 1d.",
        ),
    ] = None,
    checkpoints_gib: Annotated[
        int,
        typer.Option(
            min=0,
            help="Above this total size in GiB, remove checkpoints of finished jobs at once."
            " 0: no limit.",
        ),
    ] = CHECKPOINTS_GIB,
    job_uids: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST",
            help="User ids that an agent of root gives to jobs, one to each. They need no names."
            f" Default: {JOB_UIDS[0]}-{JOB_UIDS[-1]}.",
        ),
    ] = None,
    readable: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder that jobs can read, beside those of the system. Repeatable.",
        ),
    ] = None,
    writable: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder that jobs can also write to, if file modes allow it. Repeatable.",
        ),
    ] = None,
    hide: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder that jobs must not see, beside those of the node. Repeatable.",
        ),
    ] = None,
    processes_max: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Maximum processes and threads of a job on this node. 0: no limit."
            f" Default: {PROCESSES_MAX}, or less on a machine that can have few.",
        ),
    ] = None,
    allow_unisolated_jobs: Annotated[
        bool,
        typer.Option(
            "--allow-unisolated-jobs",
            help="Run jobs even if this machine allows no isolation. A job can then read the"
            " agent's key and everything else that its user can read.",
        ),
    ] = False,
    cgroup: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Parent cgroup for jobs. Default: the agent's own cgroup."
        ),
    ] = None,
    plain_http: Annotated[
        bool,
        typer.Option("--plain-http", help="Allow sending the key to another machine without TLS."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every action.")] = False,
) -> None:
    """Run the agent of a node: start the jobs that the pool leases to it, until stopped.

    Jobs continue when the agent stops. An agent that restarts before their leases expire takes
    them over.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(message)s",
    )
    for library in ("httpx2", "httpcore2"):
        logging.getLogger(library).setLevel(logging.WARNING)
    name = NodeId(node or platform.node())
    detected = _find_gpus(gpus)
    request = NodeRequest(
        gpu_type=detected.type,
        gpus=detected.count,
        slots=slots,
        memory_gib=detected.memory_gib if memory_gib is None else memory_gib,
        cpu_milli=hardware.count_cpu_milli(),
        ram_mib=hardware.measure_ram_mib(),
        region=region,
        rack=rack,
        island=island,
        labels=sorted(set(label or [])),
    )
    service = _find_service(server or [], plain_http=plain_http)
    uids = None if job_uids is None else _parse_uids(job_uids)
    parent_cgroup = _find_cgroup(cgroup)
    folder = state or _default_state(pool, name)
    try:
        state_dir = StateDir(folder, pool, name)
    except StateDirInUse as error:
        raise LocalProblem(str(error), "Stop the other agent, or choose another --state.") from None
    except OSError as error:
        raise LocalProblem(f"{folder} cannot be used: {error}", "Choose another --state.") from None
    with state_dir:
        settings = ProcessSettings(
            folder=state_dir.folder,
            isolation=_find_isolation(state_dir.folder, uids, allow_none=allow_unisolated_jobs),
            checkpoints=checkpoints,
            cgroup=parent_cgroup,
            hidden=_resolve(hide),
            readable=_resolve(readable),
            writable=_resolve(writable),
            gpu_devices=detected.devices,
            processes_max=default_processes_max() if processes_max is None else processes_max,
        )
        http = HttpTransport(
            service.urls,
            service.key,
            pool,
            name,
            _WAIT_MS,
            learned=state_dir.load_addresses(),
            on_learned=state_dir.save_addresses,
            plain_http=plain_http,
        )
        bytes_max = checkpoints_gib * 1024**3 if checkpoints_gib else None
        limits = CheckpointLimits(
            KEEP_S if keep_checkpoints is None else keep_checkpoints, bytes_max
        )
        _run_agent(name, state_dir, settings, http, request, limits)


def _run_agent(
    node: NodeId,
    state_dir: StateDir,
    settings: ProcessSettings,
    http: HttpTransport,
    request: NodeRequest,
    limits: CheckpointLimits,
) -> None:
    """Register the node and run the agent until a signal arrives."""
    stop_event = stop_event_on_signals()
    if not register_node(lambda: http.register(request), stop_event):
        return
    backend = LocalBackend(settings)
    with suppress(OSError):  # needs root
        os.nice(NICENESS_CHANGE)
    logs = LogSender(backend.attempts, backend.ended, http.send_log)
    loop = AgentLoop(node, state_dir, backend, http, on_change=logs.wake)
    cleaner = CheckpointCleaner(backend.checkpoints, http.load_finished_jobs, limits)
    for run in (logs.run, cleaner.run):
        threading.Thread(target=run, args=(stop_event,), daemon=True).start()
    print(
        f"ready: node {node} with {request.gpus} × {request.gpu_type};"
        f" jobs have {settings.isolation.describe()}; stop with Ctrl-C",
        flush=True,
    )
    loop.run(stop_event)
    print("stopped; running jobs continue until their leases expire", flush=True)


def _find_gpus(text: str | None) -> hardware.DetectedGpus:
    try:
        return hardware.detect_gpus() if text is None else hardware.parse_gpus(text)
    except hardware.GpusUnknown as error:
        raise typer.BadParameter(str(error), param_hint="--gpus") from None


class _Service(NamedTuple):
    """The addresses of the service, and the key for them."""

    urls: list[str]
    key: str


def _find_service(servers: list[str], *, plain_http: bool) -> _Service:
    """The service's URLs and key. The key comes from the environment or a login only."""
    named, key = _split_urls(servers), os.environ.get(KEY_VARIABLE)
    if named and key:
        service = _Service(named, key)
    else:
        access = find_access()
        service = _Service(_split_urls([access.url]), access.key)
        if named and named != service.urls:
            raise LocalProblem(
                f"no key is configured for {', '.join(named)}", f"Set {KEY_VARIABLE}."
            )
    for url in service.urls:
        if url.startswith("http:") and not is_local(url) and not plain_http:
            raise LocalProblem(
                f"the key would be sent to {url} without TLS",
                "Use https, or add --plain-http.",
            )
    return service


def _split_urls(texts: list[str]) -> list[str]:
    """The URLs in texts that separate them by commas, each once."""
    parts = (part.strip().rstrip("/") for text in texts for part in text.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def _find_isolation(folder: Path, uids: range | None, *, allow_none: bool) -> Isolation:
    """How jobs are kept apart on this machine; refused if they are not, unless that is allowed."""
    isolation = find_isolation(folder, uids)
    if not isolation.is_complete and not allow_none:
        raise LocalProblem(describe_gap(isolation), ISOLATION_REMEDY)
    if isolation.gap:
        _log.warning("jobs have %s, because: %s", isolation.describe(), isolation.gap)
    return isolation


def _parse_uids(text: str) -> range:
    """Parse FIRST-LAST, two user ids."""
    match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text, re.ASCII)
    uids = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if not uids or uids[0] == 0 or uids[-1] > UID_MAX:
        raise typer.BadParameter(
            f"{text[:40]!r} is no range of user ids: write 1900000000-1900065535",
            param_hint="--job-uids",
        )
    if os.geteuid() != 0:
        raise typer.BadParameter("only root can give jobs user ids", param_hint="--job-uids")
    return uids


def _resolve(folders: list[Path] | None) -> tuple[Path, ...]:
    return tuple(folder.expanduser().resolve() for folder in folders or ())


def _find_cgroup(cgroup: Path | None) -> Path | None:
    """The parent cgroup for jobs; None if the agent cannot create cgroups and none is named."""
    if cgroup is None:
        return find_own_cgroup()
    if not (cgroup / "cgroup.procs").exists():
        raise typer.BadParameter(f"{cgroup} is not a version 2 cgroup", param_hint="--cgroup")
    return cgroup


def _default_state(pool: str, node: str) -> Path:
    state_home = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state"
    return root / "bursar-agent" / f"{folder_name(pool)}.{folder_name(node)}"
