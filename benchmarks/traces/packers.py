"""Experiment A: pods come one by one until a cluster is full, and none of them ever leaves.

As published with FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): the list of pods in
a random order, then more of them, drawn at random, until 1.3 times the cluster has been asked for.
Each goes at once to a node that has room for it, or is lost. What counts is how much of the
cluster's GPUs is given away when as much as the whole cluster has been asked for, and at the end.

A packer only ranks a node for a pod. Ranks are cached until the node changes, so a pod costs the
changes since the last pod of its kind, not all nodes.
"""

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import exp
from typing import Final, NamedTuple, Protocol

MILLI: Final = 1_000  # a whole GPU
REQUESTED_PART: Final = 1.3  # of the cluster, when the last pod has come
TYPICAL_PART: Final = 0.95  # of the pods are of a typical class
CPU_MOST: Final = 128_000  # of a node, by which BestFit measures
GPUS_MOST: Final = 8


class Pod(NamedTuple):
    """The request of a pod, all on one node; a packer treats equal requests alike."""

    cpu_milli: int
    ram_mib: int
    gpus: int
    milli: int  # of each of these GPUs
    models: tuple[str, ...]  # it can use; () are all

    @property
    def milli_gpus(self) -> int:
        """Of GPUs, in thousandths."""
        return self.gpus * self.milli

    @property
    def is_shared(self) -> bool:
        """Whether it leaves something of its GPU to others."""
        return self.gpus == 1 and self.milli < MILLI


class Host(NamedTuple):
    """What is free on a node: of each GPU that has something left, in thousandths, ascending."""

    model: str
    cpu_milli: int
    ram_mib: int
    free: tuple[int, ...]

    def takes(self, pod: Pod) -> bool:
        """Whether there is room for a pod."""
        if self.cpu_milli < pod.cpu_milli or self.ram_mib < pod.ram_mib:
            return False
        if pod.models and self.model not in pod.models:
            return False
        return len(self.free) - bisect_left(self.free, pod.milli) >= pod.gpus

    def without(self, pod: Pod, gpu: int | None = None) -> "Host":
        """The host after placing a pod; a part is taken from GPU `gpu`, or from the tightest."""
        free = list(self.free)
        if pod.is_shared:
            part = free.pop(bisect_left(free, pod.milli) if gpu is None else gpu) - pod.milli
            free = sorted([*free, part]) if part else free
        elif pod.gpus:
            free = free[: -pod.gpus]
        cpu_milli, ram_mib = self.cpu_milli - pod.cpu_milli, self.ram_mib - pod.ram_mib
        return Host(self.model, cpu_milli, ram_mib, tuple(free))


class Packer(Protocol):
    """A rule that ranks the nodes for a pod."""

    def rank(self, host: Host, pod: Pod) -> tuple[int, Host]:
        """The rank of a host for a pod, smaller is better, and the host after placing it."""


class BestFit:
    """Prefers the node with the least CPU and GPU left, in hundredths of the largest node."""

    def rank(self, host: Host, pod: Pod) -> tuple[int, Host]:
        """Rank as published: rounded, so that equal nodes are taken in order."""
        cpu = (host.cpu_milli - pod.cpu_milli) / CPU_MOST
        gpus = (sum(host.free) - pod.milli_gpus) / (GPUS_MOST * MILLI)
        return -int(100 * (1 - (cpu + gpus) / 2)), host.without(pod)


class Fgd:
    """Prefers the node whose free GPUs stay most usable for typical pods, in a hundred steps."""

    def __init__(self, typical: Sequence[tuple[Pod, int]]) -> None:
        total = sum(times for _, times in typical)
        self._typical = [(pod, times / total) for pod, times in typical]
        self._cpus = sorted({pod.cpu_milli for pod, _ in typical})
        self._known: dict[tuple[str, int, tuple[int, ...]], float] = {}

    def rank(self, host: Host, pod: Pod) -> tuple[int, Host]:
        """Rounded as published: the steps are what keeps whole nodes free."""
        before = self.fragments(host)
        ranked = []
        able = range(bisect_left(host.free, pod.milli), len(host.free))
        for gpu in able if pod.is_shared else [None]:
            left = host.without(pod, gpu)
            score = int(100 / (1 + exp((self.fragments(left) - before) / MILLI)))
            ranked.append((-score, left))
        return min(ranked, key=lambda ranking: ranking[0])

    def fragments(self, host: Host) -> float:
        """Free GPU that a typical pod cannot use, in thousandths."""
        # How much CPU is free matters only against what the typical pods ask for.
        key = host.model, bisect_right(self._cpus, host.cpu_milli), host.free
        unusable = self._known.get(key)
        if unusable is None:
            unusable = self._known[key] = sum(
                part * _count_unusable(host, pod) for pod, part in self._typical
            )
        return unusable


