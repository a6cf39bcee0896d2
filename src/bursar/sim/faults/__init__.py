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
    job_upkeep      an org's background work: rolling holds, arrays and identical jobs
    profile         the size of the world and the rates of faults, drawn from the seed
    nodes           agents, guards and processes
    clients         the clients of the orgs, and the true behaviour of their jobs
    injection       injects faults and ends them
    world           all parts together, one event after the other
    invariants      what must be true after every step, and at the end; `checker` runs them
    campaign        runs many seeds and sums up the results
"""
