"""Rows of a pool: nodes, the queue, leases, and messages to orgs (`core.dispatch.state`).

rows               the columns of each value, and the statements about them
loader             reads rows: all live ones, those that changed, or by key
writer             writes the changes of a transaction, one statement per table
policy_and_quotas  the policy in force, slices of quotas, past usage
events             the audit stream
node_orders        orders of nodes, and the settings of autoscaling
node_cleanup       finished jobs for agents, and progress reports
logs               the output of jobs
"""
