"""The jobs of a demonstration: three tenants who want more than there is, for as long as it runs.

    python -m bursar.cli.local_cluster.demo_load KEYS [SEED]

It is a client like any other: all it has are the service's URL and the tenants' own keys.

programs   what jobs are told to run, and in jobs/ the programs themselves
mix        which job a tenant asks for next, drawn from a seed
sending    asking for jobs, cancelling some, buying credits when they run low
"""
