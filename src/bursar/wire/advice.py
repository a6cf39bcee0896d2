"""Responses with advice on moving running jobs so that free GPUs lie together (S6)."""

from typing import Annotated, Self

from pydantic import Field

from bursar.core.instant import SECOND
from bursar.core.scheduling.advice.defragment import DefragmentationAdvice, JobMove, MovePlan
from bursar.wire.explain import AccountRef, Names, SharePath, find_accounts
from bursar.wire.fields import WireModel


class JobMoveResponse(WireModel):
    """A running job that would move to other nodes."""

    job: Annotated[str, Field(description="The job, as org and job id.")]
    path: SharePath
    gpu_type: str
    milli_gpus: Annotated[int, Field(description="Thousandths of a GPU that the job uses.")]
    from_nodes: Annotated[list[str], Field(description="The nodes that it runs on.")]
    to_nodes: Annotated[list[str], Field(description="The nodes that it would move to.")]
    makes_checkpoint: Annotated[
        bool,
        Field(description="Whether it would save its work first; otherwise recent work is lost."),
    ]
    lost_micros: Annotated[int, Field(description="The price of the lost work, in micro-credits.")]

    @classmethod
    def from_core(cls, move: JobMove) -> Self:
        """The response for a move."""
        return cls(
            job=move.job,
            path=".".join(move.path),
            gpu_type=move.gpu_type,
            milli_gpus=move.milli_gpus,
            from_nodes=list(move.from_nodes),
            to_nodes=list(move.to_nodes),
            makes_checkpoint=move.makes_checkpoint,
            lost_micros=move.lost,
        )


class MovePlanResponse(WireModel):
    """Moves that belong together: all of them or none."""

    job: Annotated[
        str | None,
        Field(description="The blocked job that would start; null if a node would become empty."),
    ]
    path: Annotated[
        str | None, Field(description="The owner of the blocked job in the share tree.")
    ]
    gpu_type: str
    nodes: Annotated[list[str], Field(description="The nodes with the new room.")]
    freed_milli_gpus: Annotated[
        int, Field(description="Thousandths of a GPU that would be free together.")
    ]
    moves: Annotated[list[JobMoveResponse], Field(description="The jobs to move.")]
    lost_micros: Annotated[int, Field(description="The price of all lost work, in micro-credits.")]
    sooner_seconds: Annotated[
        int | None, Field(description="How much sooner the blocked job would start; at most a day.")
    ]
    gain_micros: Annotated[
        int | None,
        Field(description="The price of that time on the blocked job's GPUs, in micro-credits."),
    ]

    @classmethod
    def from_core(cls, plan: MovePlan) -> Self:
        """The response for a plan of moves."""
        for_job = plan.job is not None
        return cls(
            job=plan.job,
            path=".".join(plan.path) if for_job else None,
            gpu_type=plan.gpu_type,
            nodes=list(plan.nodes),
            freed_milli_gpus=plan.milli_gpus,
            moves=[JobMoveResponse.from_core(move) for move in plan.moves],
            lost_micros=plan.lost,
            sooner_seconds=plan.sooner // SECOND if for_job else None,
            gain_micros=plan.gain if for_job else None,
        )


class PoolAdviceResponse(WireModel):
    """Advice on moving running jobs of a pool. Nothing is moved."""

    pool: str
    for_jobs: Annotated[
        list[MovePlanResponse],
        Field(description="Moves that would start blocked jobs, each after those before it."),
    ]
    for_nodes: Annotated[
        list[MovePlanResponse],
        Field(description="Moves that would empty nodes, each after those before it."),
    ]
    names: Names = Field(default_factory=dict)

    @property
    def accounts(self) -> set[AccountRef]:
        """All accounts that the advice mentions."""
        plans = (*self.for_jobs, *self.for_nodes)
        moved = (move.path for plan in plans for move in plan.moves)
        return find_accounts((*(plan.path or "" for plan in plans), *moved))

    def with_names(self, names: dict[str, str]) -> Self:
        """The advice with the names of accounts."""
        return self.model_copy(update={"names": names})

    @classmethod
    def from_core(cls, pool: str, advice: DefragmentationAdvice) -> Self:
        """The response for advice."""
        return cls(
            pool=pool,
            for_jobs=[MovePlanResponse.from_core(plan) for plan in advice.for_jobs],
            for_nodes=[MovePlanResponse.from_core(plan) for plan in advice.for_nodes],
        )
