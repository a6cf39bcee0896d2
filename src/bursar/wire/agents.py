"""What nodes and their pool tell each other: reports, orders, nodes, logs, results (S9, S10).

Spans and instants of nodes are microseconds of a clock that only runs; they are compared with
nothing but themselves. Server and agent both read and write through this module alone.
"""

from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from bursar.core.dispatch import reports as core
from bursar.core.dispatch.state import Exit
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import NEVER
from bursar.core.messages import Program
from bursar.core.money import AMOUNT_MAX
from bursar.core.scheduling.model.nodes import GPUS_MAX, SLOTS_MAX, Node, NodeState, Piece
from bursar.wire.fields import Names, Text, WireModel
from bursar.wire.strict_json import Malformed, parse_json

READINGS_MAX: Final = 4_096  # of one report
OUTPUTS_MAX: Final = 1_000  # of one result
RESULT_MAX: Final = 64 * 1024  # bytes of a result
OVER_MAX: Final = 1_000  # jobs that are asked about at once
LOG_MAX: Final = 64 * 1024  # bytes of a log that are sent at once
ARGUMENTS_MAX: Final = 1_024
ARGUMENT_MAX: Final = 128 * 1024  # characters; the system takes no longer ones

Whole = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
Micros = Annotated[int, Field(ge=0, le=NEVER, description="microseconds")]
Gpu = Annotated[int, Field(ge=0, lt=GPUS_MAX)]


def _no_nul(given: str) -> str:
    if "\0" in given:
        raise ValueError("it has a character that cannot be kept")
    return given


def _variable(given: str) -> str:
    if "=" in given or "\0" in given:
        raise ValueError("a variable's name has neither = nor NUL in it")
    return given


Argument = Annotated[str, Field(max_length=ARGUMENT_MAX), AfterValidator(_no_nul)]
Variable = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_variable)]


# What a process leaves


class Output(WireModel):
    """One thing that a job has made: where it is, or the thing itself if it is small."""

    name: Text | None = None
    uri: Annotated[str | None, Field(min_length=1, max_length=2_048)] = None
    inline: Annotated[str | None, Field(max_length=RESULT_MAX)] = None
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    type: Text | None = None

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if (self.uri is None) == (self.inline is None):
            raise ValueError("an output has a uri or is inline")
        if self.uri is not None and self.sha256 is None:
            raise ValueError("an output that is elsewhere has a sha256")
        return self


class JobOutputs(WireModel):
    """What a job has made."""

    outputs: Annotated[list[Output], Field(max_length=OUTPUTS_MAX)]


def complaint_about(result: str) -> str | None:
    """What is wrong with a result: it is JSON of the right shape, and not too long."""
    if len(result.encode(errors="replace")) > RESULT_MAX:
        return f"it has more than {RESULT_MAX} bytes"
    try:
        JobOutputs.model_validate({"outputs": parse_json(result.encode())})
    except (Malformed, UnicodeEncodeError) as error:
        return str(error)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'/'.join(map(str, first['loc']))}: {first['msg']}"
    return None


def _result(given: str) -> str:
    if (wrong := complaint_about(given)) is not None:
        raise ValueError(f"it is no result: {wrong}")
    return given


ResultText = Annotated[str, Field(max_length=RESULT_MAX), AfterValidator(_result)]


# Reports


class NodeReading(WireModel):
    """What a node says of one process."""

    fence: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    run_ms: Whole
    saved_ms: Whole = 0
    run_ms_at_stop: Annotated[
        Whole | None, Field(description="what it had run when it was asked to stop")
    ] = None
    exit: Annotated[Exit | None, Field(strict=False)] = None
    exit_code: Annotated[int | None, Field(ge=0, le=255)] = None
    result: ResultText | None = None

    def to_core(self) -> core.Reading:
        """The same, for the rules."""
        return core.Reading(
            fence=self.fence,
            run_ms=self.run_ms,
            saved_ms=self.saved_ms,
            asked_ms=self.run_ms_at_stop,
            exit=self.exit,
            exit_code=self.exit_code,
            result=self.result,
        )

    @classmethod
    def from_core(cls, reading: core.Reading) -> Self:
        """A reading of the rules, told."""
        return cls(
            fence=reading.fence,
            run_ms=reading.run_ms,
            saved_ms=reading.saved_ms,
            run_ms_at_stop=reading.asked_ms,
            exit=reading.exit,
            exit_code=reading.exit_code,
            result=reading.result,
        )


