"""The tree of commands. What a command does is imported when it is asked for, not before:
`bursar --help` must not pay for all of them."""

from enum import StrEnum
from os import cpu_count
from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.lazy_groups import Nouns

app = typer.Typer(
    name="bursar",
    cls=Nouns,
    help="Credit ledger and scheduler for shared GPUs.",
    no_args_is_help=True,
    add_completion=False,  # its options cost every call a quarter of a second; see `completion`
    rich_markup_mode=None,  # decorated help takes twice as long to appear
    # Plain tracebacks: they can be searched for and pasted, and printing one needs nothing more.
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure Bursar on this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")
ledger = typer.Typer(help="Look at whole ledgers.", no_args_is_help=True)
app.add_typer(ledger, name="ledger")

audit = typer.Typer(help="Look at the audit streams of pools.", no_args_is_help=True)
app.add_typer(audit, name="audit")

State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="BURSAR_STATE",
        help="Folder of the embedded database; the system's usual place if not given."
        " Not used when BURSAR_DATABASE_URL names a server.",
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
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Credit ledger and scheduler for shared GPUs."""


@app.command()
def tour() -> None:
    """Walk through the ledger with real calls."""
    from bursar.cli.tour import play

    play()


class Walk(StrEnum):
    """What can be walked through."""

    PREEMPTION = "preemption"
    LOST_FINISH = "lost-finish"
    PROMO_EXPIRY = "promo-expiry"
    OUT_OF_CREDITS = "out-of-credits"
    DOUBLE_SUBMIT = "double-submit"


@app.command()
def walkthrough(
    name: Annotated[Walk, typer.Argument(metavar="NAME", help=", ".join(Walk))],
) -> None:
    """See what becomes of a job and its credits, live, with every posting.

    On the service that BURSAR_URL names, with an operator's key; else on one of its own.
    """
    from bursar.cli.walkthrough import play

    raise typer.Exit(play(name))


@app.command()
def demo(
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="Folder of the embedded database; if not given, a temporary one."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=600, help="How long the load goes on.")] = 18,
) -> None:
    """Show the ledger under load, and what becomes of it when its database is killed."""
    from bursar.cli.demo import play

    raise typer.Exit(play(state, seconds))


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


@app.command("simulate")
def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(help="A world in YAML, or one that ships: day, overload.", dir_okay=False),
    ] = None,
    policy: Annotated[
        str,
        typer.Option("--policy", help="Policies to run side by side, such as bursar,fifo,srtf."),
    ] = "bursar,fifo",
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 1,
    json: Json = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="A CSV file of jobs, instead of the tenants'.", dir_okay=False
        ),
    ] = None,
    columns: Annotated[
        str,
        typer.Option("--columns", help="Its columns: arrives=submit_time,runs=duration,gpus=n,..."),
    ] = "",
    add: Annotated[
        list[str] | None, typer.Option("--add", help="What if: GPUs more, such as H100=16.")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option("--weight", help="What if: another weight, such as paid/acme=2."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            help="A pool's policy instead of the world's, as `bursar pools policy` shows and sets.",
            dir_okay=False,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with pictures.", dir_okay=False)
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", help="Write a small picture of the last run.", dir_okay=False),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print the world's file, and run nothing.")
    ] = False,
) -> None:
    """Run a made-up or recorded load under one or more policies; nothing real is touched.

    Exit with 1 if the books of a tenant do not add up.
    """
    from bursar.cli.simulate import simulate, written

    if example:
        print(written(file), end="")
        raise typer.Exit
    status = simulate(
        file=file, policies=policy, seed=seed, json=json, trace=trace, columns=columns,
        add=add or [], weights=weight or [], rules=rules, html=html, svg=svg,
    )  # fmt: skip
    raise typer.Exit(status)


@app.command("simulate-faults")
def simulate_faults(
    seeds: Annotated[int, typer.Option(min=1, help="How many worlds to live through.")] = 1_000,
    first: Annotated[int, typer.Option(min=0, help="The seed of the first one.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="This world alone: what was seen once is seen again.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print every step of that world.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes at once; one for each processor.")
    ] = None,
    json: Json = False,
) -> None:
    """Let worlds fail in every way, and check every promise after every step.

    Also `bursar simulate faults`. Exit with 1 if a promise was broken, with 3 if too little failed
    for that to mean anything.
    """
    from bursar.cli.simulate_faults import simulate_faults

    status = simulate_faults(
        seeds=seeds, first=first, seed=seed, trace=trace, jobs=jobs or cpu_count() or 1, json=json
    )
    raise typer.Exit(status)


Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0 for any free one.")
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain-http",
        help="Listen beyond this machine without TLS, because a proxy in front has it.",
    ),
]
Shared = Annotated[
    bool,
    typer.Option("--share-port", help="Let several processes listen on one port, and share calls."),
]
PrivateWebhooks = Annotated[
    bool,
    typer.Option(
        "--allow-private-webhooks",
        envvar="BURSAR_ALLOW_PRIVATE_WEBHOOKS",
        help="Let webhooks lead into this network, and be without TLS.",
    ),
]

Provisioner = Annotated[
    str | None,
    typer.Option(
        "--provisioner",
        metavar="PROGRAM",
        envvar="BURSAR_PROVISIONER",
        help="Who provides nodes that are ordered: a program, or simulated ones on this machine.",
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
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="2x8xH100,8xA100",
            help="Nodes with made-up GPUs to run beside it, in a pool called main.",
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Three orgs, four nodes and jobs that keep them busy, to look at."
        ),
    ] = False,
) -> None:
    """Bring up everything: the database, the HTTP interface, the scheduler; stay until stopped."""
    from bursar.cli.up import Listening, up

    listening = Listening(
        host,
        port,
        plain_http=plain_http,
        share_port=share_port,
        private_webhooks=allow_private_webhooks,
        provisioner=provisioner,
    )
    up(state, listening, json=json, demo=demo, nodes=nodes)


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
) -> None:
    """Serve the HTTP interface; any number of processes may, on one database."""
    from bursar.cli.up import Listening, up

    listening = Listening(
        host,
        port,
        plain_http=plain_http,
        share_port=share_port,
        private_webhooks=allow_private_webhooks,
        provisioner=provisioner,
    )
    up(state, listening, json=json, demo=False)


@ledger.command("verify")
def ledger_verify(state: State = None) -> None:
    """Check what is stored against itself, while the ledger is at work; exit with 1 if it does not
    add up. Nothing is changed."""
    from bursar.cli.admin import verify_ledger

    raise typer.Exit(0 if verify_ledger(state) else 1)


@ledger.command("rebuild")
def ledger_rebuild(
    state: State = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the orgs.")] = 2,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Write anew the rows that differ, never events or requests; let orgs take commands"
            " again that do not; then verify.",
        ),
    ] = False,
) -> None:
    """Make all books from their events alone and compare; exit with 1 if something differs, or is
    still wrong after a repair. Without --repair nothing is changed."""
    from bursar.cli.admin import rebuild_ledger, repair_ledger

    work = repair_ledger if repair else rebuild_ledger
    raise typer.Exit(0 if work(state, workers) else 1)


@audit.command("replay")
def audit_replay(
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    start: Annotated[
        int, typer.Option("--from", metavar="N", min=1, help="From the window of this event on.")
    ] = 1,
    state: State = None,
) -> None:
    """Decide again what a pool's leaders decided, from what they were told, and compare byte for
    byte; exit with 1 at the first difference. Nothing is changed."""
    from bursar.cli.admin import replay_pool

    raise typer.Exit(0 if replay_pool(state, pool, start) else 1)


@audit.command("trim")
def audit_trim(
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    days: Annotated[int, typer.Option(min=1, help="What is younger stays.")],
    state: State = None,
) -> None:
    """Take away the oldest part of a pool's audit stream; what is left can be decided again."""
    from bursar.cli.admin import trim_pool

    trim_pool(state, pool, days)


@bench.command("ledger")
def bench_ledger(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and shorter.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    only: Annotated[
        str, typer.Option("--only", help="Loads to run, such as L-hot,L-spread; all if not given.")
    ] = "",
    http: Annotated[
        bool, typer.Option("--http", help="The load over HTTP alone: --only L-http.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="Folder of the embedded database; if not given, a temporary one."
        ),
    ] = None,
) -> None:
    """Measure the ledger on PostgreSQL beside its yardsticks; exit with 1 if books do not add up.

    In databases of its own, which are dropped afterwards.
    """
    from bursar.cli.bench import measure_ledger

    loads = "L-http" if http else only
    raise typer.Exit(measure_ledger(quick=quick, json=json, only=loads, state=state))


@bench.command("schedule")
def bench_schedule(
    core: Annotated[bool, typer.Option("--core", help="Decisions in memory.")] = False,
    durable: Annotated[
        bool, typer.Option("--durable", help="Through the database, with nodes that run nothing.")
    ] = False,
    small: Annotated[
        bool, typer.Option("--small", "--quick", help="Tiny: shows that it works.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    only: Annotated[
        str,
        typer.Option("--only", help="Loads to run, such as kai-fill,volcano-4; all if not given."),
    ] = "",
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="For --durable: folder of the embedded database; if not given, a temporary one.",
        ),
    ] = None,
) -> None:
    """Measure how fast the scheduler decides on the loads of other schedulers' benchmarks; exit
    with 1 if something was decided wrongly."""
    from bursar.cli.bench import measure_schedule, measure_schedule_durably

    if core == durable:
        raise typer.BadParameter("say one of --core, --durable", param_hint="--core, --durable")
    if core:
        raise typer.Exit(measure_schedule(small=small, json=json, only=only))
    raise typer.Exit(measure_schedule_durably(quick=small, json=json, only=only, state=state))


