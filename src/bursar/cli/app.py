"""The command tree. Each command imports its implementation when it runs, so that
`bursar --help` stays fast."""

from enum import StrEnum
from os import cpu_count
from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.lazy_groups import RootGroup

app = typer.Typer(
    name="bursar",
    cls=RootGroup,
    help="Credit ledger and scheduler for shared GPUs.",
    no_args_is_help=True,
    add_completion=False,  # its options cost every call a quarter of a second; see `completion`
    rich_markup_mode=None,  # decorated help takes twice as long to appear
    # Plain tracebacks: they can be searched for and pasted, and printing one needs nothing more.
    pretty_exceptions_enable=False,
)
ledger = typer.Typer(help="Verify, rebuild and repair whole ledgers.", no_args_is_help=True)
app.add_typer(ledger, name="ledger")

audit = typer.Typer(help="Replay and trim the audit streams of pools.", no_args_is_help=True)
app.add_typer(audit, name="audit")

State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="BURSAR_STATE",
        help="Folder of the embedded database. Default: the user's state folder."
        " Ignored if BURSAR_DATABASE_URL is set.",
        file_okay=True,
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"bursar {version('bursar')}")
        raise typer.Exit


@app.callback()
def bursar(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Credit ledger and scheduler for shared GPUs."""


class WalkthroughName(StrEnum):
    """The walkthroughs."""

    LEDGER = "ledger"
    PREEMPTION = "preemption"
    LOST_FINISH = "lost-finish"
    PROMO_EXPIRY = "promo-expiry"
    OUT_OF_CREDITS = "out-of-credits"
    DOUBLE_SUBMIT = "double-submit"


@app.command()
def walkthrough(
    name: Annotated[
        WalkthroughName, typer.Argument(metavar="NAME", help=", ".join(WalkthroughName))
    ],
) -> None:
    """Show what happens to jobs and their credits, live, with every posting.

    `ledger` runs in memory. The others need a service: the one that BURSAR_URL names, with an
    operator's key, or else a temporary one.
    """
    if name is WalkthroughName.LEDGER:
        from bursar.cli.walkthrough.ledger import play_ledger

        raise typer.Exit(play_ledger())
    from bursar.cli.walkthrough import play_scene

    raise typer.Exit(play_scene(name))


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("simulate")
def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(help="Scenario in YAML, or a built-in one: day, overload.", dir_okay=False),
    ] = None,
    policy: Annotated[
        str,
        typer.Option("--policy", help="Policies to compare, such as bursar,fifo,srtf."),
    ] = "bursar,fifo",
    seed: Annotated[
        int, typer.Option(help="Random seed; the same seed gives the same output.")
    ] = 1,
    json: Json = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="CSV file of jobs, instead of generated ones.", dir_okay=False
        ),
    ] = None,
    columns: Annotated[
        str,
        typer.Option(
            "--columns",
            help="Columns of the trace, with units of times: arrives=submit_time:ms,gpus=n,...",
        ),
    ] = "",
    checkpoint_every: Annotated[
        str,
        typer.Option(
            "--checkpoint-every",
            help="Work between checkpoints of jobs in the trace, such as 30m; without it, none.",
        ),
    ] = "",
    checkpoint_cost: Annotated[
        str, typer.Option("--checkpoint-cost", help="Time to save one of these, such as 1m.")
    ] = "",
    add: Annotated[
        list[str] | None, typer.Option("--add", help="What if: add GPUs, such as H100=16.")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option("--weight", help="What if: change a weight, such as paid/acme=2."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            help="Policy file to use instead of the scenario's, as for `bursar pools policy set`.",
            dir_okay=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write an HTML report with charts.", dir_okay=False),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", help="Write a small chart of the last run.", dir_okay=False),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print the scenario file and exit.")
    ] = False,
) -> None:
    """Simulate a generated or recorded load under one or more policies.

    Exits with 1 if a tenant's books do not add up.
    """
    from bursar.cli.simulate import TraceOptions, read_scenario, simulate

    if example:
        print(read_scenario(file), end="")
        raise typer.Exit
    status = simulate(
        file=file, policies=policy, seed=seed, json=json,
        trace=TraceOptions(trace, columns, checkpoint_every, checkpoint_cost),
        add=add or [], weights=weight or [], rules=rules, html=html, svg=svg,
    )  # fmt: skip
    raise typer.Exit(status)


@app.command("simulate-faults")
def simulate_faults(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run.")] = 1_000,
    first: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this seed only, to reproduce a result.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print every step.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Number of processes. Default: one per processor."),
    ] = None,
    json: Json = False,
) -> None:
    """Inject faults into simulated deployments and check every invariant after every step.

    Also `bursar simulate faults`. Exits with 1 if an invariant was violated, and with 3 if too
    few faults occurred for a valid result.
    """
    from bursar.cli.simulate_faults import simulate_faults

    status = simulate_faults(
        seeds=seeds, first=first, seed=seed, trace=trace, jobs=jobs or cpu_count() or 1, json=json
    )
    raise typer.Exit(status)


Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0 takes any free port.")
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain-http",
        help="Allow listening on other addresses without TLS, behind a TLS proxy.",
    ),
]
Shared = Annotated[
    bool,
    typer.Option("--share-port", help="Let several processes listen on the same port."),
]
PrivateWebhooks = Annotated[
    bool,
    typer.Option(
        "--allow-private-webhooks",
        envvar="BURSAR_ALLOW_PRIVATE_WEBHOOKS",
        help="Allow webhooks to private addresses and without TLS.",
    ),
]

Advertise = Annotated[
    str | None,
    typer.Option(
        "--advertise",
        metavar="URL",
        envvar="BURSAR_ADVERTISE",
        help="Address at which nodes reach this process. Agents learn the addresses of all"
        " processes and use another when one does not answer. Default: not announced.",
    ),
]

Provisioner = Annotated[
    str | None,
    typer.Option(
        "--provisioner",
        metavar="PROGRAM",
        envvar="BURSAR_PROVISIONER",
        help="Program that provides ordered nodes, or `simulated` for nodes on this machine.",
    ),
]


@app.command()
def up(
    state: State = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    json: Json = False,
    plain_http: Plain = False,
    share_port: Shared = False,
    allow_private_webhooks: PrivateWebhooks = False,
    provisioner: Provisioner = None,
    advertise: Advertise = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="2x8xH100,8xA100",
            help="Also run these nodes, with simulated GPUs, in the pool main.",
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Also run a demo: three orgs and four nodes with jobs."),
    ] = False,
    allow_unisolated_jobs: Annotated[
        bool,
        typer.Option(
            "--allow-unisolated-jobs",
            help="Run nodes even if this machine allows no isolation of jobs. A job can then read"
            " the service's keys.",
        ),
    ] = False,
) -> None:
    """Start the database, the HTTP API and the scheduler, until stopped."""
    from bursar.cli.up import ListenOptions, run_service

    listening = ListenOptions(
        host,
        port,
        plain_http=plain_http,
        share_port=share_port,
        private_webhooks=allow_private_webhooks,
        provisioner=provisioner,
        advertise=advertise,
        allow_unisolated_jobs=allow_unisolated_jobs,
    )
    run_service(state, listening, json=json, demo=demo, nodes=nodes)


@app.command()
def api(
    state: State = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    json: Json = False,
    plain_http: Plain = False,
    share_port: Shared = False,
    allow_private_webhooks: PrivateWebhooks = False,
    provisioner: Provisioner = None,
    advertise: Advertise = None,
) -> None:
    """Start the HTTP API and the scheduler. Several processes can share a database."""
    from bursar.cli.up import ListenOptions, run_service

    listening = ListenOptions(
        host,
        port,
        plain_http=plain_http,
        share_port=share_port,
        private_webhooks=allow_private_webhooks,
        provisioner=provisioner,
        advertise=advertise,
    )
    run_service(state, listening, json=json, demo=False)


@ledger.command("verify")
def ledger_verify(state: State = None) -> None:
    """Check that the stored data is consistent, while the ledger is in use. Changes nothing.
    Exits with 1 if it is not."""
    from bursar.cli.admin import verify_ledger

    raise typer.Exit(0 if verify_ledger(state) else 1)


@ledger.command("rebuild")
def ledger_rebuild(
    state: State = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Rewrite rows that differ (never events or requests), unfreeze orgs, then verify.",
        ),
    ] = False,
) -> None:
    """Rebuild all books from their events and compare them with the stored rows. Exits with 1 if
    they differ, or still differ after a repair. Without --repair, changes nothing."""
    from bursar.cli.admin import rebuild_ledger, repair_ledger

    work = repair_ledger if repair else rebuild_ledger
    raise typer.Exit(0 if work(state, workers) else 1)


@ledger.command("clock")
def ledger_clock(
    state: State = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Trust the database's clock as it is now. What is due by it happens at once and"
            " cannot be undone: check the clock first.",
        ),
    ] = False,
) -> None:
    """Show whether the database's clock is trusted, and by which machines. Exits with 1 if one
    refuses it.

    Nothing is written while the clock is refused: it jumped, or it differs from a machine's clock
    by more than 5 seconds. This ends by itself when the clocks agree again.
    """
    from bursar.cli.ledger_clock import show_clock

    raise typer.Exit(0 if show_clock(state, accept=accept) else 1)


@audit.command("replay")
def audit_replay(
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    start: Annotated[
        int, typer.Option("--from", metavar="N", min=1, help="Start at the window of this event.")
    ] = 1,
    state: State = None,
) -> None:
    """Replay the scheduling decisions of a pool from their recorded inputs and compare them byte
    for byte. Exits with 1 at the first difference. Changes nothing."""
    from bursar.cli.admin import replay_pool

    raise typer.Exit(0 if replay_pool(state, pool, start) else 1)


@audit.command("trim")
def audit_trim(
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    days: Annotated[int, typer.Option(min=1, help="Keep events of the last N days.")],
    state: State = None,
) -> None:
    """Delete the oldest events of a pool's audit stream. The rest can still be replayed."""
    from bursar.cli.admin import trim_pool

    trim_pool(state, pool, days)