def _count_unusable(host: Host, pod: Pod) -> int:
    first = bisect_left(host.free, pod.milli)
    able = (
        pod.gpus
        and len(host.free) - first >= pod.gpus
        and host.cpu_milli >= pod.cpu_milli
        and (not pod.models or host.model in pod.models)
    )
    return sum(host.free[:first] if able else host.free)


def find_typical(pods: Sequence[Pod]) -> list[tuple[Pod, int]]:
    """The most frequent classes that cover nearly all pods, and how many are of each."""
    counts = Counter(pod._replace(ram_mib=0) for pod in pods)
    typical: list[tuple[Pod, int]] = []
    covered = 0
    for pod, times in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= TYPICAL_PART * len(pods):
            break
        typical.append((pod, times))
        covered += times
    return typical


class PackedCluster:
    """Nodes in order, filled by a packer."""

    def __init__(self, hosts: Sequence[Host], packer: Packer) -> None:
        self._hosts = list(hosts)
        self._packer = packer
        self._changes = list(range(len(hosts)))  # nodes, each time that one changed
        self._ranked: dict[Pod, _Ranking] = {}

    def place(self, pod: Pod) -> bool:
        """Put a pod on the best-ranked node, the first of equals; return whether there is one."""
        ranking = self._ranked.setdefault(pod, _Ranking())
        for place in dict.fromkeys(self._changes[ranking.changes_ranked :]):
            host = self._hosts[place]
            if host.takes(pod):
                rank, left = self._packer.rank(host, pod)
                heappush(ranking.nodes, (rank, place, host, left))
        ranking.changes_ranked = len(self._changes)
        while ranking.nodes:
            _, place, host, left = heappop(ranking.nodes)
            if self._hosts[place] is host:
                self._hosts[place] = left
                self._changes.append(place)
                return True
        return False


class _Ranking:
    """The ranked nodes of one kind of pod, and the number of changes they include."""

    __slots__ = ("changes_ranked", "nodes")

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int, Host, Host]] = []
        self.changes_ranked = 0


def shuffle(pods: Sequence[Pod], hosts: Sequence[Host], seed: int) -> tuple[list[Pod], list[Host]]:
    """Pods in random order, more than the cluster can hold, and nodes in random order."""
    rng = random.Random(seed)
    coming = list(pods)
    rng.shuffle(coming)
    room = REQUESTED_PART * count_capacity(hosts) - sum(pod.milli_gpus for pod in coming)
    while room >= (pod := rng.choice(pods)).milli_gpus:
        coming.append(pod)
        room -= pod.milli_gpus
    order = list(hosts)
    rng.shuffle(order)
    return coming, order


def count_capacity(hosts: Sequence[Host]) -> int:
    """All GPUs, in thousandths."""
    return sum(sum(host.free) for host in hosts)


class Curve:
    """The allocated part of a cluster, in percent, by the requested part."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._arrived = self._placed = 0
        self._sums: dict[int, tuple[float, int]] = {}

    def count(self, pod: Pod, *, placed: bool) -> None:
        """Count a pod that was or was not placed."""
        self._arrived += pod.milli_gpus
        self._placed += pod.milli_gpus if placed else 0
        percent = round(100 * self._arrived / self._total)
        total, times = self._sums.get(percent, (0.0, 0))
        self._sums[percent] = total + 100 * self._placed / self._total, times + 1

    def at(self, percent: int) -> float:
        """The mean allocation at this requested percent, or at the last one before it."""
        known = [measured for measured in self._sums if measured <= percent]
        total, times = self._sums[max(known)]
        return total / times


def pack(coming: Sequence[Pod], hosts: Sequence[Host], packer: Packer) -> Curve:
    """One run."""
    fleet = PackedCluster(hosts, packer)
    curve = Curve(count_capacity(hosts))
    for pod in coming:
        curve.count(pod, placed=fleet.place(pod))
    return curve