@bench.command("traces")
def bench_traces(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of the traces: openb, shockwave, gentd26, philly.",
            exists=True,
            file_okay=False,
        ),
    ],
    only: Annotated[
        str,
        typer.Option(
            "--only", help="Of A,C,D,philly-oct: the experiments to run; all if not given."
        ),
    ] = "",
    lists: Annotated[
        str,
        typer.Option(
            "--lists", help="Of A: lists of pods, such as default,cpu200; all if not given."
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Of A: random orders to run.")] = 10,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="The rules of others only, without Bursar.")
    ] = False,
    ours: Annotated[
        bool, typer.Option("--ours", help="Bursar only, without the rules of others.")
    ] = False,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Write two pictures there.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Measure how well the scheduler decides on workloads of others; exit with 1 if the rules of
    others do not come to what is known of them."""
    from bursar.cli.bench import measure_traces

    status = measure_traces(
        folder, only=only, lists=lists, seeds=seeds, ours=not baselines, others=not ours, json=json,
        pictures=plots,
    )  # fmt: skip
    raise typer.Exit(status)


@bench.command("library")
def bench_library(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    operations: Annotated[
        int, typer.Option(min=1, help="Calls of CreditLedger to measure.")
    ] = 1_000_000,
    timeline_operations: Annotated[
        int, typer.Option(min=1, help="Calls of TimelineLedger to measure, in each load.")
    ] = 100_000,
) -> None:
    """Measure the library beside its yardsticks (about three minutes)."""
    from bursar.bench.library import main

    main(json=json, operations=operations, timeline_operations=timeline_operations)
