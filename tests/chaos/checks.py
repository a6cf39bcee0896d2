"""What must be true of a world that has come to rest, whatever was done to it.

Two sources are held against each other: what is stored, and what jobs have written down themselves
while they ran (`job.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bursar.core.messages import Dropped, Ended, Message
from bursar.core.money import usage_price
from bursar.service.ledger.audit import orgs_of, rebuild_org, verify
from bursar.store.jobs.outbox import message_of
from tests.chaos.tenants import PRICES, Score
from tests.support.databases import connected

OVER = ("succeeded", "failed", "cancelled", "expired")


class Run(NamedTuple):
    """A line that a process of a job has written."""

    what: str
    job: str
    attempt: int
    fence: int
    node: str
    pid: int
    at: int  # of its node's clock, in microseconds


class Lease(NamedTuple):
    """A part of a lease, as it is stored."""

    fence: int
    job: str
    attempt: int
    gpu_type: str
    why: str | None
    kept_ms: int | None
    node: str
    run_ms: int
    exit: str | None
    exit_code: int | None
    gpus: list[int]


class Books(NamedTuple):
    """What is stored, as far as it is looked at here."""

    jobs: dict[str, str]  # id → state
    elements: set[str]  # of these, those of arrays
    nowhere: set[str]  # of these, those that were in no pool: arrays, and who took another's result
    leases: list[Lease]
    slots: list[tuple[Any, ...]]  # node, gpu, slot, fence, from, to
    holds: dict[str, tuple[int, int, bool]]  # used, owed, closed
    ends: Counter[str]  # messages of the pool that say that a job is over
    last_steps: Counter[str]  # steps of a job's life that are its end
    grants: tuple[int, int]  # held, spent
    unacknowledged: int


def runs_in(folder: Path) -> list[Run]:
    """What jobs have written, in order."""
    try:
        text = (folder / "runs").read_text()
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        what, job, attempt, fence, node, pid, at = line.split()
        found.append(Run(what, job, int(attempt), int(fence), node, int(pid), int(at)))
    return found


_LEASES = """
    select l.fence, l.job_id, l.attempt, l.gpu_type, l.why, l.kept_ms,
           p.node_id, p.run_ms, p.exit, p.exit_code, p.gpus
      from leases l join lease_parts p using (pool_id, fence) order by l.fence, p.place
"""
_SLOTS = """
    select s.node_id, s.gpu, s.slot, s.fence, l.leased_at, s.freed_at
      from lease_slots s join leases l using (pool_id, fence) order by 1, 2, 3, 5, 4
"""
_NOWHERE = "select job_id from jobs where sent = 0"
_UNACKNOWLEDGED = """
    select (select count(*) from org_outbox where acked_at is null)
         + (select count(*) from pool_outbox where acked_at is null)
