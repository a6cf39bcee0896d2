"""Which job runs where and when: a snapshot of a pool in, a plan out.

    >>> from bursar.core.scheduling.model.cluster import Cluster
    >>> from bursar.core.scheduling.model.jobs import Job, Shape
    >>> from bursar.core.scheduling.model.nodes import Node
    >>> from bursar.core.scheduling.model.policy import PoolPolicy
    >>> from bursar.core.scheduling.model.snapshot import PoolSnapshot
    >>> from bursar.core.scheduling.plan import make_plan
    >>> node = Node(id="n1", gpu_type="H100", gpus=8)
    >>> job = Job(
    ...     id="j1", shape=Shape(types=("H100",), gpus=4), path=("paid", "acme", "ann"),
    ...     prices=(), run_max=3_600_000_000, queued_at=0,
    ... )
    >>> snapshot = PoolSnapshot(at=1, policy=PoolPolicy(), nodes=(node,), waiting=(job,))
    >>> cluster = Cluster.from_snapshot(snapshot)
    >>> plan = make_plan(cluster, 1)  # the cluster stays as it is
    >>> for decision in plan.decisions:
    ...     cluster.apply(decision)
    >>> cluster.running["j1"].pieces
    (Piece(node='n1', gpus=(0, 1, 2, 3), slots=1, cpu_milli=0, ram_mib=0),)

The owner of a cluster reports through its methods what happens to the pool. The folders:

    model        jobs, nodes, policy, and the cluster with its indexes
    order        which waiting job comes next
    placement    where a job runs, and when it can start at the latest
    preemption   which running jobs stop or move for a waiting job
    passes       the steps of one planning pass, which `plan` repeats
    explain      why a job waits
    advice       admission, routing, forecasts, autoscaling, defragmentation

docs/scheduling.md explains the rules, and one round step by step.
"""
