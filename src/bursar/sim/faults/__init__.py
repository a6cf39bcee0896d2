"""The fault simulator: orgs, pools and nodes in one thread, in an environment that fails.

The state machines are those of `bursar.core`: ledger, jobs, scheduler, dispatch. The simulator
makes up what lies between them: messages that are lost, repeated, late or out of order; processes
that die between any two transactions or are paused; nodes that vanish; clocks that run at the wrong
rate or jump. After every step each invariant is checked. Everything follows from the seed, so a
seed replays its run exactly.

    clocks          time as a database or a node reads it
    node_host       a node: processes, guards, a disk, an agent that comes and goes
    simulated_pool  a pool: its rows, its clock, its processes and its nodes
    org             an org: its books and jobs, as rows in memory
    job_upkeep      what an org's workers do for rolling holds, arrays and identical jobs
    profile         how often what fails, drawn from the seed
    nodes           what happens at the nodes
    clients         the clients of the orgs, and the truth about their jobs
    injection       what fails, when, and for how long
    world           everything together, one event after the other
    invariants      what must be true after every step, and at the end; `checker` runs them
    campaign        many seeds, and what happened in them
"""
