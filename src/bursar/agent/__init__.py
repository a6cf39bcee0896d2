"""The agent of a node: it fetches leases from its pool, runs their commands and reports."""
