"""The properties of a run that are drawn once from its seed."""

from dataclasses import dataclass
from random import Random
from typing import Final

from bursar.core.instant import SECOND, Instant

START: Final[Instant] = 1_767_225_600 * SECOND  # when every world begins


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """The size of a world, and the rates of its faults."""

    orgs: int = 2
    pools: int = 1
    nodes: int = 3  # of a pool
    gpus: int = 2  # of a node
    slots: int = 1  # of a GPU: parts that can be leased apart
    jobs: int = 6
    faults_last: int = 75 * SECOND  # how long things fail
    loss: float = 0.0  # of messages
    repeat: float = 0.0
    slow: float = 0.0  # of messages: seconds late instead of milliseconds
    stale: float = 0.0  # of messages: half a minute late and more
    crash: float = 0.0  # between two transactions, or two actions of an agent
    stall: float = 0.0  # of decisions: the leader is stopped before it writes
    faults_every: int = 8 * SECOND  # a crash, a pause, a partition, a jump of a clock
    node_ppm: int = 10_000  # most that a node's clock gains or loses
    freezes: bool = True  # whether nodes stop as a whole, their guards included
    mixed: bool = False  # whether some jobs are arrays, have rolling holds, or share results
    kinds: tuple[str, ...] = ()  # of faults that happen; all if none is named


def draw_profile(seed: int, *, mixed: bool = False, pools: int = 1) -> FaultProfile:
    """The profile of a seed: some are calm, some are bad, most have a few kinds of faults."""
    random = Random(f"profile/{seed}")
    calm = random.random() < 0.1

    def some(most: float) -> float:
        return 0.0 if calm or random.random() < 0.4 else most * random.random() ** 2

    return FaultProfile(
        orgs=random.choice((1, 2)),
        pools=pools,
        nodes=max(random.choice((2, 3, 3, 4)) + 1 - pools, 2),
        slots=random.choice((1, 1, 2)),
        jobs=random.randint(3, 7) + 2 * (pools - 1),
        loss=some(0.3),
        repeat=some(0.3),
        slow=some(0.3),
        stale=some(0.05),
        crash=some(0.03),
        stall=some(0.5),
        faults_every=random.choice((3, 6, 6, 12, 1_000 if calm else 6)) * SECOND,
        node_ppm=random.choice((0, 1_000, 10_000)),
        mixed=mixed,
    )
