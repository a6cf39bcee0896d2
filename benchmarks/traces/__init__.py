"""How well the scheduler decides, on published workloads that were measured before.

The rules of other schedulers run first, on the same data in the same run: Bursar's figures mean
something only if those rules reproduce their known figures. The traces are not part of Bursar;
they are files in a folder that the caller names.
"""

import json as json_text
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.environment import Log, log_to_stderr
from benchmarks.results import Experiment, experiments_as_object
from benchmarks.table import print_experiments
from benchmarks.traces import fairness, packing_run, philly, plots, tiers
from benchmarks.traces.options import Options
from benchmarks.traces.trace_files import TraceMissing

__all__ = ["EXPERIMENTS", "Options", "TraceMissing", "main", "measure"]

EXPERIMENTS: Final = MappingProxyType[str, Callable[[Options, Log], Experiment]](
    {
        "A": packing_run.measure_packing,
        "C": fairness.measure_fairness,
        "D": tiers.measure_tiers,
        "philly-oct": philly.measure_philly,
    }
)


def measure(options: Options, only: Sequence[str], log: Log) -> list[Experiment]:
    """Run these experiments, one after another."""
    return [EXPERIMENTS[name](options, log) for name in only]


def main(
    options: Options, *, json: bool = False, only: Sequence[str] = (), pictures: Path | None = None
) -> bool:
    """Measure, and print tables or JSON; return whether all yardsticks are as known."""
    experiments = measure(options, only or list(EXPERIMENTS), log_to_stderr)
    for path in plots.draw(experiments, pictures) if pictures is not None else ():
        log_to_stderr(f"drawn: {path}")
    if json:
        print(json_text.dumps(experiments_as_object(experiments)))
    else:
        print_experiments(experiments)
    return all(experiment.trusted for experiment in experiments)