class ReportRequest(WireModel):
    """All that a node knows; whose report it is, its address says."""

    boot: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    number: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    at_us: Micros
    last_response_us: Micros | None = None
    readings: Annotated[list[NodeReading], Field(max_length=READINGS_MAX)]

    def to_core(self, node: str) -> core.NodeReport:
        """The same, for the rules."""
        return core.NodeReport(
            node=NodeId(node),
            boot=self.boot,
            n=self.number,
            at=self.at_us,
            heard=self.last_response_us,
            readings=tuple(one.to_core() for one in self.readings),
        )

    @classmethod
    def from_core(cls, report: core.NodeReport) -> Self:
        """A report of the rules, told."""
        return cls(
            boot=report.boot,
            number=report.n,
            at_us=report.at,
            last_response_us=report.heard,
            readings=[NodeReading.from_core(one) for one in report.readings],
        )


# Orders


class LeasePiece(WireModel):
    """What a lease has of this node."""

    gpus: Annotated[list[Gpu], Field(max_length=GPUS_MAX)]
    slots: Annotated[int, Field(ge=0, le=SLOTS_MAX)]
    cpu_milli: Whole = 0
    ram_mib: Whole = 0

    def to_core(self, node: NodeId) -> Piece:
        """The same, for the rules."""
        return Piece(node, tuple(self.gpus), self.slots, self.cpu_milli, self.ram_mib)

    @classmethod
    def from_core(cls, piece: Piece) -> Self:
        """A piece of the rules, told."""
        return cls(
            gpus=list(piece.gpus),
            slots=piece.slots,
            cpu_milli=piece.cpu_milli,
            ram_mib=piece.ram_mib,
        )


class LeaseProgram(WireModel):
    """What a node runs, and what it lets it have."""

    command: Annotated[list[Argument], Field(max_length=ARGUMENTS_MAX)]
    env: Annotated[dict[Variable, Argument], Field(max_length=ARGUMENTS_MAX)]
    memory_mib: Whole = 0
    checkpoint_every_ms: Whole = 0

    def to_core(self) -> Program:
        """The same, for the rules."""
        return Program(
            command=tuple(self.command),
            env=tuple(sorted(self.env.items())),
            memory_mib=self.memory_mib,
            checkpoint_every_ms=self.checkpoint_every_ms,
        )

    @classmethod
    def from_core(cls, program: Program) -> Self:
        """A program of the rules, told."""
        return cls(
            command=list(program.command),
            env=dict(program.env),
            memory_mib=program.memory_mib,
            checkpoint_every_ms=program.checkpoint_every_ms,
        )


class LeaseOrder(WireModel):
    """A lease that a node has."""

    fence: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    org: Text
    job: Text
    attempt: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    piece: LeasePiece
    ttl_us: Annotated[Micros, Field(description="from when the report was sent")]
    run_ms_max: Whole
    program: LeaseProgram
    nodes: list[Text]
    stop: bool = False

    def to_core(self, node: NodeId) -> core.LeaseOrder:
        """The same, for the rules."""
        return core.LeaseOrder(
            fence=self.fence,
            org=self.org,
            job=JobId(self.job),
            attempt=self.attempt,
            piece=self.piece.to_core(node),
            lasts=self.ttl_us,
            run_ms_max=self.run_ms_max,
            program=self.program.to_core(),
            nodes=tuple(NodeId(one) for one in self.nodes),
            stop=self.stop,
        )

    @classmethod
    def from_core(cls, order: core.LeaseOrder) -> Self:
        """An order of the rules, told."""
        return cls(
            fence=order.fence,
            org=order.org,
            job=order.job,
            attempt=order.attempt,
            piece=LeasePiece.from_core(order.piece),
            ttl_us=order.lasts,
            run_ms_max=order.run_ms_max,
            program=LeaseProgram.from_core(order.program),
            nodes=list(order.nodes),
            stop=order.stop,
        )


