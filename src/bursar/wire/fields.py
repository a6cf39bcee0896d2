"""The fields that requests and responses share: ids, amounts, times, contexts, policies."""

from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from bursar.core.ids import AccountId, JobId, make_id
from bursar.core.instant import Instant
from bursar.core.ledger import values as core
from bursar.core.money import AMOUNT_MAX, PPM
from bursar.core.validation import TEXT_MAX
from bursar.wire.times import instant_of, instant_text

UUID_PATTERN: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
GPUS_MAX: Final = core.MILLI_GPUS_MAX // 1_000

Id = Annotated[
    str,
    Field(pattern=UUID_PATTERN, examples=["01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d"]),
]
Micros = Annotated[int, Field(ge=0, le=AMOUNT_MAX, description="micro-credits")]
SomeMicros = Annotated[int, Field(ge=1, le=AMOUNT_MAX, description="micro-credits, at least one")]


def _check_text(text: str) -> str:
    """Check that a database can store the text; JSON Schema cannot express all of it."""
    if "\0" in text:
        raise ValueError("it contains a character that cannot be stored")
    if len(text.encode()) > TEXT_MAX:
        raise ValueError(f"it is longer than {TEXT_MAX} bytes")
    return text


Text = Annotated[str, Field(min_length=1, max_length=TEXT_MAX), AfterValidator(_check_text)]


Names = Annotated[list[Text], Field(max_length=64)]


def _parse_instant(value: Any) -> Any:
    return value if value is None else instant_of(value)


Time = Annotated[
    Instant,
    BeforeValidator(_parse_instant),
    PlainSerializer(instant_text, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class WireModel(BaseModel):
    """The base of requests and responses: strict types, no unknown fields, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class IdFactory:
    """Makes ids that a request omits: the same for the same key, except for their time."""

    def __init__(self, org: str, key: str, at_ms: int) -> None:
        self._org = org
        self._key = key
        self._at_ms = at_ms
        self.generated_fields: tuple[str, ...] = ()  # the fields of the command that were made up

    def id(self, field: str, requested: str | None) -> str:
        """The id of the request, or a new one; `field` is the command's."""
        if requested is not None:
            return requested
        self.generated_fields = (*self.generated_fields, field)
        return make_id(self._org, self._key, field, self._at_ms)


class Context(WireModel):
    """What a hold is for. Prices and grant policies depend on it."""

    gpu_type: Text | None = None
    gpu_count: Annotated[int, Field(ge=0, le=GPUS_MAX)] = 0
    region: Text | None = None
    job_kind: Text | None = None
    priority_class: Text | None = None
    job_id: Text | None = None

    def to_core(self) -> core.Context:
        """Convert to the core's value."""
        return core.Context(
            gpu_types=() if self.gpu_type is None else (self.gpu_type,),
            milli_gpus=self.gpu_count * 1_000,
            region=self.region,
            job_kind=self.job_kind,
            priority_class=self.priority_class,
            job=None if self.job_id is None else JobId(self.job_id),
        )

    @classmethod
    def from_core(cls, context: core.Context) -> Self:
        """Build the response from the core's context."""
        return cls(
            gpu_type=context.gpu_types[0] if context.gpu_types else None,
            gpu_count=context.milli_gpus // 1_000,
            region=context.region,
            job_kind=context.job_kind,
            priority_class=context.priority_class,
            job_id=context.job,
        )


class Policy(WireModel):
    """What a grant may be spent on. An empty list does not restrict."""

    gpu_types: Names = []
    regions: Names = []
    account_ids: Names = []
    job_kinds: Names = []
    priority_classes: Names = []
    max_share_ppm: Annotated[
        int,
        Field(ge=1, le=PPM, description="most of a hold that the grant may pay, parts per million"),
    ] = PPM
    refundable: bool = True

    def to_core(self) -> core.GrantPolicy:
        """Convert to the core's value."""
        return core.GrantPolicy(
            gpu_types=frozenset(self.gpu_types),
            regions=frozenset(self.regions),
            accounts=frozenset(map(AccountId, self.account_ids)),
            job_kinds=frozenset(self.job_kinds),
            priority_classes=frozenset(self.priority_classes),
            max_share_ppm=self.max_share_ppm,
            refundable=self.refundable,
        )

    @classmethod
    def from_core(cls, policy: core.GrantPolicy) -> Self:
        """Build the response from the core's policy."""
        return cls(
            gpu_types=sorted(policy.gpu_types),
            regions=sorted(policy.regions),
            account_ids=sorted(policy.accounts),
            job_kinds=sorted(policy.job_kinds),
            priority_classes=sorted(policy.priority_classes),
            max_share_ppm=policy.max_share_ppm,
            refundable=policy.refundable,
        )
