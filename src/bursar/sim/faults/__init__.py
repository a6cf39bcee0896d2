"""Faults, simulated: orgs, a pool and its nodes in one thread, and a world that fails them.

The state machines are those of `bursar.core`: ledger, scheduler, dispatch. What is made up is what
lies between and around them: messages that get lost, come twice, late or out of order; processes
that die between any two transactions or are stopped for a while; nodes that vanish; clocks that
run at the wrong rate or jump. After every step each promise is checked (`invariants`). All of it
follows from one number, the seed: whatever went wrong once can be seen again.

    clocks       time as a database or a node has it
    hosts        a node: processes, guards, a disk, an agent that comes and goes
    profile      how bad a run is: drawn from its seed
    nodes        what goes on at the nodes
    callers      who uses the orgs, and the truth about their jobs
    failing      what fails, when, and for how long
    world        everything together, one event after the other
    invariants   what must be true after every step, and at the end; `watch` calls them
    running      many seeds, and what has happened in them
"""
