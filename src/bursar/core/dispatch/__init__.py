"""A job as its pool sees it: the pool's rules and the rules of a node's agent.

Read in this order:

    job_lifecycle  the states of a job and the steps between them, in one table
    state          the rows of a pool, and one transaction on them (`PoolTransaction`)
    quota_usage    how much of their orgs' quotas jobs use and wait for
    share_usage    past usage of each user, for the next leader
    quarantine     nodes on which attempts keep failing
    attempt_end    how jobs wait, stop and end
    reports        reports of nodes, and the leases they get in the answer
    pool           messages of orgs, decisions of the leader, expired leases
    policies       which policies a pool accepts
    node_orders    ordered nodes, until they are returned
    audit_stream   records the decisions of a leader and their inputs
    cluster_sync   keeps a scheduler's cluster in step with the pool
    agent          the rules of a node's agent

The org's side is `core.jobs`. Each function takes state and input and returns new state and
messages: no clock, no randomness, no I/O. The fault simulator (`bursar.sim.faults`) runs the same
functions.
"""
