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
    cls=Group, help="Who is entitled to what in a pool, and how it decides; for operators.",
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
        str | None, typer.Option(metavar="NAME", help="Begin a pool of this name first.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """What pools have, and what waits for it."""
    if ctx.invoked_subcommand is not None:
        return
    call = Call(output)
    if add is not None:
        with connected() as client:
            client.post("/v1/pools", {"id": add}, key=call.key)
    call.get("/v1/pools", COLUMNS, rows=_rows, text=_table)


def _rows(body: Any) -> list[dict[str, Any]]:
    """A line for each type of each pool; one without nodes has a line, too."""
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
    """The same for people: what is of the whole pool stands in its first line alone."""
    seen: set[str] = set()
    rows = []
    for row in _rows(body):
        rows.append({**row, **dict.fromkeys(WHOLE, " ")} if row["pool"] in seen else row)
        seen.add(row["pool"])
    return table(COLUMNS, rows)


@policy.command("show")
def show(pool: Pool = "main", output: Output = Format.TABLE) -> None:
    """The policy of a pool; as yaml, `set` and `bursar simulate --rules` read it."""
    Call(output).get(f"/v1/pools/{pool}/policy", POLICY_COLUMNS, rows=_policy_rows)


@policy.command("set")
def set_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The policy in YAML or JSON; - is stdin.")
    ],
    pool: Pool = "main",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look whether it could be put in force.")
    ] = False,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Put a policy in force: the pool's next round decides by it. Of a file for `bursar simulate`
    the same parts are read: policy, tiers, shares."""
    words = policy_words(file)
    call = Call(output, key)
    params = {"dry_run": "true"} if dry_run else None
    call.put(f"/v1/pools/{pool}/policy", words, POLICY_COLUMNS, params=params, rows=_policy_rows)


def _policy_rows(body: Any) -> list[dict[str, Any]]:
    """A line for each tier, and for each place below that has a share of its own."""
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
