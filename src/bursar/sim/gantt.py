"""A picture of which tenant had which GPU when: a row for each GPU, a colour for each tenant.

The picture is a PNG of limited size, however long the run was. For a pool with many GPUs it shows
some nodes, chosen evenly. Consecutive jobs of one tenant differ in shade. Where a node did not
exist the picture is transparent, so it works on any background.
"""

from base64 import b64encode
from collections.abc import Iterable
from struct import pack
from typing import Final
from zlib import compress, crc32

from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.value import value
from bursar.sim.engine import Engine
from bursar.sim.timeline import largest_tenants

ROWS: Final = 128  # GPUs that are shown, or those of one node if it has more
COLUMNS: Final = 960
Colour = tuple[int, int, int]
# Colours that can be told apart on white and on black, by most eyes; the last is of all others.
TENANTS: Final[tuple[Colour, ...]] = (
    (47, 126, 216), (226, 108, 45), (43, 158, 112), (204, 75, 122), (138, 104, 206), (190, 152, 22),
    (26, 163, 184), (136, 136, 136),
)  # fmt: skip
_IDLE, _FIRST = 1, 2  # numbers of colours; 0 is none


@value
class Gantt:
    """A picture of a run's GPUs."""

    png: bytes
    rows: int  # GPUs that are shown
    gpus: int  # that there were in all
    nodes: tuple[NodeId, ...]  # that are shown
    tenants: tuple[str, ...]  # in the order of the colours; others have the last one


class _Canvas:
    """A row for each GPU of some nodes, a column for each equal part of a run."""

    def __init__(self, engine: Engine, nodes: tuple[NodeId, ...]) -> None:
        self.rows: list[bytearray] = []
        self._begins_at = engine.world.begins_at
        self._span = max(engine.now - engine.world.begins_at, 1)
        self._first: dict[NodeId, int] = {}
        for node in nodes:
            self._first[node] = len(self.rows)
            self.rows += [bytearray(COLUMNS) for _ in range(engine.nodes.gpus[node])]

    def paint(
        self, node: NodeId, gpus: Iterable[int], since: Instant, until: Instant, colour: int
    ) -> None:
        """Colour GPUs of a node for a span, at least one column; nothing if it is not shown."""
        if node in self._first:
            left = (since - self._begins_at) * COLUMNS // self._span
            right = max((until - self._begins_at) * COLUMNS // self._span, left + 1)
            for gpu in gpus:
                width = min(right, COLUMNS) - left
                self.rows[self._first[node] + gpu][left:right] = bytes([colour]) * width


def gantt(engine: Engine) -> Gantt:
    """Draw which tenant had which GPU when."""
    nodes, gpus = _shown(engine)
    canvas, tenants = _Canvas(engine, nodes), largest_tenants(engine)
    for stay in engine.nodes.stays:
        there = range(engine.nodes.gpus[stay.node])
        canvas.paint(stay.node, there, stay.since, stay.until, _IDLE)
    for number, stretch in enumerate(
        sorted(engine.stretches, key=lambda stretch: (stretch.since, stretch.job))
    ):
        org = engine.lives[stretch.job].work.org
        place = tenants.index(org) if org in tenants else len(TENANTS) - 1
        for piece in stretch.pieces:
            colour = _FIRST + 2 * place + number % 2
            canvas.paint(piece.node, piece.gpus, stretch.since, stretch.until, colour)
    rows = [bytes(row) for row in canvas.rows]
    return Gantt(png=_png(rows), rows=len(rows), gpus=gpus, nodes=nodes, tenants=tuple(tenants))


def as_text(picture: Gantt) -> str:
    """The picture as a data URL."""
    return "data:image/png;base64," + b64encode(picture.png).decode()


def _shown(engine: Engine) -> tuple[tuple[NodeId, ...], int]:
    """The nodes to show, spread evenly over all, and the total number of GPUs."""
    nodes = sorted({stay.node for stay in engine.nodes.stays})
    gpus = sum(engine.nodes.gpus[node] for node in nodes)
    every = 1
    while every < len(nodes) and sum(engine.nodes.gpus[node] for node in nodes[::every]) > ROWS:
        every += 1
    return tuple(nodes[::every]), gpus


def _palette() -> list[tuple[int, ...]]:
    """Red, green, blue and opacity."""
    colours: list[tuple[int, ...]] = [(0, 0, 0, 0), (136, 136, 136, 40)]
    for colour in TENANTS:
        colours += [(*colour, 255), (*(part * 3 // 4 + 48 for part in colour), 255)]
    return colours


def _png(rows: list[bytes]) -> bytes:
    """A PNG with a palette."""
    colours = _palette()
    parts = (
        (b"IHDR", pack(">IIBBBBB", COLUMNS, len(rows), 8, 3, 0, 0, 0)),
        (b"PLTE", b"".join(bytes(colour[:3]) for colour in colours)),
        (b"tRNS", bytes(colour[3] for colour in colours)),
        (b"IDAT", compress(b"".join(b"\0" + row for row in rows), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        pack(">I", len(body)) + name + body + pack(">I", crc32(name + body)) for name, body in parts
    )
