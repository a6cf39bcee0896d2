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
    asked = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    began, used = perf_counter(), _used()
    try:
        with _bar(shown=sys.stderr.isatty() and not json) as bar:
            task = bar.add_task("seeds", total=len(asked))

            def progress(summary: CampaignSummary, world: FaultWorld | None = None) -> None:
                bar.update(task, completed=summary.seeds)
                if world is not None and trace and not json:
                    print(*trace_of(world), sep="\n")

            if jobs == 1 or trace or len(asked) <= SEEDS_PER_TASK:
                summary = run_seeds(asked, progress, keep=ALL_STEPS if trace else TRACE_STEPS)
            else:
                summary = run_in_processes(asked, jobs, progress)
    except KeyboardInterrupt:
        return 130
    if json:
        print(dumps(_object(summary)))
    else:
        _show(summary, perf_counter() - began, _used() - used)
    if summary.broken:
        return 1
    return 3 if summary.too_few else 0


def _used() -> float:
    """Processor time of this process and its finished children, in seconds."""
    return sum(os.times()[:4])


def _bar(*, shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not shown,
    )


def _object(summary: CampaignSummary) -> dict[str, object]:
    """The results that depend on the seeds only, without timings."""
    return {
        "seeds": summary.seeds,
        "steps": summary.steps,
        "simulated_s": summary.simulated_s,
        "counts": dict(sorted(summary.counts.items())),
        "too_few": summary.too_few,
        "broken": [
            {"seed": one.seed, "why": one.why, "steps": list(one.steps)} for one in summary.broken
        ],
    }


def _show(summary: CampaignSummary, took: float, used: float) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table("event", "count", "per seed", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for what, times in sorted(summary.counts.items()):
        table.add_row(what, f"{times:,}", f"{times / summary.seeds:.2f}")
    console.print(table)
    for one in summary.broken:
        _show_broken(console, one)
    for few in summary.too_few:
        console.print(f"too few: {few}", markup=False)
    hours = summary.simulated_s / 3_600
    pace, costs = (summary.seeds / one * 60 if one else 0 for one in (took, used))
    console.print(
        f"\n{summary.seeds:,} seeds, {summary.steps:,} steps, {hours:,.1f} simulated hours"
        f" in {took:,.1f} s: {pace:,.0f} seeds per minute, {costs:,.0f} per CPU minute"
    )
    console.print(
        f"{len(summary.broken)} seeds violated an invariant", style="red" if summary.broken else ""
    )
    if summary.too_few and not summary.broken:
        console.print("not valid: too few faults occurred", style="yellow")


def _show_broken(console: Console, one: BrokenSeed) -> None:
    console.print(f"\nseed {one.seed}: {one.why}", style="red", markup=False)
    for step in one.steps[-TRACE_STEPS:]:
        console.print(f"  {step}", markup=False)
    again = f"bursar simulate faults --seed {one.seed} --trace"
    console.print(f"to reproduce: {again}", markup=False)
