"""A walkthrough of the ledger made of real calls: every figure is read back from the books.

`story` sends commands to the core and keeps its replies; `chapters` prints them.
"""

import io
import sys

from rich.console import Console

from bursar.cli.walkthrough.ledger.chapters import tell
from bursar.cli.walkthrough.ledger.story import Story

__all__ = ["Story", "play_ledger", "tell"]


def play_ledger() -> int:
    """Print the whole walkthrough; the exit status is 1 if the books do not add up at its end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a sign still gets the rest
    return 0 if tell(Story(), Console(highlight=False)) else 1
