"""`bursar pools`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Key, Output, connected
from bursar.cli.lazy_groups import Group
from bursar.cli.output import Format, table
from bursar.cli.policies import policy_words

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None)
policy = typer.Typer(
    cls=Group, help="Show or set the scheduling policy of a pool. For operators.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
app.add_typer(policy, name="policy")

COLUMNS: Final = ("pool", "gpu_type", "gpus", "free_gpus", "nodes", "queued", "running")
WHOLE: Final = ("nodes", "queued", "running")  # of a pool, not of one type
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
    call = Call(output)
    if add is not None:
        with connected() as client:
            client.post("/v1/pools", {"id": add}, key=call.key)
    call.get("/v1/pools", COLUMNS, rows=_rows, text=_table)


def _rows(body: Any) -> list[dict[str, Any]]:
    """One row for each GPU type of each pool; a pool without nodes has one row."""
    nothing: list[dict[str, Any]] = [{"gpu_type": None, "gpus": 0, "free_milli_gpus": 0}]
    return [
        {
            **one,
            "pool": one["id"],
            "gpu_type": kind["gpu_type"],
            "gpus": kind["gpus"],
            "free_gpus": f"{kind['free_milli_gpus'] / 1_000:g}",
        }
        for one in body["pools"]
        for kind in one["types"] or nothing
    ]


def _table(body: Any) -> str:
    """Render the pools; figures of the whole pool appear only in its first row."""
    seen: set[str] = set()
    rows = []
    for row in _rows(body):
        rows.append({**row, **dict.fromkeys(WHOLE, " ")} if row["pool"] in seen else row)
        seen.add(row["pool"])
    return table(COLUMNS, rows)


@policy.command("show")
def show(pool: Pool = "main", output: Output = Format.TABLE) -> None:
    """Show the policy of a pool. With -o yaml, `set` and `bursar simulate --rules` read it."""
    Call(output).get(f"/v1/pools/{pool}/policy", POLICY_COLUMNS, rows=_policy_rows)


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
    words = policy_words(file)
    call = Call(output, key)
    params = {"dry_run": "true"} if dry_run else None
    call.put(f"/v1/pools/{pool}/policy", words, POLICY_COLUMNS, params=params, rows=_policy_rows)


def _policy_rows(body: Any) -> list[dict[str, Any]]:
    """One row for each tier, and for each org, account or user with its own share."""
    tiers = [
        {
            **one,
            "of": one["name"],
            "floor": f"{one['floor_ppm'] / 10_000:g}%",
            "ceiling": f"{one['ceiling_ppm'] / 10_000:g}%",
            "preempts": ", ".join(one["preempts"]),
        }
        for one in body["tiers"]
    ]
    places = [
        {
            **one,
            "of": path,
            "floor": _gpus(one["floor"]),
            "ceiling": _gpus(one["ceiling"]),
        }
        for path, one in body["shares"].items()
    ]
    return [*tiers, *places]


def _gpus(by_type: Mapping[str, int]) -> str:
    return ", ".join(f"{gpus} {kind}" for kind, gpus in by_type.items())
