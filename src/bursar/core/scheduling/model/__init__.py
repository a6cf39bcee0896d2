"""What the scheduler knows: nodes, jobs, the cluster, policies and recorded inputs."""
