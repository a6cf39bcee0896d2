"""Where a job runs: placement, fragmentation and backfill."""
