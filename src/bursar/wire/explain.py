"""Responses that explain why jobs wait, the order of the queue, and shares (S14).

A tenant sees all about its own jobs, but other orgs only anonymously: their ids, and those of their
jobs, accounts and users, are replaced. An operator sees everything.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field

from bursar.core.dispatch.state import key_of_name
from bursar.core.scheduling.explain.explanation import Explanation, Holder
from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.explain.queue_position import GroupShare, QueuePosition
from bursar.core.scheduling.model.jobs import RunningJob
from bursar.wire.fields import Time, WireModel
from bursar.wire.times import instant_text

_ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# An org, then the rest of a job's name or of a path in the share tree.
_REFERENCE: Final = re.compile(rf"({_ID})(/{_ID})?((?:\.(?:user )?{_ID})*)")


def anonymize(text: str, org: str | None) -> str:
    """Replace references to orgs other than `org`; None, for an operator, replaces none."""
    if org is None:
        return text

    def replace_reference(match: re.Match[str]) -> str:
        if match[1] == org:
            return (match[2] or match[0]).removeprefix("/")
        return "a job of another org" if match[2] else "another org"

    return _REFERENCE.sub(replace_reference, text)


class AccountRef(NamedTuple):
    """An account that a text mentions, and its org."""

    org: str
    account: str
    is_root: bool


def find_accounts(texts: Iterable[str]) -> set[AccountRef]:
    """Find all accounts that texts mention."""
    return {
        AccountRef(match[1], id, n == 0)
        for text in texts
        for match in _REFERENCE.finditer(text)
        for n, id in enumerate(match[3].split(".")[1:])
        if not id.startswith("user ")
    }


def with_org_names(names: Mapping[str, str], accounts: Collection[AccountRef]) -> dict[str, str]:
    """Names of accounts and of their orgs. An org has the name of its root account."""
    roots = {
        ref.org: names[ref.account] for ref in accounts if ref.is_root and ref.account in names
    }
    return {**names, **roots}


def insert_names(text: str, names: Mapping[str, str]) -> str:
    """Replace ids of accounts by their names, and references to jobs by the ids of the jobs."""

    def name_reference(match: re.Match[str]) -> str:
        if match[2]:
            return match[2].removeprefix("/")
        org, *accounts = match[0].split(".")
        root = accounts[:1] if org in names else []  # it has the same name as its org
        return ".".join(names.get(id, id) for id in (org, *accounts[len(root) :]))

    return _REFERENCE.sub(name_reference, text)


Names = Annotated[dict[str, str], Field(description="Names of orgs and accounts by id.")]
SharePath = Annotated[
    str, Field(description="The owner in the share tree: tier, org, accounts and user, by dots.")
]


class ExplanationFact(WireModel):
    """A code with its figures. The name of a figure ends in its unit."""

    code: Annotated[str, Field(description="A stable code.")]
    figures: Annotated[dict[str, int | str], Field(description="The figures of the code.")]

    @classmethod
    def from_core(cls, code: str, figures: Figures, org: str | None) -> Self:
        """The response for a blocker or a change."""
        visible = {
            name: anonymize(value, org) if isinstance(value, str) else value
            for name, value in figures
        }
        return cls(code=code, figures=visible)


class GpuHolder(WireModel):
    """A running job on GPUs that the waiting job could use."""

    job: str
    path: SharePath
    gpu_type: str
    nodes: Annotated[list[str], Field(description="The nodes that the job runs on.")]
    milli_gpus: Annotated[int, Field(description="Thousandths of a GPU that the job uses.")]
    ends_by: Annotated[Time, Field(description="When the job ends at the latest.")]

    @classmethod
    def from_core(cls, holder: Holder, org: str | None) -> Self:
        """The response for a holder."""
        return cls.model_construct(
            job=anonymize(holder.job, org),
            path=anonymize(".".join(holder.path), org),
            gpu_type=holder.gpu_type,
            nodes=list(holder.nodes),
            milli_gpus=holder.milli_gpus,
            ends_by=holder.ends_by,
        )


class JobExplanation(WireModel):
    """Why a job waits, and when it is likely to start."""

    job_id: str
    state: str
    lines: Annotated[list[str], Field(description="The explanation in English, line by line.")]
    earliest_at: Annotated[Time | None, Field(description="The estimated earliest start.")] = None
    latest_at: Annotated[Time | None, Field(description="The estimated latest start.")] = None
    start_basis: Annotated[
        str | None,
        Field(
            description="What the latest start rests on: `now`, `earmarked`, `promised` or"
            " `planned`; or why it is unknown: `backing_off`, `ceiling`, `no_room` or `unplanned`."
        ),
    ] = None
    position: Annotated[int | None, Field(description="The position in the queue, from 1.")] = None
    ahead_milli_gpu_hours: int | None = None
    blockers: list[ExplanationFact]
    holders: Annotated[
        list[GpuHolder], Field(description="Running jobs on GPUs that the job could use.")
    ]
    more_holders: Annotated[int, Field(description="How many more holders there are.")] = 0
    smallest_change: Annotated[
        list[ExplanationFact],
        Field(description="The smallest change that would start the job now, all parts together."),
    ]
    search_complete: Annotated[
        bool, Field(description="Whether the scheduler considered every job in this round.")
    ] = True
    names: Names = Field(default_factory=dict)

    @property
    def accounts(self) -> set[AccountRef]:
        """All accounts that the explanation mentions."""
        return find_accounts((*self.lines, *(holder.path for holder in self.holders)))

    def with_names(self, names: dict[str, str]) -> Self:
        """The explanation with names of accounts in its lines."""
        lines = [insert_names(line, names) for line in self.lines]
        return self.model_copy(update={"lines": lines, "names": names})

    def with_lines(self, *lines: str) -> Self:
        """The explanation with more lines."""
        return self.model_copy(update={"lines": [*self.lines, *lines]})

    @classmethod
    def of_state(cls, job: str, state: str, *lines: str) -> Self:
        """The explanation of a job that does not wait for GPUs."""
        return cls(
            job_id=job, state=state, lines=list(lines), blockers=[], holders=[], smallest_change=[]
        )

    @classmethod
    def of_running(cls, running: RunningJob, state: str) -> Self:
        """Where a job runs, and until when."""
        nodes = " + ".join(piece.node for piece in running.pieces)
        ends = instant_text(running.ends_by)
        _, job = key_of_name(running.job.id)
        since = f"Runs on {running.gpu_type} of {nodes} since {instant_text(running.started_at)}."
        stops = f"It is stopping and ends by {ends}." if running.stops_at is not None else ""
        return cls.of_state(job, state, since, stops or f"It ends by {ends} at the latest.")

    @classmethod
    def from_core(cls, explanation: Explanation, org: str | None) -> Self:
        """The response for an explanation."""
        start, (_, job) = explanation.start, key_of_name(explanation.job)
        return cls.model_construct(
            job_id=job,
            state="queued",
            lines=[anonymize(line, org) for line in explanation.render()],
            earliest_at=start.earliest,
            latest_at=start.latest,
            start_basis=start.basis.value,
            position=explanation.position,
            ahead_milli_gpu_hours=explanation.ahead_milli_gpu_hours,
            blockers=[
                ExplanationFact.from_core(blocker.code, blocker.figures, org)
                for blocker in explanation.blockers
            ],
            holders=[GpuHolder.from_core(holder, org) for holder in explanation.holders],
            more_holders=explanation.more_holders,
            smallest_change=[
                ExplanationFact.from_core(part.kind, part.figures, org)
                for part in explanation.smallest_change
            ],
            search_complete=explanation.search_complete,
        )


class QueueEntry(WireModel):
    """A waiting job's position in the queue."""

    position: Annotated[int, Field(description="The position in the queue, from 1.")]
    job: str
    path: SharePath
    group: Annotated[
        str,
        Field(
            description="The part of the queue, in scheduling order: `earmarked`, `overdue`,"
            " `express`, `fair_share` or `backing_off`."
        ),
    ]
    priority_class: int
    queued_at: Time

    @classmethod
    def from_core(cls, entry: QueuePosition, org: str | None) -> Self:
        """The response for a position."""
        return cls.model_construct(
            position=entry.position,
            job=anonymize(entry.job, org),
            path=anonymize(".".join(entry.path), org),
            group=entry.group.value,
            priority_class=entry.priority_class,
            queued_at=entry.queued_at,
        )


