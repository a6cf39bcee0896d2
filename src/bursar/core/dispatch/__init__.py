"""A job as its pool sees it: the pool's rules and the rules of a node's agent.

Read in this order:

    job_lifecycle  the states of a job and the steps between them, in one table
    state          what a pool keeps, and one transaction on it (`PoolTransaction`)
    quota_usage    what jobs use and claim of their orgs' quotas
    share_usage    past usage of each user, for the next leader
    quarantine     nodes on which attempts keep failing
    attempt_end    how jobs wait, stop and end
    reports        what nodes report, and the leases they get in the answer
    pool           messages of orgs, decisions of the leader, expired leases
    policies       which policies a pool accepts
    node_orders    ordered nodes, until they are given back
    audit_stream   what a leader records of its decisions
    cluster_sync   keeps a scheduler's cluster in step with the pool
    agent          the rules of a node's agent

The org's side is `core.jobs`. Everything is state and input in, new state and messages out: no
clock, no randomness, no I/O. The fault simulator (`bursar.sim.faults`) runs the same functions.
"""
