"""`bursar pools`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Key, Output, amount_parser, connect
from bursar.cli.commands.prio import account_name
from bursar.cli.lazy_groups import FastHelpGroup
from bursar.cli.output import Format, format_value, render_table
from bursar.cli.policies import load_policy

app = typer.Typer(cls=FastHelpGroup, add_completion=False, rich_markup_mode=None)
policy = typer.Typer(
    cls=FastHelpGroup, help="Show or set the scheduling policy of a pool. For operators.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
app.add_typer(policy, name="policy")

COLUMNS: Final = ("pool", "gpu_type", "gpus", "free_gpus", "nodes", "queued", "running")
POOL_FIGURES: Final = ("nodes", "queued", "running")  # of a pool, not of one type
POLICY_COLUMNS: Final = (
    *("name", "weight", "floor", "ceiling", "jobs_max", "start_target", "ages_after"),
    *("queue_max", "rate_per_minute", "preempts"),
)
ADVICE_COLUMNS: Final = (
    *("for_job", "frees_nodes", "job", "gpu_type", "milli_gpus", "from_nodes", "to_nodes"),
    *("makes_checkpoint", "lost_micros", "sooner_seconds", "gain_micros"),
)
MOVE_COLUMNS: Final = (
    *("job", "account", "gpus", "from_nodes", "to_nodes", "checkpoint_first", "lost_work_micros"),
)
Pool = Annotated[str, typer.Argument(metavar="POOL")]


@app.callback(invoke_without_command=True)
def pools(
    ctx: typer.Context,
    add: Annotated[
        str | None, typer.Option(metavar="NAME", help="Create a pool with this name first.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show pools: GPUs, nodes and queued jobs."""
    if ctx.invoked_subcommand is not None:
        return
    call = ApiCall(output)
    if add is not None:
        with connect() as client:
            client.post("/v1/pools", {"id": add}, key=call.key)
    call.get_all("/v1/pools", COLUMNS, rows=_build_rows, text=_render_pools)


def _build_rows(body: Any) -> list[dict[str, Any]]:
    """One row for each GPU type of each pool; a pool without nodes has one row."""
    no_types: list[dict[str, Any]] = [{"gpu_type": None, "gpus": 0, "free_milli_gpus": 0}]
    return [
        {
            **pool,
            "pool": pool["id"],
            "gpu_type": gpu_type["gpu_type"],
            "gpus": gpu_type["gpus"],
            "free_gpus": f"{gpu_type['free_milli_gpus'] / 1_000:g}",
        }
        for pool in body["items"]
        for gpu_type in pool["types"] or no_types
    ]


def _render_pools(body: Any) -> str:
    """Render the pools; figures of the whole pool appear only in its first row."""
    pools: set[str] = set()
    rows = []
    for row in _build_rows(body):
        rows.append({**row, **dict.fromkeys(POOL_FIGURES, " ")} if row["pool"] in pools else row)
        pools.add(row["pool"])
    return render_table(COLUMNS, rows)


@policy.command("show")
def show(pool: Pool = "main", output: Output = Format.TABLE) -> None:
    """Show the policy of a pool. With -o yaml, `set` and `bursar simulate --rules` read it."""
    ApiCall(output).get(f"/v1/pools/{pool}/policy", POLICY_COLUMNS, rows=_build_policy_rows)


@policy.command("set")
def set_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Policy in YAML or JSON; - reads standard input.")
    ],
    pool: Pool = "main",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate the policy; change nothing.")
    ] = False,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Set the policy of a pool, from its next scheduling round on. From a file for `bursar
    simulate`, the sections policy, tiers and shares are read."""
    words = load_policy(file)
    call = ApiCall(output, key)
    params = {"dry_run": "true"} if dry_run else None
    call.put(
        f"/v1/pools/{pool}/policy", words, POLICY_COLUMNS, params=params, rows=_build_policy_rows
    )


def _build_policy_rows(body: Any) -> list[dict[str, Any]]:
    """One row for each tier, and for each org, account or user with its own share."""
    tiers = [
        {
            **tier,
            "floor": f"{tier['floor_ppm'] / 10_000:g}%",
            "ceiling": f"{tier['ceiling_ppm'] / 10_000:g}%",
            "preempts": ", ".join(tier["preempts"]),
        }
        for tier in body["tiers"]
    ]
    shares = [
        {
            **share,
            "name": path,
            "floor": _format_gpus(share["floor"]),
            "ceiling": _format_gpus(share["ceiling"]),
        }
        for path, share in body["shares"].items()
    ]
    return [*tiers, *shares]


def _format_gpus(by_type: Mapping[str, int]) -> str:
    return ", ".join(f"{gpus} {kind}" for kind, gpus in by_type.items())


@app.command("advice")
def advice(
    pool: Pool = "main",
    lost_max: Annotated[
        int | None,
        typer.Option(
            "--lost-max",
            metavar="AMOUNT",
            parser=amount_parser,
            help="Maximum credits of lost work per emptied node. Default: 1.",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show which running jobs to move so that blocked jobs start or nodes become empty. Nothing is
    moved. For operators."""
    path, params = f"/v1/pools/{pool}/advice", {"lost_max_micros": lost_max}
    ApiCall(output).get(
        path, ADVICE_COLUMNS, params=params, rows=_build_advice_rows, text=render_advice
    )


def _build_advice_rows(body: Any) -> list[dict[str, Any]]:
    """One row for each job to move."""
    return [
        {**plan, **move, "for_job": plan["job"], "frees_nodes": plan["nodes"]}
        for plan in (*body["for_jobs"], *body["for_nodes"])
        for move in plan["moves"]
    ]


def render_advice(body: Any) -> str:
    """Render the plans one after another, each with a table of its moves."""
    plans = [*body["for_jobs"], *body["for_nodes"]]
    if not plans:
        return (
            "No moves are advised: no blocked job would start soon enough, and no node can be"
            " emptied within the limit of lost work."
        )
    return "\n\n".join(_render_plan(plan, body["names"]) for plan in plans)


def _render_plan(plan: Any, names: Mapping[str, str]) -> str:
    nodes, gpus = ", ".join(plan["nodes"]), f"{plan['freed_milli_gpus'] / 1_000:g}"
    lost = format_value("lost_micros", plan["lost_micros"])
    if plan["job"] is None:
        purpose = f"To empty {nodes} ({gpus} {plan['gpu_type']})"
        cost = f"Lost work: {lost}."
    else:
        owner, job = account_name(plan["path"], names), plan["job"].rpartition("/")[2]
        purpose = f"To start {job} ({owner}) on {nodes} ({gpus} {plan['gpu_type']})"
        sooner = format_value("sooner_seconds", plan["sooner_seconds"])
        gain = format_value("gain_micros", plan["gain_micros"])
        cost = f"Lost work: {lost}. Starts {sooner} sooner, worth {gain}."
    rows = [
        {
            "job": move["job"].rpartition("/")[2],
            "account": account_name(move["path"], names),
            "gpus": f"{move['milli_gpus'] / 1_000:g} {move['gpu_type']}",
            "from_nodes": ", ".join(move["from_nodes"]),
            "to_nodes": ", ".join(move["to_nodes"]),
            "checkpoint_first": move["makes_checkpoint"],
            "lost_work_micros": move["lost_micros"],
        }
        for move in plan["moves"]
    ]
    return f"{purpose}, move:\n{render_table(MOVE_COLUMNS, rows)}\n{cost}"
