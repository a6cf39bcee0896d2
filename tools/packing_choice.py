"""How core packs made-up clusters, beside FGD and best fit: what decision 0018 rests on.

    python tools/packing_choice.py [SEEDS]

Nothing here is taken from a trace: fleets and pods are drawn from a few lists of round numbers. A
rule that is chosen on these loads can then be tried on recorded ones without having seen them.
"""

import random
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.traces.bursar_placement import pack_with_bursar
from benchmarks.traces.packers import (
    MILLI,
    BestFit,
    Curve,
    Fgd,
    Host,
    Pod,
    count_capacity,
    find_typical,
    pack,
    shuffle,
)

NODES: Final = 150
REQUESTED_PART: Final = 1.05  # of the cluster, by the list of pods


class Model(NamedTuple):
    """Nodes of one kind, and how many of them there are beside others."""

    name: str
    cores: int
    gpus: int
    times: int


FLEETS: Final = {
    "alike": (Model("H", 96, 8, 1),),
    "mixed": (
        Model("H", 96, 8, 3), Model("L", 64, 4, 3), Model("T", 48, 2, 3), Model("S", 32, 1, 2),
    ),
    "little CPU": (Model("H", 64, 8, 4), Model("L", 64, 4, 3), Model("T", 32, 2, 3)),
    "mostly large": (
        Model("H", 96, 8, 10), Model("I", 128, 8, 3), Model("L", 64, 4, 2), Model("T", 96, 2, 6),
        Model("V", 64, 2, 2),
    ),
}  # fmt: skip
# GPUs, thousandths of each, how many of these there are beside others.
LOADS: Final = {
    "plain": ((1, 1000, 60), (2, 1000, 10), (4, 1000, 6), (8, 1000, 5), (1, 250, 8), (1, 500, 8),
              (0, 0, 8)),
    "parts": (*((1, part, 3) for part in range(100, 1000, 70)), (1, 1000, 25), (2, 1000, 2),
              (4, 1000, 2), (8, 1000, 2)),
    "gangs": ((1, 1000, 30), (2, 1000, 20), (4, 1000, 20), (8, 1000, 15), (1, 500, 10)),
}  # fmt: skip
CORES: Final = (2, 4, 6, 8, 10, 12, 16)  # for each GPU of a pod
NAMED: Final = 0.25  # of the pods can only use one model, where pods name models


def scene(fleet: str, load: str, named: float, seed: int) -> tuple[list[Pod], list[Host]]:
    """A list of pods and the nodes for it."""
    chance = random.Random(f"{fleet}/{load}/{named}/{seed}")
    models, kinds = FLEETS[fleet], LOADS[load]
    drawn = chance.choices(models, [model.times for model in models], k=NODES)
    hosts = [
        Host(model.name, model.cores * 1_000, model.cores * 8_192, (MILLI,) * model.gpus)
        for model in drawn
    ]
    pods: list[Pod] = []
    while sum(pod.milli_gpus for pod in pods) < REQUESTED_PART * count_capacity(hosts):
        pod = _pod(models, kinds, named, chance)
        if any(host.takes(pod) for host in hosts):
            pods.append(pod)
    return pods, hosts


def _pod(
    models: Sequence[Model], kinds: Sequence[tuple[int, int, int]], named: float,
    chance: random.Random,
) -> Pod:  # fmt: skip
    gpus, milli, _ = chance.choices(kinds, [times for *_, times in kinds])[0]
    cpu = chance.choice(CORES) * (gpus * milli or MILLI)
    only = gpus and chance.random() < named
    able = [model.name for model in models if model.gpus >= gpus]
    return Pod(cpu, 4_096 * max(gpus, 1), gpus, milli, (chance.choice(able),) if only else ())


def main(seeds: int) -> None:
    """One line for each load: means over the seeds at 100 % and 130 % asked for."""
    print("| fleet, pods | best fit | FGD | ours |\n|---|---|---|---|")
    for fleet in FLEETS:
        for load in LOADS:
            for named in (0.0, NAMED) if len(FLEETS[fleet]) > 1 else (0.0,):
                runs = [_run(fleet, load, named, seed) for seed in range(seeds)]
                cells = [_mean([run[place] for run in runs]) for place in range(3)]
                name = f"{fleet}, {load}{', models named' if named else ''}"
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _run(fleet: str, load: str, named: float, seed: int) -> tuple[Curve, Curve, Curve]:
    pods, hosts = scene(fleet, load, named, seed)
    coming, order = shuffle(pods, hosts, seed)
    fgd = pack(coming, order, Fgd(find_typical(pods)))
    return pack(coming, order, BestFit()), fgd, pack_with_bursar(pods, coming, order)


def _mean(curves: Sequence[Curve]) -> str:
    at = [sum(curve.at(percent) for curve in curves) / len(curves) for percent in (100, 130)]
    return f"{at[0]:.2f} / {at[1]:.2f}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