class ShareEntry(WireModel):
    """What a tier, org, account or user is entitled to, and what it uses."""

    path: SharePath
    weight: int
    running_jobs: Annotated[int, Field(description="The number of running jobs.")]
    waiting_jobs: Annotated[int, Field(description="The number of waiting jobs.")]
    used_milli_gpus: Annotated[
        dict[str, int], Field(description="Thousandths of GPUs in use, by GPU type.")
    ]
    usage_micros: int
    current_share_ppm: Annotated[
        int, Field(description="The part of the pool's GPUs in use now, in millionths.")
    ]
    entitled_share_ppm: Annotated[
        int,
        Field(
            description="The part of the pool's GPUs it may count on while all others with jobs"
            " take theirs, in millionths."
        ),
    ]

    @classmethod
    def from_core(cls, share: GroupShare, org: str | None) -> Self:
        """The response for a share."""
        return cls(
            path=anonymize(".".join(share.path), org),
            weight=share.weight,
            running_jobs=share.running_jobs,
            waiting_jobs=share.waiting_jobs,
            used_milli_gpus=dict(share.used_milli_gpus),
            usage_micros=share.usage,
            current_share_ppm=share.current_share_ppm,
            entitled_share_ppm=share.entitled_share_ppm,
        )


class PoolExplanation(WireModel):
    """The queue and the shares of a pool."""

    pool: str
    queue: Annotated[list[QueueEntry], Field(description="The waiting jobs, in scheduling order.")]
    shares: list[ShareEntry]
    names: Names = Field(default_factory=dict)

    @property
    def accounts(self) -> set[AccountRef]:
        """All accounts that the explanation mentions."""
        queue, shares = (entry.path for entry in self.queue), (entry.path for entry in self.shares)
        return find_accounts((*queue, *shares))

    def with_names(self, names: dict[str, str]) -> Self:
        """The explanation with the names of accounts."""
        return self.model_copy(update={"names": names})
