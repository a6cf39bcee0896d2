"""The protocol between agents and the service: reports, leases, nodes, logs, results (S9, S10).

Instants of a node are microseconds of its monotonic clock, and are compared only with each other.
Both sides use this module to read and write messages.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

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
FINISHED_JOBS_MAX: Final = 1_000  # jobs in one request
LOG_MAX: Final = 64 * 1024  # bytes of a log in one request
ADDRESSES_MAX: Final = 64  # of the service that a node learns
ARGUMENTS_MAX: Final = 1_024
ARGUMENT_MAX: Final = 128 * 1024  # characters; the operating system allows no more

Whole = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
Micros = Annotated[int, Field(ge=0, le=NEVER, description="microseconds")]
Gpu = Annotated[int, Field(ge=0, lt=GPUS_MAX)]


def _check_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it contains a NUL character")
    return text


def _check_variable(name: str) -> str:
    if "=" in name or "\0" in name:
        raise ValueError("the name of a variable contains neither = nor NUL")
    return name


Argument = Annotated[str, Field(max_length=ARGUMENT_MAX), AfterValidator(_check_no_nul)]
Variable = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_check_variable)]


# Results

# Readers may open these URIs, so a scheme that runs something is refused, such as `javascript`.
URI_SCHEMES: Final = (
    *("abfs", "abfss", "az", "file", "gs", "hdfs", "hf", "http", "https", "nfs", "oci", "s3"),
)


def _check_uri(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if not separator or not rest or scheme.lower() not in URI_SCHEMES:
        raise ValueError(f"a uri starts with one of {', '.join(URI_SCHEMES)} and ://")
    if not uri.isprintable() or " " in uri:
        raise ValueError("a uri has no spaces or control characters")
    return uri


class Output(WireModel):
    """An output of a job: its URI, or its content if it is small."""

    name: Text | None = None
    uri: Annotated[str, Field(max_length=2_048), AfterValidator(_check_uri)] | None = None
    inline: Annotated[str | None, Field(max_length=RESULT_MAX)] = None
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    type: Text | None = None

    @model_validator(mode="after")
    def _check_location(self) -> Self:
        if (self.uri is None) == (self.inline is None):
            raise ValueError("an output has either a uri or inline content")
        if self.uri is not None and self.sha256 is None:
            raise ValueError("an output with a uri needs a sha256")
        return self


class JobOutputs(WireModel):
    """The outputs of a job."""

    outputs: Annotated[list[Output], Field(max_length=OUTPUTS_MAX)]


def find_result_error(result: str) -> str | None:
    """What is wrong with a result; None if it is valid JSON of this form and not too long."""
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


def _check_result(text: str) -> str:
    if (error := find_result_error(text)) is not None:
        raise ValueError(f"not a valid result: {error}")
    return text


ResultText = Annotated[str, Field(max_length=RESULT_MAX), AfterValidator(_check_result)]


# Reports


class NodeReading(WireModel):
    """What a node reports about one process."""

    fence: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    run_ms: Whole
    saved_ms: Whole = 0
    run_ms_at_stop: Annotated[
        Whole | None, Field(description="Run time when the process was asked to stop.")
    ] = None
    exit: Annotated[Exit | None, Field(strict=False)] = None
    exit_code: Annotated[int | None, Field(ge=0, le=255)] = None
    result: ResultText | None = None

    def to_core(self) -> core.Reading:
        """Convert to the core's value."""
        return core.Reading(
            fence=self.fence,
            run_ms=self.run_ms,
            saved_ms=self.saved_ms,
            run_ms_at_stop=self.run_ms_at_stop,
            exit=self.exit,
            exit_code=self.exit_code,
            result=self.result,
        )

    @classmethod
    def from_core(cls, reading: core.Reading) -> Self:
        """Build the response from the core's reading."""
        return cls(
            fence=reading.fence,
            run_ms=reading.run_ms,
            saved_ms=reading.saved_ms,
            run_ms_at_stop=reading.run_ms_at_stop,
            exit=reading.exit,
            exit_code=reading.exit_code,
            result=reading.result,
        )


