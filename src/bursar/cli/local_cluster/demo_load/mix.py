"""Draws a tenant's next job; the same seed gives the same jobs.

Alfa    every so often it wants most of the pool at once: a gang over two nodes, a whole node,
        some short and urgent ones. Its tier has a floor of 70 %, so others have to make room.
Bravo   always has more to run than there is room for, and fills what the others leave.
Charlie small jobs, many of which fail, and now and then one that its team's budget forbids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from bursar.cli.local_cluster.demo_load import programs

H100: Final = ("H100",)
ANY: Final = ("A100", "H100")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """A job of the demo load."""

    name: str
    project: str
    command: list[str]
    gpus: int
    types: tuple[str, ...] = ANY
    nodes: int = 1
    likely_s: int
    most_s: int
    priority_class: int = 0
    preemptible: bool = True
    checkpoint_s: int | None = None
    cancel_after_s: int | None = None

    def body(self, account: str, user: str) -> dict[str, Any]:
        """The request body for `POST /v1/jobs`."""
        checkpoint = {"interval_seconds": self.checkpoint_s} if self.checkpoint_s else None
        return {
            "account_id": account,
            "user_id": user,
            "command": self.command,
            "gpus": {
                "count": self.gpus,
                "types": list(self.types),
                "topology": {"nodes": self.nodes},
            },
            "likely_run_seconds": self.likely_s,
            "max_run_seconds": self.most_s,
            "priority_class": self.priority_class,
            "preemptible": self.preemptible,
            "checkpoint": checkpoint,
            "labels": {"name": self.name},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """The behaviour of a tenant."""

    org: str  # name of a demo org
    draw: Callable[[Random], DemoJob]
    alive_max: int  # maximum number of unfinished jobs
    pause_s: tuple[int, int]  # range of the pause between jobs
    burst: int = 1  # jobs at once


def _training(chance: Random, project: str, gpus: int, seconds: int, **more: Any) -> DemoJob:
    """A training with checkpoints; one of twenty has been given too little time."""
    short = chance.random() < 0.05
    return DemoJob(
        name=f"train {project}",
        project=project,
        command=programs.train(2 * seconds),
        gpus=gpus,
        likely_s=seconds,
        most_s=seconds // 2 if short else 3 * seconds,
        checkpoint_s=5,
        **more,
    )


def _alfa(chance: Random) -> DemoJob:
    kind = chance.random()
    if kind < 0.2:
        return _training(chance, "language", 16, chance.randint(15, 25), types=H100, nodes=2)
    if kind < 0.55:
        return _training(chance, "vision", 8, chance.randint(15, 30))
    seconds = chance.randint(5, 12)
    return DemoJob(
        name="answer questions",
        project="serving",
        command=programs.sweep(seconds),
        gpus=chance.choice((1, 2)),
        likely_s=seconds,
        most_s=60,
        priority_class=10,
        preemptible=False,
    )


def _bravo(chance: Random) -> DemoJob:
    project = chance.choice(("arms", "legs", "tiles"))
    seconds, gpus = chance.randint(25, 80), chance.choice((2, 2, 4, 4, 4, 8))
    cancel = chance.randint(5, 40) if chance.random() < 0.1 else None
    if chance.random() < 0.6:
        return _training(chance, project, gpus, seconds, cancel_after_s=cancel)
    return DemoJob(
        name=f"search {project}",
        project=project,
        command=programs.sweep(seconds),
        gpus=gpus,
        likely_s=seconds,
        most_s=4 * seconds,
        cancel_after_s=cancel,
    )


def _charlie(chance: Random) -> DemoJob:
    if chance.random() < 0.06:  # its team's budget says no
        night = 8 * 3_600
        command = programs.train(2 * night)
        return DemoJob(
            name="all night", project="toy-model", command=command, gpus=8, likely_s=night,
            most_s=night,
        )  # fmt: skip
    seconds = chance.randint(8, 30)
    fails = chance.random() < 0.3
    return DemoJob(
        name="notebook" if fails else "toy model",
        project="toy-model",
        command=programs.broken(seconds // 2) if fails else programs.train(2 * seconds),
        gpus=chance.choice((1, 1, 2)),
        likely_s=seconds,
        most_s=120,
        checkpoint_s=None if fails else 5,
        cancel_after_s=chance.randint(2, 20) if chance.random() < 0.1 else None,
    )


HABITS: Final = (
    Habit(org="Alfa Labs", draw=_alfa, alive_max=8, pause_s=(30, 45), burst=4),
    Habit(org="Bravo Robotics", draw=_bravo, alive_max=10, pause_s=(2, 6)),
    Habit(org="Charlie's Notebook", draw=_charlie, alive_max=6, pause_s=(3, 8)),
)
