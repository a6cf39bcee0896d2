"""A world to begin with: three tiers on eight nodes for a day, with more demand than there is room.

It is what `bursar simulate` shows if it is given no file, and a file to start from.
"""

from typing import Final

EXAMPLE: Final = """\
# A day on 64 GPUs. Spans: 30s, 10m, 2h, 1d. Credits: 2.5 is two and a half.
days: 1
restart_cost: 30s
fleet:
  - {gpu_type: H100, nodes: 8, gpus: 8, price: 2.5, fails_every: 60d, repaired_in: 1h}
tenants:
  - org: acme
    tier: enterprise
    users: 4
    arrivals: {kind: diurnal, per_hour: 10, burst: 2, peak_at: 14h}
    gpus: {1: 6, 2: 2, 4: 1, 8: 1}
    run_median: 20m
    checkpoint_every: 10m
    checkpoint_cost: 5s
  - org: beta
    tier: paid
    users: 3
    arrivals: {kind: bursty, per_hour: 12, burst: 10, burst_every: 2h, burst_lasts: 5m}
    gpus: {1: 6, 2: 2, 8: 1, 16: 1}
    run_median: 15m
    checkpoint_every: 10m
    checkpoint_cost: 5s
  - org: flooder
    tier: paid
    arrivals: {kind: flood, per_hour: 90, begins: 9h, ends: 11h}
    run_median: 10m
  - org: students
    tier: free
    users: 20
    arrivals: {kind: poisson, per_hour: 15}
    run_median: 10m
shares:
  paid/beta: {weight: 2}
credits:
  students: 500
"""
