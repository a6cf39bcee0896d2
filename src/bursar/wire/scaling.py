"""Requests and responses of scaling and of ordered nodes (S12)."""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from bursar.core.dispatch.node_orders import NodeOrder, OrderState, RemovalReason, Scale
from bursar.core.ids import NodeId
from bursar.core.instant import DAY, HOUR, MINUTE, SECOND, Instant
from bursar.core.money import PPM
from bursar.core.scheduling.advice.autoscale import CapacityOffer, Scaling
from bursar.core.scheduling.model.nodes import GPUS_MAX, SLOTS_MAX, Node
from bursar.wire.fields import Micros, Names, Text, Time, WireModel

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$"  # a node's name is this and a little more
OFFERS_MAX: Final = 32
NODES_MAX: Final = 10_000
SECONDS_MAX: Final = 366 * DAY // SECOND

Seconds = Annotated[int, Field(ge=0, le=SECONDS_MAX)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Place = Annotated[str, Field(max_length=255)]


class NodeOffer(WireModel):
    """A node type that can be ordered."""

    name: Annotated[str, Field(pattern=NAME, examples=["h100-spot"])]
    gpu_type: Text
    gpus: Annotated[int, Field(ge=1, le=GPUS_MAX)]
    slots: Annotated[int, Field(ge=1, le=SLOTS_MAX)] = 1
    memory_gib: Annotated[Whole, Field(description="of each GPU")] = 0
    cpu_milli: Whole = 0
    ram_mib: Whole = 0
    region: Place = ""
    rack: Place = ""
    labels: Annotated[Names, Field(default_factory=list)]
    price_micros_per_hour: Annotated[Micros, Field(description="of one node, to the operator")]
    delay_seconds: Annotated[Seconds, Field(description="from the order to its first report")]
    nodes_max: Annotated[int, Field(ge=0, le=NODES_MAX, description="ordered or there, at once")]

    def to_core(self) -> CapacityOffer:
        """Convert to the core's value."""
        node = Node(
            id=NodeId(self.name),
            gpu_type=self.gpu_type,
            gpus=self.gpus,
            slots=self.slots,
            memory_gib=self.memory_gib,
            cpu_milli=self.cpu_milli,
            ram_mib=self.ram_mib,
            region=self.region,
            rack=self.rack,
            labels=tuple(sorted(set(self.labels))),
        )
        return CapacityOffer(
            node=node,
            price=self.price_micros_per_hour,
            delay=self.delay_seconds * SECOND,
            most=self.nodes_max,
        )

    @classmethod
    def from_core(cls, offer: CapacityOffer) -> Self:
        """Build the response from the core's offer."""
        node = offer.node
        return cls(
            name=node.id,
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            slots=node.slots,
            memory_gib=node.memory_gib,
            cpu_milli=node.cpu_milli,
            ram_mib=node.ram_mib,
            region=node.region,
            rack=node.rack,
            labels=list(node.labels),
            price_micros_per_hour=offer.price,
            delay_seconds=offer.delay // SECOND,
            nodes_max=offer.most,
        )


class ScalingRequest(WireModel):
    """Which nodes can be ordered, and when. Without offers, none are."""

    offers: Annotated[list[NodeOffer], Field(max_length=OFFERS_MAX)]
    every_seconds: Annotated[
        int, Field(ge=1, le=SECONDS_MAX, description="from one piece of advice to the next")
    ] = MINUTE // SECOND
    patience_seconds: Annotated[
        Seconds, Field(description="by which a node may be late before it is given up")
    ] = 10 * MINUTE // SECOND
    keep_seconds: Annotated[
        Seconds, Field(description="a node is paid for so long: an order must be worth it")
    ] = HOUR // SECOND
    quiet_seconds: Annotated[
        Seconds, Field(description="a node must have been used by little for so long to go")
    ] = 30 * MINUTE // SECOND
    used_ppm: Annotated[
        int, Field(ge=0, le=PPM, description="what counts as little: this part of its GPUs")
    ] = 0
    horizon_seconds: Annotated[
        Seconds, Field(description="a job that never fits counts as if it started then")
    ] = DAY // SECOND
    drains_max: Annotated[int, Field(ge=0, le=NODES_MAX, description="nodes drained at once")] = 4
    spare_gpus: Annotated[
        int, Field(ge=0, le=GPUS_MAX * NODES_MAX, description="free GPUs of a type that stay")
    ] = 0

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len({offer.name for offer in self.offers}) < len(self.offers):
            raise ValueError("two offers have the same name")
        return self

    def to_core(self) -> Scale:
        """Convert to the core's value."""
        scaling = Scaling(
            keep=self.keep_seconds * SECOND,
            quiet=self.quiet_seconds * SECOND,
            used_ppm=self.used_ppm,
            horizon=self.horizon_seconds * SECOND,
            drains=self.drains_max,
            spare=self.spare_gpus,
        )
        return Scale(
            offers=tuple(offer.to_core() for offer in self.offers),
            scaling=scaling,
            every=self.every_seconds * SECOND,
            patience=self.patience_seconds * SECOND,
        )


class ScalingResponse(ScalingRequest):
    """The scaling of a pool."""

    has_provisioner: Annotated[
        bool, Field(description="Whether this process has a provisioner, which orders nodes.")
    ]

    @classmethod
    def from_core(cls, scale: Scale, *, has_provisioner: bool) -> Self:
        """Build the response from the core's scale."""
        scaling = scale.scaling
        return cls(
            offers=[NodeOffer.from_core(offer) for offer in scale.offers],
            every_seconds=scale.every // SECOND,
            patience_seconds=scale.patience // SECOND,
            keep_seconds=scaling.keep // SECOND,
            quiet_seconds=scaling.quiet // SECOND,
            used_ppm=scaling.used_ppm,
            horizon_seconds=scaling.horizon // SECOND,
            drains_max=scaling.drains,
            spare_gpus=scaling.spare,
            has_provisioner=has_provisioner,
        )


class NodeOrderResponse(WireModel):
    """A node that was ordered."""

    id: str
    offer: str
    node: str
    gpu_type: str
    gpus: int
    state: OrderState
    late: Annotated[bool, Field(description="Whether it should have reported by now.")]
    removal_reason: Annotated[RemovalReason | None, Field(description="Why the node is returned.")]
    last_error: Annotated[str, Field(description="The last error of the provisioner.")]
    ordered_at: Time
    ready_by: Time
    arrived_at: Time | None
    returned_at: Time | None
    price_micros_per_hour: int
    cost_micros: Annotated[int, Field(description="Its cost so far, from its first report.")]

    @classmethod
    def from_core(cls, order: NodeOrder, now: Instant) -> Self:
        """Build the response from the core's order."""
        return cls.model_construct(
            id=order.id,
            offer=order.offer,
            node=order.node.id,
            gpu_type=order.node.gpu_type,
            gpus=order.node.gpus,
            state=order.state,
            late=order.is_late(now),
            removal_reason=order.removal_reason,
            last_error=order.last_error,
            ordered_at=order.ordered_at,
            ready_by=order.ready_by,
            arrived_at=order.arrived_at,
            returned_at=order.gone_at,
            price_micros_per_hour=order.price,
            cost_micros=order.cost(now),
        )
