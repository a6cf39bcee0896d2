"""Queries that find stored rows which contradict each other."""
