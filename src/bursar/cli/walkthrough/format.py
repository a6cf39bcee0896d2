"""Formats the amounts, times, durations and tables of the walkthroughs."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from bursar.core.instant import NEVER, Instant
from bursar.core.money import CREDIT, PPM, Micros

PROSE_WIDTH: Final = 92  # characters; longer lines are hard to read
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"  # keeps a number and its unit on one line
_DIGITS: Final = len(str(CREDIT)) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def join_words(*words: str) -> str:
    """Join words so that they stay on one line."""
    return _NO_BREAK.join(words)


def format_credits(micros: Micros) -> str:
    """An amount in credits with its unit, exact, in as few digits as possible."""
    return join_words(_format_number(micros, 0), "cr")


def format_column(amounts: Sequence[Micros]) -> list[str]:
    """Amounts in credits without unit, with the same number of decimals."""
    decimals = max(
        (len(_format_number(amount, 0).partition(".")[2]) for amount in amounts), default=0
    )
    return [_format_number(amount, decimals) if amount else "–" for amount in amounts]


def _format_number(micros: Micros, decimals: int) -> str:
    whole, part = divmod(abs(micros), CREDIT)
    digits = f"{part:0{_DIGITS}d}".rstrip("0").ljust(decimals, "0")
    sign = "-" if micros < 0 else ""
    return f"{sign}{whole:,}.{digits}" if digits else f"{sign}{whole:,}"


def format_share(ppm: int) -> str:
    """Parts per million as a percentage, exact."""
    return join_words(_format_number(ppm * 100 * CREDIT // PPM, 0), "%")


def format_time(at: Instant, zone: str) -> str:
    """A time in the zone: 2 Mar 09:00."""
    if at == NEVER:
        return "never"
    local = (_EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))
    seconds = f":{local:%S}" if local.second else ""
    return join_words(str(local.day), f"{local:%b}", f"{local:%H:%M}{seconds}")


def format_day(at: Instant, zone: str) -> str:
    """The day of a time in the zone: Monday 2 March 2026."""
    local = (_EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))
    return join_words(f"{local:%A}", str(local.day), f"{local:%B}", f"{local:%Y}")


def format_duration(ms: int) -> str:
    """A duration in hours, minutes, seconds and milliseconds, without zero parts."""
    units = ((3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
    words: list[str] = []
    for length, unit in units:
        count, ms = divmod(ms, length)
        if count:
            words += [str(count), unit]
    return join_words(*words) if words else join_words("0", "ms")


def format_count(number: int, noun: str) -> str:
    """A number with its noun: 1 event, 2 events."""
    return join_words(f"{number:,}", noun if number == 1 else f"{noun}s")


class TextPage:
    """Prints a walkthrough: headings, paragraphs and tables."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, PROSE_WIDTH)
        self._chapters = 0

    def print_heading(self, title: str) -> None:
        """Print the heading of the next chapter."""
        self._chapters += 1
        self._console.print()
        self._console.rule(
            f"[bold]{self._chapters} · {title}[/bold]", align="left", style="dim", characters="─"
        )

    def print_paragraph(self, text: str) -> None:
        """Print a paragraph; line breaks in the text are ignored."""
        words = re.sub(r"[ \n]+", " ", text).strip()
        for line in textwrap.wrap(words, self._width, break_on_hyphens=False):
            self._console.print(line.replace(_NO_BREAK, " "), markup=False, soft_wrap=True)

    def print_table(self, title: str, headings: str, rows: Iterable[Sequence[str]]) -> None:
        """Print a table. Headings are separated by `|`; a leading `>` right-aligns the column."""
        table = Table(
            title=title.replace(_NO_BREAK, " "),
            title_justify="left",
            title_style="italic cyan",
            box=box.SIMPLE_HEAD,
            border_style="dim",
            show_edge=False,
            pad_edge=False,
        )
        for heading in headings.split("|"):
            name = heading.strip(" ")
            right = name.startswith(">")
            table.add_column(
                name.removeprefix(">").replace(_NO_BREAK, " "), justify="right" if right else "left"
            )
        for row in rows:
            table.add_row(*(cell.replace(_NO_BREAK, " ") for cell in row))
        self._console.print(Padding(table, (1, 0, 1, 2), expand=False))