"""


def books_of(connection: Any) -> Books:
    """Read all of it."""

    def asked(sql: str) -> list[tuple[Any, ...]]:
        return list(connection.execute(sql).fetchall())

    holds = asked("select hold_id, used, owed, closed_at is not null from holds")
    steps = asked(f"select job_id, count(*) from job_steps where state in {OVER} group by job_id")
    told = asked("select job_id, body::text from pool_outbox order by job_id, n")
    [grants] = asked("select coalesce(sum(held), 0)::bigint, sum(spent)::bigint from grants")
    return Books(
        jobs=dict(asked("select job_id, state from jobs order by job_id")),
        elements={id for (id,) in asked("select job_id from jobs where array_id is not null")},
        nowhere={id for (id,) in asked(_NOWHERE)},
        leases=[Lease(*row) for row in asked(_LEASES)],
        slots=asked(_SLOTS),
        holds={id: (used, owed, closed) for id, used, owed, closed in holds},
        ends=Counter(job for job, text in told if _is_end(message_of(text))),
        last_steps=Counter(dict(steps)),
        grants=(grants[0], grants[1]),
        unacknowledged=asked(_UNACKNOWLEDGED)[0][0],
    )


def _is_end(message: Message) -> bool:
    return isinstance(message, Dropped) or (isinstance(message, Ended) and message.job_finished)


def wrong(books: Books, runs: Iterable[Run], score: Score) -> list[str]:
    """Everything that must not be so."""
    return [
        *_jobs(books, score),
        *_slots(books),
        *_ran(books, list(runs)),
        *_money(books),
        *(f"nobody should be told this: {what}" for what in score.unexpected),
    ]


def _jobs(books: Books, score: Score) -> Iterator[str]:
    """Each job has one end, and each submission one job (IM4, IM6, IM7, L7)."""
    for id, state in books.jobs.items():
        if state not in OVER:
            yield f"{id} is {state}: it has no end"
        elif (int(id not in books.nowhere), 1) != (books.ends[id], books.last_steps[id]):
            yield f"{id} has ended {books.last_steps[id]} times, its pool says {books.ends[id]}"
    there, told = set(books.jobs), score.jobs
    yield from (f"{id} was accepted and is not there" for id in sorted(told - there))
    unasked = there - told - books.elements
    yield from (f"{id} is there and nobody has asked for it" for id in sorted(unasked))
    for key, ids in score.submitted.items():
        if len(ids) != 1:
            yield f"{key} was told of several jobs: {sorted(ids)}"
    if books.unacknowledged:
        yield f"{books.unacknowledged} messages are not acknowledged"


def _slots(books: Books) -> Iterator[str]:
    """No slot was ever in two leases (IS1); attempts and fences go up together (IS4)."""
    last: dict[tuple[Any, ...], tuple[int, int | None]] = {}
    for node, gpu, slot, fence, leased_at, freed_at in books.slots:
        before, free_at = last.get((node, gpu, slot), (0, 0))
        if free_at is None or leased_at < free_at:
            yield f"{node}/{gpu}/{slot} was in leases {before} and {fence} at once"
        last[node, gpu, slot] = fence, freed_at
        if freed_at is None:
            yield f"{node}/{gpu}/{slot} is still leased to {fence}"
    fences: dict[str, dict[int, int]] = defaultdict(dict)
    for one in books.leases:
        fences[one.job].setdefault(one.attempt, one.fence)
    for job, found in fences.items():
        if sorted(found) != list(range(1, len(found) + 1)):
            yield f"{job} has the attempts {sorted(found)}"
        ordered = [found[attempt] for attempt in sorted(found)]
        if ordered != sorted(set(ordered)):
            yield f"{job} has the fences {ordered} in the order of its attempts"


def _ran(books: Books, runs: list[Run]) -> Iterator[str]:
    """What really ran: each attempt once, never beside another, and as it is stored (IS2, IS3)."""
    leased = {(one.fence, one.node): one for one in books.leases}
    started = Counter((one.fence, one.node) for one in runs if one.what == "start")
    yield from (
        f"fence {fence} was started {times} times on {node}"
        for (fence, node), times in started.items()
        if times > 1
    )
    for one in runs:
        if one.what.startswith("taken:"):
            yield f"{one.job}, fence {one.fence} on {one.node}, found {one.what[6:]} taken"
        lease = leased.get((one.fence, one.node))
        if lease is None or (lease.job, lease.attempt) != (one.job, one.attempt):
            yield f"{one.job} ran as {one.fence} on {one.node}, which it has no lease for"
    began = {(one.fence, one.node): one.at for one in runs if one.what == "start"}
    ended = {(one.fence, one.node): one.at for one in runs if one.what == "end"}
    for key, lease in leased.items():
        if lease.exit == "done" and key not in ended:
            yield f"fence {lease.fence} is told to be done on {lease.node}, and has not ended"
        if lease.exit == "done" and key in ended:
            real_ms = (ended[key] - began[key]) // 1_000
            if lease.run_ms < real_ms:
                yield f"fence {lease.fence} ran {real_ms} ms, and {lease.run_ms} are stored"


def _money(books: Books) -> Iterator[str]:
    """Each job has paid what it was proven to run, and nothing is held any more (M2, M3, IM3)."""
    cost: Counter[str] = Counter()
    parts: dict[int, list[Lease]] = defaultdict(list)
    for one in books.leases:
        parts[one.fence].append(one)
    for found in parts.values():
        first = found[0]
        run_ms = max(one.run_ms for one in found) if first.kept_ms is None else first.kept_ms
        milli_gpus = 1_000 * sum(len(one.gpus) for one in found)
        cost[first.job] += usage_price(PRICES[first.gpu_type], milli_gpus, run_ms)
    for id, (used, owed, closed) in books.holds.items():
        if (used, owed, closed) != (cost[id], 0, True):
            yield f"{id} cost {cost[id]}; its hold says used {used}, owed {owed}, closed {closed}"
    if books.grants != (0, sum(cost.values())):
        yield f"all jobs cost {sum(cost.values())}; of the grants (held, spent) are {books.grants}"


def audited(url: str) -> Iterator[str]:
    """What `bursar ledger verify` and `bursar ledger rebuild` say."""
    with connected(url) as connection:
        yield from (f"verify: {problem}" for problem in verify(connection))
        orgs = list(orgs_of(connection))
    for org in orgs:
        yield from (f"rebuild of {org}: {one}" for one in rebuild_org(url, org).differences)
