"""The processes that `bursar up` starts beside the service: nodes with simulated GPUs, and for
`--demo` tenants that submit jobs. All of them talk to the service over HTTP.

launcher          starts and stops everything
children          child processes: restarted when they exit, stopped with the service
die_with_parent   makes the kernel stop a child when its parent dies
nodes             agents, each with its own name, key and folder
provisioning      simulated nodes that the autoscaler orders
demo_load         the tenants' jobs
"""
