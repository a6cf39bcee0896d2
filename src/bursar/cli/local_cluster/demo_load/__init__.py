"""The demo load: three tenants that submit more jobs than the pool can run at once.

    python -m bursar.cli.local_cluster.demo_load KEYS [SEED]

It is an ordinary API client with the service's URL and the tenants' keys.

programs   the commands of the jobs; the programs themselves are in jobs/
mix        draws a tenant's next job from a seed
sender     submits and cancels jobs, and buys credits when they run low
"""
