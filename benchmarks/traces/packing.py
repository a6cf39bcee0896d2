"""Experiment A: pods come one by one until a cluster is full, and none of them ever leaves.

As published with FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): the list of pods in
a random order, then more of them, drawn at random, until 1.3 times the cluster has been asked for.
Each goes at once to a node that has room for it, or is lost. What counts is how much of the
cluster's GPUs is given away when as much as the whole cluster has been asked for, and at the end.

A packer only says how welcome a pod is on a node. What it said is remembered until the node
changes, so that a pod costs what has changed since the last one like it, not all nodes.
"""

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import exp
from typing import Final, NamedTuple, Protocol

MILLI: Final = 1_000  # a whole GPU
OVERASKED: Final = 1.3  # of the cluster, when the last pod has come
COVERED: Final = 0.95  # of the pods are of a typical class
CPU_MOST: Final = 128_000  # of a node, by which BestFit measures
GPUS_MOST: Final = 8


class Pod(NamedTuple):
    """What a pod asks for, all on one node; pods that ask for the same are the same to a packer."""

    cpu_milli: int
    ram_mib: int
    gpus: int
    milli: int  # of each of these GPUs
    models: tuple[str, ...]  # it can use; () are all

    @property
    def asked(self) -> int:
        """Of GPUs, in thousandths."""
        return self.gpus * self.milli

    @property
    def shared(self) -> bool:
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
        """What is left: a part comes off the GPU at this place, or off the tightest one."""
        free = list(self.free)
        if pod.shared:
            part = free.pop(bisect_left(free, pod.milli) if gpu is None else gpu) - pod.milli
            free = sorted([*free, part]) if part else free
        elif pod.gpus:
            free = free[: -pod.gpus]
        cpu_milli, ram_mib = self.cpu_milli - pod.cpu_milli, self.ram_mib - pod.ram_mib
        return Host(self.model, cpu_milli, ram_mib, tuple(free))


class Packer(Protocol):
    """A rule that says which node a pod should go to."""

    def rank(self, host: Host, pod: Pod) -> tuple[int, Host]:
        """How welcome a pod is where it fits, the smaller the better, and what is left then."""


class BestFit:
    """Where least is left, of CPU and GPU alike, in hundredths of the largest node."""

    def rank(self, host: Host, pod: Pod) -> tuple[int, Host]:
        """Rounded as published: equal ones go to the first node."""
        cpu = (host.cpu_milli - pod.cpu_milli) / CPU_MOST
        gpus = (sum(host.free) - pod.asked) / (GPUS_MOST * MILLI)
        return -int(100 * (1 - (cpu + gpus) / 2)), host.without(pod)


class Fgd:
    """Where free GPUs lose least of their use to the typical pods, in a hundred steps."""

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
        for gpu in able if pod.shared else [None]:
            left = host.without(pod, gpu)
            score = int(100 / (1 + exp((self.fragments(left) - before) / MILLI)))
            ranked.append((-score, left))
        return min(ranked, key=lambda one: one[0])

    def fragments(self, host: Host) -> float:
        """Free GPU that a typical pod cannot use, in thousandths."""
        # How much CPU is free matters only against what the typical pods ask for.
        key = host.model, bisect_right(self._cpus, host.cpu_milli), host.free
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = sum(
                part * _unusable(host, pod) for pod, part in self._typical
            )
        return found


def _unusable(host: Host, pod: Pod) -> int:
    first = bisect_left(host.free, pod.milli)
    able = (
        pod.gpus
        and len(host.free) - first >= pod.gpus
        and host.cpu_milli >= pod.cpu_milli
        and (not pod.models or host.model in pod.models)
    )
    return sum(host.free[:first] if able else host.free)


def typical_of(pods: Sequence[Pod]) -> list[tuple[Pod, int]]:
    """The most frequent classes that cover nearly all pods, and how many are of each."""
    seen = Counter(pod._replace(ram_mib=0) for pod in pods)
    found: list[tuple[Pod, int]] = []
    covered = 0
    for pod, times in sorted(seen.items(), key=lambda one: (-one[1], one[0])):
        if covered >= COVERED * len(pods):
            break
        found.append((pod, times))
        covered += times
    return found


class Fleet:
    """Nodes in order, filled by a packer."""

    def __init__(self, hosts: Sequence[Host], packer: Packer) -> None:
        self._hosts = list(hosts)
        self._packer = packer
        self._changes = list(range(len(hosts)))  # nodes, each time that one changed
        self._ranked: dict[Pod, _Ranking] = {}

    def place(self, pod: Pod) -> bool:
        """Put a pod on the most welcome node, of equal ones the first; whether there is one."""
        ranking = self._ranked.setdefault(pod, _Ranking())
        for place in dict.fromkeys(self._changes[ranking.seen :]):
            host = self._hosts[place]
            if host.takes(pod):
                rank, left = self._packer.rank(host, pod)
                heappush(ranking.nodes, (rank, place, host, left))
        ranking.seen = len(self._changes)
        while ranking.nodes:
            _, place, host, left = heappop(ranking.nodes)
            if self._hosts[place] is host:
                self._hosts[place] = left
                self._changes.append(place)
                return True
        return False


class _Ranking:
    """What a packer said about one kind of pod, and up to which change."""

    __slots__ = ("nodes", "seen")

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int, Host, Host]] = []
        self.seen = 0


def shuffled(pods: Sequence[Pod], hosts: Sequence[Host], seed: int) -> tuple[list[Pod], list[Host]]:
    """Pods as they come, until too much has been asked for, and the nodes in a random order."""
    chance = random.Random(seed)
    coming = list(pods)
    chance.shuffle(coming)
    room = OVERASKED * capacity(hosts) - sum(pod.asked for pod in coming)
    while room >= (pod := chance.choice(pods)).asked:
        coming.append(pod)
        room -= pod.asked
    order = list(hosts)
    chance.shuffle(order)
    return coming, order


def capacity(hosts: Sequence[Host]) -> int:
    """All GPUs, in thousandths."""
    return sum(sum(host.free) for host in hosts)


class Curve:
    """How much of a cluster is given away, in percent, by how much of it has been asked for."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._arrived = self._placed = 0
        self._sums: dict[int, tuple[float, int]] = {}

    def count(self, pod: Pod, *, placed: bool) -> None:
        """A pod has come, and has or has not found a place."""
        self._arrived += pod.asked
        self._placed += pod.asked if placed else 0
        percent = round(100 * self._arrived / self._total)
        total, times = self._sums.get(percent, (0.0, 0))
        self._sums[percent] = total + 100 * self._placed / self._total, times + 1

    def at(self, percent: int) -> float:
        """The mean while so much has been asked for, to the next percent; else the last one."""
        known = [one for one in self._sums if one <= percent]
        total, times = self._sums[max(known)]
        return total / times


def pack(coming: Sequence[Pod], hosts: Sequence[Host], packer: Packer) -> Curve:
    """One run."""
    fleet = Fleet(hosts, packer)
    curve = Curve(capacity(hosts))
    for pod in coming:
        curve.count(pod, placed=fleet.place(pod))
    return curve
