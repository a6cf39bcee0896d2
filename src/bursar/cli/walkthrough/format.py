"""How the tour shows amounts, instants, spans and tables."""

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

PROSE_WIDTH: Final = 92  # columns; longer lines are hard to read
_GLUE: Final = "\N{NO-BREAK SPACE}"  # between a number and its unit, until lines are broken
_DIGITS: Final = len(str(CREDIT)) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def glued(*words: str) -> str:
    """Words that stay on one line."""
    return _GLUE.join(words)


def credits(micros: Micros) -> str:
    """An amount in credits, with its unit, in as few digits as say it exactly."""
    return glued(_number(micros, 0), "cr")


def column(amounts: Sequence[Micros]) -> list[str]:
    """Amounts in credits without a unit, with equally many decimals so that they line up."""
    decimals = max((len(_number(one, 0).partition(".")[2]) for one in amounts), default=0)
    return [_number(one, decimals) if one else "–" for one in amounts]


def _number(micros: Micros, decimals: int) -> str:
    whole, part = divmod(abs(micros), CREDIT)
    digits = f"{part:0{_DIGITS}d}".rstrip("0").ljust(decimals, "0")
    sign = "-" if micros < 0 else ""
    return f"{sign}{whole:,}.{digits}" if digits else f"{sign}{whole:,}"


def share(ppm: int) -> str:
    """Parts per million as per cent, exactly."""
    return glued(_number(ppm * 100 * CREDIT // PPM, 0), "%")


def when(at: Instant, zone: str) -> str:
    """An instant as the clocks of `zone` show it."""
    if at == NEVER:
        return "never"
    shown = (_EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))
    seconds = f":{shown:%S}" if shown.second else ""
    return glued(str(shown.day), f"{shown:%b}", f"{shown:%H:%M}{seconds}")


def day(at: Instant, zone: str) -> str:
    """The day on which an instant falls in `zone`: Monday 2 March 2026."""
    shown = (_EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))
    return glued(f"{shown:%A}", str(shown.day), f"{shown:%B}", f"{shown:%Y}")


def span(ms: int) -> str:
    """A length of time in hours, minutes, seconds and milliseconds, without those that are zero."""
    units = ((3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
    told: list[str] = []
    for length, unit in units:
        count, ms = divmod(ms, length)
        if count:
            told += [str(count), unit]
    return glued(*told) if told else glued("0", "ms")


def count(number: int, thing: str) -> str:
    """A number of things: 1 event, 2 events."""
    return glued(f"{number:,}", thing if number == 1 else f"{thing}s")


class Page:
    """Where the tour is written: headings, sentences and tables."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, PROSE_WIDTH)
        self._chapters = 0

    def heading(self, title: str) -> None:
        """Begin a chapter."""
        self._chapters += 1
        self._console.print()
        self._console.rule(
            f"[bold]{self._chapters} · {title}[/bold]", align="left", style="dim", characters="─"
        )

    def say(self, text: str) -> None:
        """A paragraph; line breaks in the source are not kept."""
        words = re.sub(r"[ \n]+", " ", text).strip()
        for line in textwrap.wrap(words, self._width, break_on_hyphens=False):
            self._console.print(line.replace(_GLUE, " "), markup=False, soft_wrap=True)

    def table(self, title: str, headings: str, rows: Iterable[Sequence[str]]) -> None:
        """A table; in `headings`, parted by bars, a `>` before a heading aligns it to the right."""
        table = Table(
            title=title.replace(_GLUE, " "),
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
                name.removeprefix(">").replace(_GLUE, " "), justify="right" if right else "left"
            )
        for row in rows:
            table.add_row(*(cell.replace(_GLUE, " ") for cell in row))
        self._console.print(Padding(table, (1, 0, 1, 2), expand=False))
