"""Requests and responses of jobs.

A request becomes a hold for the ledger (so many GPUs for so long), and a shape and a program for
the pool.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NamedTuple, Self
from zlib import crc32

from pydantic import AfterValidator, Field, model_validator

from bursar.core.dispatch.attempt_end import STOP_GRACE_MS
from bursar.core.ids import AccountId, HoldId, JobId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger import events
from bursar.core.ledger import values as core
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.quote import Quote
from bursar.core.messages import EndClass, JobSpec, Program
from bursar.core.money import AMOUNT_MAX, usage_price
from bursar.core.scheduling.model.jobs import CLASS_MAX, TASKS_MAX
from bursar.core.scheduling.model.jobs import Shape as Needs
from bursar.core.scheduling.model.nodes import Level
from bursar.wire.arrays import Array, JobArray
from bursar.wire.fields import GPUS_MAX, Id, IdFactory, Micros, SomeMicros, Text, Time, WireModel
from bursar.wire.problems import problem_from_refusal
from bursar.wire.responses import Rate, render_rates
from bursar.wire.result_cache import NO_MATCH, Cache, CacheMatch, JobCache, digest_result_inputs

DAY_S: Final = 86_400
RUN_S_MAX: Final = 60 * DAY_S  # the hold of a job lasts no longer
ROLLING_S: Final = 15 * 60  # default run time that a rolling hold covers at first
ON_A_NODE: Final = 8  # GPUs of one task, without `topology`
PROGRAM_MAX: Final = 65_536  # bytes of a command and its environment
TAG_DIGITS: Final = 3  # of a field in a digest
FIELD_DIGITS: Final = 6  # of a field in a digest: its tag, and a checksum of its value
DIGEST_FIELDS_MAX: Final = 31  # as many fit; others count in the hash alone
REQUEUES: Final = 10  # default: restarts after ends that the job did not cause

State = Literal[
    "queued",
    "starting",
    "running",
    "stopping",
    "out_of_credits",
    "succeeded",
    "failed",
    "cancelled",
    "expired",
]


# A canonical text: equal values have equal texts, whatever the order of their names.
_ENCODE: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def check_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character")
    return text


Word = Annotated[str, Field(max_length=32_768), AfterValidator(check_no_nul)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]
Names = Annotated[list[Text], Field(max_length=16)]


class Topology(WireModel):
    """How many nodes a job's GPUs are on, and how close together."""

    nodes: Annotated[int, Field(ge=1, le=TASKS_MAX)] = 1
    within: Literal["node", "island", "rack", "pool"] = "pool"


