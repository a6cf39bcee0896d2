"""The walkthrough of the ledger. It runs real commands; every figure is read from the books.

`story` sends commands to the core and keeps its replies; `chapters` prints them.
"""

import io
import sys

from rich.console import Console

from bursar.cli.walkthrough.ledger.chapters import play_chapters
from bursar.cli.walkthrough.ledger.story import Story

__all__ = ["Story", "play_chapters", "play_ledger"]


def play_ledger() -> int:
    """Print the whole walkthrough; the exit status is 1 if the books do not add up at its end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for characters that the terminal cannot show
    return 0 if play_chapters(Story(), Console(highlight=False)) else 1
