"""Who runs where and when: a snapshot in, a plan out.

    cluster = Cluster.of(snapshot)      # indexes over what is known; kept up as things happen
    plan = make_plan(cluster, now)      # decisions with their reasons; changes nothing
    for decision in plan.decisions:
        cluster.apply(decision, now)    # or however the world turned out

docs/scheduling.md explains the order, placement, backfill and preemption, and how to write a new
policy.
"""
