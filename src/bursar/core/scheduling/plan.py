"""Plan a scheduling round: which jobs start, which stop, which get a date.

A round repeats one pass until it decides nothing more, so that a second round right after it would
decide nothing. A pass has these steps:

    1. `start_earmarked`   jobs start for which other jobs made room, once their GPUs are free
    2. `AgedPass`          jobs that have waited too long start, or get a date
    3. `run_express`       short jobs that can still start in time are looked at
    4. `run_turns`         all jobs are looked at in the order of the share tree
    5. `run_urgent`        the most urgent job of each org is looked at

In steps 3 to 5 a job starts if it fits and delays no planned start (backfill); else other jobs make
room if it has the right; else it waits, and the first few blocked jobs get a planned start.

All of it is tried on the cluster and undone: the result is the plan.
"""

from typing import Final

from bursar.core.instant import MINUTE, NEVER, Instant
from bursar.core.scheduling.decisions import Decision, Plan
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.passes.aged import AgedPass
from bursar.core.scheduling.passes.context import PassContext
from bursar.core.scheduling.passes.earmarked import start_earmarked
from bursar.core.scheduling.passes.shape_filter import ShapeFilter
from bursar.core.scheduling.passes.turns import TurnPass
from bursar.core.scheduling.preemption.step_budget import StepBudget

TURN_RETRY_INTERVAL: Final = 5 * MINUTE  # how often jobs past their turn are checked again


def make_plan(cluster: Cluster, now: Instant) -> Plan:
    """Plan a round. The cluster stays as it is."""
    cluster.advance_to(now)
    with cluster.trial():
        return carry_out(cluster, now)


def carry_out(cluster: Cluster, now: Instant) -> Plan:
    """Plan a round, and carry it out on the cluster."""
    cluster.advance_to(now)
    decisions: list[Decision] = []
    steps = StepBudget()
    complete = True
    while True:
        context = run_pass(cluster, steps)
        decisions += context.decisions
        complete = complete and context.complete
        if not context.decisions:
            break
    return Plan(
        at=now, decisions=tuple(decisions), waits=tuple(context.waits.values()),
        complete=complete and not steps.ended, steps=steps.taken,
    )  # fmt: skip


def run_pass(cluster: Cluster, steps: StepBudget) -> PassContext:
    """Look at all jobs once."""
    context, shapes = PassContext(cluster, steps), ShapeFilter(cluster)
    start_earmarked(context)
    AgedPass(context).run()
    turns = TurnPass(context, shapes)
    turns.run_express()
    turns.run_turns()
    turns.run_urgent()
    return context


def next_planning_time(cluster: Cluster) -> Instant | None:
    """When a plan may decide more although nothing happens until then; None if never.

    At that time a job has waited too long, gets the right `target`, ends its back-off, or has had
    its turn. While a job runs past its turn, a plan is due every few minutes: the less work it has
    left, the fewer waiting jobs may take its turn. So it is while a job waits that is overtaken.
    """
    due = next((at for at, _ in cluster.tree.queues.aged_users.since((cluster.now + 1, ()))), NEVER)
    turn = cluster.running_index.next_turn_end(cluster.tree.queues.waiting_classes, cluster.now)
    turn = turn if turn > cluster.now else turn + TURN_RETRY_INTERVAL
    waiting = cluster.waiting_index
    overtaken = cluster.overtaken.next_overtaken()
    if cluster.overtaken.overtaken():
        overtaken = min(overtaken, cluster.now + TURN_RETRY_INTERVAL)
    again = min(due, waiting.next_retry(), waiting.next_target_right(cluster.now), turn, overtaken)
    return again if again < NEVER else None
