"""`bursar quote`: the cost of a hold, like `bursar hold open --dry-run`."""

import typer

from bursar.cli.api_command import Account, ApiCall, Output
from bursar.cli.commands.hold import (
    Class,
    GpuCount,
    GpuType,
    HeldAmount,
    Job,
    JobKind,
    Likely,
    Region,
    Run,
    User,
    build_context,
    build_request,
    print_quote,
)
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def quote(
    account: Account,
    amount: HeldAmount = None,
    run: Run = None,
    likely: Likely = None,
    user: User = None,
    gpu_type: GpuType = None,
    gpu_count: GpuCount = None,
    region: Region = None,
    job_kind: JobKind = None,
    priority_class: Class = None,
    job: Job = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what a hold would cost or why it would be refused. Exits with the hold's status."""
    context = build_context(gpu_type, gpu_count, region, job_kind, priority_class, job)
    print_quote(ApiCall(output), build_request(account, amount, run, user, None, context), likely)
