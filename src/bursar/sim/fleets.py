"""The nodes of a simulation, and what their GPUs cost."""

from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, NEVER
from bursar.core.money import AMOUNT_MAX, CREDIT, Micros
from bursar.core.scheduling.model.nodes import GPUS_MAX, SLOTS_MAX, Node
from bursar.core.validation import check_int, check_text
from bursar.core.value import replace, value


@value
class Group:
    """Equal nodes."""

    gpu_type: str
    nodes: int
    gpus: int = 8  # of each node
    slots: int = 1  # parts of a GPU that can be leased apart
    price: Micros = 2 * CREDIT  # of a GPU-hour
    racks: int = 1  # the nodes stand in so many, in turn
    joins: int = 0  # microseconds after the beginning from when on they are there: on order before
    fails_every: int = 0  # microseconds of a node between failures, on average; 0: never
    repaired_in: int = HOUR  # microseconds until a node that failed is there again

    def __post_init__(self) -> None:
        check_text("gpu_type", self.gpu_type)
        check_int("nodes", self.nodes, 0, 100_000)
        check_int("gpus", self.gpus, 1, GPUS_MAX)
        check_int("slots", self.slots, 1, SLOTS_MAX)
        check_int("price", self.price, 0, AMOUNT_MAX)
        check_int("racks", self.racks, 1, 100_000)
        check_int("joins", self.joins, 0, NEVER)
        check_int("fails_every", self.fails_every, 0, NEVER)
        check_int("repaired_in", self.repaired_in, 1, NEVER)


@value
class Fleet:
    """All nodes of a world."""

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        if not sum(group.nodes for group in self.groups):
            raise ValueError("a fleet has at least one node")

    @property
    def types(self) -> tuple[str, ...]:
        """The GPU types of the fleet, each once, in the given order."""
        return tuple(dict.fromkeys(group.gpu_type for group in self.groups if group.nodes))

    @property
    def prices(self) -> tuple[tuple[str, Micros], ...]:
        """GPU type → micro-credits per GPU-hour; the first group of a type counts."""
        prices: dict[str, Micros] = {}
        for group in self.groups:
            prices.setdefault(group.gpu_type, group.price)
        return tuple(prices.items())

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(group.nodes * group.gpus for group in self.groups)

    @property
    def node_gpus(self) -> int:
        """The GPUs of the largest node: the largest job that fits on one node."""
        return max(group.gpus for group in self.groups if group.nodes)

    def named(self) -> tuple[tuple[Node, Group], ...]:
        """Every node with its group."""
        nodes = []
        for place, group in enumerate(self.groups):
            for number in range(group.nodes):
                name = NodeId(f"{group.gpu_type}-{place}-{number:04}")
                rack = f"r{place}-{number % group.racks}"
                node = Node(
                    id=name, gpu_type=group.gpu_type, gpus=group.gpus, slots=group.slots, rack=rack
                )
                nodes.append((node, group))
        return tuple(nodes)

    def with_gpus(self, gpu_type: str, gpus: int) -> "Fleet":
        """The fleet with this many GPUs of a type more or fewer, in whole nodes."""
        for place, group in enumerate(self.groups):
            if group.gpu_type == gpu_type:
                nodes, rest = divmod(gpus, group.gpus)
                if rest:
                    text = f"{gpus:+} GPUs is not a number of whole nodes, which have {group.gpus}"
                    raise ValueError(text)
                more = replace(group, nodes=group.nodes + nodes)
                return Fleet(groups=(*self.groups[:place], more, *self.groups[place + 1 :]))
        node = min(self.node_gpus, abs(gpus))
        if gpus <= 0 or gpus % node:
            raise ValueError(f"no node has {gpu_type}: their number cannot change by {gpus:+}")
        return Fleet(groups=(*self.groups, Group(gpu_type=gpu_type, nodes=gpus // node, gpus=node)))
