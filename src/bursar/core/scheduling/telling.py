"""A plan as a line that people read: what starts where, who makes room, who waits for what."""

from collections import Counter

from bursar.core.instant import HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.decisions import Decision, Keep, Plan, Preempt, Start, Wait
from bursar.core.scheduling.model.jobs import StartReason
from bursar.core.scheduling.model.nodes import Piece


def told(plan: Plan) -> str:
    """All decisions in their order, then those who wait in turn."""
    kept = {one.job for one in plan.decisions if isinstance(one, Keep)}
    parts = [_decision(one, plan.at) for one in plan.decisions]
    parts += [_wait(one, plan.at) for one in plan.waits if one.job not in kept]
    return "; ".join(parts)


def span(microseconds: int) -> str:
    """A length of time in its largest whole unit: 90m, 24h, 30s."""
    for unit, letter in ((HOUR, "h"), (MINUTE, "m"), (SECOND, "s")):
        if microseconds % unit == 0:
            return f"{microseconds // unit}{letter}"
    return f"{microseconds // 1_000}ms"


def _decision(one: Decision, at: Instant) -> str:
    if isinstance(one, Start):
        why = "" if one.why is StartReason.TURN else f" {one.why}"
        return f"{one.job} -> {_places(one.pieces)}{why}"
    if isinstance(one, Preempt):
        return f"{one.job} preempted for={one.wanted_by} by={one.right}"
    if isinstance(one, Keep):
        return f"{one.job} waits on={_places(one.pieces)}"
    return f"{one.job} promised start={span(one.at - at)}"


def _wait(one: Wait, at: Instant) -> str:
    figures = "".join(f" {name}={figure}" for name, figure in one.figures)
    reason = "" if one.reason == "capacity" else f" {one.reason}"
    start = "" if one.planned is None else f" start={span(one.planned.at - at)}"
    return f"{one.job} waits{reason}{figures}{start}"


def _places(pieces: tuple[Piece, ...]) -> str:
    """Nodes with the number of GPUs on each, whole or in part: n1:4+n2:4."""
    gpus: Counter[str] = Counter()
    for piece in pieces:
        gpus[piece.node] += len(piece.gpus)
    return "+".join(f"{node}:{count}" for node, count in sorted(gpus.items()))
