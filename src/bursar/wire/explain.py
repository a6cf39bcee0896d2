"""Why jobs wait, and who stands where: as it is told to people and programs (S14).

A tenant is told all about its own jobs and nothing about whose the others are: names of other orgs,
and of their jobs, accounts and users, are veiled. An operator sees everything.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field

from bursar.core.dispatch.state import key_of
from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.explain.queue_position import GroupShare, QueuePosition
from bursar.core.scheduling.explain.waiting import Explanation, Holder
from bursar.core.scheduling.model.jobs import RunningJob
from bursar.wire.fields import Time, WireModel
from bursar.wire.times import instant_text

_ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# An org, and what follows of a job's name or of a place in the tree of shares.
_NAMED: Final = re.compile(rf"({_ID})(/{_ID})?((?:\.(?:user )?{_ID})*)")


def veiled(text: str, org: str | None) -> str:
    """A text without names of other orgs; unchanged for an operator (None)."""
    if org is None:
        return text

    def veil(found: re.Match[str]) -> str:
        if found[1] == org:
            return (found[2] or found[0]).removeprefix("/")
        return "another org's job" if found[2] else "another org"

    return _NAMED.sub(veil, text)


class AccountRef(NamedTuple):
    """An account that is spoken of, and its org."""

    org: str
    account: str
    is_root: bool


def places(texts: Iterable[str]) -> set[AccountRef]:
    """All accounts that texts speak of."""
    return {
        AccountRef(found[1], id, n == 0)
        for text in texts
        for found in _NAMED.finditer(text)
        for n, id in enumerate(found[3].split(".")[1:])
        if not id.startswith("user ")
    }


def with_orgs(names: Mapping[str, str], known: Collection[AccountRef]) -> dict[str, str]:
    """Names of accounts, and of their orgs: an org is called as its root account is."""
    roots = {one.org: names[one.account] for one in known if one.is_root and one.account in names}
    return {**names, **roots}


def named(text: str, names: Mapping[str, str]) -> str:
    """A text in which accounts are called by their names, and jobs by their own ids alone."""

    def called(found: re.Match[str]) -> str:
        if found[2]:
            return found[2].removeprefix("/")
        first, *rest = found[0].split(".")
        root = rest[:1] if first in names else []  # which is called as its org is
        return ".".join(names.get(one, one) for one in (first, *rest[len(root) :]))

    return _NAMED.sub(called, text)


class ExplanationFact(WireModel):
    """A reason, with its figures; units are the ends of their names."""

    reason: str
    figures: dict[str, int | str]

    @classmethod
    def from_core(cls, reason: str, figures: Figures, org: str | None) -> Self:
        """A reason of the rules, told."""
        told = {
            name: veiled(value, org) if isinstance(value, str) else value for name, value in figures
        }
        return cls(reason=reason, figures=told)


class GpuHolder(WireModel):
    """A running job that has GPUs which the waiting one could use."""

    job: str
    of: Annotated[str, Field(description="whose it is, from the tier down")]
    gpu_type: str
    nodes: list[str]
    milli_gpus: int
    ends_by: Time

    @classmethod
    def from_core(cls, one: Holder, org: str | None) -> Self:
        """A holder of the rules, told."""
        return cls.model_construct(
            job=veiled(one.job, org),
            of=veiled(".".join(one.path), org),
            gpu_type=one.gpu_type,
            nodes=list(one.nodes),
            milli_gpus=one.milli_gpus,
            ends_by=one.ends_by,
        )


class JobExplanation(WireModel):
    """Why a job is where it is, and when it is likely to start."""

    job_id: str
    state: str
    told: Annotated[list[str], Field(description="sentences for people")]
    earliest_at: Time | None = None
    latest_at: Time | None = None
    start: Annotated[str | None, Field(description="on what the latest start rests")] = None
    number: Annotated[int | None, Field(description="in turn; 1 comes next")] = None
    ahead_milli_gpu_hours: int | None = None
    blockers: list[ExplanationFact]
    holders: list[GpuHolder]
    holders_more: int = 0
    change: Annotated[list[ExplanationFact], Field(description="the smallest that would start it")]
    complete: bool = True
    names: Annotated[dict[str, str], Field(description="of orgs and accounts, by their ids")] = (
        Field(default_factory=dict)
    )

    @property
    def places(self) -> set[AccountRef]:
        """All accounts that it speaks of."""
        return places((*self.told, *(one.of for one in self.holders)))

    def with_names(self, names: dict[str, str]) -> Self:
        """The same, with sentences that call accounts by their names."""
        told = [named(line, names) for line in self.told]
        return self.model_copy(update={"told": told, "names": names})

    @classmethod
    def plain(cls, job: str, state: str, *told: str) -> Self:
        """What there is to say of a job that waits for no GPUs."""
        return cls(job_id=job, state=state, told=list(told), blockers=[], holders=[], change=[])

    @classmethod
    def runs(cls, running: RunningJob, state: str, org: str | None) -> Self:
        """Where a job runs, and until when."""
        nodes = " + ".join(piece.node for piece in running.pieces)
        ends = instant_text(running.ends_by)
        _, job = key_of(running.job.id)
        where = f"on {running.gpu_type} of {nodes} since {instant_text(running.started_at)}"
        stops = f"asked to stop, gone by {ends}" if running.stops_at is not None else ""
        return cls.plain(job, state, where, stops or f"ends by {ends} at the latest")

    @classmethod
    def from_core(cls, one: Explanation, org: str | None) -> Self:
        """An explanation of the rules, told."""
        start, (_, job) = one.start, key_of(one.job)
        return cls.model_construct(
            job_id=job,
            state="queued",
            told=[veiled(line.removeprefix(f"{one.job}: "), org) for line in one.render()],
            earliest_at=start.earliest,
            latest_at=start.latest,
            start=start.why,
            number=one.number,
            ahead_milli_gpu_hours=one.ahead_milli_gpu_hours,
            blockers=[
                ExplanationFact.from_core(each.reason, each.figures, org) for each in one.blockers
            ],
            holders=[GpuHolder.from_core(each, org) for each in one.holders],
            holders_more=one.holders_more,
            change=[ExplanationFact.from_core(each.kind, each.figures, org) for each in one.change],
            complete=one.complete,
        )


class QueueEntry(WireModel):
    """A waiting job's number in turn."""

    number: int
    job: str
    of: str
    group: str
    priority_class: int
    queued_at: Time

    @classmethod
    def from_core(cls, one: QueuePosition, org: str | None) -> Self:
        """A standing of the rules, told."""
        return cls.model_construct(
            number=one.number,
            job=veiled(one.job, org),
            of=veiled(".".join(one.path), org),
            group=one.group.value,
            priority_class=one.priority_class,
            queued_at=one.queued_at,
        )


