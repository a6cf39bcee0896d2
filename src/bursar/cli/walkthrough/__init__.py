"""Walkthroughs: what becomes of a job and its credits when something happens to it, live (M6).

    stage      a service, a pool with one node of its own, orgs with credits
    watching   every posting and every step of a job's life, as they come; whether the books add up
    scenes     what happens

Everything goes over HTTP, and what runs is real: a node's agent, and processes.
"""

import sys

from rich.console import Console

from bursar.cli.walkthrough.environment import Stuck, staged
from bursar.cli.walkthrough.scenes import SCENES
from bursar.client.problem import Problem

__all__ = ["NAMES", "play"]

NAMES = tuple(SCENES)


def play(name: str) -> int:
    """Play a walkthrough at the terminal; the status to exit with."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        with staged(console) as stage:
            SCENES[name](stage)
            return 0 if stage.check() else 1
    except (Stuck, Problem) as error:
        print(f"bursar: the walkthrough could not go on: {error}", file=sys.stderr)
        return 2
