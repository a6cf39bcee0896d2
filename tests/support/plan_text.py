"""A plan as a line of text: starts with their nodes, preemptions, what each job waits for."""

from collections import Counter

from bursar.core.instant import HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.decisions import Decision, EarmarkGpus, Plan, Preempt, Start, Wait
from bursar.core.scheduling.model.jobs import StartReason
from bursar.core.scheduling.model.nodes import Piece


def render_plan(plan: Plan) -> str:
    """Render all decisions in their order, then the waiting jobs in theirs."""
    earmarked = {decision.job for decision in plan.decisions if isinstance(decision, EarmarkGpus)}
    parts = [_decision(decision, plan.at) for decision in plan.decisions]
    parts += [_wait(wait, plan.at) for wait in plan.waits if wait.job not in earmarked]
    return "; ".join(parts)


def span(microseconds: int) -> str:
    """A length of time in its largest whole unit: 90m, 24h, 30s."""
    for unit, letter in ((HOUR, "h"), (MINUTE, "m"), (SECOND, "s")):
        if microseconds % unit == 0:
            return f"{microseconds // unit}{letter}"
    return f"{microseconds // 1_000}ms"


def _decision(decision: Decision, at: Instant) -> str:
    if isinstance(decision, Start):
        why = "" if decision.why is StartReason.TURN else f" {decision.why}"
        return f"{decision.job} -> {_places(decision.pieces)}{why}"
    if isinstance(decision, Preempt):
        return f"{decision.job} preempted for={decision.wanted_by} by={decision.right}"
    if isinstance(decision, EarmarkGpus):
        return f"{decision.job} waits on={_places(decision.pieces)}"
    return f"{decision.job} promised start={span(decision.at - at)}"


def _wait(wait: Wait, at: Instant) -> str:
    figures = "".join(f" {name}={figure}" for name, figure in wait.figures)
    reason = "" if wait.reason == "capacity" else f" {wait.reason}"
    start = "" if wait.planned is None else f" start={span(wait.planned.at - at)}"
    return f"{wait.job} waits{reason}{figures}{start}"


def _places(pieces: tuple[Piece, ...]) -> str:
    """Nodes with the number of GPUs on each, whole or in part: n1:4+n2:4."""
    gpus: Counter[str] = Counter()
    for piece in pieces:
        gpus[piece.node] += len(piece.gpus)
    return "+".join(f"{node}:{count}" for node, count in sorted(gpus.items()))
