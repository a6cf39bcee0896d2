"""Which job runs where and when: a snapshot of a pool in, a plan out.

    cluster = Cluster.from_snapshot(snapshot)  # indexes; the owner reports what happens to it
    plan = make_plan(cluster, now)             # decisions with reasons; the cluster stays as it is
    for decision in plan.decisions:
        cluster.apply(decision)

    model        jobs, nodes, policy, and the cluster with its indexes
    order        which waiting job comes next
    placement    where a job runs, and when it can start at the latest
    preemption   which running jobs stop or move for a waiting one
    passes       the steps of one planning pass, which `plan` repeats
    explain      why a job waits
    advice       admission, routing, forecasts, orders of nodes, moves

docs/scheduling.md explains the rules, and one round step by step.
"""