class LeaseOrders(WireModel):
    """All leases of a node; what is not among them has no right."""

    boot: Whole
    number: Whole
    at_us: Micros
    leases: list[LeaseOrder]

    def to_core(self, node: NodeId) -> core.LeaseOrders:
        """The same, for the rules."""
        return core.LeaseOrders(
            node=node,
            boot=self.boot,
            n=self.number,
            at=self.at_us,
            leases=tuple(one.to_core(node) for one in self.leases),
        )

    @classmethod
    def from_core(cls, orders: core.LeaseOrders) -> Self:
        """Orders of the rules, told."""
        return cls(
            boot=orders.boot,
            number=orders.n,
            at_us=orders.at,
            leases=[LeaseOrder.from_core(one) for one in orders.leases],
        )


class ReportResponse(WireModel):
    """The answer to a report: no orders if a later one was heard, or nobody knows the node."""

    orders: LeaseOrders | None

    @classmethod
    def from_core(cls, orders: core.LeaseOrders | None) -> Self:
        """What the rules answer, told."""
        return cls(orders=None if orders is None else LeaseOrders.from_core(orders))


# Nodes


class NodeRequest(WireModel):
    """A node as it registers itself."""

    gpu_type: Text
    gpus: Annotated[int, Field(ge=0, le=GPUS_MAX)]
    slots: Annotated[int, Field(ge=1, le=SLOTS_MAX)] = 1
    memory_gib: Annotated[Whole, Field(description="of each GPU")] = 0
    cpu_milli: Whole = 0
    ram_mib: Whole = 0
    island: Annotated[str, Field(max_length=255)] = ""
    rack: Annotated[str, Field(max_length=255)] = ""
    region: Annotated[str, Field(max_length=255)] = ""
    labels: Annotated[Names, Field(default_factory=list)]

    def to_core(self, node: str, state: NodeState = NodeState.READY) -> Node:
        """The same, for the rules."""
        return Node(
            id=NodeId(node),
            gpu_type=self.gpu_type,
            gpus=self.gpus,
            slots=self.slots,
            memory_gib=self.memory_gib,
            cpu_milli=self.cpu_milli,
            ram_mib=self.ram_mib,
            island=self.island,
            rack=self.rack,
            region=self.region,
            labels=tuple(sorted(set(self.labels))),
            state=state,
        )


# Logs


class LogRequest(WireModel):
    """A part of what a process has printed, and how far it says that it is.

    Positions are bytes as they were printed: the text is what can be read of `size` of them.
    """

    fence: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    offset: Whole
    size: Annotated[int, Field(ge=0, le=LOG_MAX)]
    text: Annotated[str, Field(max_length=LOG_MAX), AfterValidator(_no_nul)]
    progress_ppm: Annotated[int | None, Field(ge=0, le=1_000_000)] = None


class LogResponse(WireModel):
    """Up to where the pool has a log: whatever was sent, the next part begins there."""

    offset: Whole


# What is over


class JobRef(WireModel):
    """A job, and whose it is."""

    org: Text
    job: Text


class FinishedJobsRequest(WireModel):
    """Jobs of which a node has something left."""

    jobs: Annotated[list[JobRef], Field(max_length=OVER_MAX)]


class FinishedJob(JobRef):
    """A job that is over: nothing can become of it any more."""

    finished_ms_ago: Annotated[int, Field(ge=0, description="for how long")]


class FinishedJobsResponse(WireModel):
    """Those of the jobs that are over, and that the node has had; the others may go on."""

    jobs: list[FinishedJob]


# As text


def written(told: WireModel) -> dict[str, Any]:
    """A shape as JSON values, without what has its usual value."""
    return told.model_dump(mode="json", exclude_defaults=True)


def orders_of(body: str, node: str) -> core.LeaseOrders | None:
    """The orders that an answer brings to a node; `ValueError` if it is no such answer."""
    told = ReportResponse.model_validate(parse_json(body.encode()))
    return None if told.orders is None else told.orders.to_core(NodeId(node))