class GpuRequest(WireModel):
    """The GPUs that a job needs at the same time."""

    types: Annotated[list[Text], Field(min_length=1, max_length=16)]
    count: Annotated[int, Field(ge=1, le=GPUS_MAX, description="in all")] = 1
    memory_gib_min: Annotated[int, Field(ge=0, le=100_000, description="of each GPU")] = 0
    fraction_milli: Annotated[
        int | None,
        Field(ge=1, le=1_000, description="a part of one GPU, in thousandths: whole slots of it"),
    ] = None
    topology: Topology | None = None

    @model_validator(mode="after")
    def _check_placement(self) -> Self:
        if len(set(self.types)) < len(self.types):
            raise ValueError("types: list each type once, preferred type first")
        if self.fraction_milli is not None and self.count != 1:
            raise ValueError("fraction_milli: a part of a GPU goes with a count of 1")
        if self.count % self.nodes:
            raise ValueError(
                f"topology: {self.count} GPUs do not spread evenly over {self.nodes} nodes;"
                " set topology.nodes to a divisor of count"
            )
        return self

    @property
    def nodes(self) -> int:
        """The number of nodes. Default: as few as possible, with eight GPUs each."""
        if self.topology is not None:
            return self.topology.nodes
        return -(-self.count // ON_A_NODE)

    @property
    def milli(self) -> int:
        """The total, in thousandths of a GPU."""
        return self.fraction_milli or self.count * 1_000


class Checkpoint(WireModel):
    """How often a job makes checkpoints."""

    interval_seconds: Annotated[int, Field(ge=1, le=RUN_S_MAX)]


class JobRequest(WireModel):
    """Run a command on GPUs, for at most `max_run_seconds`."""

    account_id: Id
    user_id: Id | None = None
    command: Annotated[list[Word], Field(min_length=1, max_length=1_024)]
    gpus: GpuRequest
    max_run_seconds: Annotated[int, Field(ge=1, le=RUN_S_MAX)]
    likely_run_seconds: Annotated[int | None, Field(ge=0, le=RUN_S_MAX)] = None
    tier: Annotated[
        Text | None, Field(description="The org's tier, or a lower one. Default: the org's.")
    ] = None
    priority_class: Annotated[int, Field(ge=0, le=CLASS_MAX)] = 0
    preemptible: bool = True
    requeues_max: Annotated[int, Field(ge=0, le=1_000)] = REQUEUES
    checkpoint: Checkpoint | None = None
    memory_mib: Annotated[int, Field(ge=0, le=2**40, description="on each node")] = 0
    cpu_milli: Annotated[int, Field(ge=0, le=2**40, description="on each node")] = 0
    regions: Names = Field(default_factory=list)
    node_labels: Names = Field(default_factory=list, description="that its nodes must have")
    job_kind: Text | None = None
    labels: Annotated[dict[Text, Text], Field(max_length=64)] = Field(default_factory=dict)
    env: Annotated[dict[Variable, Word], Field(max_length=1_024)] = Field(default_factory=dict)
    max_cost_micros: Micros | None = None
    hold: Literal["full", "rolling"] = "full"
    rolling_seconds: Annotated[
        int, Field(ge=20, le=DAY_S, description="run time that a rolling hold sets aside at once")
    ] = ROLLING_S
    array: Annotated[
        Array | None, Field(description="run it many times; one hold covers them all")
    ] = None
    cache: Annotated[
        Cache | None, Field(description="whether it shares its result with jobs that are like it")
    ] = None
    pool: Text | None = None
    id: Id | None = None
    dry_run: bool = False

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        parts = [*self.command, *self.env, *self.env.values()]
        if sum(len(part.encode()) for part in parts) > PROGRAM_MAX:
            raise ValueError(f"command and env together have at most {PROGRAM_MAX:,} bytes")
        if not self.command[0]:
            raise ValueError("command: the first element must not be empty")
        return self

    @model_validator(mode="after")
    def _check_array(self) -> Self:
        if self.array is not None and self.hold == "rolling":
            raise ValueError(
                "array: the hold of an array covers all of it from the beginning; leave out `hold`,"
                " or submit the jobs one by one"
            )
        if self.cache is not None and self.array is not None:
            raise ValueError(
                "cache: the jobs of an array do not share their results; leave it out, or submit"
                " them one by one"
            )
        return self

    @property
    def run_ms(self) -> int:
        """The maximum run time plus the stop grace."""
        return self.max_run_seconds * 1_000 + STOP_GRACE_MS

    @property
    def held_ms(self) -> int:
        """The run time that the hold covers at first."""
        return (
            self.run_ms if self.hold == "full" else min(self.run_ms, self.rolling_seconds * 1_000)
        )

    @property
    def stored_form(self) -> dict[str, Any]:
        """The request as it is stored: without its id, with defaults filled in."""
        # Leave out later optional fields that are unset: earlier requests keep their stored form.
        optional = {"cache": self.cache, "array": self.array}
        unset = {name for name, value in optional.items() if value is None}
        return self.model_dump(mode="json", exclude={"id", "dry_run"} | unset)

    @property
    def result_digest(self) -> str | None:
        """A digest of the fields that decide the result; None without `cache`."""
        return (
            None if self.cache is None else digest_result_inputs(self.stored_form, self.cache.key)
        )

    @property
    def digest(self) -> str:
        """A hash of the request, and a short checksum of each field that is set.

        Two requests with different digests differ, and `first_difference` names the field. A field
        at its default leaves the digest unchanged, so a field that a later version adds does too.
        """
        named = self.model_dump(mode="json", exclude={"id", "dry_run"}, exclude_defaults=True)
        parts = [_tag(name) + _checksum(_ENCODE(value)) for name, value in sorted(named.items())]
        fields = "".join(parts[:DIGEST_FIELDS_MAX])
        return f"{sha256(_ENCODE(named).encode()).hexdigest()}:{fields}"

    def to_command(self, ids: IdFactory, user: str, capped_key: str | None) -> Reserve:
        """Build the command that opens the hold. `user` is used if the body names none."""
        job = ids.id("hold", self.id)
        if self.id is None:
            ids.generated_fields = (*ids.generated_fields, "context")  # which names the job
        return Reserve(
            hold=HoldId(job),
            account=AccountId(self.account_id),
            user=UserId(self.user_id or user),
            run_ms=self.held_ms,
            context=self.context(job),
            capped_key=None if capped_key is None else UserId(capped_key),
            for_job=True,
            max_cost=self.max_cost_micros,
            request_digest=self.digest,
            element_count=None if self.array is None else self.array.count,
            at_once=None if self.array is None else self.array.elements_at_once,
        )

    def context(self, job: str) -> core.Context:
        """What the hold is for."""
        return core.Context(
            gpu_types=tuple(self.gpus.types),
            milli_gpus=self.gpus.milli,
            region=self.regions[0] if len(self.regions) == 1 else None,
            job_kind=self.job_kind,
            priority_class=str(self.priority_class) if self.priority_class else None,
            job=JobId(job),
        )

    def spec(self) -> JobSpec:
        """Build what the pool needs to know."""
        estimate = self.likely_run_seconds
        return JobSpec(
            shape=self._shape(),
            program=Program(
                command=tuple(self.command),
                env=tuple(sorted(self.env.items())),
                memory_mib=self.memory_mib,
                checkpoint_every_ms=(
                    self.checkpoint.interval_seconds * 1_000 if self.checkpoint else 0
                ),
            ),
            priority_class=self.priority_class,
            preemptible=self.preemptible,
            estimate_ms=None if estimate is None else estimate * 1_000,
            requeues=self.requeues_max,
        )

    def _shape(self) -> Needs:
        gpus = self.gpus
        part = gpus.fraction_milli if gpus.fraction_milli != 1_000 else None
        return Needs(
            types=tuple(gpus.types),
            tasks=gpus.nodes,
            gpus=0 if part else gpus.count // gpus.nodes,
            milli=part or 0,
            memory_gib=gpus.memory_gib_min,
            cpu_milli=self.cpu_milli,
            ram_mib=self.memory_mib,
            labels=tuple(sorted(set(self.node_labels))),
            regions=tuple(sorted(set(self.regions))),
            within=Level(gpus.topology.within if gpus.topology else "pool"),
        )


def pricing_context(stored: Mapping[str, Any], gpu_types: tuple[str, ...]) -> core.Context:
    """The context that prices GPU types for a job, from the stored form of its request."""
    regions, priority_class = stored.get("regions", ()), stored.get("priority_class")
    return core.Context(
        gpu_types=gpu_types,
        region=regions[0] if len(regions) == 1 else None,
        priority_class=str(priority_class) if priority_class else None,
    )


class JobExtensionRequest(WireModel):
    """Reserve more credits for a job."""

    amount_micros: SomeMicros


def _checksum(text: str) -> str:
    """Three hex digits."""
    return f"{crc32(text.encode()) & 0xFFF:03x}"


def _tag(name: str) -> str:
    """What stands for a field in a digest, whatever other fields there are."""
    return _checksum(name)


def first_difference(was: str, now: str) -> str | None:
    """The first field in which two requests differ by their digests, in the order of fields."""
    before, after = _parse_fields(was), _parse_fields(now)
    names = {_tag(name): name for name in JobRequest.model_fields}
    differs = (name for tag, name in names.items() if before.get(tag) != after.get(tag))
    return next(differs, None)


def _parse_fields(digest: str) -> dict[str, str]:
    """The checksums of a digest by the tags of fields."""
    _, _, fields = digest.partition(":")
    parts = [fields[place : place + FIELD_DIGITS] for place in range(0, len(fields), FIELD_DIGITS)]
    return {part[:TAG_DIGITS]: part[TAG_DIGITS:] for part in parts}


# Answers


class SubmittedJob(WireModel):
    """A submitted job and its hold."""

    id: str
    account_id: str
    user_id: str
    state: Literal["queued", "succeeded"]
    follows: str | None  # the job whose result it waits for
    cached_from: str | None  # the job whose result it was given
    submitted_at: Time
    held_micros: Micros
    hold_expires_at: Time
    rates: list[Rate]
    dropped_gpu_types: list[str]

    @classmethod
    def from_core(cls, opened: events.HoldOpened, shares: CacheMatch = NO_MATCH) -> Self:
        """Build the response from the hold of the job."""
        terms = opened.terms
        return cls.model_construct(
            id=terms.id,
            account_id=terms.account,
            user_id=terms.user,
            state="succeeded" if shares.hit else "queued",
            follows=None if shares.hit else shares.source,
            cached_from=shares.source if shares.hit else None,
            submitted_at=opened.at,
            held_micros=0 if shares.hit else opened.open,
            hold_expires_at=opened.expires_at,
            rates=render_rates(terms.rates, terms.price_versions),
            dropped_gpu_types=list(opened.dropped),
        )


class QuotedPool(NamedTuple):
    """The pool that a job would wait in, why, and how long; or why it would be rejected."""

    pool: str
    why: str | None = None
    wait_s: int | None = None
    problem: Mapping[str, Any] | None = None
    earliest: Instant | None = None
    latest: Instant | None = None


class JobQuote(WireModel):
    """What a job would cost and every reason that would refuse it. Nothing was changed."""

    held_micros: Micros
    likely_micros: Micros
    max_micros: Micros  # what it costs if all of it runs as long as it may, on the dearest type
    spendable_micros: Micros
    spendable_after_micros: Micros
    micros_per_hour: Micros  # of the type that is preferred, all GPUs that it has at once
    rates: list[Rate]
    dropped_gpu_types: list[str]
    pool: Annotated[
        str | None,
        Field(description="The pool that it would wait in; null if no pool can take it."),
    ]
    pool_reason: Annotated[str | None, Field(description="Why this pool, as a sentence.")]
    expected_wait_seconds: Annotated[
        int | None, Field(description="Seconds until it starts there; null if unknown.")
    ]
    earliest_at: Annotated[
        Time | None, Field(description="The earliest likely start; null if unknown.")
    ]
    latest_at: Annotated[
        Time | None, Field(description="The latest likely start; null if unknown.")
    ]
    cache: Annotated[
        JobCache | None,
        Field(description="What the result cache would do; null if the job does not use it."),
    ]
    problems: list[dict[str, Any]]

    @classmethod
    def from_core(
        cls, quote: Quote, request: JobRequest, place: QuotedPool, cache: JobCache | None = None
    ) -> Self:
        """Build the response from the core's quote."""
        milli, rates = request.gpus.milli, [rate for _, rate in quote.rates]
        times, at_once = (
            (request.array.count, request.array.elements_at_once) if request.array else (1, 1)
        )
        return cls.model_construct(
            held_micros=quote.held,
            likely_micros=quote.likely,
            max_micros=usage_price(max(rates, default=0), milli, request.run_ms) * times,
            spendable_micros=quote.spendable,
            spendable_after_micros=max(quote.spendable - quote.held, 0),
            micros_per_hour=(rates[0] * milli // 1_000) * at_once if rates else 0,
            rates=render_rates(quote.rates, quote.price_versions),
            dropped_gpu_types=list(quote.dropped),
            pool=place.pool or None,
            pool_reason=place.why,
            expected_wait_seconds=place.wait_s,
            earliest_at=place.earliest,
            latest_at=place.latest,
            cache=cache,
            problems=[
                *([] if place.problem is None else [dict(place.problem)]),
                *(problem_from_refusal(refusal) for refusal in quote.forbidden),
            ],
        )


EndClassName = Literal["user", "platform", "preemption", "limit"]  # who answers for an end


class Job(WireModel):
    """A job."""

    id: str
    account_id: str
    user_id: str
    pool: str
    state: State
    why: str
    follows: str | None  # the job whose result it waits for
    cached_from: str | None  # the job whose result it was given: it did not run
    cancelling: bool  # a client has cancelled it, and it has not ended yet
    attempt: int
    gpu_type: str | None  # of its last attempt
    submitted_at: Time
    started_at: Time | None  # its last attempt
    ended_at: Time | None
    end_class: EndClassName | None  # for its end
    exit_code: int | None
    spent_micros: Micros
    held_micros: Micros
    owed_micros: Micros
    max_cost_micros: Micros | None
    hold: Literal["full", "rolling"]
    hold_expires_at: Time
    rates: list[Rate]
    max_run_seconds: int | None
    command: list[str]
    gpus: dict[str, Any] | None
    labels: dict[str, str]
    env_names: list[str]  # names only: the values may be secret
    priority_class: int
    preemptible: bool
    cache: dict[str, Any] | None  # as it was asked for
    array: JobArray | None  # if it is one: how its elements stand
    array_id: str | None  # the array that it is an element of
    array_index: int | None  # and its number there, from 0
    steps: int  # of its history


class JobRoute(WireModel):
    """A routing decision: the pool that a job was sent to, and why."""

    number: int
    pool: str
    at: Time
    arrived_at: Time | None  # none if its former pool has not given it back
    reason: str


class CostlyJob(WireModel):
    """A place in a top list of jobs."""

    id: str
    account_id: str
    user_id: str
    state: State
    spent_micros: Micros
    held_micros: Micros
    micros_per_hour: Micros  # while it runs


class JobStep(WireModel):
    """A step in the history of a job."""

    number: int
    at: Time
    state: State
    why: str
    attempt: int
    gpu_type: str | None
    exit_code: int | None
    spent_micros: Micros
    held_micros: Micros
    other_job_id: str | None  # whom it follows, or whose result it was given
    end_class: EndClassName | None  # for the attempt's end, if that was corrected


class EndCorrectionRequest(WireModel):
    """Who is responsible for the end of an attempt."""

    attempt: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    end_class: Annotated[
        EndClass,
        Field(
            strict=False,
            description="`platform`, `preemption`: what was lost since the last checkpoint is given"
            " back; `user`, `limit`: it is charged",
        ),
    ]
    reason: Annotated[Text | None, Field(description="why; the org's events keep it")] = None


class EndCorrectionResponse(WireModel):
    """The accepted correction. Its pool applies it; then the job has a step `corrected`."""

    id: str
    attempt: int
    end_class: EndClassName


class JobSpent(WireModel):
    """What a job has spent so far; sent to streams between two steps."""

    spent_micros: Micros
    held_micros: Micros


class JobResult(WireModel):
    """The result of a finished job, with the manifest that it wrote, if any."""

    job_id: str
    state: State
    ended_at: Time
    exit_code: int | None
    cached_from: str | None  # the job that has left it, if that was another
    manifest: Any | None


class JobCancellation(WireModel):
    """Whether a job is being cancelled; false if it had already finished."""

    id: str
    cancelling: bool


class Manifest(NamedTuple):
    """The manifest that a job wrote."""

    text: str | None

    @property
    def value(self) -> Any:
        """The manifest parsed as JSON; the text itself if it is not JSON."""
        try:
            return None if self.text is None else json.loads(self.text)
        except ValueError:
            return self.text
