"""`bursar simulate faults`: run seeded fault injection and report violated invariants."""

import os
import sys
from json import dumps
from time import perf_counter
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bursar.sim.faults.campaign import (
    SEEDS_PER_TASK,
    BrokenSeed,
    CampaignSummary,
    run_in_processes,
    run_seeds,
    trace_of,
)
from bursar.sim.faults.world import TRACE_STEPS, FaultWorld

ALL_STEPS: Final = 10**9


def simulate_faults(
    *, seeds: int, first: int, seed: int | None, trace: bool, jobs: int, json: bool
) -> int:
    """Run and print; the exit status: 1 if an invariant was violated, 3 if too few faults."""
    seed_range = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    started_s, cpu_s = perf_counter(), _read_cpu_s()
    try:
        with _make_progress_bar(is_visible=sys.stderr.isatty() and not json) as bar:
            task = bar.add_task("seeds", total=len(seed_range))

            def progress(summary: CampaignSummary, world: FaultWorld | None = None) -> None:
                bar.update(task, completed=summary.seeds)
                if world is not None and trace and not json:
                    print(*trace_of(world), sep="\n")

            if jobs == 1 or trace or len(seed_range) <= SEEDS_PER_TASK:
                summary = run_seeds(seed_range, progress, keep=ALL_STEPS if trace else TRACE_STEPS)
            else:
                summary = run_in_processes(seed_range, jobs, progress)
    except KeyboardInterrupt:
        return 130
    if json:
        print(dumps(_summary_as_json(summary)))
    else:
        _print_summary(summary, perf_counter() - started_s, _read_cpu_s() - cpu_s)
    if summary.broken:
        return 1
    return 3 if summary.too_few else 0


def _read_cpu_s() -> float:
    """Processor time of this process and its finished children, in seconds."""
    return sum(os.times()[:4])


def _make_progress_bar(*, is_visible: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not is_visible,
    )


def _summary_as_json(summary: CampaignSummary) -> dict[str, object]:
    """The results that depend on the seeds only, without timings."""
    return {
        "seeds": summary.seeds,
        "steps": summary.steps,
        "simulated_s": summary.simulated_s,
        "counts": dict(sorted(summary.counts.items())),
        "too_few": summary.too_few,
        "broken": [
            {"seed": failure.seed, "why": failure.why, "steps": list(failure.steps)}
            for failure in summary.broken
        ],
    }


def _print_summary(summary: CampaignSummary, elapsed_s: float, cpu_s: float) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table("event", "count", "per seed", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for event, count in sorted(summary.counts.items()):
        table.add_row(event, f"{count:,}", f"{count / summary.seeds:.2f}")
    console.print(table)
    for failure in summary.broken:
        _print_failure(console, failure)
    for few in summary.too_few:
        console.print(f"too few: {few}", markup=False)
    hours = summary.simulated_s / 3_600
    per_minute, per_cpu_minute = (
        summary.seeds / seconds * 60 if seconds else 0 for seconds in (elapsed_s, cpu_s)
    )
    console.print(
        f"\n{summary.seeds:,} seeds, {summary.steps:,} steps, {hours:,.1f} simulated hours"
        f" in {elapsed_s:,.1f} s: {per_minute:,.0f} seeds per minute,"
        f" {per_cpu_minute:,.0f} per CPU minute"
    )
    console.print(
        f"{len(summary.broken)} seeds violated an invariant", style="red" if summary.broken else ""
    )
    if summary.too_few and not summary.broken:
        console.print("not valid: too few faults occurred", style="yellow")


def _print_failure(console: Console, failure: BrokenSeed) -> None:
    console.print(f"\nseed {failure.seed}: {failure.why}", style="red", markup=False)
    for step in failure.steps[-TRACE_STEPS:]:
        console.print(f"  {step}", markup=False)
    command = f"bursar simulate faults --seed {failure.seed} --trace"
    console.print(f"to reproduce: {command}", markup=False)
