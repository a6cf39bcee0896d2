"""`bursar pools`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Key, Output, connect
from bursar.cli.lazy_groups import FastHelpGroup
from bursar.cli.output import Format, render_table
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
    *("of", "weight", "floor", "ceiling", "jobs_max", "start_target", "ages_after"),
    *("queue_max", "rate_per_minute", "preempts"),
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
    call.get("/v1/pools", COLUMNS, rows=_build_rows, text=_render_pools)


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
        for pool in body["pools"]
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
            "of": tier["name"],
            "floor": f"{tier['floor_ppm'] / 10_000:g}%",
            "ceiling": f"{tier['ceiling_ppm'] / 10_000:g}%",
            "preempts": ", ".join(tier["preempts"]),
        }
        for tier in body["tiers"]
    ]
    shares = [
        {
            **share,
            "of": path,
            "floor": _format_gpus(share["floor"]),
            "ceiling": _format_gpus(share["ceiling"]),
        }
        for path, share in body["shares"].items()
    ]
    return [*tiers, *shares]


def _format_gpus(by_type: Mapping[str, int]) -> str:
    return ", ".join(f"{gpus} {kind}" for kind, gpus in by_type.items())