class ReportRequest(WireModel):
    """A report of a node about all its processes. The path names the node."""

    boot: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    number: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    at_us: Micros
    last_response_us: Micros | None = None
    readings: Annotated[list[NodeReading], Field(max_length=READINGS_MAX)]
    addresses_digest: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9a-f]{16}$",
            description="Digest of the service's addresses that the node has learned. If they have"
            " changed, the response has the new ones. Null: the node does not want them.",
        ),
    ] = None

    def to_core(self, node: str) -> core.NodeReport:
        """Convert to the core's value."""
        return core.NodeReport(
            node=NodeId(node),
            boot=self.boot,
            number=self.number,
            at=self.at_us,
            answered_at=self.last_response_us,
            readings=tuple(reading.to_core() for reading in self.readings),
        )

    @classmethod
    def from_core(cls, report: core.NodeReport, addresses_digest: str | None = None) -> Self:
        """Build the request from the core's report."""
        return cls(
            addresses_digest=addresses_digest,
            boot=report.boot,
            number=report.number,
            at_us=report.at,
            last_response_us=report.answered_at,
            readings=[NodeReading.from_core(reading) for reading in report.readings],
        )


# Orders


class LeasePiece(WireModel):
    """The part of this node that a lease has."""

    gpus: Annotated[list[Gpu], Field(max_length=GPUS_MAX)]
    slots: Annotated[int, Field(ge=0, le=SLOTS_MAX)]
    cpu_milli: Whole = 0
    ram_mib: Whole = 0

    def to_core(self, node: NodeId) -> Piece:
        """Convert to the core's value."""
        return Piece(node, tuple(self.gpus), self.slots, self.cpu_milli, self.ram_mib)

    @classmethod
    def from_core(cls, piece: Piece) -> Self:
        """Build the response from the core's piece."""
        return cls(
            gpus=list(piece.gpus),
            slots=piece.slots,
            cpu_milli=piece.cpu_milli,
            ram_mib=piece.ram_mib,
        )


class LeaseProgram(WireModel):
    """What a node runs, and its limits."""

    command: Annotated[list[Argument], Field(max_length=ARGUMENTS_MAX)]
    env: Annotated[dict[Variable, Argument], Field(max_length=ARGUMENTS_MAX)]
    memory_mib: Whole = 0
    checkpoint_every_ms: Whole = 0

    def to_core(self) -> Program:
        """Convert to the core's value."""
        return Program(
            command=tuple(self.command),
            env=tuple(sorted(self.env.items())),
            memory_mib=self.memory_mib,
            checkpoint_every_ms=self.checkpoint_every_ms,
        )

    @classmethod
    def from_core(cls, program: Program) -> Self:
        """Build the response from the core's program."""
        return cls(
            command=list(program.command),
            env=dict(program.env),
            memory_mib=program.memory_mib,
            checkpoint_every_ms=program.checkpoint_every_ms,
        )


class LeaseOrder(WireModel):
    """A lease on a node."""

    fence: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    org: Text
    job: Text
    attempt: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    piece: LeasePiece
    ttl_us: Annotated[
        Micros,
        Field(description="How long the lease lasts, counted from when the report was sent."),
    ]
    run_ms_max: Whole
    program: LeaseProgram
    nodes: list[Text]
    stop: bool = False

    def to_core(self, node: NodeId) -> core.LeaseOrder:
        """Convert to the core's value."""
        return core.LeaseOrder(
            fence=self.fence,
            org=self.org,
            job=JobId(self.job),
            attempt=self.attempt,
            piece=self.piece.to_core(node),
            ttl_us=self.ttl_us,
            run_ms_max=self.run_ms_max,
            program=self.program.to_core(),
            nodes=tuple(NodeId(name) for name in self.nodes),
            stop=self.stop,
        )

    @classmethod
    def from_core(cls, order: core.LeaseOrder) -> Self:
        """Build the response from the core's order."""
        return cls(
            fence=order.fence,
            org=order.org,
            job=order.job,
            attempt=order.attempt,
            piece=LeasePiece.from_core(order.piece),
            ttl_us=order.ttl_us,
            run_ms_max=order.run_ms_max,
            program=LeaseProgram.from_core(order.program),
            nodes=list(order.nodes),
            stop=order.stop,
        )


