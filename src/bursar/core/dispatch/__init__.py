"""Jobs on machines: a job's life, the pool's side, the agent's side, and the org's side.

Read in this order:

    life       what can become of a job: one table
    counting   what jobs have and want of their orgs' quotas
    state      what a pool keeps, and one transaction on it
    spending   what users have had, for whoever leads next
    quarantine nodes on which nothing gets going
    ends       how jobs wait, stop and end
    reports    what nodes report, and what they are answered
    pool       messages of orgs, what the leader decides, what has run out
    policies   which policies a pool can be run by
    orders     nodes that were ordered, until they are given back
    agent      a node: starts what it is leased, reports, ends what it has no right to
    charging   what a pool's messages come to in an org's ledger
    org        the org: jobs with their holds, and both directions of the post
    following  how a scheduler's cluster keeps up with what the pool keeps

All of it is state and event in, new state and messages out: no clock, no chance, no I/O. The fault
simulation (`bursar.sim.faults`) drives these very functions.
"""
