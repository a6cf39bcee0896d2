"""Scheduling cases as one writes them on a whiteboard.

    nodes    n1=8xH100  n2=8xA100/mem=40/rack=r1/island=i1/slots=7/labels=ib,nvme/cpu=96/ram=512
             /region=eu-1
             n3=8xH100/state=draining  n4=8xH100/ready=30m (on order)
    running  name@n1:8  name@n1:4+n2:4  name@n1:2of7 (slots of one GPU)
             /ran=10m /ends=60m (from now) /saved=5m (ago) /stops=20s (from now) /aged /fixed
             /waited=5m (before it started)
    queued   name:8  name:10x8 (tasks x GPUs)  name:0.5 (a part of one GPU)  name:4x0.5  name:cpu
             /limit=30m /waited=5m /stopped=1m (ago: it waits again since then)
             /again=30s (not before) /est=10m /within=node /mem=80 /label=ib
             /region=eu-1,us-1 (where it may run)
             /promised=30m,1h,n1:4+n2:4 (its date from now, given so long ago, tasks on nodes)
    both     /on=H100,A100 (types in order)  /any=H100,A100 (as welcome)  /who=paid.acme.ml.ann
             /prod (class 100)  /batch (0)
             /class=50  /price=2 (credits a GPU-hour, or one for each type: 4,2)  /unpriced
             /preempted=3
             /used=4 (credits of earlier attempts)  /balance=9 (credits its account can spend)
             /ckpt=10m,20s (every, cost)  /counted=name  /cpu=8 /ram=64 (each task)  /fixed
    kept     name@n1:4/since=10s (ago)/from=low (GPUs that others leave to a queued job)
    shares   paid.acme=w2,floor8,ceil16,jobs3  paid.acme=floor8H100  (limits: @name=ceil4)
    usage    paid.acme.ml.ann=100 (credits, just now)
    typical  1x8 0.5 (shapes of the jobs typically seen)

Without /who a job is of paid.acme.ml.ann; without shares everybody is equal and has no floor.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.decisions import Plan
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Earmark, Job, Path, RunningJob, Shape, StartReason
from bursar.core.scheduling.model.nodes import MILLI, Level, Node, NodeState, Piece
from bursar.core.scheduling.model.policy import ANY_TYPE, PoolPolicy, Share, Tier
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.model.usage import UsageDecay
from bursar.core.value import replace

T0: Instant = 20_000 * 24 * HOUR  # a round day, so that spans are round as well

TIERS = ("enterprise", "paid", "free")

PLAIN = PoolPolicy(tiers=tuple(Tier(name=name) for name in TIERS))
"""Three equal tiers without floors."""

RECLAIMING = PoolPolicy(
    tiers=tuple(Tier(name=name, preempts=tuple(t for t in TIERS if t != name)) for name in TIERS)
)
"""Three equal tiers of which each may ask the others for its floor, if shares give it one."""

CLASSES = {"batch": 0, "prod": 100}
CREDIT = 1_000_000


@dataclass(frozen=True)
class Case:
    """A pool before a round, and what the plan says."""

    nodes: str
    want: str
    running: str = ""
    queued: str = ""
    shares: str = ""
    usage: str = ""
    typical: str = ""
    kept: str = ""
    policy: PoolPolicy = field(default=PLAIN)

    def snapshot(self) -> PoolSnapshot:
        """The pool as a snapshot."""
        nodes = tuple(_node(one) for one in self.nodes.split())
        by_name = {node.id: node for node in nodes}
        running = tuple(_running(one, by_name) for one in self.running.split())
        waiting = {job.id: job for job in map(_job, self.queued.split())}
        earmarks = tuple(_earmark(one, by_name, waiting) for one in self.kept.split())
        return PoolSnapshot(
            at=T0,
            policy=with_shares(self.policy, self.shares),
            nodes=tuple(sorted(nodes, key=lambda node: node.id)),
            waiting=tuple(waiting[name] for name in sorted(waiting)),
            running=tuple(sorted(running, key=lambda one: one.job.id)),
            earmarks=tuple(sorted(earmarks, key=lambda one: one.job)),
            usage=tuple(sorted(_used(one, self.policy) for one in self.usage.split())),
            typical=tuple((_job(f"x:{one}").shape, 1) for one in self.typical.split()),
        )

    def cluster(self) -> Cluster:
        """The pool, ready for planning."""
        return Cluster.from_snapshot(self.snapshot())


def after(before: PoolSnapshot, plan: Plan) -> PoolSnapshot:
    """The pool once a plan has been carried out."""
    cluster = Cluster.from_snapshot(before)
    cluster.advance_to(plan.at)
    for decision in plan.decisions:
        cluster.apply(decision)
    return cluster.snapshot()


def with_shares(policy: PoolPolicy, shares: str) -> PoolPolicy:
    """A policy with these shares and limits as well."""
    places: list[tuple[Path, Share]] = []
    limits: list[tuple[str, Share]] = []
    for name, share in (one.split("=") for one in shares.split()):
        if name.startswith("@"):
            limits.append((name[1:], _share(share)))
        else:
            places.append((tuple(name.split(".")), _share(share)))
    return replace(policy, shares=tuple(places), limits=tuple(limits))


def time(text: str) -> int:
    """A length of time: 90s, 10m, 2h."""
    return int(text[:-1]) * {"s": SECOND, "m": MINUTE, "h": HOUR}[text[-1]]


def _share(text: str) -> Share:
    floor: list[tuple[str, int]] = []
    ceiling: list[tuple[str, int]] = []
    weight, jobs = 1, None
    for part in text.split(","):
        word, number, of = re.fullmatch(r"([a-z]+)(\d+)(\w*)", part).groups()  # type: ignore[union-attr]
        if word == "w":
            weight = int(number)
        elif word == "jobs":
            jobs = int(number)
        else:
            (floor if word == "floor" else ceiling).append((of or ANY_TYPE, int(number)))
    return Share(weight=weight, floor=tuple(floor), ceiling=tuple(ceiling), jobs_max=jobs)


def _node(text: str) -> Node:
    name, *options = text.split("/")
    node, size = name.split("=")
    gpus, gpu_type = size.split("x")
    given = dict(option.split("=") for option in options)
    state = NodeState(given.get("state", "on_order" if "ready" in given else "ready"))
    return Node(
        id=NodeId(node),
        gpu_type=gpu_type,
        gpus=int(gpus),
        slots=int(given.get("slots", 1)),
        memory_gib=int(given.get("mem", 80)),
        cpu_milli=int(given.get("cpu", 0)) * 1_000,
        ram_mib=int(given.get("ram", 0)) * 1_024,
        island=given.get("island", ""),
        rack=given.get("rack", ""),
        region=given.get("region", ""),
        labels=tuple(sorted(filter(None, given.get("labels", "").split(",")))),
        state=state,
        ready_at=T0 + time(given["ready"]) if "ready" in given else 0,
    )


def _options(parts: list[str]) -> dict[str, str]:
    given = {}
    for part in parts:
        name, _, value = part.partition("=")
        given[name] = value
    return given


def _job(text: str, types: tuple[str, ...] = ("H100",)) -> Job:
    name, *parts = text.split("/")
    job_id, _, size = name.partition(":")
    given = _options(parts)
    names = given.get("on", given.get("any"))
    types = tuple(names.split(",")) if names else types
    every, _, cost = given.get("ckpt", "0s,0s").partition(",")
    date, since, on = (*given.get("promised", "").split(","), "", "")[:3]
    return Job(
        id=JobId(job_id),
        shape=_shape(size, types, given),
        path=tuple(given.get("who", "paid.acme.ml.ann").split(".")),
        prices=_prices(given, types),
        run_max=time(given.get("limit", "24h")),
        queued_at=T0 - time(given.get("waited", "0s")),
        priority_class=_class(given),
        estimate=time(given["est"]) if "est" in given else None,
        preemptible="fixed" not in given,
        checkpoint_every=time(every),
        checkpoint_cost=time(cost),
        preemptions=int(given.get("preempted", 0)),
        stopped_at=T0 - time(given["stopped"]) if "stopped" in given else 0,
        attained=int(given.get("used", 0)) * CREDIT,
        balance=int(given.get("balance", 0)) * CREDIT,
        not_before=T0 + time(given["again"]) if "again" in given else 0,
        limit_names=tuple(filter(None, given.get("counted", "").split(","))),
        promised_at=T0 + time(date) if date else None,
        promised_since=T0 - time(since) if since else None,
        promised_on=tuple(
            (NodeId(node), int(tasks))
            for node, tasks in (one.split(":") for one in filter(None, on.split("+")))
        ),
    )


def _prices(given: dict[str, str], types: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    if "unpriced" in given:
        return ()
    prices = given.get("price", "1").split(",")
    prices = prices * len(types) if len(prices) == 1 else prices
    return tuple((t, int(price) * CREDIT) for t, price in zip(types, prices, strict=True))


def _class(given: dict[str, str]) -> int:
    for word, number in CLASSES.items():
        if word in given:
            return number
    return int(given.get("class", 0))


def _shape(size: str, types: tuple[str, ...], given: dict[str, str]) -> Shape:
    needs: dict[str, Any] = {
        "types": types,
        "types_equal": "any" in given,
        "memory_gib": int(given.get("mem", 0)),
        "labels": tuple(sorted(filter(None, given.get("label", "").split(",")))),
        "regions": tuple(sorted(filter(None, given.get("region", "").split(",")))),
        "within": Level(given.get("within", "pool")),
        "cpu_milli": int(given.get("cpu", 0)) * 1_000,
        "ram_mib": int(given.get("ram", 0)) * 1_024,
    }
    if size == "cpu":
        return Shape(gpus=0, **needs)
    tasks, _, gpus = size.rpartition("x")
    if "." in gpus:
        return Shape(tasks=int(tasks or 1), gpus=0, milli=round(float(gpus) * MILLI), **needs)
    if tasks:
        return Shape(tasks=int(tasks), gpus=int(gpus), **needs)
    return Shape(tasks=int(gpus), gpus=1, **needs)


def _running(text: str, nodes: dict[NodeId, Node]) -> RunningJob:
    name, *parts = text.split("/")
    job_id, _, where = name.partition("@")
    given = _options(parts)
    pieces = tuple(_piece(one, nodes, given) for one in where.split("+"))
    gpu_type = nodes[pieces[0].node].gpu_type
    ran = time(given.get("ran", "10m"))
    milli = sum(
        len(piece.gpus) * piece.slots * MILLI // nodes[piece.node].slots for piece in pieces
    )
    count = sum(len(piece.gpus) for piece in pieces)
    size = f"{count}" if milli == count * MILLI else f"{milli / MILLI}"
    job = _job("/".join([f"{job_id}:{size}", *parts]), (gpu_type,))
    if "ends" in given:
        job = replace(job, run_max=ran + time(given["ends"]))
    return RunningJob(
        job=replace(job, queued_at=job.queued_at - ran),
        gpu_type=gpu_type,
        pieces=pieces,
        started_at=T0 - ran,
        saved_at=T0 - (time(given["saved"]) if "saved" in given else ran),
        why=StartReason.AGE if "aged" in given else StartReason.TURN,
        stops_at=T0 + time(given["stops"]) if "stops" in given else None,
    )


def _earmark(text: str, nodes: dict[NodeId, Node], waiting: dict[JobId, Job]) -> Earmark:
    name, *parts = text.split("/")
    job_id, _, where = name.partition("@")
    given = _options(parts)
    pieces = tuple(_piece(one, nodes, given) for one in where.split("+"))
    return Earmark(
        job=waiting[JobId(job_id)].id,
        gpu_type=nodes[pieces[0].node].gpu_type,
        pieces=pieces,
        victims=tuple(map(JobId, filter(None, given.get("from", "").split(",")))),
        since=T0 - time(given.get("since", "10s")),
    )


def _piece(text: str, nodes: dict[NodeId, Node], given: dict[str, str]) -> Piece:
    """n1:4: the first four GPUs; n1:4@2: four from the third on; n1:2of7@0: slots of the first."""
    node, _, size = text.partition(":")
    size, _, start = size.partition("@")
    count, _, slots = size.partition("of")
    first = int(start or 0)
    cpu, ram = int(given.get("cpu", 0)) * 1_000, int(given.get("ram", 0)) * 1_024
    if slots:
        return Piece(NodeId(node), (first,), int(count), cpu, ram)
    gpus = tuple(range(first, first + int(count)))
    return Piece(NodeId(node), gpus, nodes[NodeId(node)].slots, cpu, ram)


def _used(text: str, policy: PoolPolicy) -> tuple[Path, int]:
    who, credits = text.split("=")
    fading = UsageDecay(policy.half_life, T0)
    hour = fading.growth(T0) - fading.growth(T0 - HOUR)
    return tuple(who.split(".")), int(credits) * CREDIT * hour
