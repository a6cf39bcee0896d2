"""Walkthroughs: show live what happens to a job and its credits in special situations (M6).

    environment   a service, a pool with one node, orgs with credits
    event_log     prints postings and job steps as they happen; checks the books at the end
    scenes        the walkthroughs on a service
    ledger        the walkthrough of the ledger, in memory

The scenes use the HTTP API, a real agent and real processes.
"""

import sys

from rich.console import Console

from bursar.cli.walkthrough.environment import WalkthroughFailed, open_stage
from bursar.cli.walkthrough.scenes import SCENES
from bursar.client.problem import Problem

__all__ = ["NAMES", "play_scene"]

NAMES = tuple(SCENES)


def play_scene(name: str) -> int:
    """Run a walkthrough and print it; the exit status."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        with open_stage(console) as stage:
            SCENES[name](stage)
            return 0 if stage.check() else 1
    except (WalkthroughFailed, Problem) as error:
        print(f"bursar: the walkthrough failed: {error}", file=sys.stderr)
        return 2
