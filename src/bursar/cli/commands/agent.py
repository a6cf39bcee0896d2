"""`bursar agent`."""

import logging
import os
import platform
import pwd
import sys
import threading
from pathlib import Path
from typing import Annotated, Final

import typer

from bursar.agent import gpus as hardware
from bursar.agent.checkpoint_cleanup import KEEP_S, Bounds, Tidying
from bursar.agent.local.cgroups import own_cgroup
from bursar.agent.local.environment import named
from bursar.agent.local.processes import Place, Processes
from bursar.agent.logs import Logs
from bursar.agent.loop import Running
from bursar.agent.registration import registered
from bursar.agent.state_dir import Disk, Occupied
from bursar.agent.transport import Http
from bursar.cli.api_command import seconds
from bursar.cli.credentials import KEY_VARIABLE, Access, access
from bursar.cli.problems import Unusable
from bursar.cli.signals import told_to_stop
from bursar.client.http import is_here
from bursar.core.dispatch.agent import REPORT_EVERY
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND
from bursar.wire.agents import NodeRequest

app = typer.Typer(add_completion=False, rich_markup_mode=None)
CHECKPOINTS_GIB: Final = 100
_WAIT_MS: Final = REPORT_EVERY // MILLISECOND


@app.command()
def agent(
    pool: Annotated[str, typer.Option(metavar="POOL", help="The pool that the node is of.")],
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Of the service; if not given, as for other commands."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The node's name; if not given, the machine's."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="8xH100", help="GPUs here; if not given, the driver is asked."),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Parts of a GPU that are leased apart.")] = 1,
    memory_gib: Annotated[int | None, typer.Option(min=0, help="Memory of each GPU.")] = None,
    region: Annotated[str, typer.Option(help="Where the node stands.")] = "",
    rack: Annotated[str, typer.Option(help="In which rack.")] = "",
    island: Annotated[str, typer.Option(help="The NVLink domain it shares with others.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="What jobs may ask for.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The node's folder; on a disk of this machine."),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder for checkpoints that several nodes share."),
    ] = None,
    keep_checkpoints: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=seconds,
            help="Remove checkpoints so long after the end of their job; a day if not given.",
        ),
    ] = None,
    checkpoints_gib: Annotated[
        int,
        typer.Option(
            min=0, help="If all take more, remove those of jobs that are over at once; 0: no bound."
        ),
    ] = CHECKPOINTS_GIB,
    run_as: Annotated[
        str | None, typer.Option(metavar="USER", help="Who runs the jobs; root may say so.")
    ] = None,
    cgroup: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A cgroup in which others may be made; if not given, ours."
        ),
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Send the key without TLS to another machine.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell every action.")] = False,
) -> None:
    """Run jobs on this machine, as the pool leases it; stay until stopped.

    What runs goes on when this ends, and is taken over when it is started again in time.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(message)s",
    )
    for chatty in ("httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    name = NodeId(node or platform.node())
    here = _gpus(gpus)
    ask = NodeRequest(
        gpu_type=here.type,
        gpus=here.count,
        slots=slots,
        memory_gib=here.memory_gib if memory_gib is None else memory_gib,
        cpu_milli=hardware.cpu_milli(),
        ram_mib=hardware.ram_mib(),
        region=region,
        rack=rack,
        island=island,
        labels=sorted(set(label or [])),
    )
    known = _access(server, plain_http=plain_http)
    uid, gid = _user(run_as)
    group = _cgroup(cgroup)
    folder = state or _usual_state(pool, name)
    try:
        disk = Disk(folder, pool, name)
    except Occupied as error:
        raise Unusable(str(error), "Stop the other agent, or say another --state.") from None
    except OSError as error:
        raise Unusable(f"{folder} cannot be used: {error}", "Say another --state.") from None
    with disk:
        place = Place(
            folder=disk.folder,
            checkpoints=checkpoints,
            cgroup=group,
            uid=uid,
            gid=gid,
        )
        http = Http(known.url, known.key, pool, name, _WAIT_MS)
        most = checkpoints_gib * 1024**3 if checkpoints_gib else None
        bounds = Bounds(KEEP_S if keep_checkpoints is None else keep_checkpoints, most)
        _work(name, disk, place, http, ask, bounds)


def _work(
    node: NodeId, disk: Disk, place: Place, http: Http, ask: NodeRequest, bounds: Bounds
) -> None:
    """Register, and look after the node until a signal comes."""
    stopped = told_to_stop()
    if not registered(lambda: http.register(ask), stopped):
        return
    processes = Processes(place)
    running = Running(node, disk, processes, http)
    logs = Logs(processes.attempts, processes.ended, http.send_log)
    tidying = Tidying(processes.checkpoints, http.over_for_s, bounds)
    for beside in (logs.run, tidying.run):
        threading.Thread(target=beside, args=(stopped,), daemon=True).start()
    print(f"ready: {node} has {ask.gpus} {ask.gpu_type}; stop with Ctrl-C", flush=True)
    running.run(stopped)
    print("stopped; what runs goes on until its lease ends", flush=True)


def _gpus(text: str | None) -> hardware.Gpus:
    try:
        return hardware.found() if text is None else hardware.given(text)
    except hardware.NoGpus as error:
        raise typer.BadParameter(str(error), param_hint="--gpus") from None


def _access(server: str | None, *, plain_http: bool) -> Access:
    """Where the service is: the key comes from the environment or a login, never from here."""
    key = os.environ.get(KEY_VARIABLE)
    known = Access(server.rstrip("/"), key) if server and key else access()
    if server is not None and known.url != server.rstrip("/"):
        raise Unusable(f"there is no key for {server}", f"Set {KEY_VARIABLE}.")
    if known.url.startswith("http:") and not is_here(known.url) and not plain_http:
        raise Unusable(
            f"the key could be read on its way to {known.url}", "Use https, or say --plain-http."
        )
    return known


def _user(name: str | None) -> tuple[int | None, int | None]:
    if name is None:
        return None, None
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise typer.BadParameter(f"there is no user {name}", param_hint="--run-as") from None
    if os.geteuid() != 0:
        raise typer.BadParameter("only root can run jobs as somebody else", param_hint="--run-as")
    return found.pw_uid, found.pw_gid


def _cgroup(given: Path | None) -> Path | None:
    """The group in which others are made; whoever names one wants memory to be bounded by it."""
    if given is None:
        return own_cgroup()
    if not (given / "cgroup.procs").exists():
        raise typer.BadParameter(f"{given} is no cgroup of version 2", param_hint="--cgroup")
    return given


def _usual_state(pool: str, node: str) -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    root = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return root / "bursar-agent" / f"{named(pool)}.{named(node)}"
