"""How well the scheduler decides, on workloads of others that have been measured before.

The rules that others measured come first, on the same data in the same run: only when they come to
what is known of them does a figure of ours mean anything. The traces are not part of Bursar; they
lie in a folder that the caller names.
"""

import json as json_text
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.traces import fairness, packing_run, philly, plots, report, tiers
from benchmarks.traces.figures import Experiment, Options, Say
from benchmarks.traces.trace_files import Missing

__all__ = ["EXPERIMENTS", "Missing", "Options", "main", "measure"]

EXPERIMENTS: Final = MappingProxyType[str, Callable[[Options, Say], Experiment]](
    {
        "A": packing_run.packing,
        "C": fairness.fairness,
        "D": tiers.tiers,
        "philly-oct": philly.philly,
    }
)


def measure(options: Options, only: Sequence[str], say: Say) -> list[Experiment]:
    """Run these experiments, one after another."""
    return [EXPERIMENTS[name](options, say) for name in only]


def main(
    options: Options, *, json: bool = False, only: Sequence[str] = (), pictures: Path | None = None
) -> bool:
    """Measure, and print tables or one object; whether all yardsticks came to what is known."""
    experiments = measure(options, only or list(EXPERIMENTS), _say)
    for path in plots.draw(experiments, pictures) if pictures is not None else ():
        _say(f"drawn: {path}")
    if json:
        print(json_text.dumps(report.as_object(experiments)))
    else:
        report.print_tables(experiments)
    return all(experiment.trusted for experiment in experiments)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
