"""The simulator: jobs arrive, run and fail by a virtual clock and a seed.

The scheduler and the ledger are those of `bursar.core`; the simulator has no copy of them. A run
depends only on its arguments: the same world, policy and seed give the same bytes.
"""
