"""The built-in scenarios of `bursar simulate`, which can also serve as templates.

`day` is the default.
"""

from typing import Final

_DAY: Final = """\
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
_OVERLOAD: Final = """\
# A week of twice the work that 40 GPUs can do, from three tiers. A tenant comes in waves, one in
# bursts, one floods for two days. Jobs are let in as the service lets them in: an org has six that
# wait at most, and when starts are late the lowest tier is turned away first.
days: 7
drain: 7d
restart_cost: 30s
admission: {every: 1m}
policy: {turn_after: 0}  # no job gives up its turn to others of its org
tiers:
  enterprise: {queue_max: 6, floor_ppm: 500000}
  paid: {queue_max: 6, floor_ppm: 300000}
  free: {queue_max: 6, floor_ppm: 50000}
fleet:
  - {gpu_type: H100, nodes: 5, gpus: 8, price: 2.5}
tenants:
  - org: acme
    tier: enterprise
    users: 3
    arrivals: {kind: diurnal, per_hour: 4.4, burst: 2}
    gpus: {1: 6, 2: 3, 4: 1}
    run_median: 2h
    run_sigma: 0.7
    run_most: 6h
    slack: 1.5
    checkpoint_every: 10m
    checkpoint_cost: 5s
  - org: bolt
    tier: enterprise
    users: 2
    arrivals: {kind: poisson, per_hour: 3}
    gpus: {1: 6, 2: 3, 4: 1}
    run_median: 2h
    run_sigma: 0.7
    run_most: 6h
    slack: 1.5
    checkpoint_every: 10m
    checkpoint_cost: 5s
  - org: cargo
    tier: paid
    users: 3
    arrivals: {kind: bursty, per_hour: 4.5}
    gpus: {1: 6, 2: 3, 4: 1}
    run_median: 2h
    run_sigma: 0.7
    run_most: 6h
    slack: 1.5
    checkpoint_every: 10m
    checkpoint_cost: 5s
  - org: delta
    tier: paid
    users: 3
    arrivals: {kind: poisson, per_hour: 4}
    gpus: {1: 6, 2: 3, 4: 1}
    run_median: 2h
    run_sigma: 0.7
    run_most: 6h
    slack: 1.5
    checkpoint_every: 10m
    checkpoint_cost: 5s
  - org: students
    tier: free
    users: 20
    arrivals: {kind: poisson, per_hour: 5}
    run_median: 2h
    run_sigma: 0.7
    run_most: 6h
    slack: 1.5
    checkpoint_every: 10m
    checkpoint_cost: 5s
  - org: hobby
    tier: free
    users: 10
    arrivals: {kind: flood, per_hour: 12, begins: 2d, ends: 4d}
    run_median: 2h
    run_sigma: 0.7
    run_most: 6h
    slack: 1.5
"""

WORLDS: Final = {"day": _DAY, "overload": _OVERLOAD}
