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


class Walk(StrEnum):
    """The walkthroughs."""

    LEDGER = "ledger"
    PREEMPTION = "preemption"
    LOST_FINISH = "lost-finish"
    PROMO_EXPIRY = "promo-expiry"
    OUT_OF_CREDITS = "out-of-credits"
    DOUBLE_SUBMIT = "double-submit"


@app.command()
def walkthrough(
    name: Annotated[Walk, typer.Argument(metavar="NAME", help=", ".join(Walk))],
) -> None:
    """Show what happens to jobs and their credits, live, with every posting.

    `ledger` runs in memory. The others need a service: the one that BURSAR_URL names, with an
    operator's key, or else a temporary one.
    """
    if name is Walk.LEDGER:
        from bursar.cli.walkthrough.ledger import play_ledger

        raise typer.Exit(play_ledger())
    from bursar.cli.walkthrough import play

    raise typer.Exit(play(name))


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
