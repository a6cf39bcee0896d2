"""Where a job goes: what it accepts, the most welcome type, then the fullest node (S1, S6)."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    # ------------------------------------------------------------------ what it accepts
    "the most welcome type that is free": Case(
        nodes="n1=8xH100 n2=8xA100",
        queued="a:4/on=A100,H100",
        want="a -> n2:4",
    ),
    "the next type when the most welcome is taken": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n2:6",
        queued="a:4/on=A100,H100",
        want="a -> n1:4",
    ),
    "the third type when two are taken": Case(
        nodes="n1=8xH100 n2=8xA100 n3=8xL40",
        running="x@n1:8 y@n2:8",
        queued="a:4/on=H100,A100,L40",
        want="a -> n3:4",
    ),
    "a type that is not named is never used": Case(
        nodes="n1=8xH100",
        queued="a:4/on=A100",
        want="a waits never_fits needs=4 free=0",
    ),
    "a cheaper type is not preferred on its own": Case(
        nodes="n1=8xH100 n2=8xA100",
        queued="a:4/on=H100,A100/price=4,1",
        want="a -> n1:4",
    ),
    "a welcome type goes before a tighter fit": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n2:4",
        queued="a:4/on=H100,A100",
        want="a -> n1:4",
    ),
    "GPUs with too little memory are passed over": Case(
        nodes="n1=8xA100/mem=40 n2=8xA100/mem=80",
        running="x@n1:4",
        queued="a:1/on=A100/mem=80",
        want="a -> n2:1",
    ),
    "memory of just the floor is enough": Case(
        nodes="n1=8xA100/mem=40",
        queued="a:1/on=A100/mem=40",
        want="a -> n1:1",
    ),
    "too little memory on the welcome type: the next type": Case(
        nodes="n1=8xA100/mem=40 n2=8xH100/mem=80",
        queued="a:1/on=A100,H100/mem=80",
        want="a -> n2:1",
    ),
    "without a floor small memory will do": Case(
        nodes="n1=8xA100/mem=40 n2=8xA100/mem=80",
        running="x@n1:4",
        queued="a:1/on=A100",
        want="a -> n1:1",
    ),
    "nodes must have all labels": Case(
        nodes="n1=8xH100/labels=ib n2=8xH100/labels=ib,nvme",
        running="x@n1:4",
        queued="a:1/label=ib,nvme",
        want="a -> n2:1",
    ),
    "nodes must stand in one of its regions": Case(
        nodes="n1=8xH100 n2=8xH100/region=eu-1 n3=8xH100/region=us-1",
        queued="a:4/region=ap-1,us-1 b:4/region=eu-1/used=1",
        want="a -> n3:4; b -> n2:4",
    ),
    "without regions a job runs anywhere": Case(
        nodes="n1=8xH100/region=eu-1",
        queued="a:4",
        want="a -> n1:4",
    ),
    "room in another region is no room": Case(
        nodes="n1=8xH100/region=eu-1 n2=8xH100/region=us-1",
        running="x@n1:8/ends=1h/fixed",
        queued="a:8/region=eu-1 b:1x4/region=us-1/used=1",
        want="b -> n2:4 backfill; a waits needs=8 free=0 start=1h",
    ),
    "nodes may have other labels too": Case(
        nodes="n1=8xH100/labels=ib,nvme,spot",
        queued="a:1/label=nvme",
        want="a -> n1:1",
    ),
    "a label that no node has": Case(
        nodes="n1=8xH100/labels=ib",
        queued="a:1/label=eu",
        want="a waits never_fits needs=1 free=0",
    ),
    "a job too large for every node never fits": Case(
        nodes="n1=8xH100 n2=8xH100",
        queued="a:1x16",
        want="a waits never_fits needs=16 free=16",
    ),
    # ------------------------------------------------------------------ processors and memory
    "processors run out before GPUs do": Case(
        nodes="n1=8xH100/cpu=8",
        queued="a:1/cpu=6 b:1/cpu=6",
        want="a -> n1:1; b waits needs=1 free=7 start=24h",
    ),
    "main memory runs out before GPUs do": Case(
        nodes="n1=8xH100/ram=64 n2=8xH100/ram=32",
        queued="a:1/ram=48 b:1/ram=48",
        want="a -> n1:1; b waits needs=1 free=15 start=24h",
    ),
    "a job without GPUs": Case(
        nodes="c1=0xcpu/cpu=64 n1=8xH100/cpu=64",
        queued="prep:cpu/on=cpu/cpu=4",
        want="prep -> c1:0",
    ),
    "a job without GPUs next to the GPUs of others": Case(
        nodes="n1=8xH100/cpu=64",
        running="x@n1:8/cpu=60",
        queued="a:cpu/cpu=4 b:cpu/cpu=4",
        want="a -> n1:0; b waits needs=0 free=0 start=1430m",
    ),
    # ------------------------------------------------------------------ packing
    "the fullest node": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n2:4",
        queued="a:1",
        want="a -> n2:1",
    ),
    "the tightest hole": Case(
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="x@n1:4 y@n2:6 z@n3:7",
        queued="a:1x2",
        want="a -> n2:2",
    ),
    "a node that it fills before a large one": Case(
        nodes="n1=8xH100 n2=4xH100",
        queued="a:1x4",
        want="a -> n2:4",
    ),
    "a large node in use before a small one that is not": Case(
        nodes="n1=2xH100 n2=8xH100",
        running="x@n2:3",
        queued="a:1",
        want="a -> n2:1",
    ),
    "where less CPU is free, of nodes with as many free GPUs": Case(
        nodes="n1=4xH100/cpu=64 n2=4xH100/cpu=64",
        running="x@n1:2/cpu=8 y@n2:2/cpu=32",
        queued="a:1/cpu=4",
        want="a -> n2:1",
    ),
    "equal nodes by name": Case(
        nodes="n2=8xH100 n1=8xH100",
        queued="a:1",
        want="a -> n1:1",
    ),
    "small jobs fill one node and leave the other whole for a large one": Case(
        nodes="n1=8xH100 n2=8xH100",
        queued="a:1/waited=4m b:1/waited=3m c:1/waited=2m d:1/waited=1m big:1x8",
        want="a -> n1:1; b -> n1:1; c -> n1:1; d -> n1:1; big -> n2:8",
    ),
    # ------------------------------------------------------------------ jobs typically seen
    "without jobs typically seen a hole of four is broken": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n1:4 y@n2:3",
        queued="a:1",
        want="a -> n1:1",
    ),
    "where jobs of four are typical a hole of four is left alone": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n1:4 y@n2:3",
        queued="a:1",
        typical="1x4",
        want="a -> n2:1",
    ),
    "where jobs of eight are typical an empty node is left alone": Case(
        nodes="n1=8xH100 n2=16xH100",
        running="x@n2:4",
        queued="a:1x4",
        typical="1x8",
        want="a -> n2:4",
    ),
    "what no typical job can use is used first": Case(
        nodes="n1=4xH100/mem=40 n2=3xH100/mem=80",
        queued="a:1",
        typical="1x1/mem=80",
        want="a -> n1:1",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_placement(case: Case) -> None:
    """What it accepts; type, then fragmentation, then the fullest node."""
    check(case)
