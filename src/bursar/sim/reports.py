"""The reports of nodes in a simulation: late, lost, and with clocks that run fast or slow."""

from bursar.core.ids import JobId, NodeId
from bursar.sim.rng import Chance
from bursar.sim.world import ClockDrift


class Reports:
    """The faults of reports; each depends only on the name of the report."""

    def __init__(self, clocks: ClockDrift, chance: Chance) -> None:
        self._clocks = clocks
        self._chance = chance
        self._drifts: dict[NodeId, int] = {}

    def late(self, job: JobId, attempt: int, number: int) -> int:
        """The delay of a report, in microseconds."""
        if not self._clocks.late:
            return 0
        return int(self._chance.stream(f"late/{job}/{attempt}/{number}").wait(self._clocks.late))

    def lost(self, job: JobId, attempt: int, number: int) -> bool:
        """Whether a report is lost."""
        if not self._clocks.lost:
            return False
        return self._chance.stream(f"lost/{job}/{attempt}/{number}").part() < self._clocks.lost

    def drift(self, node: NodeId) -> int:
        """The error of a node's clock, in millionths."""
        most = self._clocks.drift_ppm
        if most and node not in self._drifts:
            part = self._chance.stream(f"clock/{node}").part()
            self._drifts[node] = round((2 * part - 1) * most)
        return self._drifts.get(node, 0)
