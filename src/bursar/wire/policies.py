"""Requests and responses of pool policies, in the format of a simulation's policy file."""

from typing import Annotated, Any, Final, Self

from pydantic import Field, JsonValue

from bursar.core.dispatch.policies import find_objection
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.policy_file import BOUNDS, parse_policy, policy_to_dict
from bursar.wire.fields import WireModel

SHARES_MOST: Final = 1_000
Span = Annotated[str, Field(examples=["30s", "10m", "2h", "1d"])]
Gpus = Annotated[
    dict[str, int], Field(description="by GPU type, or of all types (`*`)", examples=[{"H100": 8}])
]


class PolicyRequest(WireModel):
    """A policy. Omitted settings have their defaults."""

    policy: Annotated[
        dict[str, JsonValue],
        Field(
            default_factory=dict,
            max_length=len(BOUNDS),
            examples=[{"half_life": 10, "inside_a_user": "oldest"}],
        ),
    ]
    tiers: Annotated[
        dict[str, JsonValue] | list[JsonValue],
        Field(
            default_factory=dict,
            max_length=64,
            description="Changes to the default tiers; or a list of all tiers, the highest first.",
            examples=[{"paid": {"weight": 6, "start_target": "1m"}}],
        ),
    ]
    shares: Annotated[
        dict[str, JsonValue],
        Field(
            default_factory=dict,
            max_length=SHARES_MOST,
            description="By path below a tier: tier/org, tier/org/account/… or a user there.",
            examples=[{"paid/01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d": {"weight": 3}}],
        ),
    ]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the request contains."""
        return self.model_dump(exclude_defaults=True)

    def to_core(self) -> PoolPolicy:
        """Convert to the core's value; `ValueError` if it cannot be put in force."""
        policy = parse_policy(self.settings)
        if (wrong := find_objection(policy)) is not None:
            raise ValueError(wrong)
        return policy


class PolicyRules(WireModel):
    """Rules for all jobs of a pool."""

    inside_a_user: Annotated[str, Field(description="whose turn it is among a user's own jobs")]
    half_life: Annotated[int, Field(description="usage counts half after 2 to this many minutes")]
    ahead: Annotated[Span, Field(description="what runs counts as if it had run so long already")]
    reservations: Annotated[int, Field(description="blocked jobs that get a future place")]
    aged_part: Annotated[
        int, Field(description="jobs started for their age have one of so many parts at most")
    ]
    preemptions_max: Annotated[int, Field(description="stops after which a job is not asked again")]
    turn_after: Annotated[
        int, Field(description="preemption graces that a job runs before its turn may end")
    ]
    preemption_grace: Annotated[
        Span, Field(description="planned time for a preempted job to save its work")
    ]


class PolicyTier(WireModel):
    """A tier."""

    name: str
    weight: int
    floor_ppm: Annotated[int, Field(description="of the pool's GPUs, its own when it wants them")]
    ceiling_ppm: Annotated[int, Field(description="of the pool's GPUs, never more at once")]
    start_target: Span
    ages_after: Annotated[Span, Field(description="after which a user's oldest job gets a date")]
    queue_max: Annotated[int, Field(description="jobs that wait, of one org")]
    rate_per_minute: Annotated[int, Field(description="submissions, of one org")]
    preempts: Annotated[list[str], Field(description="who makes room when it is below its floor")]


class PolicyShare(WireModel):
    """What an org, account or user is entitled to."""

    weight: int
    floor: Annotated[Gpus, Field(default_factory=dict)]
    ceiling: Annotated[Gpus, Field(default_factory=dict)]
    jobs_max: int | None = None


class PolicyResponse(WireModel):
    """The policy of a pool, with all settings."""

    pool: str
    version: Annotated[
        int, Field(description="It grows with each change; 0 for the default policy.")
    ]
    in_force: Annotated[bool, Field(description="Whether the pool uses it already.")]
    policy: PolicyRules
    tiers: list[PolicyTier]
    shares: dict[str, PolicyShare]

    @classmethod
    def from_core(cls, pool: str, version: int, policy: PoolPolicy, *, in_force: bool) -> Self:
        """Build the response from the core's policy."""
        words = policy_to_dict(policy)
        return cls(
            pool=pool,
            version=version,
            in_force=in_force,
            policy=PolicyRules(**words["policy"]),
            tiers=[PolicyTier(**tier) for tier in words["tiers"]],
            shares={path: PolicyShare(**share) for path, share in words["shares"].items()},
        )
