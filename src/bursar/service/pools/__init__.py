"""Pools: transactions on their rows, their leaders, and the work around them.

host                the pools that a process serves, and their workers
pool                one pool: its memory, and transactions of many requests
pooled_lane         lanes of pools that share a few connections
leader              leads a pool, or stands by: rounds of the scheduler
quota_distribution  delivers policies and slices of quotas to pools
scaling             orders nodes and returns them, as the scheduler advises
provisioning        calls the operator's program that provides nodes
node_orders         orders and settings of autoscaling, for the API
node_cleanup        finished jobs and progress reports, for agents
logs                the output of jobs
replay              repeats recorded scheduling decisions
"""
