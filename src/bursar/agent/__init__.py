"""The program on a node: it asks its pool for leases, runs what they say, and reports it."""
