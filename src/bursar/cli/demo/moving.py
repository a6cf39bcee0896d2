"""The moving line: commands a second and how long they take, live or once a second."""

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

BARS: Final = "▁▂▃▄▅▆▇█"
EACH_S: Final = 0.3  # of time to a bar
WIDEST: Final = 60  # bars
PLAIN_S: Final = 1.0  # between two lines where nothing can move


class Line:
    """What is shown while the load goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.perf_counter()
        self._live: Live | None = None
        self._rates: deque[float] = deque(maxlen=WIDEST)
        self._shown_at = self._began
        self._answers = 0
        self._waits: deque[tuple[float, list[float]]] = deque()  # of the last second
        if console.is_terminal and not os.environ.get("CI"):
            self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "Line":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._began

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"{self.seconds:5.1f} s  {text}", markup=False, soft_wrap=True)

    def show(self, waits: Sequence[float], answers: int) -> None:
        """Take the answers since the last call, and show them when it is time."""
        now = time.perf_counter()
        self._waits.append((now, list(waits)))
        while self._waits and self._waits[0][0] < now - PLAIN_S:
            self._waits.popleft()
        pause_s = EACH_S if self._live is not None else PLAIN_S
        lasted = now - self._shown_at
        if lasted < pause_s:
            return
        self._rates.append((answers - self._answers) / lasted)
        self._shown_at, self._answers = now, answers
        self._print(answers)

    def _print(self, answers: int) -> None:
        recent = sorted(wait for _, waits in self._waits for wait in waits)
        line = f"{self._rates[-1]:8,.0f} commands/s   "
        line += f"p50 {_ms(recent, 0.5)}   p99 {_ms(recent, 0.99)}   {answers:,} answered"
        if self._live is None:
            self.say(line)
        else:
            bars = Text(f"         {_bars(self._rates)}", style="cyan")
            head = Text(f"{self.seconds:5.1f} s  {line}", style="bold")
            self._live.update(Group(head, bars), refresh=True)


def _ms(ordered: list[float], part: float) -> str:
    if not ordered:
        return "   – ms"
    return f"{ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1_000:4.0f} ms"


def _bars(rates: Sequence[float]) -> str:
    most = max(rates) or 1.0
    return "".join(BARS[round(rate / most * (len(BARS) - 1))] for rate in rates)
