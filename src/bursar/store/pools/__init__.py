"""A pool's rows: machines, the queue, leases, and messages to orgs (`core.dispatch.state`).

rows       what is kept of each value, and the statements that write it
loading    what a transaction reads: all that lives, or what is asked for
saving     what a transaction has changed, written set-wise
"""