class ShareEntry(WireModel):
    """What a place in the tree of shares is entitled to, and has."""

    of: str
    weight: int
    jobs: int
    waiting: int
    milli_gpus: dict[str, int]
    usage_micros: int
    part_ppm: Annotated[int, Field(description="of the pool's GPUs, now")]
    entitled_ppm: Annotated[int, Field(description="if all who want something took theirs")]

    @classmethod
    def from_core(cls, one: GroupShare, org: str | None) -> Self:
        """A share of the rules, told."""
        return cls(
            of=veiled(".".join(one.path), org),
            weight=one.weight,
            jobs=one.jobs,
            waiting=one.waiting,
            milli_gpus=dict(one.used),
            usage_micros=one.usage,
            part_ppm=one.part_ppm,
            entitled_ppm=one.entitled_ppm,
        )


class PoolExplanation(WireModel):
    """A pool's order and shares."""

    pool: str
    standing: list[QueueEntry]
    shares: list[ShareEntry]
    names: Annotated[dict[str, str], Field(description="of orgs and accounts, by their ids")] = (
        Field(default_factory=dict)
    )

    @property
    def places(self) -> set[AccountRef]:
        """All accounts that it speaks of."""
        return places((*(one.of for one in self.standing), *(one.of for one in self.shares)))

    def with_names(self, names: dict[str, str]) -> Self:
        """The same, with what accounts are called."""
        return self.model_copy(update={"names": names})
