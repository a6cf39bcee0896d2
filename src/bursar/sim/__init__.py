"""A simulation around the rules: jobs arrive, run and fail by a virtual clock and a seed.

The scheduler and the ledger are those of `bursar.core`; nothing of them is imitated here. A run
follows from its arguments alone: the same world, policy and seed give the same bytes.
"""
