"""Jobs on machines: a job's life, the pool's side, the agent's side, and the org's side.

Read in this order:

    life       what can become of a job: one table
    state      what a pool keeps, and one transaction on it
    ends       how jobs wait, stop and end
    reports    what nodes report, and what they are answered
    pool       messages of orgs, what the leader decides, what has run out
    agent      a node: starts what it is leased, reports, ends what it has no right to
    charging   what a pool's messages come to in an org's ledger
    org        the org: jobs with their holds, and both directions of the post
    following  how a scheduler's cluster keeps up with what the pool keeps

All of it is state and event in, new state and messages out: no clock, no chance, no I/O. The fault
simulation (`bursar.sim.faults`) drives these very functions.
"""
