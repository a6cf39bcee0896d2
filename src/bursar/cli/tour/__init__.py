"""A guided tour of the ledger, made of real calls: everything shown is read back from the books.

`story` asks the core and keeps what it answered, `chapters` tells it, `shown` knows how amounts,
instants and tables look.
"""

import io
import sys

from rich.console import Console

from bursar.cli.tour.chapters import tell
from bursar.cli.tour.story import Story

__all__ = ["Story", "play", "tell"]


def play() -> None:
    """Tell the whole tour at the terminal; exit with 1 if the books do not add up at its end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a sign still gets the rest
    if not tell(Story(), Console(highlight=False)):
        raise SystemExit(1)
