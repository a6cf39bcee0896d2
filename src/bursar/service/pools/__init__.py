"""Pools at work: their rows kept in step with the rules, and a leader that decides.

keeper     one pool: whatever is asked of it, in transactions of many
leader     who leads a pool: rounds of the scheduler, and terms of leading
dealing    what pools are told besides their jobs: policies, and slices of quotas
"""
