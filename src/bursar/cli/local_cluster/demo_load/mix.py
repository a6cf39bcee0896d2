"""Draws a tenant's next job; the same seed gives the same jobs.

Alfa     now and then requests most of the pool: gangs over two nodes, whole nodes, short urgent
         jobs. Its tier has a floor of 70 %, so jobs of others are preempted.
Bravo    always has more jobs than fit, and uses the GPUs that the others leave free.
Charlie  submits small jobs. Many fail, and some are refused by its team's budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from bursar.cli.local_cluster.demo_load import programs

H100: Final = ("H100",)
ANY_TYPE: Final = ("A100", "H100")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """A job of the demo load."""

    name: str
    project: str
    command: list[str]
    gpus: int
    types: tuple[str, ...] = ANY_TYPE
    nodes: int = 1
    expected_s: int
    max_s: int
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
            "likely_run_seconds": self.expected_s,
            "max_run_seconds": self.max_s,
            "priority_class": self.priority_class,
            "preemptible": self.preemptible,
            "checkpoint": checkpoint,
            "labels": {"name": self.name},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantHabit:
    """The behaviour of a tenant."""

    org: str  # name of a demo org
    draw: Callable[[Random], DemoJob]
    unfinished_max: int  # maximum number of unfinished jobs
    pause_s: tuple[int, int]  # range of the pause between jobs
    burst: int = 1  # jobs at once


def _draw_training(rng: Random, project: str, gpus: int, seconds: int, **options: Any) -> DemoJob:
    """A training with checkpoints; one in twenty has too little time."""
    is_too_short = rng.random() < 0.05
    return DemoJob(
        name=f"train {project}",
        project=project,
        command=programs.train_command(2 * seconds),
        gpus=gpus,
        expected_s=seconds,
        max_s=seconds // 2 if is_too_short else 3 * seconds,
        checkpoint_s=5,
        **options,
    )


def _draw_alfa(rng: Random) -> DemoJob:
    kind = rng.random()
    if kind < 0.2:
        return _draw_training(rng, "language", 16, rng.randint(15, 25), types=H100, nodes=2)
    if kind < 0.55:
        return _draw_training(rng, "vision", 8, rng.randint(15, 30))
    seconds = rng.randint(5, 12)
    return DemoJob(
        name="answer questions",
        project="serving",
        command=programs.sweep_command(seconds),
        gpus=rng.choice((1, 2)),
        expected_s=seconds,
        max_s=60,
        priority_class=10,
        preemptible=False,
    )


def _draw_bravo(rng: Random) -> DemoJob:
    project = rng.choice(("arms", "legs", "tiles"))
    seconds, gpus = rng.randint(25, 80), rng.choice((2, 2, 4, 4, 4, 8))
    cancel = rng.randint(5, 40) if rng.random() < 0.1 else None
    if rng.random() < 0.6:
        return _draw_training(rng, project, gpus, seconds, cancel_after_s=cancel)
    return DemoJob(
        name=f"search {project}",
        project=project,
        command=programs.sweep_command(seconds),
        gpus=gpus,
        expected_s=seconds,
        max_s=4 * seconds,
        cancel_after_s=cancel,
    )


def _draw_charlie(rng: Random) -> DemoJob:
    if rng.random() < 0.06:  # the team's budget refuses it
        night = 8 * 3_600
        command = programs.train_command(2 * night)
        return DemoJob(
            name="all night", project="toy-model", command=command, gpus=8, expected_s=night,
            max_s=night,
        )  # fmt: skip
    seconds = rng.randint(8, 30)
    fails = rng.random() < 0.3
    return DemoJob(
        name="notebook" if fails else "toy model",
        project="toy-model",
        command=programs.failing_command(seconds // 2)
        if fails
        else programs.train_command(2 * seconds),
        gpus=rng.choice((1, 1, 2)),
        expected_s=seconds,
        max_s=120,
        checkpoint_s=None if fails else 5,
        cancel_after_s=rng.randint(2, 20) if rng.random() < 0.1 else None,
    )


HABITS: Final = (
    TenantHabit(org="Alfa Labs", draw=_draw_alfa, unfinished_max=8, pause_s=(30, 45), burst=4),
    TenantHabit(org="Bravo Robotics", draw=_draw_bravo, unfinished_max=10, pause_s=(2, 6)),
    TenantHabit(org="Charlie's Notebook", draw=_draw_charlie, unfinished_max=6, pause_s=(3, 8)),
)