class LeaseOrders(WireModel):
    """All leases of a node. Processes without a lease must stop."""

    boot: Whole
    number: Whole
    at_us: Micros
    leases: list[LeaseOrder]

    def to_core(self, node: NodeId) -> core.LeaseOrders:
        """Convert to the core's value."""
        return core.LeaseOrders(
            node=node,
            boot=self.boot,
            number=self.number,
            at=self.at_us,
            leases=tuple(lease.to_core(node) for lease in self.leases),
        )

    @classmethod
    def from_core(cls, orders: core.LeaseOrders) -> Self:
        """Build the response from the core's orders."""
        return cls(
            boot=orders.boot,
            number=orders.number,
            at_us=orders.at,
            leases=[LeaseOrder.from_core(lease) for lease in orders.leases],
        )


def check_address(url: str) -> str:
    """The address of a service in its usual form; `ValueError` if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address begins with http:// or https:// and a host")
    if parts.username is not None or parts.query or parts.fragment or not url.isprintable():
        raise ValueError("an address has no user, query or fragment")
    return url.rstrip("/")


Address = Annotated[str, Field(max_length=512), AfterValidator(check_address)]


class ReportResponse(WireModel):
    """The response to a report. `orders` is null for an outdated report or an unknown node."""

    orders: LeaseOrders | None
    addresses: Annotated[
        list[Address] | None,
        Field(
            max_length=ADDRESSES_MAX,
            description="All addresses of the service; null if the node has learned them already.",
        ),
    ] = None

    @classmethod
    def from_core(
        cls, orders: core.LeaseOrders | None, addresses: Sequence[str] | None = None
    ) -> Self:
        """Build the response from the core's orders."""
        return cls(
            orders=None if orders is None else LeaseOrders.from_core(orders),
            addresses=None if addresses is None else list(addresses[:ADDRESSES_MAX]),
        )


def addresses_digest(urls: Sequence[str]) -> str:
    """Identifies a set of addresses in a report."""
    return sha256("\n".join(sorted(urls)).encode()).hexdigest()[:16]


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
        """Convert to the core's value."""
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
    """A part of the output of a process, and its progress.

    Positions count bytes as they were printed. `text` is what can be decoded of `size` bytes.
    """

    fence: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    offset: Whole
    size: Annotated[int, Field(ge=0, le=LOG_MAX)]
    text: Annotated[str, Field(max_length=LOG_MAX), AfterValidator(_check_no_nul)]
    progress_ppm: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    last: Annotated[
        bool, Field(description="Whether the process has ended and this completes its log.")
    ] = False


class LogResponse(WireModel):
    """The position up to which the pool has the log. The next part starts there."""

    offset: Whole


# Finished jobs


class JobRef(WireModel):
    """A job and its org."""

    org: Text
    job: Text


class FinishedJobsRequest(WireModel):
    """Jobs whose files are still on a node."""

    jobs: Annotated[list[JobRef], Field(max_length=FINISHED_JOBS_MAX)]


class FinishedJob(JobRef):
    """A job that has finished and will not run again."""

    finished_ms_ago: Annotated[int, Field(ge=0, description="Milliseconds since the job finished.")]


class FinishedJobsResponse(WireModel):
    """The finished jobs among those that the node has had. Others may run again."""

    jobs: list[FinishedJob]


# As text


def to_json_values(model: WireModel) -> dict[str, Any]:
    """A model as JSON values, without fields that have their default."""
    return model.model_dump(mode="json", exclude_defaults=True)


class ReportAnswer(NamedTuple):
    """What the response to a report says."""

    orders: core.LeaseOrders | None  # None: the pool has a later report, or does not know the node
    addresses: list[str] | None  # of the service, if they have changed


def parse_report_answer(body: str, node: str) -> ReportAnswer:
    """Parse the response to a report; `ValueError` if it is invalid."""
    response = ReportResponse.model_validate(parse_json(body.encode()))
    orders = None if response.orders is None else response.orders.to_core(NodeId(node))
    return ReportAnswer(orders, response.addresses)
